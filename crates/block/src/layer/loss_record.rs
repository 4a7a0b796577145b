//! A layer that records which losses the flushes of a device report.

use std::future::Future;
use std::sync::Arc;

use crate::completion::{Completion, Workers};
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::losses::Losses;
use crate::request::{OperationKind, Request};

/// A device whose clients can learn of the losses that other clients' flushes report, also of
/// flushes that nobody awaits any more.
pub struct LossRecordLayer {
    inner: SharedDevice,
    losses: Arc<Losses>,
    workers: Workers,
}

impl LossRecordLayer {
    /// `inner` with a record that is empty.
    pub fn new(inner: SharedDevice) -> Self {
        Self { inner, losses: Arc::default(), workers: Workers::new() }
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

impl Device for LossRecordLayer {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let is_flush = request.operation.kind() == OperationKind::Flush;
        let completion = self.inner.submit(request);
        if !is_flush {
            return completion;
        }
        let losses = Arc::clone(&self.losses);
        completion.then(&self.workers, move |response| {
            losses.note(&response.result);
            Completion::ready(response)
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

    use base::executor::Executor;

    use super::*;
    use crate::completion::SlotSender;
    use crate::error::{Error, ErrorKind};
    use crate::request::Response;
    use base::buffer::Buffer;

    /// A device whose flushes wait for the test.
    struct Waiting(Mutex<Vec<SlotSender>>);

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

    #[test]
    fn a_loss_is_recorded_though_nobody_awaits_the_flush_that_reports_it() {
        let mut executor = Executor::in_order();
        let waiting = Arc::new(Waiting(Mutex::default()));
        let layer = LossRecordLayer::new(waiting.clone());
        executor.spawn(layer.run());
        drop(layer.submit(Request::flush()));
        drop(layer.submit(Request::write(0, Buffer::zeroed(512), false)));
        executor.run_until_stalled();
        for sender in waiting.0.lock().unwrap().drain(..) {
            sender.complete(Response::failed(Error::new(ErrorKind::Media, "lost"), Buffer::empty()));
        }
        executor.run_until_stalled();
        assert_eq!(layer.losses().count(), 1, "that of the flush");
    }
}
