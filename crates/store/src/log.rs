//! The record log: a circular region of records, appended in order.
//!
//! What it keeps true:
//! - One record is on its way to the medium at a time, with force unit access, and the next starts when it is durable. So a record on
//!   the medium proves that all before it are, and at most the last one can be torn.
//! - While one is on its way the next one gathers: appends that arrive meanwhile share it (*group commit*). No timer, no
//!   waiting for more: an append to an idle log starts at once.
//! - The space of a record is reused only after [`RecordLog::release_until`], which the owner calls when a durable checkpoint no longer
//!   needs it. Until then appends find the log full, and [`RecordLog::append`] waits.
//! - An error of the medium fails the log for good: whether that record landed is unknown, so nothing may follow it.
//!
//! An append returns a [`Hold`] when it is durable. The oldest hold is how far a checkpoint may release, and what later records call
//! *settled*: the owner drops it when all that the append announced is done.
//!
//! Several appends share one write, and whoever polls drives it; an [`Append`] must be awaited to its end.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use base::buffer::Buffer;
use base::range::ByteRange;
use base::signal::Signal;
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use futures_util::FutureExt;
use futures_util::future::Shared;
use uuid::Uuid;

use crate::limits::{LOG_BYTES_MAX, LOG_BYTES_MIN, RECORD_UNIT_BYTES};
use crate::record::{GROUP_PAYLOAD_BYTES_MAX, LogPosition, emit, record_bytes};

/// A log under way. Clones are the same log.
#[derive(Clone)]
pub struct RecordLog {
    shared: Arc<LogShared>,
}

struct LogShared {
    device: SharedDevice,
    region: ByteRange,
    log_id: Uuid,
    epoch: u64,
    /// Notified when space was released and when the log failed.
    room: Signal,
    state: Mutex<State>,
}

type Done = Shared<Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>>;

/// Guarded by `LogShared::state`; sections are short and never await.
///
/// Places are *virtual*: they never wrap, and a place modulo the region is the offset in it.
struct State {
    /// Place of the oldest record that is still needed.
    tail: u64,
    /// Place behind the last closed batch: where the gathering one starts, but for padding.
    head: u64,
    /// Batches nobody may add to any more and that wait for their turn, oldest first, then the gathering one, then nothing.
    batches: VecDeque<Batch>,
    /// Sequence of the next batch to be made.
    sequence_next: u64,
    /// Where the next record to be written stands, and with which link.
    next_to_write: NextToWrite,
    /// Records written or being written since the tail.
    written: VecDeque<RecordPlace>,
    /// Count of holds by sequence.
    holds: BTreeMap<u64, u32>,
    failure: Option<Error>,
}

struct Batch {
    sequence: u64,
    payload: Vec<u8>,
    /// Place of the record, once nobody may add to it.
    closed_at: Option<u64>,
    done: Done,
}

#[derive(Clone, Copy)]
struct NextToWrite {
    place: u64,
    sequence: u64,
    link: u32,
}

#[derive(Clone, Copy)]
struct RecordPlace {
    place: u64,
    sequence: u64,
    link: u32,
}

/// How full a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogUsage {
    /// Bytes between the tail and the head.
    pub used_bytes: u64,
    /// Bytes of the region.
    pub region_bytes: u64,
}

/// Why an append was not taken.
#[derive(Clone, Debug)]
pub enum AppendRefused {
    /// There is no room until a checkpoint releases some.
    Full,
    /// The payload exceeds what a record of this log may hold.
    TooLarge,
    /// The log failed before.
    Failed(Error),
}

