//! The record log: a circular region of records, appended in order.
//!
//! What it keeps true:
//! - Up to [`RECORDS_IN_FLIGHT_MAX`](crate::limits::RECORDS_IN_FLIGHT_MAX) records are on their way to the medium at a
//!   time, with force unit access. An append is acknowledged when its record *and all before it* are durable: then a
//!   replay finds it. What landed behind a hole when the power failed was never acknowledged, and does not count.
//! - A record says how many before it were on their way when it was made. All others before it were durable, so it
//!   proves as much.
//! - While as many are on their way as may be, or while less has gathered than is worth a record,
//!   appends share the next one (*group commit*). There is no timer: a record that may start does
//!   so after a few turns of the runtime, in which writers just acknowledged may append again.
//! - The space of a record is reused only after [`RecordLog::release_until`], which the owner calls when a durable
//!   checkpoint no longer needs it. Until then appends find the log full, and [`RecordLog::append`] waits.
//! - An error of the medium fails the log for good, and with that record all behind it, whether they landed or not:
//!   nothing may follow one that may be missing.
//!
//! An append returns a [`Hold`] when it is durable. The oldest hold is how far a checkpoint may release, and what later
//! records call *settled*: the owner drops it when all that the append announced is done.
//!
//! Several appends share one write, and each poll of any of them drives the log for all; an
//! [`Append`] must be awaited to its end. A write that makes progress wakes one waiting append,
//! which polls it and wakes the others whose outcome is known.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use base::buffer::Buffer;
use base::range::ByteRange;
use base::signal::Signal;
use block::{Completion, Device, Error, ErrorKind, Request, SharedDevice};
use uuid::Uuid;

use crate::batch::{Batches, Starting};
use crate::gathering::{Gathering, Worth};
use crate::limits::{LOG_BYTES_MAX, LOG_BYTES_MIN, RECORD_UNIT_BYTES, RECORDS_IN_FLIGHT_MAX, TURNS_BEFORE_RECORD};
use crate::record::{Claims, LogPosition, RECORD_PAYLOAD_BYTES_MAX, emit, record_bytes};
use crate::sequence::Sequence;
use crate::turns::{Step, Turns};

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

/// Guarded by `LogShared::state`; sections are short and never await.
///
/// Places are *virtual*: they never wrap, and a place modulo the region is the offset in it.
struct State {
    /// Place of the oldest record that is still needed.
    tail: u64,
    /// Place behind the last closed batch: the batch that gathers starts here, or behind padding.
    head: u64,
    /// Appends that are not acknowledged yet.
    batches: Batches,
    /// Place and link of the next record to be written.
    next_to_write: NextToWrite,
    /// Records written or being written since the tail.
    written: VecDeque<RecordPlace>,
    /// Count of holds of each record.
    holds: BTreeMap<Sequence, u32>,
    /// Likewise, of the holds that are settled.
    settled_holds: BTreeMap<Sequence, u32>,
    turns: Turns<AppendId>,
}

/// Sequence of the record of an append, and its number in it: names the append whose caller waits
/// and drives the log.
type AppendId = (Sequence, usize);

/// Appends are a few bytes each, and each poll of a waiting append is a turn of the runtime.
const GATHERING: Gathering =
    Gathering { in_flight_max: RECORDS_IN_FLIGHT_MAX, worth: Worth::Share, turns: TURNS_BEFORE_RECORD };

#[derive(Clone, Copy)]
struct NextToWrite {
    place: u64,
    sequence: Sequence,
    link: u32,
}

