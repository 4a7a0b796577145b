//! A layer that turns durable writes into plain writes that share a flush: for files and disks
//! without FUA, that is without writes that are durable by themselves.
//!
//! ```text
//! write, fua ──► plain write ──► waits ──► flush, for all that wait ──► answered, all alike
//! flush ────────────────────────► waits ──┘
//! ```
//! `FileDevice` does the same past the page cache of such a disk, with the same [`SharedSync`];
//! here it is a layer over any device. Over the medium of [`crash`](super::crash) it shows what a
//! stack must survive there. A failed flush fails all that is written by then, and every flush and
//! durable write after it, until the layer is made anew.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::buffer::Buffer;

use crate::completion::{Completion, SlotSender, Workers};
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::error::{Error, ErrorKind};
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::request::{Operation, Request, Response};
use crate::shared_sync::SharedSync;

/// Makes durable writes plain writes that share a flush. Clones are the same device.
#[derive(Clone)]
pub struct SharedFlushLayer {
    shared: Arc<Shared>,
}

struct Shared {
    inner: SharedDevice,
    workers: Workers,
    /// Short sections, never across a submit.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sync: SharedSync<Waiting>,
    is_broken: bool,
}

/// A request that is answered after a flush.
struct Waiting {
    sender: SlotSender,
    buffer: Buffer,
}

fn broken() -> Error {
    Error::new(ErrorKind::Media, "an earlier flush failed: nothing is promised until the device is opened again")
}

