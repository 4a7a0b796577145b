//! The medium under a stack that is tested for power loss: it keeps what is durable apart from what is not.
//!
//! ```text
//! submitted ──► in flight ──completed──► volatile ──flushed──► durable
//!                   │        (fua, or a write-through medium) ───▲
//!                   └── power lost: each write that is in flight or volatile lands whole, in part of its
//!                       512-byte units, or not at all, by seed; whatever is durable stays
//! ```
//! - Power fails at a chosen mutating request ([`Power::fail_write`], counted from 0 over all
//!   devices on that power) or on the test's command ([`Power::lose`]). The request it fails at
//!   lands in units drawn from the seed. From then on every request fails with [`ErrorKind::Gone`],
//!   those in flight included.
//! - Of several writes not yet durable any subset may land, so later ones may land and earlier ones not. Where two
//!   overlap, the later one's bytes win if both land: writes in flight that overlap are carried out in the order of
//!   their submission.
//! - [`CrashLayer::after_power_loss`] is the device that the next start finds. It may be called
//!   several times, with other seeds, for other outcomes of the same crash.
//!
//! - [`CrashLayer::after_restart`] is the medium that the next start finds when only the *other*
//!   side stopped: a host restarts, and the LUN keeps its power. This makes nothing durable, and
//!   loses nothing; volatile data is lost by a later power loss.
//! - Requests fail on demand, once or for good ([`Reported`]). A write that fails may have been
//!   carried out, wholly or in part ([`WriteEffect`]); a flush that fails may have dropped the data
//!   it covers ([`FlushEffect`]).
//! - A medium without FUA, that is without writes that are durable by themselves, is this one under
//!   the layer [`shared_flush`](super::shared_flush).
//!
//! | seen by the other side | made by |
//! |---|---|
//! | the power of this medium fails | [`CrashLayer::after_power_loss`] |
//! | the host fails, this medium does not | [`CrashLayer::after_restart`] |
//! | the host fails, and later this medium | `after_restart`, then `after_power_loss` |
//! | a flush fails, nothing is lost | [`CrashLayer::fail_flush_as`] with [`FlushEffect::None`] |
//! | a flush fails and drops, reported once (`fsync`) | with [`FlushEffect::DropsUnseen`] and [`Reported::Once`] |
//! | a disk drops its cache | with [`FlushEffect::Drops`] |
//! | it loses volatile data and goes on, with an event | [`CrashLayer::lose_cache`] |
//! | it grows, with an event | [`CrashLayer::grow`] |
//! | it has another size at the next start | [`CrashLayer::resize`] |
//! | one read fails | [`CrashLayer::fail_read_once`] |
//! | another host writes to it, or it becomes another disk | [`CrashLayer::publish`] |
//! | a write fails, with an unknown effect | [`CrashLayer::fail_write_as`] with [`WriteEffect::ByChance`] |
//!
//! Tests that try each of many crashes go through them by [`CrashTest`], which repeats a single one on demand.
//!
//! With [`CrashLayer::with_latency`] requests take (virtual) time, and many are really in flight when the power fails.
//! Without, each is carried out within `submit`.
//!
//! What is deliberately not modelled: bytes near a write that change, durable bytes that rot, a flush that lies. The
//! layer [`error`](super::error) and a test that overwrites bytes do that where a design promises to survive it.

mod fault;
mod image;
mod log;
mod loss;
mod power;
mod replay;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::buffer::Buffer;
use base::clock::{Clock, Instant};
use base::random::Random;
use base::range::ByteRange;

use self::fault::{Effect, Faults, Struck};
pub use self::fault::{FlushEffect, Reported, WriteEffect};
use self::image::Image;
use self::log::{Content, WriteId, WriteLog};
pub use self::loss::{ATOMIC_UNIT_BYTES, Loss};
pub use self::power::Power;
pub use self::replay::CrashTest;
use crate::completion::{Completion, Workers};
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::event::{Event, EventHub, EventReceiver};
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::layer::delay::Latency;
use crate::range_lock::{Acquire, RangeLock};
use crate::request::{Extent, ExtentKind, Operation, OperationKind, Request, Response};

/// A medium that loses power. Clones are the same medium: one goes into the stack, the test keeps another.
#[derive(Clone)]
pub struct CrashLayer {
    medium: Arc<Medium>,
    timing: Option<Timing>,
}

#[derive(Clone)]
struct Timing {
    clock: Arc<dyn Clock>,
    latency: Latency,
    workers: Workers,
}

