//! A layer with blocks of 512 bytes over a device of larger ones: a disk of 4096-byte sectors
//! (4Kn), or a file past the page cache of one.
//!
//! Requests of whole blocks are passed on. For others the blocks at the ends are read, changed and
//! written whole.
//!
//! - **Neighbours are safe.** The bytes beside a write are written again as they were read, under a
//!   lock on their blocks, so no other write comes between. If the power fails at such a write, a
//!   medium that lands whole blocks has either the old block or the new one, and one that lands
//!   units of 512 bytes has each unit old or new: for the neighbours both are the same. So durable
//!   data stays, and layers that rely on units of 512 bytes may do so here.
//! - A durable write also makes its neighbours in the same block durable: earlier than requested,
//!   never later.
//! - Two writes into one block are carried out one after the other. Consecutive small writes cost a
//!   read each.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;

use crate::completion::{Completion, Workers};
use crate::copies::Copies;
use crate::device::{Device, DeviceExt, SharedDevice};
use crate::error::Error;
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::range_lock::{RangeGuard, RangeLock};
use crate::request::{Extent, Operation, Request, Response};

/// The blocks that this layer has, in bytes.
pub const BLOCK_BYTES: u32 = 512;

/// Offers blocks of 512 bytes over a device of larger ones.
pub struct SmallBlockLayer {
    inner: SharedDevice,
    block_bytes: u64,
    /// Requests of whole blocks hold their blocks shared, as do reads; changes of a part of a block
    /// hold them exclusively.
    ranges: RangeLock,
    workers: Workers,
}

impl SmallBlockLayer {
    /// A layer over `inner`.
    pub fn new(inner: SharedDevice) -> Self {
        let block_bytes = u64::from(inner.geometry().logical_block_bytes);
        Self { inner, block_bytes, ranges: RangeLock::new(), workers: Workers::new() }
    }

    /// Carries on requests that are not awaited. Ends when the layer is dropped and they are over.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let workers = self.workers.clone();
        async move { workers.run().await }
    }

    fn whole(&self) -> Whole {
        Whole { inner: Arc::clone(&self.inner), block_bytes: self.block_bytes }
    }
}

impl Drop for SmallBlockLayer {
    fn drop(&mut self) {
        self.workers.stop();
    }
}

/// Access to the device below in whole blocks.
struct Whole {
    inner: SharedDevice,
    block_bytes: u64,
}

impl Whole {
    /// The blocks that `range` touches.
    fn around(&self, range: ByteRange) -> ByteRange {
        let offset = range.offset - range.offset % self.block_bytes;
        ByteRange { offset, length: range.end().next_multiple_of(self.block_bytes) - offset }
    }

    /// The blocks inside `range`, perhaps none.
    fn within(&self, range: ByteRange) -> ByteRange {
        let offset = range.offset.next_multiple_of(self.block_bytes);
        let end = range.end() - range.end() % self.block_bytes;
        ByteRange { offset, length: end.saturating_sub(offset) }
    }

    /// Cuts whole blocks into the largest requests that the device takes.
    fn pieces(&self, blocks: ByteRange) -> impl Iterator<Item = ByteRange> + use<> {
        let most = u64::from(self.inner.geometry().transfer_bytes_max);
        let most = (most - most % self.block_bytes).max(self.block_bytes);
        (blocks.offset..blocks.end())
            .step_by(most as usize)
            .map(move |offset| ByteRange { offset, length: most.min(blocks.end() - offset) })
    }

    async fn carry_out(&self, request: Request, range: ByteRange) -> Response {
        let done = |result| Response { result, ..Response::done(Buffer::empty()) };
        match request.operation {
            Operation::Read { mut buffer } => {
                let result = self.read(range, &mut buffer).await;
                Response { result, ..Response::done(buffer) }
            }
            Operation::Write { buffer, fua } => {
                let result = self.write(range, Some(&buffer), fua).await;
                Response { result, ..Response::done(buffer) }
            }
            Operation::WriteZeroes { fua, may_discard, .. } => done(
                self.clear(range, fua, |device, middle| {
                    device.write_zeroes(middle.offset, middle.length, fua, may_discard)
                })
                .await,
            ),
            Operation::Discard { .. } => {
                done(self.clear(range, false, |device, middle| device.discard(middle.offset, middle.length)).await)
            }
            Operation::Extents { .. } => match self.extents(range).await {
                Ok(extents) => Response { extents, ..done(Ok(())) },
                Err(error) => done(Err(error)),
            },
            Operation::Flush => done(self.inner.flush().await),
        }
    }

    async fn read(&self, range: ByteRange, target: &mut [u8]) -> Result<(), Error> {
        for piece in self.pieces(self.around(range)) {
            let bytes = self.inner.read(piece.offset, Buffer::zeroed(piece.length as usize)).await?;
            if let Some((inside, outside)) = places(piece, range) {
                target[outside].copy_from_slice(&bytes[inside]);
            }
        }
        Ok(())
    }

