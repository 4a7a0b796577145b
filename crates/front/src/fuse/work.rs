//! The device requests for a file.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use block::device::DeviceExt;
use block::range_lock::Acquire;
use block::{Buffer, ByteRange, Error, ErrorKind, ExtentKind, Geometry};
use fuser::Errno;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::counters::{Counters, Kind};
use crate::exported::Exported;
use crate::limits::{BYTES_IN_FLIGHT_MAX, SEEK_STEP_BYTES, SHARE_UNIT_BYTES, ZERO_PIECE_BYTES_ALONE};
use crate::partial::{Blocks, around, is_whole};

/// A device, and the requests under way in it.
pub(super) struct Work {
    exported: Exported,
    /// Room for requests under way, in units of [`SHARE_UNIT_BYTES`].
    room: Arc<Semaphore>,
    is_closed: AtomicBool,
    pub(super) counters: Counters,
}

const ROOM_UNITS: u32 = (BYTES_IN_FLIGHT_MAX / SHARE_UNIT_BYTES) as u32;

impl Work {
    pub(super) fn new(exported: Exported) -> Self {
        let room = Arc::new(Semaphore::new(ROOM_UNITS as usize));
        Self { exported, room, is_closed: AtomicBool::new(false), counters: Counters::default() }
    }

    /// Bytes of the file now.
    pub(super) fn size_bytes(&self) -> u64 {
        self.exported.device.geometry().size_bytes
    }

    /// Preferred size of reads and writes.
    pub(super) fn block_bytes(&self) -> u32 {
        let geometry = self.exported.device.geometry();
        geometry.physical_block_bytes.max(geometry.logical_block_bytes)
    }

    /// Whether no more requests are begun.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Begins no more requests, and waits for those under way, for at most `time_max`.
    pub(super) async fn close(&self, time_max: Duration) {
        self.is_closed.store(true, Ordering::Relaxed);
        let _ = tokio::time::timeout(time_max, self.room.acquire_many(ROOM_UNITS)).await;
    }