struct Medium {
    /// The geometry at the start; the size may have changed since.
    geometry: Geometry,
    size_bytes: AtomicU64,
    identity: Identity,
    seed: u64,
    power: Power,
    events: EventHub,
    ranges: RangeLock,
    /// Short sections, never across an await. The power's mutex may be taken inside, never the other way round.
    state: Mutex<State>,
}

struct State {
    /// The content that reads return while the power is on.
    visible: Image,
    /// The durable content.
    durable: Image,
    /// The writes that are not durable yet.
    log: WriteLog,
    faults: Faults,
    random: Random,
}

impl CrashLayer {
    /// A medium of `size_bytes` zeroes with a volatile write cache, on a power of its own.
    pub fn new(size_bytes: u64, seed: u64) -> Self {
        Self::on(&Power::new(), size_bytes, seed)
    }

    /// The same on a power that it shares with other devices: they fail together.
    pub fn on(power: &Power, size_bytes: u64, seed: u64) -> Self {
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(size_bytes) };
        let identity = Identity { target: "memory".into(), unit: "crash".into(), serial: format!("{seed:016x}") };
        let image = Image::default();
        Self::assemble(geometry, identity, seed, power, (image.clone(), image, WriteLog::default()))
    }

    /// A medium with this visible content, durable content, and log of writes that are not durable
    /// yet.
    fn assemble(
        geometry: Geometry,
        identity: Identity,
        seed: u64,
        power: &Power,
        (visible, durable, log): (Image, Image, WriteLog),
    ) -> Self {
        let state = State { visible, durable, log, faults: Faults::default(), random: Random::new(seed) };
        let medium = Medium {
            geometry,
            size_bytes: AtomicU64::new(geometry.size_bytes),
            identity,
            seed,
            power: power.clone(),
            events: EventHub::new(),
            ranges: RangeLock::new(),
            state: Mutex::new(state),
        };
        power.attach(medium.events.clone());
        Self { medium: Arc::new(medium), timing: None }
    }

    /// Makes every completed write durable: a medium without a volatile cache.
    ///
    /// # Panics
    /// When the medium is in use already.
    #[must_use]
    pub fn write_through(mut self) -> Self {
        self.configure(|medium| medium.geometry.is_write_cache_volatile = false);
        self
    }

    /// Gives the medium another geometry. Its `is_write_cache_volatile` says whether writes need a flush.
    ///
    /// # Panics
    /// When the medium is in use already.
    #[must_use]
    pub fn with_geometry(mut self, geometry: Geometry) -> Self {
        self.configure(|medium| (medium.geometry, medium.size_bytes) = (geometry, AtomicU64::new(geometry.size_bytes)));
        self
    }

    /// Gives the medium a name.
    ///
    /// # Panics
    /// When the medium is in use already.
    #[must_use]
    pub fn with_identity(mut self, identity: Identity) -> Self {
        self.configure(|medium| medium.identity = identity);
        self
    }

    fn configure(&mut self, change: impl FnOnce(&mut Medium)) {
        change(Arc::get_mut(&mut self.medium).expect("a medium is configured before it is shared"));
    }

    /// Makes requests take time, drawn from the medium's seed, so that several are in flight at
    /// once. `workers` carry them out; their [`run`](Workers::run) must be polled.
    #[must_use]
    pub fn with_latency(mut self, clock: Arc<dyn Clock>, latency: Latency, workers: &Workers) -> Self {
        self.timing = Some(Timing { clock, latency, workers: workers.clone() });
        self
    }

    /// The power fails at mutating request `nth` (from 0) on this medium's power. See [`Power::fail_write`].
    #[must_use]
    pub fn fail_write(self, nth: u64) -> Self {
        self.medium.power.fail_write(nth);
        self
    }

    /// The power this medium is on.
    pub fn power(&self) -> &Power {
        &self.medium.power
    }

    /// Reads this medium has seen, failed ones included.
    pub fn reads_seen(&self) -> u64 {
        self.medium.lock().faults.reads_seen()
    }

    /// Mutating requests this medium has seen, failed ones included.
    pub fn writes_seen(&self) -> u64 {
        self.medium.lock().faults.writes_seen()
    }

    /// Flushes this medium has seen, failed ones included.
    pub fn flushes_seen(&self) -> u64 {
        self.medium.lock().faults.flushes_seen()
    }

    /// Mutating request `nth` (from 0) of this medium fails with `kind` and changes nothing; the others work.
    pub fn fail_write_once(&self, nth: u64, kind: ErrorKind) {
        self.fail_write_as(nth, kind, WriteEffect::None, Reported::Once);
    }

    /// Mutating request `nth` (from 0) of this medium fails with `kind`, with this effect, once or from then on.
    pub fn fail_write_as(&self, nth: u64, kind: ErrorKind, effect: WriteEffect, reported: Reported) {
        self.medium.lock().faults.fail_write(nth, kind, effect, reported);
    }

    /// Mutating requests from `nth` on fail with `kind` and change nothing, until [`CrashLayer::heal`].
    pub fn fail_writes_from(&self, nth: u64, kind: ErrorKind) {
        self.fail_write_as(nth, kind, WriteEffect::None, Reported::ForGood);
    }

    /// Flush `nth` (from 0) fails with `kind` and makes nothing durable; the others work.
    pub fn fail_flush_once(&self, nth: u64, kind: ErrorKind) {
        self.fail_flush_as(nth, kind, FlushEffect::None, Reported::Once);
    }

    /// Flush `nth` (from 0) fails with `kind`, with this effect, once or from then on.
    pub fn fail_flush_as(&self, nth: u64, kind: ErrorKind, effect: FlushEffect, reported: Reported) {
        self.medium.lock().faults.fail_flush(nth, kind, effect, reported);
    }

    /// Read `nth` (from 0) of this medium fails with `kind`; the others work.
    pub fn fail_read_once(&self, nth: u64, kind: ErrorKind) {
        self.medium.lock().faults.fail_read(nth, kind);
    }

    /// Reads that touch `range` fail with a medium error, until [`CrashLayer::heal`].
    pub fn fail_reads_of(&self, range: ByteRange) {
        self.medium.lock().faults.fail_reads_of(range);
    }

    /// Removes all faults ordered so far. A lost power stays lost.
    pub fn heal(&self) {
        self.medium.lock().faults.heal();
    }

    /// Publishes an event to the subscribers of the medium.
    pub fn publish(&self, event: &Event) {
        self.medium.events.publish(event);
    }

    /// Loses volatile data, in whole or in part as drawn, and publishes the event: a disk whose
    /// power was away for a moment.
    pub fn lose_cache(&self) {
        self.lose_cache_silently();
        self.publish(&Event::WritesLost);
    }

    /// The same without the event: the caller publishes it by [`CrashLayer::publish`].
    pub fn lose_cache_silently(&self) {
        let State { visible, durable, log, random, .. } = &mut *self.medium.lock();
        log.lose(log.completed_count(), durable, random);
        *visible = log.show(durable);
    }

    /// Grows to this size, which is no smaller, and publishes the event.
    pub fn grow(&self, size_bytes: u64) {
        self.medium.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
        self.publish(&Event::Resized(self.geometry()));
    }

    /// Changes to this size without an event, while no layer uses it. Data beyond the end of a
    /// smaller one is gone, and zero if it grows again.
    pub fn resize(&self, size_bytes: u64) {
        let State { visible, durable, log, .. } = &mut *self.medium.lock();
        let beyond = ByteRange { offset: size_bytes, length: self.geometry().size_bytes.saturating_sub(size_bytes) };
        log.supersede(&beyond);
        visible.clear(beyond);
        durable.clear(beyond);
        self.medium.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// The durable bytes at `offset`, without all caches. Bytes past the end read as zero.
    pub fn durable_bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.medium.lock().durable.load(offset, &mut bytes);
        bytes
    }

    /// Overwrites durable bytes without any event, as a medium that rots would: visible at once and
    /// for ever.
    pub fn corrupt(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.medium.lock();
        state.durable.store(offset, bytes);
        state.visible.store(offset, bytes);
    }

    /// Takes the power away, if it is not lost yet, and returns the medium as the next start finds it, on a new power.
    #[must_use]
    pub fn after_power_loss(&self) -> Self {
        self.after_power_loss_as(Loss::Seeded(self.medium.seed), &Power::new())
    }

    /// The same with a chosen outcome and on a chosen power, which several devices of one stack may share. Latencies
    /// are not kept: [`CrashLayer::with_latency`] sets new ones.
    #[must_use]
    pub fn after_power_loss_as(&self, loss: Loss, power: &Power) -> Self {
        let medium = &self.medium;
        medium.power.lose();
        let state = medium.lock();
        let mut image = state.durable.clone();
        state.log.land(&mut image, loss);
        drop(state);
        self.successor(power, (image.clone(), image, WriteLog::default()))
    }

    /// Restarts the host of this medium, which keeps its power. Returns the medium that the next
    /// start finds, on a new power. Writes in flight are carried out whole, in part or not at all,
    /// by the medium's seed, and then are volatile like the completed ones.
    #[must_use]
    pub fn after_restart(&self) -> Self {
        self.after_restart_as(Loss::Seeded(self.medium.seed), &Power::new())
    }

    /// The same with a chosen outcome for writes in flight (without a seed none is carried out),
    /// and on a chosen power.
    #[must_use]
    pub fn after_restart_as(&self, loss: Loss, power: &Power) -> Self {
        self.medium.power.lose();
        let state = self.medium.lock();
        let mut visible = state.visible.clone();
        let log = state.log.after_restart(loss, &mut visible);
        let content = (visible, state.durable.clone(), log);
        drop(state);
        self.successor(power, content)
    }

    /// The same medium at its next start.
    fn successor(&self, power: &Power, content: (Image, Image, WriteLog)) -> Self {
        let Medium { identity, seed, .. } = &*self.medium;
        // Another seed, so that a crash during recovery is not the same crash again.
        Self::assemble(self.geometry(), identity.clone(), seed.wrapping_add(1), power, content)
    }

    /// Waits for its place, takes its time, and ends, unless the power is lost by then.
    fn carry_out(&self, mut place: Acquire, mut action: Action, buffer: Buffer, struck: Option<Struck>) -> Completion {
        let medium = Arc::clone(&self.medium);
        let Some(timing) = self.timing.clone() else {
            return Completion::task(&Workers::new(), async move {
                let _guard = place.await;
                match medium.begin(&mut action, None) {
                    Some(_) => medium.end(action, buffer, struck),
                    None => Response::failed(power_is_lost(), buffer),
                }
            });
        };
        // In flight from now on, unless it has to wait for an earlier request.
        let early = place.try_take();
        let begun = early.is_some().then(|| medium.begin(&mut action, Some(&timing)));
        // It goes on whether or not the completion is polled: other requests may wait behind this
        // one.
        let (completion, sender) = Completion::slot();
        timing.workers.clone().spawn(async move {
            let (_guard, begun) = match (early, begun) {
                (Some(guard), Some(begun)) => (guard, begun),
                _ => (place.await, medium.begin(&mut action, Some(&timing))),
            };
            let response = match begun {
                Some(end_at) => {
                    timing.clock.sleep_until(end_at).await;
                    medium.end(action, buffer, struck)
                }
                None => Response::failed(power_is_lost(), buffer),
            };
            sender.complete(response);
        });
        completion
    }
}

