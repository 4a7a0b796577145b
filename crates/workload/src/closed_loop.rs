//! A closed loop: a generator at a fixed depth against a device, every read checked.
//!
//! - At most `depth` requests are in flight; a new one is issued when one comes back.
//! - An access that overlaps one in flight (where one of the two writes) is parked and issued as
//!   soon as the other is over; others go on, but none that overlaps a parked one. So every read
//!   has exactly one right answer, and the check is exact.
//! - When the device fails (the attached process was killed), no new request is issued, those in
//!   flight end in some way, and the run ends with [`Ending::DeviceFailed`] and the requests whose
//!   outcome is unknown. [`ClosedLoop::run`] with a device that works again first issues those,
//!   under their old versions, and goes on. Their latency counts from when they were first issued,
//!   as an application would see it.
//! - Time is the clock's; the limit counts the time in which the loop ran, not outages.
//!
//! Over a device that always answers at once, only a limit by requests ends a run in virtual time.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::clock::{Clock, Instant, Sleep};
use block::{Error, SharedDevice};

use crate::access::{Access, AccessKind};
use crate::engine::{Done, Engine, Failure, Task};
use crate::generator::{Generator, Profile, ProfileError};
use crate::ledger::{InitialContent, Ledger, Mismatch};
use crate::limits::{DEPTH_MAX, PARKED_MAX, PROGRESS_INTERVAL};
use crate::measurement::{Measurement, Recorder};
use crate::series::{Sample, Series};

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this many requests.
    Requests(u64),
    /// After this much time with a working device.
    Time(Duration),
}

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The accesses.
    pub profile: Profile,
    /// Requests in flight, 1 to [`DEPTH_MAX`].
    pub depth: u32,
    /// When it ends.
    pub limit: Limit,
    /// Whether content is checked, and the content at the start. `None` saves every request a look
    /// into the ledger.
    pub verify: Option<InitialContent>,
    /// Whether the response time of each request is kept.
    pub keep_series: bool,
}

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The profile is impossible.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The depth is impossible.
    #[error("a depth of {0} is not between 1 and {DEPTH_MAX}")]
    Depth(u32),
}

/// The outcome of [`ClosedLoop::run`].
#[derive(Debug)]
pub enum Ending {
    /// The limit was reached.
    Finished,
    /// The progress callback asked to stop.
    Stopped,
    /// The device failed. Run again with one that works.
    DeviceFailed {
        /// Its first error.
        error: Error,
        /// Requests that did not succeed; those that write may or may not have been carried out.
        unknown: Vec<Access>,
    },
}

/// The error that ends a run for good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A read returned other data than was written.
    #[error("the device returned wrong data: {0}")]
    Mismatch(Box<Mismatch>),
    /// The ledger has no version numbers left.
    #[error("four billion writes are all one verified run can count")]
    TooManyWrites,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Time run so far, outages not counted.
    pub active: Duration,
    /// Requests finished.
    pub requests: u64,
    /// Share of the whole, 0.0 to 1.0.
    pub share: f64,
}

/// Time without a working device, relative to the begin of the first run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When the device's first error came.
    pub from: Duration,
    /// When the first request succeeded again; `None` when none has yet.
    pub until: Option<Duration>,
}

/// A closed loop that can be continued.
pub struct ClosedLoop {
    plan: Plan,
    generator: Generator,
    clock: Arc<dyn Clock>,
    ledger: Option<Ledger>,
    recorder: Recorder,
    series: Option<Series>,
    /// Requests left by an outage, to be issued before any new one.
    again: VecDeque<Task>,
    /// Drawn accesses that wait for one that overlaps them.
    parked: VecDeque<Access>,
    /// Requests in flight of a verified run, kept for the case that the future of the run is
    /// dropped.
    in_flight: Vec<Task>,
    began: Option<Instant>,
    active_before: Duration,
    requests_drawn: u64,
    outages: Vec<Outage>,
}

/// State of one call of `run`.
struct Round {
    began: Instant,
    failure: Option<(Error, Instant)>,
    is_stopped: bool,
}