    /// Carries out `work` on `bytes` and passes its outcome to `answer`: here if the device answers
    /// at once, otherwise on the runtime of `handle`. Waits until there is room for it.
    pub(super) fn carry_out<T: Send + 'static>(
        self: &Arc<Self>,
        handle: &Handle,
        (kind, bytes): (Kind, u64),
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let Some(room) = self.wait_for_room(handle, bytes) else {
            return answer(Err(Errno::EIO));
        };
        kind(&self.counters).count_request(bytes);
        let this = Arc::clone(self);
        let mut carried_out = Box::pin(async move {
            let outcome = work.await;
            if let Err(error) = &outcome {
                kind(&this.counters).count_error();
                tracing::debug!(%error, "a request of a file failed");
            }
            answer(outcome.map_err(|error| to_errno(error.kind())));
            drop(room);
        });
        let _runtime = handle.enter();
        if carried_out.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            handle.spawn(base::background::named("fuse-requests", carried_out));
        }
    }

    fn wait_for_room(&self, handle: &Handle, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(SHARE_UNIT_BYTES).clamp(1, ROOM_UNITS.into()) as u32;
        let room = Arc::clone(&self.room);
        match Arc::clone(&room).try_acquire_many_owned(units) {
            Ok(permit) if !self.is_closed() => Some(permit),
            Err(_) if !self.is_closed() => {
                handle.block_on(room.acquire_many_owned(units)).ok().filter(|_| !self.is_closed())
            }
            _ => None,
        }
    }

    /// Reads a range, which is cut at the end of the file.
    pub(super) fn read(&self, offset: u64, length: u64) -> impl Future<Output = Result<Buffer, Error>> + Send + use<> {
        let length = length.min(self.size_bytes().saturating_sub(offset));
        let blocks = self.blocks();
        async move {
            if length == 0 {
                return Ok(Buffer::default());
            }
            blocks?.read(offset, Buffer::zeroed(length as usize)).await
        }
    }

    /// Writes all of `bytes`, durably with `fua`.
    pub(super) fn write(
        &self,
        offset: u64,
        bytes: &[u8],
        fua: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let turn = self.inside(offset, bytes.len() as u64).map(|range| self.turn_of(range));
        let (device, geometry, buffer) =
            (Arc::clone(&self.exported.device), self.exported.device.geometry(), Buffer::copy_of(bytes));
        async move {
            let _turn = turn?.await;
            if is_one_request(&geometry, offset, buffer.len()) {
                return device.write(offset, buffer, fua).await.map(drop);
            }
            Blocks::new(device, &geometry, u64::MAX, None)?.write(offset, buffer, fua).await
        }
    }

    /// Zeroes a range in pieces. With `may_discard` its space may be freed.
    pub(super) fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        may_discard: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let range = self.inside(offset, length).map(|range| (range, self.turn_of(range)));
        let blocks = self.blocks();
        async move {
            let (blocks, (mut left, turn)) = (blocks?, range?);
            let _turn = turn.await;
            while !left.is_empty() {
                let end = (left.offset + 1).next_multiple_of(ZERO_PIECE_BYTES_ALONE).min(left.end());
                let piece = ByteRange { offset: left.offset, length: end - left.offset };
                blocks.clone().write_zeroes(piece, false, may_discard).await?;
                left = ByteRange { offset: end, length: left.end() - end };
            }
            Ok(())
        }
    }

    /// Makes durable what was written.
    pub(super) fn flush(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        self.exported.device.flush()
    }

    /// The next offset from `offset` on with data, or else in a hole. The end of the file is a
    /// hole; a device without extents has no other. `None` where there is no such offset.
    pub(super) fn seek(
        &self,
        offset: u64,
        is_data_wanted: bool,
    ) -> impl Future<Output = Result<Option<u64>, Error>> + Send + use<> {
        let geometry = self.exported.device.geometry();
        let (device, size_bytes) = (Arc::clone(&self.exported.device), geometry.size_bytes);
        let block_bytes = u64::from(geometry.logical_block_bytes);
        async move {
            let mut at = offset;
            while at < size_bytes {
                let step = ByteRange { offset: at, length: SEEK_STEP_BYTES.min(size_bytes - at) };
                let whole = around(block_bytes, step);
                let extents = match device.extents(whole.offset, whole.length).await {
                    Err(error) if error.kind() == ErrorKind::Unsupported => {
                        return Ok(Some(if is_data_wanted { offset } else { size_bytes }));
                    }
                    extents => extents?,
                };
                let is_wanted = |kind: ExtentKind| (kind == ExtentKind::Hole) != is_data_wanted;
                let found = extents.iter().find(|extent| is_wanted(extent.kind) && extent.range.end() > at);
                if let Some(found) = found {
                    return Ok(Some(found.range.offset.max(at)));
                }
                // The rest of the range is asked for again; an answer without extents counts as one
                // block.
                let answered = extents.last().map_or(whole.end(), |extent| extent.range.end());
                at = answered.max(at + block_bytes);
            }
            Ok((!is_data_wanted && offset < size_bytes).then_some(size_bytes))
        }
    }

    fn blocks(&self) -> Result<Blocks, Error> {
        Blocks::new(Arc::clone(&self.exported.device), &self.exported.device.geometry(), u64::MAX, None)
    }

    /// A range, which must be inside the file: nothing makes a device longer.
    fn inside(&self, offset: u64, length: u64) -> Result<ByteRange, Error> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes() => Ok(ByteRange { offset, length }),
            _ => Err(Error::new(ErrorKind::NoSpace, "that is past the end of the device")),
        }
    }

    /// The turn among changes of the same blocks.
    fn turn_of(&self, range: ByteRange) -> Acquire {
        self.exported.turns.exclusive(around(self.exported.device.geometry().logical_block_bytes.into(), range))
    }
}

/// Whether the device takes a write as one request.
fn is_one_request(geometry: &Geometry, offset: u64, length: usize) -> bool {
    let range = ByteRange { offset, length: length as u64 };
    is_whole(geometry.logical_block_bytes.into(), range) && range.length <= geometry.transfer_bytes_max.into()
}