/// A request with its place.
enum Action {
    Read { range: ByteRange },
    Write { range: ByteRange, content: Content, is_fua: bool, id: Option<WriteId> },
    Flush { completed_count: u64 },
    Extents { range: ByteRange },
}

impl Action {
    /// The action of a request, and the buffer that is returned.
    fn of(operation: Operation, range: ByteRange, completed_count: u64) -> (Self, Buffer) {
        let zeroes = |is_fua| Self::Write { range, content: Content::Zeroes, is_fua, id: None };
        match operation {
            Operation::Read { buffer } => (Self::Read { range }, buffer),
            Operation::Write { buffer, fua } => {
                (Self::Write { range, content: Content::copy_of(&buffer), is_fua: fua, id: None }, buffer)
            }
            Operation::Discard { .. } => (zeroes(false), Buffer::empty()),
            Operation::WriteZeroes { fua, .. } => (zeroes(fua), Buffer::empty()),
            Operation::Flush => (Self::Flush { completed_count }, Buffer::empty()),
            Operation::Extents { .. } => (Self::Extents { range }, Buffer::empty()),
        }
    }

    fn describe(&self) -> (OperationKind, ByteRange) {
        match self {
            Self::Read { range } => (OperationKind::Read, *range),
            Self::Write { range, .. } => (OperationKind::Write, *range),
            Self::Flush { .. } => (OperationKind::Flush, ByteRange::default()),
            Self::Extents { range } => (OperationKind::Extents, *range),
        }
    }
}