    /// Writes `source`, or zeroes if there is none, together with the rest of its blocks.
    async fn write(&self, range: ByteRange, source: Option<&[u8]>, fua: bool) -> Result<(), Error> {
        for piece in self.pieces(self.around(range)) {
            let mut bytes = Buffer::zeroed(piece.length as usize);
            let Some((inside, outside)) = places(piece, range) else { continue };
            let last = piece.length - self.block_bytes;
            let (is_cut_before, is_cut_behind) = (inside.start > 0, inside.end < bytes.len());
            let ends = [is_cut_before.then_some(0), is_cut_behind.then_some(last)];
            // A block that is cut at both ends is read once.
            let ends = if ends[0] == ends[1] { [ends[0], None] } else { ends };
            for at in ends.into_iter().flatten() {
                let block = Buffer::zeroed(self.block_bytes as usize);
                let block = self.inner.read(piece.offset + at, block).await?;
                bytes[at as usize..][..block.len()].copy_from_slice(&block);
            }
            match source {
                Some(source) => bytes[inside].copy_from_slice(&source[outside]),
                None => bytes[inside].fill(0),
            }
            self.inner.write(piece.offset, bytes, fua).await?;
        }
        Ok(())
    }

    /// Clears the whole blocks in `range` with `clear_blocks`, and the rest of the range by writing
    /// zeroes.
    async fn clear<F: Future<Output = Result<(), Error>>>(
        &self,
        range: ByteRange,
        fua: bool,
        clear_blocks: impl FnOnce(&SharedDevice, ByteRange) -> F,
    ) -> Result<(), Error> {
        let middle = self.within(range);
        if middle.is_empty() {
            return self.write(range, None, fua).await;
        }
        let before = ByteRange { offset: range.offset, length: middle.offset - range.offset };
        let behind = ByteRange { offset: middle.end(), length: range.end() - middle.end() };
        for part in [before, behind].into_iter().filter(|part| !part.is_empty()) {
            self.write(part, None, fua).await?;
        }
        clear_blocks(&self.inner, middle).await
    }

    async fn extents(&self, range: ByteRange) -> Result<Vec<Extent>, Error> {
        let around = self.around(range);
        let extents = self.inner.extents(around.offset, around.length).await?;
        let inside = |extent: Extent| Some(Extent { range: extent.range.intersection(&range)?, ..extent });
        Ok(extents.into_iter().filter_map(inside).collect())
    }
}

/// The positions of the bytes that `piece` and `range` share, in each of them.
fn places(piece: ByteRange, range: ByteRange) -> Option<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let shared = piece.intersection(&range)?;
    let place = |of: ByteRange| {
        let start = (shared.offset - of.offset) as usize;
        start..start + shared.length as usize
    };
    Some((place(piece), place(range)))
}

impl Device for SmallBlockLayer {
    fn geometry(&self) -> Geometry {
        let inner = self.inner.geometry();
        Geometry { logical_block_bytes: BLOCK_BYTES, ..inner }
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let range = match self.geometry().check(&request) {
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        if range.is_empty() {
            return self.inner.submit(request);
        }
        let whole = self.whole();
        let blocks = whole.around(range);
        let is_whole = blocks == range;
        let mut place = match request.is_mutation() && !is_whole {
            true => self.ranges.exclusive(blocks),
            false => self.ranges.shared(blocks),
        };
        match place.try_take() {
            Some(guard) if is_whole => self.pass(request, guard),
            guard => self.spawn(async move {
                let _guard = match guard {
                    Some(guard) => guard,
                    None => place.await,
                };
                match is_whole {
                    true => whole.inner.submit(request).await,
                    false => whole.carry_out(request, range).await,
                }
            }),
        }
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.inner.copies()
    }
}

impl SmallBlockLayer {
    fn pass(&self, request: Request, guard: RangeGuard) -> Completion {
        self.inner.submit(request).then(&self.workers, move |response| {
            drop(guard);
            Completion::ready(response)
        })
    }