impl ClosedLoop {
    /// A loop that has not run yet. The seed of the content is the profile's.
    ///
    /// # Errors
    /// For an impossible plan.
    pub fn new(plan: Plan, clock: Arc<dyn Clock>) -> Result<Self, PlanError> {
        if !(1..=DEPTH_MAX).contains(&plan.depth) {
            return Err(PlanError::Depth(plan.depth));
        }
        let generator = Generator::new(plan.profile.clone())?;
        Ok(Self {
            generator,
            clock,
            ledger: plan.verify.map(|initial| Ledger::new(plan.profile.seed, initial)),
            recorder: Recorder::new(),
            series: plan.keep_series.then(Series::new),
            again: VecDeque::new(),
            parked: VecDeque::new(),
            in_flight: Vec::new(),
            began: None,
            active_before: Duration::ZERO,
            requests_drawn: 0,
            outages: Vec::new(),
            plan,
        })
    }

    /// Expects the content of `ledger` from the start: that of another run, on the same device.
    /// Versions continue from there, so the contents of both runs differ. Without verification it
    /// does nothing.
    pub fn with_ledger(mut self, ledger: Ledger) -> Self {
        if self.ledger.is_some() {
            self.ledger = Some(ledger);
        }
        self
    }

    /// Runs on `device` until the limit, a stop or a failure of the device. `progress` is called about every tenth of a
    /// second.
    ///
    /// If the future is dropped (a device that neither answers nor fails) the time of this run is
    /// lost, but a verified run loses no knowledge: requests in flight are in doubt, and the next
    /// run issues them first.
    ///
    /// # Errors
    /// Wrong data.
    pub async fn run(
        &mut self,
        device: SharedDevice,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Ending, RunError> {
        let mut engine = Engine::new(device, Arc::clone(&self.clock), self.plan.depth);
        self.doubt_left_in_flight();
        let mut round = Round { began: self.clock.now(), failure: None, is_stopped: false };
        self.began.get_or_insert(round.began);
        let mut tick = self.clock.sleep(PROGRESS_INTERVAL);
        // A request that is issued because another one ended is issued at that moment: reading the
        // clock again costs as much as the rest.
        let mut came_back = None;
        loop {
            self.issue(&mut engine, &round, came_back.take())?;
            if engine.count() == 0 {
                break;
            }
            match next(&mut engine, self.ledger.as_ref(), &mut tick).await {
                Some(done) => {
                    came_back = Some(done.finished_at);
                    self.book(done, &mut round)?;
                }
                None => {
                    tick = self.clock.sleep(PROGRESS_INTERVAL);
                    round.is_stopped |= progress(self.progress(&round)).is_break();
                }
            }
        }
        Ok(self.end(round))
    }

    /// The figures so far.
    pub fn measurement(&self) -> Measurement {
        self.recorder.measurement(self.active_before)
    }

    /// The response times, if the plan keeps them.
    pub fn series(&self) -> Option<&Series> {
        self.series.as_ref()
    }

    /// Times without a working device.
    pub fn outages(&self) -> &[Outage] {
        &self.outages
    }

    /// The content expected on the device now, if the plan verifies.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()
    }

    /// As [`ClosedLoop::ledger`], for another run on the same device.
    pub fn into_ledger(self) -> Option<Ledger> {
        self.ledger
    }