impl RecordLog {
    /// A log in `region` of `device` whose next record goes to `start`. Everything before it counts as released.
    ///
    /// # Errors
    /// `Corrupt` when region and start cannot be a log's.
    pub fn new(device: SharedDevice, region: ByteRange, log_id: Uuid, start: LogPosition) -> Result<Self, Error> {
        check_region(region, device.geometry().size_bytes)?;
        if start.offset >= region.length || !start.offset.is_multiple_of(RECORD_UNIT_BYTES as u64) {
            let context =
                format!("the log's position {} is not in its region of {} bytes", start.offset, region.length);
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
        let state = State {
            tail: start.offset,
            head: start.offset,
            batches: VecDeque::new(),
            sequence_next: start.sequence,
            next_to_write: NextToWrite { place: start.offset, sequence: start.sequence, link: start.link },
            written: VecDeque::new(),
            holds: BTreeMap::new(),
            failure: None,
        };
        let (room, state) = (Signal::new(), Mutex::new(state));
        Ok(Self { shared: Arc::new(LogShared { device, region, log_id, epoch: start.epoch, room, state }) })
    }

    /// Largest payload of one append in bytes.
    pub fn payload_bytes_max(&self) -> usize {
        payload_bytes_max(self.shared.region.length)
    }

    /// Adds `payload` to the next record. Payloads of one record stand one behind the other in the order of the calls; they must say
    /// themselves where they end.
    ///
    /// # Errors
    /// See [`AppendRefused`]. Nothing was appended then.
    pub fn try_append(&self, payload: &[u8]) -> Result<Append, AppendRefused> {
        let payload_bytes_max = self.payload_bytes_max();
        if payload.len() > payload_bytes_max {
            return Err(AppendRefused::TooLarge);
        }
        let mut state = self.shared.lock();
        if let Some(error) = &state.failure {
            return Err(AppendRefused::Failed(error.clone()));
        }
        if !self.shared.add_to_gathering(&mut state, payload, payload_bytes_max) {
            self.shared.start_gathering(&mut state, payload)?;
        }
        let batch = state.batches.back().expect("the gathering batch was just added to");
        let (sequence, done) = (batch.sequence, batch.done.clone());
        *state.holds.entry(sequence).or_default() += 1;
        Ok(Append { done, hold: Hold { shared: Arc::clone(&self.shared), sequence } })
    }

    /// Like [`RecordLog::try_append`], waiting while the log is full.
    ///
    /// # Errors
    /// `InvalidRange` for a payload too large; the error that failed the log.
    pub async fn append(&self, payload: &[u8]) -> Result<Append, Error> {
        loop {
            let count = self.shared.room.count();
            match self.try_append(payload) {
                Ok(append) => return Ok(append),
                Err(AppendRefused::Full) => self.shared.room.changed_since(count).await,
                Err(AppendRefused::Failed(error)) => return Err(error),
                Err(AppendRefused::TooLarge) => {
                    let context = format!("{} bytes are too many for one append", payload.len());
                    return Err(Error::new(ErrorKind::InvalidRange, context));
                }
            }
        }
    }

    /// The oldest position that is still needed: that of the oldest hold, or behind everything. A checkpoint takes this *first*,
    /// then stores all that was done before, and then releases up to here.
    pub fn position_needed(&self) -> LogPosition {
        let state = self.shared.lock();
        let next = state.next_to_write;
        let oldest = state.holds.keys().next().copied().unwrap_or(next.sequence);
        let (place, sequence, link) = match state.written.iter().find(|record| record.sequence == oldest) {
            Some(record) => (record.place, record.sequence, record.link),
            None => (next.place, next.sequence, next.link),
        };
        LogPosition { offset: place % self.shared.region.length, epoch: self.shared.epoch, sequence, link }
    }

    /// Gives back the space of all records before `position`, which [`RecordLog::position_needed`] returned and which is now durable
    /// as the place where a replay starts.
    pub fn release_until(&self, position: LogPosition) {
        {
            let mut state = self.shared.lock();
            while state.written.front().is_some_and(|record| record.sequence < position.sequence) {
                state.written.pop_front();
            }
            state.tail = state.written.front().map_or(state.next_to_write.place, |record| record.place);
        }
        self.shared.room.notify();
    }

    /// How full it is.
    pub fn usage(&self) -> LogUsage {
        let state = self.shared.lock();
        let gathering_bytes = state.batches.back().filter(|batch| batch.closed_at.is_none());
        let gathering_bytes = gathering_bytes.map_or(0, |batch| record_bytes(batch.payload.len()));
        LogUsage { used_bytes: state.head - state.tail + gathering_bytes, region_bytes: self.shared.region.length }
    }

    /// The error that failed the log.
    pub fn failure(&self) -> Option<Error> {
        self.shared.lock().failure.clone()
    }

    /// Fails the log by order of its owner, who found its medium broken elsewhere.
    pub fn fail(&self, error: Error) {
        self.shared.lock().failure.get_or_insert(error);
        self.shared.room.notify();
    }
}

/// Refuses a region that no log can be in.
pub(crate) fn check_region(region: ByteRange, device_bytes: u64) -> Result<(), Error> {
    let unit = RECORD_UNIT_BYTES as u64;
    let is_aligned = region.offset.is_multiple_of(unit) && region.length.is_multiple_of(unit);
    if is_aligned && (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&region.length) && region.end() <= device_bytes {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, format!("{region} cannot be the log of a device of {device_bytes} bytes")))
}

/// A quarter of the region, so that a full log still has records to release while others wait.
fn payload_bytes_max(region_bytes: u64) -> usize {
    let quarter = usize::try_from(region_bytes / 4).unwrap_or(usize::MAX);
    GROUP_PAYLOAD_BYTES_MAX.min(quarter - (record_bytes(0) as usize))
}

