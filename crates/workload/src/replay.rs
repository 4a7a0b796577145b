//! Replays a trace onto a device, every read checked against what was written before.
//!
//! - Requests are issued in the trace's order, at most `depth` at once. One that overlaps a request in flight (where
//!   one of the two changes the bytes) waits for it, and everything after it waits too: so every read has exactly one
//!   right answer.
//! - The content of writes is made here (traces have none), versioned in a [`Ledger`]; bytes never written read as zero
//!   or are not checked.
//! - Requests larger than the device takes are split. A request outside the device, or off its blocks, ends the replay
//!   with an error that names it.
//! - A flush is a flush, a discard a discard; where the device has no discard, it is left out and counted.
//!
//! Hits and misses are counted by the cache below.

use std::ops::ControlFlow;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base::clock::{Clock, Instant, Sleep};
use base::range::ByteRange;
use block::{Error, Geometry, SharedDevice};
use serde::{Deserialize, Serialize};

use crate::access::{Access, AccessKind};
use crate::closed_loop::next;
use crate::engine::{Done, Engine, Failure, Task};
use crate::ledger::{InitialContent, Ledger, Mismatch};
use crate::limits::{DEPTH_MAX, PROGRESS_INTERVAL};
use crate::measurement::{Measurement, Recorder};
use crate::miss_ratio::blocks;
use crate::trace::survey::Place;
use crate::trace::{Record, TraceError};

/// The speed of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Pace {
    /// As fast as the device answers.
    #[default]
    AsFastAsPossible,
    /// At the recorded times, divided by `speed` (2.0 is twice as fast); waits for a device that is
    /// slower.
    Recorded {
        /// Above zero.
        speed: f64,
    },
}

impl FromStr for Pace {
    type Err = String;

    /// `full`, `recorded`, or how many times as fast as recorded (`2x`).
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "full" => return Ok(Self::AsFastAsPossible),
            "recorded" => return Ok(Self::Recorded { speed: 1.0 }),
            _ => {}
        }
        let speed = text.strip_suffix('x').and_then(|number| number.parse::<f64>().ok());
        let speed = speed.filter(|speed| speed.is_finite() && *speed > 0.0);
        speed.map(|speed| Self::Recorded { speed }).ok_or_else(|| {
            format!("\"{text}\" is no pace: write full, recorded, or how many times as fast as recorded (2x, 0.5x)")
        })
    }
}

/// The parameters of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayPlan {
    /// Seed of the content.
    pub seed: u64,
    /// Requests in flight, 1 to [`DEPTH_MAX`].
    pub depth: u32,
    /// The speed.
    pub pace: Pace,
    /// The content of the device at the start.
    pub initial: InitialContent,
}

impl Default for ReplayPlan {
    fn default() -> Self {
        Self { seed: 1, depth: 1, pace: Pace::default(), initial: InitialContent::Zero }
    }
}

/// Counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayCounts {
    /// Records of the trace.
    pub requests: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Flushes among them.
    pub flushes: u64,
    /// Discards among them.
    pub discards: u64,
    /// Discards left out because the device has none.
    pub discards_left_out: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes of these with known content: written before, or zeroes where the device was empty at
    /// the start. All were right.
    pub bytes_read_checked: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Blocks of 4 KiB that reads and writes touched, each counted once per request.
    pub block_accesses: u64,
}

/// A replay that went through, or was stopped.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Whether the progress callback stopped it before the end of the trace. Requests in flight
    /// ended normally.
    pub was_stopped: bool,
    /// The counts.
    pub counts: ReplayCounts,
    /// The figures.
    pub measurement: Measurement,
    /// The content expected on the device now; [`verify_all`](crate::verify::verify_all) checks it.
    pub ledger: Ledger,
}