fn failure(operation: OperationKind, range: ByteRange, kind: ErrorKind) -> Error {
    Error::new(kind, format!("{} of {range} failed on demand: {}", operation.as_str(), kind.as_str()))
}

fn power_is_lost() -> Error {
    Error::new(ErrorKind::Gone, "the power is lost")
}

impl Medium {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the action in flight. Returns when it ends, or `None` when the power is lost.
    fn begin(&self, action: &mut Action, timing: Option<&Timing>) -> Option<Instant> {
        let mut state = self.lock();
        if self.power.is_lost() {
            return None;
        }
        if let Action::Write { range, content, id, .. } = action {
            *id = Some(state.log.begin(*range, content.clone()));
        }
        Some(timing.map_or(Instant::START, |timing| timing.clock.now() + timing.latency.draw(&mut state.random)))
    }

    fn end(&self, action: Action, mut buffer: Buffer, struck: Option<Struck>) -> Response {
        let state = &mut *self.lock();
        if self.power.is_lost() {
            return Response::failed(power_is_lost(), buffer);
        }
        if let Some(struck) = struck {
            let (operation, range) = action.describe();
            let error = failure(operation, range, struck.kind);
            self.end_with(action, struck.effect, state);
            return Response::failed(error, buffer);
        }
        match action {
            Action::Read { range } => state.visible.load(range.offset, &mut buffer),
            Action::Write { id, is_fua, .. } => {
                let is_durable = is_fua || !self.geometry.is_write_cache_volatile;
                let id = id.expect("an action begins before it ends");
                state.log.complete(id, is_durable, &mut state.visible, &mut state.durable);
            }
            Action::Flush { completed_count } => state.log.flush(completed_count, &mut state.durable),
            Action::Extents { range } => {
                let extents = vec![Extent { range, kind: ExtentKind::Data }];
                return Response { extents, ..Response::done(buffer) };
            }
        }
        Response::done(buffer)
    }