/// The error number for an error of this kind.
pub(crate) fn to_errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::AccessDenied => Errno::EACCES,
        ErrorKind::TimedOut => Errno::ETIMEDOUT,
        ErrorKind::InvalidRange => Errno::EINVAL,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::Media
        | ErrorKind::ReservationConflict
        | ErrorKind::Gone
        | ErrorKind::NoAccess
        | ErrorKind::OutcomeUnknown
        | ErrorKind::Busy
        | ErrorKind::Corrupt
        | ErrorKind::NotFound => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use block::Identity;
    use block::memory::MemoryDevice;

    use super::*;
    use crate::limits::SHUTDOWN_TIME_MAX;

    fn work(bytes: u64) -> Work {
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        Work::new(Exported::alone(Arc::new(MemoryDevice::new(bytes, identity))))
    }

    #[tokio::test]
    async fn any_bytes_are_read_and_written_and_none_behind_the_end() {
        let work = work(8192);
        work.write(511, &[7; 3], false).await.unwrap();
        assert_eq!(work.read(510, 5).await.unwrap()[..], [0, 7, 7, 7, 0]);
        assert_eq!(work.read(8190, 100).await.unwrap().len(), 2);
        assert_eq!(work.read(u64::MAX, 100).await.unwrap().len(), 0);
        for offset in [8190, u64::MAX] {
            let refused = work.write(offset, &[1; 3], false).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
        }
        assert_eq!(work.read(8190, 2).await.unwrap()[..], [0, 0], "nothing of it was written");
        work.write_zeroes(512, 1, true).await.unwrap();
        assert_eq!(work.read(510, 5).await.unwrap()[..], [0, 7, 0, 7, 0]);
        assert_eq!(work.write_zeroes(8191, 2, false).await.unwrap_err().kind(), ErrorKind::NoSpace);
    }

    #[tokio::test]
    async fn holes_end_with_the_file() {
        let work = work(1 << 20);
        work.write(0, &[1; 4096], false).await.unwrap();
        assert_eq!(work.seek(0, true).await.unwrap(), Some(0));
        let hole = work.seek(0, false).await.unwrap().expect("the end is one");
        assert!((4096..=1 << 20).contains(&hole), "{hole}");
        for is_data_wanted in [false, true] {
            assert_eq!(work.seek(1 << 20, is_data_wanted).await.unwrap(), None, "it is the end");
        }
    }

    #[test]
    fn who_asks_for_more_than_there_is_room_for_waits() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let work = Arc::new(work(8192));
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let first = async move {
            let _ = finished.await;
            Ok(())
        };
        work.carry_out(runtime.handle(), (|counters| &counters.reads, BYTES_IN_FLIGHT_MAX), first, drop);
        let (sender, told) = std::sync::mpsc::channel();
        let (later, handle) = (Arc::clone(&work), runtime.handle().clone());
        let second = std::thread::spawn(move || {
            let read = later.read(0, 512);
            later.carry_out(&handle, (|counters| &counters.reads, 512), read, move |outcome| {
                sender.send(outcome.is_ok()).unwrap()
            });
        });
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
        assert!(told.try_recv().is_err(), "there is no room");
        finish.send(()).unwrap();
        runtime.block_on(async {
            while told.try_recv() != Ok(true) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        second.join().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_holds_the_end_up_for_two_seconds() {
        let work = Arc::new(work(8192));
        let never = std::future::pending::<Result<(), Error>>();
        work.carry_out(&Handle::current(), (|counters| &counters.reads, 512), never, drop);
        let began = tokio::time::Instant::now();
        work.close(SHUTDOWN_TIME_MAX).await;
        let (took, bound) = (began.elapsed(), Duration::from_secs(2));
        assert!((bound..bound * 4 / 3).contains(&took), "{took:?}");
    }

    #[test]
    fn what_comes_after_the_end_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let work = Arc::new(work(8192));
        runtime.block_on(work.close(Duration::from_secs(1)));
        let (sender, told) = std::sync::mpsc::channel();
        let read = work.read(0, 512);
        work.carry_out(runtime.handle(), (|counters| &counters.reads, 512), read, move |outcome| {
            sender.send(outcome.is_err()).unwrap()
        });
        assert!(told.recv().unwrap());
        assert_eq!(work.counters.snapshot().read.requests, 0);
    }
}