/// The error that ended a replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Depth or speed are impossible.
    #[error("a replay needs a depth between 1 and {DEPTH_MAX} and a speed above zero")]
    Plan,
    /// The rest of the trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A request does not fit onto the device.
    #[error("request {number} of the trace wants {range}, but the device ends at byte {size_bytes}: use a larger one")]
    OutOfRange {
        /// Its number in the trace, from 1.
        number: u64,
        /// Its range.
        range: ByteRange,
        /// Size of the device.
        size_bytes: u64,
    },
    /// A request is off the device's blocks.
    #[error(
        "request {number} of the trace wants {range}, which are not whole blocks of the device's {block_bytes} bytes"
    )]
    Misaligned {
        /// Its number in the trace, from 1.
        number: u64,
        /// Its range.
        range: ByteRange,
        /// The logical block of the device.
        block_bytes: u32,
    },
    /// The device failed.
    #[error("the device failed at {range}: {error}")]
    Device {
        /// The range of the request.
        range: ByteRange,
        /// Its error.
        #[source]
        error: Error,
    },
    /// A read returned other data than was written.
    #[error("the device returned wrong data: {0}")]
    Mismatch(Box<Mismatch>),
    /// The ledger has no version numbers left.
    #[error("four billion writes are all one replay can count")]
    TooManyWrites,
}

