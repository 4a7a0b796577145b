//! A device that takes its time, and records its requests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::buffer::Buffer;
use block::{Completion, Device, Error, ErrorKind, Geometry, Identity, OperationKind, Request, Response, SharedDevice};

use super::memory;

/// Bytes of the device.
pub(crate) const SIZE: u64 = 64 << 20;

/// A device that records its requests. It answers at once, or one request after the other in order.
pub(crate) struct Model {
    pub(crate) below: SharedDevice,
    pub(crate) asked: Mutex<Vec<(OperationKind, u64, u64)>>,
    /// Time for 64 KiB, or for a smaller request; `None` answers at once, zero answers by a task of
    /// the runtime without delay.
    pub(crate) time: Option<Duration>,
    /// Whether requests do not wait for each other, and each takes that long.
    pub(crate) is_parallel: bool,
    pub(crate) line: Arc<tokio::sync::Mutex<()>>,
    /// Flushes that fail before one succeeds.
    pub(crate) failing_flushes: AtomicUsize,
}

impl Model {
    pub(crate) fn new(time: Option<Duration>) -> Arc<Self> {
        let (asked, failing_flushes) = (Mutex::default(), AtomicUsize::new(0));
        let (below, line) = (memory(SIZE), Arc::default());
        Arc::new(Self { below, asked, time, is_parallel: false, line, failing_flushes })
    }

    /// Takes the requests since the last call.
    pub(crate) fn take_asked(&self) -> Vec<(OperationKind, u64, u64)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Device for Model {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let kind = request.operation.kind();
        let range = request.range().unwrap_or_default();
        self.asked.lock().unwrap().push((kind, range.offset, range.length));
        let fails = kind == OperationKind::Flush
            && self
                .failing_flushes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok();
        let answer = self.below.submit(request);
        let Some(time) = self.time else { return answer };
        let (completion, sender) = Completion::slot();
        let (line, is_parallel) = (Arc::clone(&self.line), self.is_parallel);
        tokio::spawn(async move {
            if is_parallel {
                tokio::time::sleep(time).await;
            } else {
                let _turn = line.lock().await;
                if !time.is_zero() {
                    tokio::time::sleep(time * range.length.div_ceil(64 << 10).max(1) as u32).await;
                }
            }
            let answer = answer.await;
            sender.complete(if fails {
                Response::failed(Error::new(ErrorKind::Media, "planted"), Buffer::empty())
            } else {
                answer
            });
        });
        completion
    }
}