    /// The histograms behind the figures.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn issue(&mut self, engine: &mut Engine, round: &Round, mut at: Option<Instant>) -> Result<(), RunError> {
        if round.failure.is_some() {
            return Ok(());
        }
        while engine.count() < self.plan.depth as usize {
            let Some(task) = self.next_task(engine, round, at.take().unwrap_or_else(|| self.clock.now()))? else {
                break;
            };
            if self.ledger.is_some() {
                self.in_flight.push(task);
            }
            engine.submit(task, self.ledger.as_ref());
        }
        Ok(())
    }

    fn doubt_left_in_flight(&mut self) {
        for task in std::mem::take(&mut self.in_flight) {
            self.book_unknown(task);
        }
    }

    fn book_unknown(&mut self, task: Task) {
        if let (AccessKind::Write, Some(ledger)) = (task.access.kind, self.ledger.as_mut()) {
            ledger.doubt(task.access.range, task.version);
        }
        self.again.push_back(task);
    }

    /// The next request that may be issued now. Requests left by an outage and parked ones are
    /// issued even after the limit is reached.
    fn next_task(&mut self, engine: &Engine, round: &Round, now: Instant) -> Result<Option<Task>, RunError> {
        if let Some(task) = self.again.pop_front() {
            // These were in flight together before, so they do not overlap, and no other request is
            // issued before them.
            return Ok(Some(task));
        }
        // Without verification overlaps do not matter, as in fio.
        if self.ledger.is_none() {
            return Ok(self.draw(round, now).map(|access| Task { access, version: 0, issued_at: now }));
        }
        if let Some(index) = (0..self.parked.len()).find(|&index| self.is_free(engine, &self.parked[index], index)) {
            let access = self.parked.remove(index);
            return access.map(|access| self.versioned(access, now)).transpose();
        }
        while self.parked.len() < PARKED_MAX {
            let Some(access) = self.draw(round, now) else { return Ok(None) };
            if self.is_free(engine, &access, self.parked.len()) {
                return self.versioned(access, now).map(Some);
            }
            self.parked.push_back(access);
        }
        Ok(None)
    }

    /// Whether an access that was drawn after the first `earlier_count` parked ones may be issued
    /// before them. Where order matters it is the order of drawing, so a stream of reads cannot
    /// starve a write.
    fn is_free(&self, engine: &Engine, access: &Access, earlier_count: usize) -> bool {
        let mut earlier = self.parked.iter().take(earlier_count);
        !engine.conflicts(access) && !earlier.any(|other| other.conflicts_with(access))
    }

    fn versioned(&mut self, access: Access, now: Instant) -> Result<Task, RunError> {
        let version = match self.ledger.as_mut() {
            Some(ledger) if access.kind == AccessKind::Write => ledger.next_version().ok_or(RunError::TooManyWrites)?,
            _ => 0,
        };
        Ok(Task { access, version, issued_at: now })
    }

    /// A new access, unless the limit is reached.
    fn draw(&mut self, round: &Round, now: Instant) -> Option<Access> {
        let may_draw = !round.is_stopped
            && match self.plan.limit {
                Limit::Requests(count) => self.requests_drawn < count,
                Limit::Time(time) => self.active(round, now) < time,
            };
        may_draw.then(|| {
            self.requests_drawn += 1;
            self.generator.draw()
        })
    }

    fn book(&mut self, done: Done, round: &mut Round) -> Result<(), RunError> {
        let Done { task, finished_at, result } = done;
        if let Some(index) = self.in_flight.iter().position(|other| *other == task) {
            self.in_flight.swap_remove(index);
        }
        match result {
            Ok(()) => {
                self.book_success(task, finished_at);
                Ok(())
            }
            Err(Failure::Mismatch(mismatch)) => Err(RunError::Mismatch(mismatch)),
            Err(Failure::Device(error)) => {
                self.book_unknown(task);
                round.failure.get_or_insert((error, finished_at));
                Ok(())
            }
        }
    }

    fn book_success(&mut self, task: Task, finished_at: Instant) {
        let Access { kind, range } = task.access;
        if let (AccessKind::Write, Some(ledger)) = (kind, self.ledger.as_mut()) {
            ledger.commit(range, task.version);
        }
        let latency = finished_at.since(task.issued_at);
        self.recorder.record(kind, range.length, latency);
        let at = finished_at.since(self.began.unwrap_or_default());
        if let Some(outage) = self.outages.last_mut() {
            outage.until.get_or_insert(at);
        }
        if let Some(series) = self.series.as_mut() {
            series.push(Sample { at_ns: nanoseconds(at), latency_ns: nanoseconds(latency), kind });
        }
    }

    /// Counts the time of the round. Returns how it ended.
    fn end(&mut self, round: Round) -> Ending {
        let Some((error, failed_at)) = round.failure else {
            self.active_before = self.active(&round, self.clock.now());
            return if round.is_stopped { Ending::Stopped } else { Ending::Finished };
        };
        self.active_before += failed_at.since(round.began);
        // If the resumed device fails before any success the open outage continues.
        if self.outages.last().is_none_or(|outage| outage.until.is_some()) {
            self.outages.push(Outage { from: failed_at.since(self.began.unwrap_or_default()), until: None });
        }
        Ending::DeviceFailed { error, unknown: self.again.iter().map(|task| task.access).collect() }
    }

    fn active(&self, round: &Round, now: Instant) -> Duration {
        self.active_before + now.since(round.began)
    }

    fn progress(&self, round: &Round) -> Progress {
        let (active, requests) = (self.active(round, self.clock.now()), self.recorder.count());
        let share = match self.plan.limit {
            Limit::Requests(count) => requests as f64 / count.max(1) as f64,
            Limit::Time(time) => active.as_secs_f64() / time.as_secs_f64().max(f64::MIN_POSITIVE),
        };
        Progress { active, requests, share: share.clamp(0.0, 1.0) }
    }
}