/// Replays `records` onto `device`. `progress` is called about every tenth of a second with the
/// count of requests finished; when it breaks no further request is issued, and the result is what
/// was replayed so far.
///
/// # Errors
/// An error that ends the replay; see [`ReplayError`].
pub async fn replay(
    records: impl IntoIterator<Item = Result<Record, TraceError>>,
    device: SharedDevice,
    clock: Arc<dyn Clock>,
    plan: ReplayPlan,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<Replayed, ReplayError> {
    let is_speed = !matches!(plan.pace, Pace::Recorded { speed } if !(speed.is_finite() && speed > 0.0));
    if !(1..=DEPTH_MAX).contains(&plan.depth) || !is_speed {
        return Err(ReplayError::Plan);
    }
    let mut replay = Replay::new(records.into_iter(), device.geometry(), Arc::clone(&clock), plan);
    let mut engine = Engine::new(device, Arc::clone(&clock), plan.depth);
    let mut progress_at = replay.began + PROGRESS_INTERVAL;
    let mut tick = Tick::new();
    loop {
        let due = replay.issue(&mut engine)?;
        if replay.is_read && engine.count() == 0 {
            break;
        }
        let wake_at = due.map_or(progress_at, |due| due.min(progress_at));
        if let Some(done) = next(&mut engine, Some(&replay.ledger), tick.at(wake_at, &*clock)).await {
            replay.book(done)?;
        }
        if clock.now() >= progress_at {
            progress_at = clock.now() + PROGRESS_INTERVAL;
            if !replay.was_stopped && progress(replay.finished).is_break() {
                replay.stop();
            }
        }
    }
    Ok(replay.end())
}

/// Checks that a request is within a device of this geometry.
///
/// # Errors
/// `OutOfRange`.
pub fn check_end(place: Place, geometry: &Geometry) -> Result<(), ReplayError> {
    let (Place { number, range }, size_bytes) = (place, geometry.size_bytes);
    if range.end() > size_bytes { Err(ReplayError::OutOfRange { number, range, size_bytes }) } else { Ok(()) }
}

/// Checks that a request is of whole blocks of a device of this geometry.
///
/// # Errors
/// `Misaligned`.
pub fn check_blocks(place: Place, geometry: &Geometry) -> Result<(), ReplayError> {
    let (Place { number, range }, block_bytes) = (place, geometry.logical_block_bytes);
    let is_whole = |value: u64| value.is_multiple_of(u64::from(block_bytes));
    let is_aligned = is_whole(range.offset) && is_whole(range.length);
    if is_aligned { Ok(()) } else { Err(ReplayError::Misaligned { number, range, block_bytes }) }
}

/// A timer that is made anew only when its deadline changes.
struct Tick(Option<(Instant, Sleep)>);

impl Tick {
    fn new() -> Self {
        Self(None)
    }

    fn at(&mut self, deadline: Instant, clock: &dyn Clock) -> &mut Sleep {
        if self.0.as_ref().is_none_or(|(at, _)| *at != deadline) {
            self.0 = None;
        }
        &mut self.0.get_or_insert_with(|| (deadline, clock.sleep_until(deadline))).1
    }
}

struct Replay<I> {
    records: I,
    geometry: Geometry,
    clock: Arc<dyn Clock>,
    plan: ReplayPlan,
    ledger: Ledger,
    recorder: Recorder,
    counts: ReplayCounts,
    began: Instant,
    finished: u64,
    /// The next record, if it may not be issued yet.
    held: Option<Record>,
    /// Whether the trace is at its end and no record is held.
    is_read: bool,
    was_stopped: bool,
}

impl<I: Iterator<Item = Result<Record, TraceError>>> Replay<I> {
    fn new(records: I, geometry: Geometry, clock: Arc<dyn Clock>, plan: ReplayPlan) -> Self {
        Self {
            records,
            geometry,
            began: clock.now(),
            clock,
            ledger: Ledger::new(plan.seed, plan.initial),
            plan,
            recorder: Recorder::new(),
            counts: ReplayCounts::default(),
            finished: 0,
            held: None,
            is_read: false,
            was_stopped: false,
        }
    }

    /// Issues no further request.
    fn stop(&mut self) {
        self.was_stopped = !self.is_read;
        // It was counted when it was read.
        self.counts.requests -= u64::from(self.held.take().is_some());
        self.is_read = true;
    }

    /// Issues the records that may be issued now. Returns when the next record is due, if it waits
    /// for its time.
    fn issue(&mut self, engine: &mut Engine) -> Result<Option<Instant>, ReplayError> {
        while engine.count() < self.plan.depth as usize && !self.is_read {
            let Some(record) = self.take_record()? else { break };
            let due = self.due(&record);
            let is_early = due.is_some_and(|due| due > self.clock.now());
            if is_early || engine.conflicts(&record.access) {
                self.held = Some(record);
                return Ok(due.filter(|_| is_early));
            }
            if let Some(task) = self.task(record.access)? {
                engine.submit(task, Some(&self.ledger));
            }
        }
        Ok(None)
    }

    fn take_record(&mut self) -> Result<Option<Record>, ReplayError> {
        if let Some(held) = self.held.take() {
            return Ok(Some(held));
        }
        let record = self.records.next().transpose()?;
        match &record {
            Some(record) => {
                self.counts.requests += 1;
                let place = Place { number: self.counts.requests, range: record.access.range };
                check_end(place, &self.geometry)?;
                check_blocks(place, &self.geometry)?;
            }
            None => self.is_read = true,
        }
        Ok(record)
    }

    fn due(&self, record: &Record) -> Option<Instant> {
        match self.plan.pace {
            Pace::AsFastAsPossible => None,
            Pace::Recorded { speed } => {
                let at = Duration::try_from_secs_f64(record.at.as_secs_f64() / speed).unwrap_or(Duration::MAX);
                Some(self.began + at)
            }
        }
    }

    /// The request of an access, or `None` when the device need not be asked.
    fn task(&mut self, access: Access) -> Result<Option<Task>, ReplayError> {
        let Access { kind, range } = access;
        match kind {
            AccessKind::Read => self.counts.reads += 1,
            AccessKind::Write => self.counts.writes += 1,
            AccessKind::Flush => self.counts.flushes += 1,
            AccessKind::Discard => self.counts.discards += 1,
        }
        if kind == AccessKind::Discard && self.geometry.discard_granularity_bytes.is_none() {
            self.counts.discards_left_out += 1;
            return Ok(None);
        }
        if kind != AccessKind::Flush && range.is_empty() {
            return Ok(None);
        }
        let block_range = blocks(&access);
        self.counts.block_accesses += block_range.end - block_range.start;
        let version = match kind {
            AccessKind::Write => self.ledger.next_version().ok_or(ReplayError::TooManyWrites)?,
            _ => 0,
        };
        Ok(Some(Task { access, version, issued_at: self.clock.now() }))
    }

    fn book(&mut self, done: Done) -> Result<(), ReplayError> {
        let Done { task, finished_at, result } = done;
        let Access { kind, range } = task.access;
        result.map_err(|failure| match failure {
            Failure::Device(error) => ReplayError::Device { range, error },
            Failure::Mismatch(mismatch) => ReplayError::Mismatch(mismatch),
        })?;
        self.finished += 1;
        match kind {
            AccessKind::Read => {
                self.counts.bytes_read += range.length;
                self.counts.bytes_read_checked += self.ledger.known_bytes(range);
            }
            AccessKind::Write => {
                self.counts.bytes_written += range.length;
                self.ledger.commit(range, task.version);
            }
            AccessKind::Discard => self.book_discard(range),
            AccessKind::Flush => {}
        }
        self.recorder.record(kind, range.length, finished_at.since(task.issued_at));
        Ok(())
    }

    /// Whole granules read as zeroes if the device promises that; the content of the rest is
    /// unknown.
    fn book_discard(&mut self, range: ByteRange) {
        let grain = u64::from(self.geometry.discard_granularity_bytes.unwrap_or(1).max(1));
        let is_whole = range.offset.is_multiple_of(grain) && range.length.is_multiple_of(grain);
        if is_whole && self.geometry.discard_reads_zeroes {
            self.ledger.commit_zeroes(range);
        } else {
            self.ledger.forget(range);
        }
    }

    fn end(self) -> Replayed {
        let measurement = self.recorder.measurement(self.clock.now().since(self.began));
        Replayed { was_stopped: self.was_stopped, counts: self.counts, measurement, ledger: self.ledger }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ModelDevice, keep_going};
    use crate::trace::{Options, TraceReader, synthetic};
    use crate::verify::verify_all;
    use base::executor::Executor;

    fn replayed(
        text: &'static str,
        plan: ReplayPlan,
        device: &Arc<ModelDevice>,
    ) -> (Result<Replayed, ReplayError>, Duration) {
        let mut executor = Executor::new(1);
        let clock = device.clock_of(&mut executor);
        let records = TraceReader::new(text.as_bytes(), Options::default());
        let (target, clock_of_run) = (device.shared(), Arc::clone(&clock));
        let result = executor.block_on(async move { replay(records, target, clock_of_run, plan, keep_going).await });
        (result, clock.now().since(Instant::START))
    }

    const TRACE: &str = "fio version 2 iolog\nd write 0 8192\nd wait 1000000\nd read 4096 8192\nd sync\nd trim 0 4096\n\
                         d read 0 8192\nd write 1024 512\nd read 0 4096\n";

    #[test]
    fn a_small_trace_goes_through_and_is_counted() {
        let device = ModelDevice::new(1 << 20);
        let (result, _) = replayed(TRACE, ReplayPlan::default(), &device);
        let expected = ReplayCounts {
            requests: 7,
            reads: 3,
            writes: 2,
            flushes: 1,
            discards: 1,
            discards_left_out: 0,
            bytes_read: 8192 + 8192 + 4096,
            bytes_read_checked: 8192 + 8192 + 4096,
            bytes_written: 8192 + 512,
            block_accesses: 2 + 2 + 2 + 1 + 1,
        };
        assert_eq!(result.unwrap().counts, expected);
    }

    #[test]
    fn the_recorded_pace_takes_the_recorded_time() {
        let device = ModelDevice::new(1 << 20).latency(Duration::from_millis(1));
        let pace = |pace| replayed(TRACE, ReplayPlan { pace, depth: 2, ..ReplayPlan::default() }, &device).1;
        let recorded = pace(Pace::Recorded { speed: 2.0 });
        assert!(recorded >= Duration::from_millis(500) && recorded < Duration::from_millis(520), "{recorded:?}");
        assert!(pace(Pace::AsFastAsPossible) < Duration::from_millis(20));
    }

    #[test]
    fn a_pace_is_a_word_or_a_factor() {
        assert_eq!("full".parse(), Ok(Pace::AsFastAsPossible));
        assert_eq!("recorded".parse(), Ok(Pace::Recorded { speed: 1.0 }));
        assert_eq!("2.5x".parse(), Ok(Pace::Recorded { speed: 2.5 }));
        for text in ["", "x", "0x", "-1x", "2", "infx", "NaNx"] {
            assert!(text.parse::<Pace>().unwrap_err().contains("is no pace"), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let device = ModelDevice::new(1 << 20);
        let (result, _) =
            replayed("fio version 2 iolog\nd read 0 512\nd read 1048576 512\n", ReplayPlan::default(), &device);
        assert_eq!(
            result.unwrap_err().to_string(),
            "request 2 of the trace wants bytes 1048576..1049088, but the device ends at byte 1048576: use a larger one"
        );
        let (result, _) = replayed("fio version 2 iolog\nd read 0 512\nd frob\n", ReplayPlan::default(), &device);
        assert_eq!(result.unwrap_err().to_string(), "line 3 of the trace: \"frob\" is not a fio action");
        let (result, _) = replayed(TRACE, ReplayPlan { depth: 0, ..ReplayPlan::default() }, &device);
        assert!(matches!(result, Err(ReplayError::Plan)));
    }

    /// Deep, with requests of random length that overlap each other: every read is right, and so is everything at the
    /// end.
    #[test]
    fn a_mixed_trace_at_depth_is_exact() {
        for seed in 0..4 {
            let device =
                ModelDevice::new(8 << 20).random_latency(seed, Duration::from_millis(5)).transfer_bytes_max(4096);
            let mut executor = Executor::new(seed);
            let clock = device.clock_of(&mut executor);
            let plan = ReplayPlan { depth: 32, ..ReplayPlan::default() };
            let records = synthetic::mixed(seed, 2000, 8 << 20);
            let target = device.shared();
            let replayed = executor.block_on(async move {
                let result = replay(records.into_iter().map(Ok), Arc::clone(&target), clock, plan, keep_going).await;
                let replayed = result.expect("the device is honest");
                verify_all(&target, &replayed.ledger, |_| ControlFlow::Continue(()))
                    .await
                    .expect("it kept what it was given");
                replayed
            });
            assert_eq!(replayed.counts.requests, 2000);
            assert_eq!(replayed.measurement.operations, 2000);
        }
    }

    #[test]
    fn what_nobody_wrote_is_read_and_not_checked() {
        let device = ModelDevice::new(1 << 20);
        let plan = ReplayPlan { initial: InitialContent::Unknown, ..ReplayPlan::default() };
        let (result, _) = replayed("fio version 2 iolog\nd write 0 512\nd read 0 4096\n", plan, &device);
        let replayed = result.unwrap();
        assert_eq!((replayed.counts.bytes_read, replayed.counts.bytes_read_checked), (4096, 512));
        assert_eq!(replayed.ledger.written_bytes(), 512);
    }

    #[test]
    fn a_replay_that_is_stopped_says_what_it_did() {
        let device = ModelDevice::new(1 << 20).latency(Duration::from_millis(60));
        let mut executor = Executor::new(1);
        let clock = device.clock_of(&mut executor);
        let (records, target) = (TraceReader::new(TRACE.as_bytes(), Options::default()), device.shared());
        let plan = ReplayPlan::default();
        let replayed = executor
            .block_on(async move { replay(records, target, clock, plan, |_| ControlFlow::Break(())).await })
            .unwrap();
        assert!(replayed.was_stopped && (1..7).contains(&replayed.counts.requests), "{:?}", replayed.counts);
        assert_eq!(replayed.measurement.operations, replayed.counts.requests);
    }

    #[test]
    fn a_lying_device_is_found_out() {
        let device = ModelDevice::new(1 << 20).losing_write(1);
        let (result, _) = replayed(TRACE, ReplayPlan::default(), &device);
        let error = result.unwrap_err();
        assert!(matches!(&error, ReplayError::Mismatch(mismatch) if mismatch.offset == 4096), "{error}");
    }
}