impl SharedFlushLayer {
    /// A layer over `inner`; `workers` carry on requests that are not awaited.
    pub fn new(inner: SharedDevice, workers: &Workers) -> Self {
        let shared = Shared { inner, workers: workers.clone(), state: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a durable write as the plain write `plain` and a shared flush.
    fn write(self: &Arc<Self>, plain: Request) -> Completion {
        self.lock().sync.begin_write();
        let (completion, sender) = Completion::slot();
        let shared = Arc::clone(self);
        self.carry_on(plain, move |response| shared.written(response, sender));
        completion
    }

    fn written(self: &Arc<Self>, response: Response, sender: SlotSender) {
        let mut state = self.lock();
        if response.result.is_err() {
            state.sync.write_failed();
            drop(state);
            sender.complete(response);
        } else {
            state.sync.written(Waiting { sender, buffer: response.buffer });
            drop(state);
        }
        self.flush_if_due();
    }

    fn flush(self: &Arc<Self>) -> Completion {
        let (completion, sender) = Completion::slot();
        self.lock().sync.join(Waiting { sender, buffer: Buffer::empty() });
        self.flush_if_due();
        completion
    }

    fn flush_if_due(self: &Arc<Self>) {
        let mut state = self.lock();
        if !state.sync.begin_sync() {
            return;
        }
        if state.is_broken {
            drop(state);
            return self.flushed(Response::failed(broken(), Buffer::empty()));
        }
        drop(state);
        let shared = Arc::clone(self);
        self.carry_on(Request::flush(), move |response| shared.flushed(response));
    }

    fn flushed(self: &Arc<Self>, response: Response) {
        let over = {
            let mut state = self.lock();
            match &response.result {
                Ok(()) => state.sync.synced(),
                Err(_) => {
                    state.is_broken = true;
                    state.sync.sync_failed()
                }
            }
        };
        for Waiting { sender, buffer } in over {
            sender.complete(Response { result: response.result.clone(), ..Response::done(buffer) });
        }
        self.flush_if_due();
    }

    /// Submits a request; `step` gets the answer, also when the request is not awaited.
    fn carry_on(&self, request: Request, step: impl FnOnce(Response) + Send + 'static) {
        drop(self.inner.submit(request).then(&self.workers, |response| {
            step(response);
            Completion::ready(Response::done(Buffer::empty()))
        }));
    }
}

impl Device for SharedFlushLayer {
    fn geometry(&self) -> Geometry {
        self.shared.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.shared.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let shared = &self.shared;
        let Request { offset, operation, submitter } = request;
        let plain = match operation {
            Operation::Write { buffer, fua: true } => Operation::Write { buffer, fua: false },
            Operation::WriteZeroes { length, fua: true, may_discard } => {
                Operation::WriteZeroes { length, fua: false, may_discard }
            }
            Operation::Flush => return shared.flush(),
            operation => return shared.inner.submit(Request { offset, operation, submitter }),
        };
        let plain = Request { offset, operation: plain, submitter };
        if shared.lock().is_broken { Completion::ready(plain.fail(broken())) } else { shared.write(plain) }
    }

    fn subscribe(&self) -> EventReceiver {
        self.shared.inner.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.shared.inner.copies()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::executor::{Executor, block_on};
    use base::random::Random;
    use futures_util::future::join_all;

    use super::*;
    use crate::device::DeviceExt;
    use crate::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported};
    use crate::layer::delay::Latency;

    const BLOCK_BYTES: usize = 1024;
    const BLOCKS: u64 = 32;
    const WRITES: u64 = 60;

    fn over(executor: &mut Executor, medium: &CrashLayer) -> SharedFlushLayer {
        let workers = Workers::new();
        let latency = Latency::Between(Duration::from_micros(10), Duration::from_micros(300));
        let timed = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
        let layer = SharedFlushLayer::new(Arc::new(timed), &workers);
        executor.spawn(async move { workers.run().await });
        layer
    }

    /// Writes each block again and again, one write after the other. Returns for each the newest
    /// acknowledged and the newest sent write.
    fn work(executor: &mut Executor, layer: &SharedFlushLayer, seed: u64) -> Vec<(u8, u8)> {
        const WRITERS: u64 = 8;
        let writer = |writer: u64| {
            let layer = layer.clone();
            async move {
                let mut random = Random::new(seed ^ (writer << 32));
                let mut blocks = vec![(0, 0); BLOCKS as usize];
                for number in 1..=WRITES / WRITERS {
                    let block = random.below(BLOCKS / WRITERS) * WRITERS + writer;
                    blocks[block as usize].1 = number as u8;
                    let bytes = Buffer::copy_of(&[number as u8; BLOCK_BYTES]);
                    if layer.write(block * BLOCK_BYTES as u64, bytes, true).await.is_err() {
                        break;
                    }
                    blocks[block as usize].0 = number as u8;
                }
                blocks
            }
        };
        let all = executor.block_on(join_all((0..WRITERS).map(writer)));
        (0..BLOCKS as usize).map(|block| all[block % WRITERS as usize][block]).collect()
    }

    fn check(after: &CrashLayer, blocks: &[(u8, u8)], context: &str) {
        for (number, (acknowledged, sent)) in blocks.iter().enumerate() {
            let bytes = after.durable_bytes((number * BLOCK_BYTES) as u64, BLOCK_BYTES);
            for unit in bytes.chunks(512) {
                assert!(unit.iter().all(|byte| *byte == unit[0]), "{context}, block {number}: a unit is torn");
                let is_there = (*acknowledged..=*sent).contains(&unit[0]);
                assert!(is_there, "{context}, block {number}: {} of {acknowledged}..={sent}", unit[0]);
            }
        }
    }

    #[test]
    fn what_is_acknowledged_after_a_shared_flush_survives_a_power_loss_at_every_write() {
        let test = crate::crash_test!();
        for seed in test.seeds(0, 4, 1) {
            test.crash_at_every(seed, 2 * WRITES, |nth| {
                let mut executor = Executor::new(seed);
                let medium = CrashLayer::new(1 << 20, seed).fail_write(nth);
                let layer = over(&mut executor, &medium);
                let blocks = work(&mut executor, &layer, seed);
                let has_crashed = medium.power().is_lost();
                let after = medium.after_power_loss_as(Loss::Seeded(seed ^ nth), &Power::new());
                check(&after, &blocks, &format!("seed {seed}, power lost at write {nth}"));
                has_crashed
            });
        }
    }

    /// Whatever the flush dropped, and whether the medium reports it once or for good.
    #[test]
    fn what_is_acknowledged_survives_a_flush_that_fails_and_drops() {
        let test = crate::crash_test!();
        for seed in test.seeds(0, 12, 1) {
            for (effect, reported) in [
                (FlushEffect::Drops, Reported::Once),
                (FlushEffect::DropsUnseen, Reported::Once),
                (FlushEffect::DropsUnseen, Reported::ForGood),
            ] {
                let _printed = test.on_panic(seed, None);
                let mut executor = Executor::new(seed);
                let medium = CrashLayer::new(1 << 20, seed);
                medium.fail_flush_as(3 + seed % 4, ErrorKind::Media, effect, reported);
                let layer = over(&mut executor, &medium);
                let blocks = work(&mut executor, &layer, seed);
                let flushed = layer.clone();
                let flush = executor.block_on(async move { flushed.flush().await });
                assert_eq!(flush.map_err(|error| error.kind()), Err(ErrorKind::Media), "told once is remembered");
                check(&medium.after_power_loss(), &blocks, &format!("seed {seed}, {effect:?}, {reported:?}"));
            }
        }
    }

    #[test]
    fn writes_at_once_share_flushes_and_plain_ones_ask_for_none() {
        let mut executor = Executor::new(1);
        let medium = CrashLayer::new(1 << 20, 1);
        let layer = over(&mut executor, &medium);
        let plain = layer.clone();
        executor.block_on(async move { plain.write(0, Buffer::zeroed(512), false).await.map(drop) }).unwrap();
        assert_eq!(medium.flushes_seen(), 0);
        let writes: Vec<_> = (0..32).map(|number| layer.write(number * 512, Buffer::zeroed(512), true)).collect();
        let results = executor.block_on(join_all(writes));
        assert!(results.iter().all(Result::is_ok));
        assert!((1..=16).contains(&medium.flushes_seen()), "{} flushes", medium.flushes_seen());
    }

    #[test]
    fn over_a_device_that_answers_at_once_nothing_waits() {
        let medium = CrashLayer::new(1 << 20, 1);
        let layer = SharedFlushLayer::new(Arc::new(medium.clone()), &Workers::new());
        block_on(layer.write(0, Buffer::copy_of(&[7; 512]), true)).unwrap();
        block_on(layer.write_zeroes(512, 512, true, false)).unwrap();
        assert_eq!(medium.durable_bytes(0, 512), [7; 512]);
        medium.fail_write_once(medium.writes_seen(), ErrorKind::NoSpace);
        let refused = block_on(layer.write(0, Buffer::copy_of(&[8; 512]), true)).map_err(|error| error.kind());
        assert_eq!(refused.err(), Some(ErrorKind::NoSpace));
        block_on(layer.flush()).expect("a write that fails breaks nothing");
    }
}