    /// Applies the effect of a request that fails on demand.
    fn end_with(&self, action: Action, effect: Effect, state: &mut State) {
        let State { visible, durable, log, random, .. } = state;
        match (action, effect) {
            (Action::Write { id, is_fua, .. }, Effect::Write(effect)) => {
                let is_durable = is_fua || !self.geometry.is_write_cache_volatile;
                let id = id.expect("an action begins before it ends");
                let effects = [WriteEffect::None, WriteEffect::Whole, WriteEffect::Torn];
                match if effect == WriteEffect::ByChance { effects[random.below(3) as usize] } else { effect } {
                    WriteEffect::Whole => log.complete(id, is_durable, visible, durable),
                    WriteEffect::Torn => log.complete_torn(id, is_durable, visible, durable, random),
                    WriteEffect::None | WriteEffect::ByChance => log.abandon(id),
                }
            }
            (Action::Flush { completed_count }, Effect::Flush(effect)) => {
                log.lose(completed_count, durable, random);
                if effect == FlushEffect::Drops {
                    *visible = log.show(durable);
                }
            }
            _ => {}
        }
    }
}

impl Device for CrashLayer {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.medium.size_bytes.load(Ordering::Acquire), ..self.medium.geometry }
    }

    fn identity(&self) -> Identity {
        self.medium.identity.clone()
    }

    fn submit(&self, request: Request) -> Completion {
        let medium = &self.medium;
        let range = match self.geometry().check(&request) {
            Ok(_) if medium.power.is_lost() => return Completion::ready(request.fail(power_is_lost())),
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        let is_mutation = request.is_mutation();
        let mut place = if is_mutation { medium.ranges.exclusive(range) } else { medium.ranges.shared(range) };
        if is_mutation && medium.power.see_write() {
            // The power fails at this request. It lands in part, unless it still waited for an
            // earlier one.
            let is_in_flight = place.try_take().is_some();
            let (action, buffer) = Action::of(request.operation, range, 0);
            if let (true, Action::Write { range, content, .. }) = (is_in_flight, action) {
                medium.lock().log.begin_torn(range, content);
            }
            return Completion::ready(Response::failed(power_is_lost(), buffer));
        }
        let (fault, completed_count) = {
            let mut state = medium.lock();
            (state.faults.see(request.operation.kind(), &range), state.log.completed_count())
        };
        if let Some(Struck { kind, effect: Effect::None }) = fault {
            let error = failure(request.operation.kind(), range, kind);
            return Completion::ready(request.fail(error));
        }
        let (action, buffer) = Action::of(request.operation, range, completed_count);
        self.carry_out(place, action, buffer, fault)
    }

    fn subscribe(&self) -> EventReceiver {
        self.medium.events.subscribe()
    }
}

#[cfg(test)]
mod tests;
