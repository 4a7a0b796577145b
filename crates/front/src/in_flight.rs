//! Futures under way, in the order in which they end.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use block::PollWakes;
use futures_util::stream::{FuturesUnordered, Stream};

/// Looks at what has become ready during a look, before the owner is woken for it.
const LOOKS_MAX: usize = 2;

/// A set of futures under way. It wakes its owner when one of them can go on.
///
/// `FuturesUnordered` wakes the task that polls it whenever it has polled all it holds and none has ended, so that
/// other tasks come between. Where one request is under way that is a second run of the whole task for each request.
/// Here it is one more look at an empty queue.
pub(crate) struct InFlight<F> {
    futures: FuturesUnordered<F>,
    wakes: PollWakes,
}

impl<F> Default for InFlight<F> {
    fn default() -> Self {
        Self { futures: FuturesUnordered::new(), wakes: PollWakes::default() }
    }
}

impl<F> InFlight<F> {
    /// Adds one. Nothing polls it before the next [`InFlight::poll_ended`].
    pub(crate) fn push(&self, future: F) {
        self.futures.push(future);
    }
}

impl<F: Future> InFlight<F> {
    /// The output of one that has ended; `None` when none is under way. If `Pending`, the task is woken when one of
    /// them can go on.
    pub(crate) fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.futures.is_empty() {
            return Poll::Ready(None);
        }
        self.wakes.register(context.waker());
        for _ in 0..LOOKS_MAX {
            self.wakes.begin();
            let polled = Pin::new(&mut self.futures).poll_next(&mut Context::from_waker(self.wakes.waker()));
            let was_woken = self.wakes.end();
            match polled {
                Poll::Ready(ended) => {
                    // The owner need not come back by itself.
                    if was_woken {
                        context.waker().wake_by_ref();
                    }
                    return Poll::Ready(ended);
                }
                Poll::Pending if !was_woken => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::{Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A future that ends once `is_over`, and where to wake it.
    #[derive(Clone, Default)]
    struct Gate(Arc<Mutex<(bool, Option<Waker>)>>);

    impl Gate {
        async fn passed(self) {
            poll_fn(|context| {
                let mut state = self.0.lock().unwrap();
                state.1 = Some(context.waker().clone());
                if state.0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }

        fn open(&self) {
            let waker = {
                let mut state = self.0.lock().unwrap();
                state.0 = true;
                state.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn counted() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (Arc::clone(&count), Waker::from(count))
    }

    #[test]
    fn one_future_that_is_not_ready_wakes_nobody_until_it_is() {
        let (count, waker) = counted();
        let mut context = Context::from_waker(&waker);
        let mut set = InFlight::default();
        let gate = Gate::default();
        set.push(Box::pin(gate.clone().passed()));
        assert_eq!(set.poll_ended(&mut context), Poll::Pending);
        assert_eq!(count.0.load(Ordering::SeqCst), 0, "nothing is to be done");
        gate.open();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(set.poll_ended(&mut context), Poll::Ready(Some(())));
        assert_eq!(set.poll_ended(&mut context), Poll::Ready(None));
    }

    #[test]
    fn a_future_that_wakes_itself_is_polled_again_though_not_in_the_same_run() {
        let (count, waker) = counted();
        let mut context = Context::from_waker(&waker);
        let mut set = InFlight::default();
        set.push(poll_fn(|context: &mut Context<'_>| -> Poll<()> {
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        for round in 1..=3 {
            assert_eq!(set.poll_ended(&mut context), Poll::Pending);
            assert_eq!(count.0.load(Ordering::SeqCst), round, "the owner comes again");
        }
    }

    #[test]
    fn what_becomes_ready_while_another_ends_is_not_forgotten() {
        let (count, waker) = counted();
        let mut context = Context::from_waker(&waker);
        let mut set = InFlight::default();
        let gate = Gate::default();
        set.push(Box::pin(gate.clone().passed()) as Pin<Box<dyn Future<Output = ()>>>);
        assert_eq!(set.poll_ended(&mut context), Poll::Pending);
        set.push(Box::pin(async move { gate.open() }));
        assert_eq!(set.poll_ended(&mut context), Poll::Ready(Some(())));
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "the owner may have stopped after one");
        assert_eq!(set.poll_ended(&mut context), Poll::Ready(Some(())));
    }

    #[tokio::test]
    async fn wakes_from_another_thread_are_never_lost() {
        for _ in 0..2_000 {
            let gate = Gate::default();
            let opener = std::thread::spawn({
                let gate = gate.clone();
                move || gate.open()
            });
            let mut set = InFlight::default();
            set.push(Box::pin(gate.passed()));
            poll_fn(|context| set.poll_ended(context)).await;
            opener.join().unwrap();
        }
    }
}