    /// An operation that goes on by itself: other requests may wait behind it, and be awaited
    /// first.
    fn spawn(&self, operation: impl Future<Output = Response> + Send + 'static) -> Completion {
        Completion::task(&self.workers, operation)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::executor::{Executor, block_on};
    use base::random::Random;
    use futures_util::future::join_all;

    use super::*;
    use crate::layer::crash::{CrashLayer, Loss, Power};
    use crate::layer::delay::Latency;

    const SIZE: u64 = 64 << 10;
    const UNIT: usize = 512;

    fn large_blocks(seed: u64) -> CrashLayer {
        let geometry = Geometry {
            logical_block_bytes: 4096,
            is_write_cache_volatile: true,
            transfer_bytes_max: 8192,
            ..Geometry::plain(SIZE)
        };
        CrashLayer::new(SIZE, seed).with_geometry(geometry)
    }

    fn over(executor: &mut Executor, medium: &CrashLayer) -> Arc<SmallBlockLayer> {
        let workers = Workers::new();
        let latency = Latency::Between(Duration::ZERO, Duration::from_micros(200));
        let timed = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let layer = Arc::new(SmallBlockLayer::new(Arc::new(timed)));
        executor.spawn(layer.run());
        layer
    }

    /// Requests of any place and length equal those on a plain vector, whatever waits for whom.
    #[test]
    fn requests_of_any_place_equal_those_on_a_vector() {
        let test = crate::crash_test!();
        for seed in test.seeds(0, 20, 1) {
            let _printed = test.on_panic(seed, None);
            let mut executor = Executor::new(seed);
            let layer = over(&mut executor, &large_blocks(seed));
            let (mut random, mut model) = (Random::new(seed), vec![0; SIZE as usize]);
            executor.block_on(async move {
                let mut open = Vec::new();
                for number in 0..200u64 {
                    let length = 1 + random.below(16);
                    let first = random.below(SIZE / 512 - length);
                    let (offset, length) = (first * 512, length * 512);
                    let span = offset as usize..(offset + length) as usize;
                    let fill = number as u8;
                    match random.below(8) {
                        0 => {
                            model[span].fill(0);
                            open.push(layer.submit(Request::write_zeroes(offset, length, false, false)));
                        }
                        1 => {
                            model[span].fill(0);
                            open.push(layer.submit(Request::discard(offset, length)));
                        }
                        2..5 => {
                            let read = layer.read(offset, Buffer::zeroed(length as usize)).await.unwrap();
                            assert!(read[..] == model[span], "seed {seed}, request {number}");
                        }
                        _ => {
                            model[span].fill(fill);
                            let bytes = Buffer::copy_of(&vec![fill; length as usize]);
                            // At most 8 KiB are submitted at once.
                            open.push(layer.submit(Request::write(offset, bytes, random.chance(0.3))));
                        }
                    }
                }
                assert!(join_all(open).await.iter().all(|response| response.result.is_ok()));
                for (index, expected) in model.chunks(4096).enumerate() {
                    let read = layer.read(index as u64 * 4096, Buffer::zeroed(4096)).await.unwrap();
                    assert!(read[..] == *expected, "seed {seed}, block {index}");
                }
            });
        }
    }

    /// Eight writers, each with units of its own; eight units make a block: no writer tears or
    /// undoes another's acknowledged durable write.
    #[test]
    fn durable_neighbours_in_one_block_survive_a_power_loss_at_every_write() {
        const ROUNDS: u8 = 6;
        let test = crate::crash_test!();
        for seed in test.seeds(0, 4, 1) {
            test.crash_at_every(seed, 1000, |nth| {
                let mut executor = Executor::new(seed);
                let medium = large_blocks(seed).fail_write(nth);
                let layer = over(&mut executor, &medium);
                let writer = |unit: u64| {
                    let layer = Arc::clone(&layer);
                    async move {
                        for number in 1..=ROUNDS {
                            let bytes = Buffer::copy_of(&[number; UNIT]);
                            if layer.write(4096 + unit * UNIT as u64, bytes, true).await.is_err() {
                                return (number - 1, number);
                            }
                        }
                        (ROUNDS, ROUNDS)
                    }
                };
                let units = executor.block_on(join_all((0..8).map(writer)));
                let has_crashed = medium.power().is_lost();
                let after = medium.after_power_loss_as(Loss::Seeded(seed ^ nth), &Power::new());
                for (unit, (acknowledged, sent)) in units.into_iter().enumerate() {
                    let found = after.durable_bytes(4096 + (unit * UNIT) as u64, UNIT);
                    assert!(found.iter().all(|byte| *byte == found[0]), "unit {unit} is torn");
                    assert!((acknowledged..=sent).contains(&found[0]), "unit {unit}: {} of {acknowledged}", found[0]);
                }
                has_crashed
            });
        }
    }

    #[test]
    fn whole_blocks_pass_and_nothing_else_is_asked_of_the_device() {
        let medium = large_blocks(1);
        let layer = SmallBlockLayer::new(Arc::new(medium.clone()));
        assert_eq!(layer.geometry().logical_block_bytes, 512);
        block_on(layer.write(4096, Buffer::copy_of(&[7; 8192]), true)).unwrap();
        assert_eq!(medium.writes_seen(), 1);
        block_on(layer.write(4608, Buffer::copy_of(&[8; 512]), true)).unwrap();
        let durable = medium.durable_bytes(4096, 4096);
        assert!(
            durable[..512] == [7; 512]
                && durable[512..1024] == [8; 512]
                && durable[1024..].iter().all(|&byte| byte == 7)
        );
        block_on(layer.write_zeroes(4096 + 512, 4096, true, false)).unwrap();
        assert_eq!(medium.durable_bytes(4096 + 512, 4096), [0; 4096]);
        assert_eq!(medium.durable_bytes(4096, 512), [7; 512]);
        assert_eq!(medium.durable_bytes(8192 + 512, 512), [7; 512]);
        let extents = block_on(layer.extents(512, 1024)).unwrap();
        assert_eq!(extents[0].range, ByteRange { offset: 512, length: 1024 });
        assert!(block_on(layer.read(100, Buffer::zeroed(512))).is_err());
    }
}