/// The next request that ends, or `None` when `tick` ends first.
pub(crate) async fn next(engine: &mut Engine, ledger: Option<&Ledger>, tick: &mut Sleep) -> Option<Done> {
    poll_fn(|context| {
        if let Poll::Ready(done) = engine.poll_next(context, ledger) {
            return Poll::Ready(Some(done));
        }
        Pin::new(&mut *tick).poll(context).map(|()| None)
    })
    .await
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ModelDevice, keep_going};
    use crate::verify::{VerifyError, verify_all};
    use base::executor::Executor;
    use base::range::ByteRange;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn plan(limit: Limit) -> Plan {
        let profile = Profile::icache(7, ByteRange { offset: 0, length: 1 << 20 });
        Plan { profile, depth: 4, limit, verify: Some(InitialContent::Zero), keep_series: true }
    }

    /// Runs a plan on a device in virtual time, to its first ending.
    fn run(plan: Plan, device: &Arc<ModelDevice>) -> (ClosedLoop, Result<Ending, RunError>) {
        let mut executor = Executor::new(3);
        let clock = device.clock_of(&mut executor);
        let target = device.shared();
        executor.block_on(async move {
            let mut closed_loop = ClosedLoop::new(plan, clock).expect("the plan makes sense");
            let ending = closed_loop.run(target, keep_going).await;
            (closed_loop, ending)
        })
    }

    #[test]
    fn depth_and_latency_give_the_rate() {
        let device = ModelDevice::new(1 << 20).latency(MILLISECOND);
        let profile = Profile { pattern: crate::Pattern::Uniform, ..plan(Limit::Requests(0)).profile };
        let (closed_loop, ending) = run(Plan { profile, ..plan(Limit::Time(Duration::from_secs(2))) }, &device);
        assert!(matches!(ending, Ok(Ending::Finished)));
        let measurement = closed_loop.measurement();
        // Four in flight, one millisecond each. A few wait for an overlapping one.
        assert!((3900.0..=4000.0).contains(&measurement.iops), "{}", measurement.iops);
        assert_eq!(measurement.bytes_per_second, measurement.iops * 2048.0);
        assert_eq!(measurement.latency_ns.max.map(|ns| ns / 10_000), Some(100), "the histogram has three digits");
        assert_eq!(measurement.share_within_1ms, Some(1.0));
        let share = measurement.writes.count as f64 / measurement.operations as f64;
        assert!((0.87..0.91).contains(&share), "{share} writes");
        assert_eq!(closed_loop.series().map(Series::seen), Some(measurement.operations));
    }

    #[test]
    fn requests_are_counted_exactly_and_one_seed_is_one_run() {
        let figures = || {
            let device = ModelDevice::new(1 << 20).random_latency(5, MILLISECOND * 3);
            let (closed_loop, ending) = run(plan(Limit::Requests(3000)), &device);
            assert!(matches!(ending, Ok(Ending::Finished)));
            closed_loop.measurement()
        };
        assert_eq!(figures().operations, 3000);
        assert_eq!(figures(), figures());
    }

    /// The device dies in the middle; half of the requests in flight are carried out. With a new
    /// device over the same memory the loop goes on, and no acknowledged write is missing.
    #[test]
    fn a_killed_device_is_resumed() {
        for seed in 0..8 {
            let first = ModelDevice::new(1 << 20).random_latency(seed, MILLISECOND * 2).failing_at(MILLISECOND * 500);
            let second = ModelDevice::over(first.memory()).random_latency(seed, MILLISECOND);
            let mut executor = Executor::new(seed);
            let clock = first.clock_of(&mut executor);
            second.clock_of(&mut executor);
            let plan = plan(Limit::Time(Duration::from_secs(1)));
            let closed_loop = executor.block_on(async move {
                let mut closed_loop = ClosedLoop::new(plan, Arc::clone(&clock)).expect("the plan makes sense");
                let ending = closed_loop.run(first.shared(), keep_going).await.expect("no data is wrong");
                let Ending::DeviceFailed { error, unknown } = ending else { panic!("{ending:?}") };
                assert_eq!(error.kind(), block::ErrorKind::OutcomeUnknown);
                assert!((1..=4).contains(&unknown.len()), "{unknown:?}");
                let ledger = closed_loop.ledger().expect("it verifies");
                assert!(unknown.iter().all(|access| !access.is_mutation()) == (ledger.doubted_unit_count() == 0));
                // Each unit has an old or a new content, as far as that can be known.
                verify_all(&second.shared(), ledger, keep_going).await.expect("each unit is old or new");
                clock.sleep(MILLISECOND * 300).await;
                let ending = closed_loop.run(second.shared(), keep_going).await.expect("no data is wrong");
                assert!(matches!(ending, Ending::Finished));
                let ledger = closed_loop.ledger().expect("it verifies");
                assert_eq!(ledger.doubted_unit_count(), 0);
                verify_all(&second.shared(), ledger, keep_going).await.expect("everything is there");
                closed_loop
            });
            let [outage] = closed_loop.outages() else { panic!("{:?}", closed_loop.outages()) };
            let length = outage.until.expect("it went on") - outage.from;
            assert!(length >= MILLISECOND * 300 && length < MILLISECOND * 310, "{length:?}");
            let measurement = closed_loop.measurement();
            assert!((0.99..1.01).contains(&measurement.seconds), "the outage is not counted: {}", measurement.seconds);
            let slowest_ns = measurement.latency_ns.max.expect("there are samples");
            assert!(slowest_ns >= 300_000_000, "who waited through the outage waited that long: {slowest_ns}");
        }
    }

    /// A device that neither answers nor fails: the caller gives up, and the requests are
    /// remembered all the same.
    #[test]
    fn a_dropped_run_leaves_its_requests_in_doubt() {
        let hanging = ModelDevice::new(1 << 20).latency(Duration::from_secs(3600));
        let second = ModelDevice::over(hanging.memory()).latency(MILLISECOND);
        let mut executor = Executor::new(1);
        let clock = hanging.clock_of(&mut executor);
        second.clock_of(&mut executor);
        let mut closed_loop = ClosedLoop::new(plan(Limit::Requests(100)), clock).expect("the plan makes sense");
        {
            let run = std::pin::pin!(closed_loop.run(hanging.shared(), keep_going));
            let polled = run.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            assert!(polled.is_pending());
        }
        let (operations, doubted) = executor.block_on(async move {
            let ending = closed_loop.run(second.shared(), keep_going).await.expect("no data is wrong");
            assert!(matches!(ending, Ending::Finished));
            let ledger = closed_loop.ledger().expect("it verifies");
            (closed_loop.measurement().operations, ledger.doubted_unit_count())
        });
        assert_eq!((operations, doubted), (100, 0));
    }

    /// A run must be `Send`, so that any runtime can spawn it.
    #[test]
    fn a_run_may_move_between_threads() {
        fn assert_send(_: &impl Send) {}
        let clock: Arc<dyn Clock> = Arc::new(base::clock::VirtualClock::new());
        let mut closed_loop = ClosedLoop::new(plan(Limit::Requests(1)), clock).expect("the plan makes sense");
        assert_send(&closed_loop.run(ModelDevice::new(1 << 20).shared(), keep_going));
    }

    #[test]
    fn an_outage_that_goes_on_is_one_outage() {
        let memory = ModelDevice::new(1 << 20).memory();
        let mut executor = Executor::new(1);
        let clock: Arc<dyn Clock> = Arc::new(executor.clock());
        let dead = ModelDevice::over(memory).latency(MILLISECOND).failing_at(Duration::ZERO);
        dead.clock_of(&mut executor);
        let outages = executor.block_on(async move {
            let mut closed_loop = ClosedLoop::new(plan(Limit::Requests(10)), clock).expect("the plan makes sense");
            for _ in 0..3 {
                let ending = closed_loop.run(dead.shared(), keep_going).await.expect("no data is wrong");
                assert!(matches!(ending, Ending::DeviceFailed { unknown, .. } if unknown.len() == 4));
            }
            closed_loop.outages().to_vec()
        });
        assert_eq!(outages, [Outage { from: MILLISECOND, until: None }]);
    }

    #[test]
    fn a_lost_write_is_found_by_a_read_or_at_the_end() {
        let device = ModelDevice::new(1 << 20).latency(MILLISECOND).losing_write(1);
        let (closed_loop, ending) = run(plan(Limit::Requests(1)), &device);
        assert!(matches!(ending, Ok(Ending::Finished)));
        let target: SharedDevice = device.memory();
        let result = Executor::in_order()
            .block_on(async move { verify_all(&target, closed_loop.ledger().expect("it verifies"), keep_going).await });
        match result {
            Err(VerifyError::Mismatches { count: 4, described }) => assert_eq!(described.len(), 4),
            other => panic!("{other:?}"),
        }
        // One hot place, half reads: most lost writes are read before the next write covers them.
        let footprint = ByteRange { offset: 0, length: 2048 };
        let profile = Profile { footprint, write_share: 0.5, ..plan(Limit::Requests(0)).profile };
        let is_found = |number: &u64| {
            let device = ModelDevice::new(1 << 20).latency(MILLISECOND).losing_write(*number);
            let (_, ending) = run(Plan { profile: profile.clone(), ..plan(Limit::Requests(100)) }, &device);
            matches!(ending, Err(RunError::Mismatch(_)))
        };
        let found = (1..=20).filter(is_found).count();
        assert!((5..20).contains(&found), "{found} of 20 lost writes were found by a read");
    }

    #[test]
    fn progress_is_told_and_can_stop() {
        let device = ModelDevice::new(1 << 20).latency(MILLISECOND);
        let mut executor = Executor::new(3);
        let clock = device.clock_of(&mut executor);
        let target = device.shared();
        let (calls, ending, seconds) = executor.block_on(async move {
            let plan = plan(Limit::Time(Duration::from_secs(10)));
            let mut closed_loop = ClosedLoop::new(plan, clock).expect("the plan makes sense");
            let mut calls = Vec::new();
            let progress = |progress: Progress| {
                calls.push(progress.share);
                if calls.len() == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let ending = closed_loop.run(target, progress).await;
            (calls, ending, closed_loop.measurement().seconds)
        });
        assert!(matches!(ending, Ok(Ending::Stopped)));
        assert_eq!(calls.len(), 5);
        assert!(
            calls.iter().zip([0.01, 0.02, 0.03, 0.04, 0.05]).all(|(share, at)| (share - at).abs() < 0.001),
            "{calls:?}"
        );
        assert!((0.5..0.51).contains(&seconds));
    }

    /// A device that answers at once, without a ledger: as measured by `forebay bench`.
    #[test]
    fn without_verification_buffers_go_round() {
        let device = ModelDevice::new(1 << 20);
        let (closed_loop, ending) =
            run(Plan { verify: None, keep_series: false, ..plan(Limit::Requests(20_000)) }, &device);
        assert!(matches!(ending, Ok(Ending::Finished)));
        assert_eq!(closed_loop.measurement().operations, 20_000);
        assert!(closed_loop.ledger().is_none() && closed_loop.series().is_none());
    }

    #[test]
    fn a_second_run_knows_what_the_first_one_wrote() {
        let device = ModelDevice::new(1 << 20).latency(MILLISECOND);
        let mut executor = Executor::new(3);
        let clock = device.clock_of(&mut executor);
        let target = device.shared();
        executor.block_on(async move {
            let new_loop = || ClosedLoop::new(plan(Limit::Requests(500)), Arc::clone(&clock)).expect("it makes sense");
            let mut first = new_loop();
            assert!(matches!(first.run(Arc::clone(&target), keep_going).await, Ok(Ending::Finished)));
            let ledger = first.into_ledger().expect("it verifies");
            let mut second = new_loop().with_ledger(ledger);
            assert!(matches!(second.run(Arc::clone(&target), keep_going).await, Ok(Ending::Finished)));
            verify_all(&target, second.ledger().expect("it verifies"), keep_going).await.expect("all is there");
            let mut ignorant = new_loop();
            assert!(matches!(ignorant.run(target, keep_going).await, Err(RunError::Mismatch(_))));
        });
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        let clock: Arc<dyn Clock> = Arc::new(base::clock::VirtualClock::new());
        for depth in [0, DEPTH_MAX + 1] {
            let refused = ClosedLoop::new(Plan { depth, ..plan(Limit::Requests(1)) }, Arc::clone(&clock)).err();
            assert_eq!(refused, Some(PlanError::Depth(depth)));
        }
    }
}