impl LogShared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a record of `bytes` from `head` on: a record never wraps, so near the end it starts over.
    fn place_for(&self, head: u64, bytes: u64) -> u64 {
        let remaining = self.region.length - head % self.region.length;
        if bytes > remaining { head + remaining } else { head }
    }

    /// Whether a record with this payload fits behind `head`.
    fn has_room(&self, state: &State, payload_bytes: usize) -> bool {
        let bytes = record_bytes(payload_bytes);
        self.place_for(state.head, bytes) + bytes <= state.tail + self.region.length
    }

    /// Adds to the gathering batch, if there is one and it can take this much.
    fn add_to_gathering(&self, state: &mut State, payload: &[u8], payload_bytes_max: usize) -> bool {
        let Some(gathered) = state.batches.back().filter(|batch| batch.closed_at.is_none()) else { return false };
        let total = gathered.payload.len() + payload.len();
        if total > payload_bytes_max || !self.has_room(state, total) {
            return false;
        }
        let batch = state.batches.back_mut().expect("it was there a line ago");
        batch.payload.extend_from_slice(payload);
        true
    }

    /// Closes the gathering batch, if there is one, and makes a new one with `payload`.
    fn start_gathering(self: &Arc<Self>, state: &mut State, payload: &[u8]) -> Result<(), AppendRefused> {
        let head_before = state.head;
        let before = state.batches.back().map(|batch| batch.done.clone());
        self.close_gathering(state);
        if !self.has_room(state, payload.len()) {
            self.reopen_gathering(state, head_before);
            return Err(AppendRefused::Full);
        }
        let sequence = state.sequence_next;
        state.sequence_next += 1;
        // Weak, since the batch is kept in the log itself; whoever polls has the log through its hold.
        let shared: Weak<Self> = Arc::downgrade(self);
        let writing: Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> = Box::pin(async move {
            if let Some(before) = before {
                before.await?;
            }
            let shared = shared.upgrade().ok_or(ErrorKind::OutcomeUnknown)?;
            shared.write_first_batch(sequence).await
        });
        state.batches.push_back(Batch { sequence, payload: payload.to_vec(), closed_at: None, done: writing.shared() });
        Ok(())
    }

    fn close_gathering(&self, state: &mut State) {
        let head = state.head;
        if let Some(batch) = state.batches.back_mut().filter(|batch| batch.closed_at.is_none()) {
            let bytes = record_bytes(batch.payload.len());
            let place = self.place_for(head, bytes);
            batch.closed_at = Some(place);
            state.head = place + bytes;
        }
    }

    /// Takes back a [`LogShared::close_gathering`] that was for nothing.
    fn reopen_gathering(&self, state: &mut State, head_before: u64) {
        if state.head != head_before {
            state.head = head_before;
            state.batches.back_mut().expect("the batch that was closed").closed_at = None;
        }
    }

    async fn write_first_batch(&self, sequence: u64) -> Result<(), Error> {
        let (offset, buffer) = self.serialise_first_batch(sequence)?;
        let result = self.device.write(self.region.offset + offset, buffer, true).await;
        let mut state = self.lock();
        state.batches.pop_front();
        if let Err(error) = &result {
            state.failure.get_or_insert_with(|| error.clone());
            drop(state);
            self.room.notify();
        }
        result.map(drop)
    }

    /// From here on nobody adds to the batch any more.
    fn serialise_first_batch(&self, sequence: u64) -> Result<(u64, Buffer), Error> {
        let mut state = self.lock();
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        if state.batches.len() == 1 {
            self.close_gathering(&mut state);
        }
        let batch = state.batches.front_mut().expect("a batch leaves the queue when it was written");
        assert_eq!(batch.sequence, sequence, "batches are written in order");
        let place = batch.closed_at.expect("only the last batch gathers");
        let payload = std::mem::take(&mut batch.payload);
        let link = state.next_to_write.link;
        let position = LogPosition { offset: place % self.region.length, epoch: self.epoch, sequence, link };
        let settled = state.holds.keys().next().map_or(sequence, |oldest| *oldest).saturating_sub(1);
        let (buffer, checksum) = emit(self.log_id, position, settled, &payload);
        state.written.push_back(RecordPlace { place, sequence, link });
        state.next_to_write =
            NextToWrite { place: place + buffer.len() as u64, sequence: sequence + 1, link: checksum };
        Ok((position.offset, buffer))
    }
}

/// An append on its way. Await [`Append::durable`] to its end.
#[must_use = "the record is written only when this is awaited"]
pub struct Append {
    done: Done,
    hold: Hold,
}

impl Append {
    /// Sequence of the record it is part of.
    pub fn sequence(&self) -> u64 {
        self.hold.sequence
    }

    /// Completes when the record is durable.
    ///
    /// # Errors
    /// The medium's. Whether the record landed is then unknown, and the log has failed.
    pub async fn durable(self) -> Result<Hold, Error> {
        self.done.await?;
        Ok(self.hold)
    }
}

/// Keeps a record from being released, and from being called settled, until it is dropped.
#[must_use = "dropping it says that all the append announced is done"]
pub struct Hold {
    shared: Arc<LogShared>,
    sequence: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(count) = state.holds.get_mut(&self.sequence) {
            *count -= 1;
            if *count == 0 {
                state.holds.remove(&self.sequence);
            }
        }
    }
}
