//! A layer that records which losses the flushes of a device report. All changes of its clients go
//! through it, so that it knows whether anything was at stake.

use std::future::Future;
use std::sync::Arc;

use base::clock::Clock;

use crate::completion::{Completion, Workers};
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::losses::Losses;
use crate::request::{Operation, Request};

/// A device whose clients can learn of the losses that other clients' flushes report, also of
/// flushes that nobody awaits any more.
pub struct LossRecordLayer {
    inner: SharedDevice,
    losses: Arc<Losses>,
    workers: Workers,
}

impl LossRecordLayer {
    /// `inner` with a record that is empty.
    pub fn new(inner: SharedDevice, clock: Arc<dyn Clock>) -> Self {
        Self { inner, losses: Arc::new(Losses::new(clock)), workers: Workers::new() }
    }

    /// The record.
    pub fn losses(&self) -> &Arc<Losses> {
        &self.losses
    }

    /// Carries on flushes that nobody awaits, without end.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let workers = self.workers.clone();
        async move { workers.run().await }
    }
}

/// Whether it is a change that is durable only after a flush.
fn needs_flush(operation: &Operation) -> bool {
    match operation {
        Operation::Write { fua, .. } | Operation::WriteZeroes { fua, .. } => !fua,
        Operation::Discard { .. } => true,
        Operation::Read { .. } | Operation::Flush | Operation::Extents { .. } => false,
    }
}

impl Device for LossRecordLayer {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let losses = Arc::clone(&self.losses);
        if matches!(request.operation, Operation::Flush) {
            return self.inner.submit(request).then(&self.workers, move |response| {
                losses.note_flush(&response.result);
                Completion::ready(response)
            });
        }
        if !needs_flush(&request.operation) {
            return self.inner.submit(request);
        }
        let failed_before = losses.failed_flushes();
        // What nobody takes is acknowledged to nobody.
        self.inner.submit(request).watched(move |response| {
            if response.result.is_ok() {
                losses.note_change(failed_before);
            }
        })
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.inner.copies()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use base::buffer::Buffer;
    use base::clock::VirtualClock;
    use base::executor::Executor;

    use super::*;
    use crate::completion::SlotSender;
    use crate::error::{Error, ErrorKind};
    use crate::request::Response;

    /// A device whose requests wait for the test.
    #[derive(Default)]
    struct Waiting(Mutex<Vec<SlotSender>>);

    impl Waiting {
        /// Ends all requests: well, or with a loss.
        fn end(&self, is_lost: bool) {
            for sender in self.0.lock().unwrap().drain(..) {
                let lost = || Response::failed(Error::new(ErrorKind::Media, "lost"), Buffer::empty());
                sender.complete(if is_lost { lost() } else { Response::done(Buffer::empty()) });
            }
        }
    }

    impl Device for Waiting {
        fn geometry(&self) -> Geometry {
            Geometry::plain(1 << 20)
        }

        fn identity(&self) -> Identity {
            Identity::default()
        }

        fn submit(&self, _: Request) -> Completion {
            let (completion, sender) = Completion::slot();
            self.0.lock().unwrap().push(sender);
            // Like a layer that has more to do afterwards.
            Completion::task(&Workers::new(), completion)
        }
    }

    fn layer() -> (Executor, Arc<Waiting>, LossRecordLayer) {
        let mut executor = Executor::in_order();
        let waiting = Arc::<Waiting>::default();
        let layer = LossRecordLayer::new(waiting.clone(), Arc::new(VirtualClock::new()));
        executor.spawn(layer.run());
        (executor, waiting, layer)
    }

    #[test]
    fn a_loss_is_recorded_though_nobody_awaits_the_flush_that_reports_it() {
        let (mut executor, waiting, layer) = layer();
        drop(layer.submit(Request::flush()));
        drop(layer.submit(Request::write(0, Buffer::zeroed(512), false)));
        executor.run_until_stalled();
        waiting.end(true);
        executor.run_until_stalled();
        assert_eq!(layer.losses().count(), 1, "that of the flush");
    }

    #[test]
    fn only_changes_that_were_acknowledged_before_they_were_durable_are_at_stake() {
        type Make = fn() -> Request;
        let cases: [(&str, bool, bool, Make); 8] = [
            ("a write", true, false, || Request::write(0, Buffer::zeroed(512), false)),
            ("zeroes", true, false, || Request::write_zeroes(0, 512, false, false)),
            ("a discard", true, false, || Request::discard(0, 512)),
            ("a durable write", false, false, || Request::write(0, Buffer::zeroed(512), true)),
            ("durable zeroes", false, false, || Request::write_zeroes(0, 512, true, false)),
            ("a read", false, false, || Request::read(0, Buffer::zeroed(512))),
            ("extents", false, false, || Request::extents(0, 512)),
            ("a write that failed", false, true, || Request::write(0, Buffer::zeroed(512), false)),
        ];
        for (what, is_at_stake, fails, make) in cases {
            let (mut executor, waiting, layer) = layer();
            let mut run = |request: Request, is_lost: bool| {
                let completion = layer.submit(request);
                waiting.end(is_lost);
                executor.block_on(completion).result.is_ok()
            };
            assert!(!run(Request::flush(), true));
            assert_eq!(run(make(), fails), !fails);
            assert_eq!(layer.losses().count(), 1, "{what}");
            assert!(!run(Request::flush(), true));
            assert_eq!(layer.losses().count(), 1 + u64::from(is_at_stake), "{what}");
        }
    }

    #[test]
    fn a_change_over_a_flush_that_fails_is_told_though_who_asks_next_was_told() {
        let (mut executor, waiting, layer) = layer();
        let write = layer.submit(Request::write(0, Buffer::zeroed(512), false));
        let sender = waiting.0.lock().unwrap().remove(0);
        let flush = layer.submit(Request::flush());
        waiting.end(true);
        assert!(executor.block_on(flush).result.is_err());
        sender.complete(Response::done(Buffer::empty()));
        assert!(executor.block_on(write).result.is_ok());
        let flush = layer.submit(Request::flush());
        waiting.end(false);
        assert!(executor.block_on(flush).result.is_ok());
        assert_eq!(layer.losses().count(), 2);
    }
}