#[derive(Clone, Copy)]
struct RecordPlace {
    place: u64,
    sequence: Sequence,
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
            batches: Batches::new(GATHERING, start.sequence),
            next_to_write: NextToWrite { place: start.offset, sequence: start.sequence, link: start.link },
            written: VecDeque::new(),
            holds: BTreeMap::new(),
            settled_holds: BTreeMap::new(),
            turns: Turns::new(GATHERING.turns),
        };
        let (room, state) = (Signal::new(), Mutex::new(state));
        Ok(Self { shared: Arc::new(LogShared { device, region, log_id, epoch: start.epoch, room, state }) })
    }

    /// Largest payload of one append in bytes.
    pub fn payload_bytes_max(&self) -> usize {
        payload_bytes_max(self.shared.region.length)
    }

    /// Adds `payload` to the next record. Payloads of one record stand one behind the other in the order of the calls;
    /// they must say themselves where they end.
    ///
    /// # Errors
    /// See [`AppendRefused`]. Nothing was appended then.
    pub fn try_append(&self, payload: &[u8]) -> Result<Append, AppendRefused> {
        let payload_bytes_max = self.payload_bytes_max();
        if payload.len() > payload_bytes_max {
            return Err(AppendRefused::TooLarge);
        }
        let mut state = self.shared.lock();
        if let Some(error) = state.batches.failure() {
            return Err(AppendRefused::Failed(error.clone()));
        }
        if !self.shared.make_room(&mut state, payload.len(), payload_bytes_max) {
            return Err(AppendRefused::Full);
        }
        let (sequence, number) = state.batches.add(payload);
        *state.holds.entry(sequence).or_default() += 1;
        let waiting = Waiting { shared: Arc::clone(&self.shared), sequence, number, is_over: false };
        Ok(Append { waiting, hold: Hold { shared: Arc::clone(&self.shared), sequence, is_settled: false } })
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

    /// The oldest position that is still needed: that of the oldest hold, or behind everything. A checkpoint takes
    /// this *first*, then stores all that was done before, and then releases up to here.
    pub fn position_needed(&self) -> LogPosition {
        let state = self.shared.lock();
        let next = state.next_to_write;
        let oldest = state.holds.keys().next().into_iter().chain(state.settled_holds.keys().next()).min();
        let oldest = oldest.copied().unwrap_or(next.sequence);
        let (place, sequence, link) = match state.written.iter().find(|record| record.sequence == oldest) {
            Some(record) => (record.place, record.sequence, record.link),
            None => (next.place, next.sequence, next.link),
        };
        LogPosition { offset: place % self.shared.region.length, epoch: self.shared.epoch, sequence, link }
    }

    /// Gives back the space of all records before `position`, which [`RecordLog::position_needed`] returned and which
    /// is now durable as the place where a replay starts.
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

    /// Sequence of the first record that may not be durable: a replay from a position that was needed meanwhile reaches
    /// it.
    pub fn durable_end(&self) -> Sequence {
        self.shared.lock().batches.durable_end()
    }

    /// How full it is.
    pub fn usage(&self) -> LogUsage {
        let state = self.shared.lock();
        let gathering_bytes = state.batches.gathered_bytes().map_or(0, record_bytes);
        LogUsage { used_bytes: state.head - state.tail + gathering_bytes, region_bytes: self.shared.region.length }
    }

    /// The error that failed the log.
    pub fn failure(&self) -> Option<Error> {
        self.shared.lock().batches.failure().cloned()
    }

    /// Fails the log on behalf of its owner, which found its medium broken elsewhere.
    pub fn fail(&self, error: Error) {
        let mut told = Vec::new();
        {
            let mut state = self.shared.lock();
            state.batches.fail(error);
            state.batches.settle(&mut told);
        }
        told.into_iter().for_each(Waker::wake);
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
    RECORD_PAYLOAD_BYTES_MAX.min(quarter - (record_bytes(0) as usize))
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

    /// Makes sure that there is a batch to which `payload_bytes` can be added, or room for a new
    /// one. Returns whether there is.
    fn make_room(&self, state: &mut State, payload_bytes: usize, payload_bytes_max: usize) -> bool {
        let Some(gathered) = state.batches.gathered_bytes() else { return self.has_room(state, payload_bytes) };
        let total = gathered + payload_bytes;
        if total <= payload_bytes_max && self.has_room(state, total) {
            return true;
        }
        let place = self.place_for(state.head, record_bytes(gathered));
        let head_before = std::mem::replace(&mut state.head, place + record_bytes(gathered));
        let has_room = self.has_room(state, payload_bytes);
        match has_room {
            true => state.batches.close(place),
            false => state.head = head_before,
        }
        has_room
    }

    /// Polls the writes that are ready to be polled, and wakes the appends whose outcome is known.
    fn look(self: &Arc<Self>) {
        loop {
            let awake = self.lock().batches.take_ready();
            let Some((sequence, completion)) = awake else { return };
            self.look_at(sequence, completion);
        }
    }

    /// Starts records as long as one may.
    fn start(self: &Arc<Self>) {
        loop {
            let mut state = self.lock();
            if !state.batches.may_start() {
                return;
            }
            let (sequence, offset, buffer) = self.serialise(&mut state);
            drop(state);
            self.look_at(sequence, self.device.submit(Request::write(self.region.offset + offset, buffer, true)));
        }
    }

    /// Polls the write of a record, without holding a lock: the device may call back.
    fn look_at(self: &Arc<Self>, sequence: Sequence, mut completion: Completion) {
        let waker = Waker::from(Arc::new(RecordWaker { shared: Arc::downgrade(self), sequence }));
        let polled = Pin::new(&mut completion).poll(&mut Context::from_waker(&waker));
        let mut told = Vec::new();
        let mut has_failed = false;
        {
            let mut state = self.lock();
            match polled {
                Poll::Pending => state.batches.put_back(sequence, completion),
                Poll::Ready(response) => {
                    has_failed = response.result.is_err();
                    state.batches.finish(sequence, response.result);
                    state.batches.settle(&mut told);
                }
            }
        }
        told.into_iter().for_each(Waker::wake);
        if has_failed {
            self.room.notify();
        }
    }

    /// The record of the next batch: its sequence, offset in the region and bytes. The batch takes
    /// no more appends from here on.
    fn serialise(&self, state: &mut State) -> (Sequence, u64, Buffer) {
        if state.batches.is_next_gathering() {
            let bytes = state.batches.gathered_bytes().map_or(0, record_bytes);
            let place = self.place_for(state.head, bytes);
            state.batches.close(place);
            state.head = place + bytes;
        }
        let Starting { sequence, place, payload, in_flight } = state.batches.start();
        assert_eq!(state.next_to_write.sequence, sequence, "records are written in order");
        let link = state.next_to_write.link;
        let position = LogPosition { offset: place % self.region.length, epoch: self.epoch, sequence, link };
        let settled = state.holds.keys().next().map_or(sequence, |oldest| *oldest).before();
        let (buffer, checksum) = emit(self.log_id, position, Claims { settled, in_flight }, &payload);
        state.batches.use_again(payload);
        state.written.push_back(RecordPlace { place, sequence, link });
        state.next_to_write =
            NextToWrite { place: place + buffer.len() as u64, sequence: sequence.next(), link: checksum };
        (sequence, position.offset, buffer)
    }
}

/// Waker of the write of a record; it wakes one append that waits.
struct RecordWaker {
    /// Weak, since the write is kept in the log itself.
    shared: Weak<LogShared>,
    sequence: Sequence,
}

impl Wake for RecordWaker {
    fn wake(self: Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let somebody = {
            let mut state = shared.lock();
            state.batches.mark_ready(self.sequence);
            state.batches.waker_of(self.sequence)
        };
        if let Some(somebody) = somebody {
            somebody.wake();
        }
    }
}

/// An append on its way. Await [`Append::durable`] to its end.
#[must_use = "the record is written only when this is awaited"]
pub struct Append {
    waiting: Waiting,
    hold: Hold,
}

impl Append {
    /// Sequence of the record it is part of.
    pub fn sequence(&self) -> Sequence {
        self.hold.sequence
    }

    /// Completes when the record and all before it are durable.
    ///
    /// # Errors
    /// The medium's, of this record or one before it. Whether the record landed is then unknown, and the log has
    /// failed.
    pub async fn durable(self) -> Result<Hold, Error> {
        let Self { mut waiting, hold } = self;
        poll_fn(|context| waiting.poll(context)).await?;
        Ok(hold)
    }
}

/// The future of one append.
struct Waiting {
    shared: Arc<LogShared>,
    sequence: Sequence,
    /// Number of the append in its batch.
    number: usize,
    is_over: bool,
}

impl Waiting {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            let mut state = self.shared.lock();
            let outcome = state.batches.outcome(self.sequence);
            if outcome.is_none() {
                // Registered before the work, so that progress made meanwhile wakes this append,
                // too.
                state.batches.wait(self.sequence, self.number, context.waker());
            }
            // Also when this append is acknowledged: it may be the one that was woken to poll for
            // the others.
            if state.batches.is_any_ready() {
                drop(state);
                self.shared.look();
                continue;
            }
            self.is_over = outcome.is_some();
            let may_start = state.batches.may_start();
            let waker = match state.turns.step((self.sequence, self.number), self.is_over, may_start) {
                Step::Start => {
                    drop(state);
                    self.shared.start();
                    continue;
                }
                Step::Yield => Some(context.waker().clone()),
                Step::HandOver => state.batches.waker_of(self.sequence),
                Step::Nothing => None,
            };
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
            return outcome.map_or(Poll::Pending, Poll::Ready);
        }
    }
}

impl Drop for Waiting {
    /// The caller waits no more. Another append is woken, since this one may have been woken to
    /// poll for all.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let somebody = {
            let mut state = self.shared.lock();
            state.batches.forget(self.sequence, self.number);
            state.turns.forget((self.sequence, self.number));
            let has_work = state.batches.is_any_ready() || state.batches.may_start();
            has_work.then(|| state.batches.waker_of(self.sequence)).flatten()
        };
        if let Some(somebody) = somebody {
            somebody.wake();
        }
    }
}

/// Keeps a record from being released, and from being called settled, until it is dropped.
#[must_use = "dropping it says that all the append announced is done"]
pub struct Hold {
    shared: Arc<LogShared>,
    sequence: Sequence,
    /// Whether it only keeps the record from being released, not from being called settled.
    is_settled: bool,
}

impl Hold {
    /// All that the append announced is on stable storage, which may be the record itself. Later
    /// records may call it settled; it still is not released.
    pub fn settle(mut self) -> Self {
        {
            let state = &mut *self.shared.lock();
            count_down(&mut state.holds, self.sequence);
            *state.settled_holds.entry(self.sequence).or_default() += 1;
        }
        self.is_settled = true;
        self
    }
}

impl Clone for Hold {
    /// Another hold of the same record; the record is held until both are dropped.
    fn clone(&self) -> Self {
        *self.shared.lock().holds_of(self.is_settled).entry(self.sequence).or_default() += 1;
        Self { shared: Arc::clone(&self.shared), sequence: self.sequence, is_settled: self.is_settled }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        count_down(self.shared.lock().holds_of(self.is_settled), self.sequence);
    }
}

impl State {
    fn holds_of(&mut self, is_settled: bool) -> &mut BTreeMap<Sequence, u32> {
        if is_settled { &mut self.settled_holds } else { &mut self.holds }
    }
}

/// Decrements the count of a sequence, and removes it at zero.
fn count_down(holds: &mut BTreeMap<Sequence, u32>, sequence: Sequence) {
    if let Some(count) = holds.get_mut(&sequence) {
        *count -= 1;
        if *count == 0 {
            holds.remove(&sequence);
        }
    }
}
