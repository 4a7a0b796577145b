//! The application of a stack in one life: requests of all kinds, changes of settings beside them,
//! and a check of every answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::random::Random;
use base::range::ByteRange;
use block::layer::crash::Power;
use block::{Completion, Device, Event, EventReceiver, Geometry, Request, Response};
use cache::{CleaningRate, DirtyLimits, Mode, Percent, Replacement};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::choice::{draw_level2, draw_mode, draw_tuning};
use crate::history::{History, SECTOR_BYTES};
use crate::made::Made;
use crate::running::Running;

/// Most sectors of a request, with lines of the usual size.
const SECTORS_MAX: u64 = 20;
/// Most sectors of most requests, with larger lines.
const SMALL_SECTORS_MAX: u64 = 64;

/// Most time between two closes of the stack, in microseconds.
const CLOSE_MICROS_MAX: u64 = 6000;

/// The application and the user of a stack in one life, and the model against which answers are
/// checked.
#[derive(Clone)]
pub struct Application {
    /// The stack.
    pub running: Running,
    /// The parameters of its stores.
    pub made: Made,
    /// The model: the history of every sector.
    pub history: Arc<Mutex<History>>,
    /// Power; once it is lost no answer reaches the application any more.
    pub power: Option<Power>,
    /// A clock that the executor advances.
    pub clock: Arc<dyn Clock>,
    /// Events of the stack.
    pub events: Arc<EventReceiver>,
    /// Held during a flush of a bare LUN.
    pub flush_turn: Arc<futures_util::lock::Mutex<()>>,
    /// The run, in messages about failures.
    pub context: Arc<str>,
}

/// What is to be durable when a flush, a close or a change to write-back ends well: the changes
/// acknowledged before it. A loss that was not reported to the client before it is by then.
struct Covered {
    indices: Vec<usize>,
    untold: Option<u64>,
}

/// Locks the histories, also after a panic.
pub fn lock(history: &Mutex<History>) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A part of a device, in whole blocks, outside of the part of other hosts: mostly short, half of
/// them in a small hot region.
pub fn draw_range(random: &mut Random, geometry: &Geometry, made: &Made) -> ByteRange {
    let block = u64::from(geometry.logical_block_bytes);
    let blocks = (geometry.size_bytes - made.others_bytes) / block;
    let sectors_max = SECTORS_MAX.max(made.line_bytes() / SECTOR_BYTES / 2 * 3);
    // Where lines are large, most requests are for a part of one: they find as many faults as large
    // ones, with far less copying.
    let is_small = sectors_max > SMALL_SECTORS_MAX && random.chance(0.75);
    let sectors_max = if is_small { SMALL_SECTORS_MAX } else { sectors_max };
    let count = 1 + random.below((sectors_max * SECTOR_BYTES / block).max(3).min(blocks));
    let span = if random.chance(0.5) { (blocks / 8).max(count) } else { blocks };
    ByteRange { offset: made.others_bytes + random.below(span - count + 1) * block, length: count * block }
}

impl Application {
    fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    /// Whether the application gets the answer that a request succeeded.
    fn is_heard(&self, response: &Response) -> bool {
        response.result.is_ok() && self.is_powered()
    }

    fn is_powered(&self) -> bool {
        !self.power.as_ref().is_some_and(Power::is_lost)
    }

    fn covered(&self) -> Covered {
        let history = self.history();
        Covered { indices: history.submit_flush(), untold: history.untold() }
    }

    /// Lets all answers be taken that are given: time goes on only when nobody has anything to do. One
    /// of them may have reported a loss, which is reported once.
    async fn take_answers(&self) {
        self.clock.sleep(Duration::from_micros(1)).await;
    }

    /// What promised that `covered` is durable has ended well.
    fn note_durable(&self, covered: &Covered) {
        self.hear_losses();
        self.history().check_told(covered.untold, &self.context);
        self.history().finish_flush(&covered.indices);
    }

    /// One life: requests, now and then a change of settings, perhaps a replaced cache or a close
    /// in the middle of them.
    pub async fn live(self, seed: u64, requests: usize) {
        let mut random = Random::new(seed);
        let depth = 1 + (seed % 9) as usize;
        let mut some_time = |chance| {
            let number = requests / 2 + random.below(requests as u64 / 2) as usize;
            random.chance(chance).then_some(number)
        };
        let (close_at, replace_at) = (some_time(0.4), some_time(0.3).map(|number| number - requests / 2));
        let mut under_way: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        for number in 0..requests {
            while under_way.len() >= depth {
                under_way.next().await;
            }
            if close_at == Some(number) {
                under_way.push(self.close(Duration::ZERO, random.chance(0.5)));
                if random.chance(0.3) {
                    // The close of a user that cannot wait until everything is clean.
                    under_way.push(self.close(Duration::from_micros(random.below(CLOSE_MICROS_MAX)), true));
                }
            }
            if replace_at == Some(number) {
                let (running, clock) = (self.running.clone(), Arc::clone(&self.clock));
                under_way.push(async move { drop(running.replace_cache(clock.as_ref()).await) }.boxed());
            }
            under_way.push(self.submit_one(&mut random));
            if random.chance(0.2) {
                self.clock.sleep(Duration::from_micros(random.below(1500))).await;
            }
        }
        while under_way.next().await.is_some() {}
    }

    fn close(&self, after: Duration, keep_dirty: bool) -> BoxFuture<'static, ()> {
        let application = self.clone();
        async move {
            application.clock.sleep(after).await;
            if application.running.is_lun_alone() {
                return;
            }
            let covered = application.covered();
            if application.running.close(keep_dirty).await.is_ok() && application.is_powered() {
                application.take_answers().await;
                application.note_durable(&covered);
            }
        }
        .boxed()
    }

    fn submit_one(&self, random: &mut Random) -> BoxFuture<'static, ()> {
        let geometry = self.running.top.geometry();
        let mut range = draw_range(random, &geometry, &self.made);
        let is_thin = geometry.discard_granularity_bytes.is_some();
        let fua = random.chance(0.2);
        let ByteRange { offset, length } = range;
        match random.below(100) {
            0..30 => {
                // Reads go everywhere, also into the part of other hosts.
                range.offset -= if random.chance(0.3) { range.offset.min(self.made.others_bytes) } else { 0 };
                self.read(range)
            }
            30..80 => self.change(range, false, fua, |buffer| Request::write(offset, buffer, fua)),
            80..86 => self.change(range, true, fua, |_| Request::write_zeroes(offset, length, fua, true)),
            86..90 if is_thin => self.change(range, true, false, |_| Request::discard(offset, length)),
            90..94 => self.flush(),
            94..97 => {
                let running = self.running.clone();
                async move { drop(running.clean().await) }.boxed()
            }
            _ => self.order(random),
        }
    }

    fn read(&self, range: ByteRange) -> BoxFuture<'static, ()> {
        let application = self.clone();
        let last = application.history().submit_read(range);
        let reading = self.running.top.submit(Request::read(range.offset, Buffer::zeroed(range.length as usize)));
        async move {
            let response = reading.await;
            if application.is_heard(&response) {
                application.history().check_read(range, &last, &response.buffer, &application.context);
            }
        }
        .boxed()
    }

    fn change(
        &self,
        range: ByteRange,
        is_zero: bool,
        fua: bool,
        request: impl FnOnce(Buffer) -> Request,
    ) -> BoxFuture<'static, ()> {
        let (application, top) = (self.clone(), Arc::clone(&self.running.top));
        let submitted = application.history().submit(range, is_zero);
        self.running.note_change(range);
        let is_past_log = self.running.has_failed_log();
        let was_volatile = top.geometry().is_write_cache_volatile;
        let changing = top.submit(request(submitted.buffer()));
        async move {
            let is_acknowledged = application.is_heard(&changing.await);
            // A device that reports before and after that its write cache is not volatile has
            // promised durability.
            let is_volatile = top.geometry().is_write_cache_volatile;
            let is_durable = fua || !(was_volatile || is_volatile);
            application.history().finish(&submitted, is_acknowledged, is_durable);
            if !fua && was_volatile && is_volatile {
                application.history().note_volatile(&submitted);
            }
            if is_acknowledged && is_durable && is_past_log {
                application.history().note_past_log(&submitted);
            }
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'static, ()> {
        let application = self.clone();
        if self.running.is_lun_alone() {
            return async move {
                // Flushes take turns: one that fails may drop data that another, answered well a
                // moment later, seems to have made durable.
                let _turn = application.flush_turn.lock().await;
                let (covered, answer) = application.submit_flush();
                application.end_flush(&covered, answer).await;
            }
            .boxed();
        }
        let (covered, answer) = self.submit_flush();
        async move { application.end_flush(&covered, answer).await }.boxed()
    }

    fn submit_flush(&self) -> (Covered, Completion) {
        (self.covered(), self.running.top.submit(Request::flush()))
    }

    async fn end_flush(&self, covered: &Covered, answer: Completion) {
        let response = answer.await;
        if self.is_heard(&response) {
            self.note_durable(covered);
        } else if response.result.is_err() {
            self.history().fail_flush();
        }
    }

    /// Takes the losses that the device has reported so far.
    fn hear_losses(&self) {
        while let Some(event) = self.events.try_receive() {
            if matches!(event, Event::WritesLost | Event::Missed) {
                self.history().note_told();
            }
        }
    }

    /// Changes settings as a user may do while requests go on.
    fn order(&self, random: &mut Random) -> BoxFuture<'static, ()> {
        if let Some(log) = self.running.log() {
            log.set_level2(draw_level2(log.level2(), random));
        }
        let Some(cache) = self.running.cache() else { return async {}.boxed() };
        let max_bytes = random.chance(0.5).then(|| 1 << (20 + random.below(8)));
        cache.set_cleaning_rate(CleaningRate { max_bytes, ..CleaningRate::default() });
        cache.set_tuning(draw_tuning(random));
        cache.set_replacement(Replacement::ALL[random.below(Replacement::ALL.len() as u64) as usize]);
        let percent = |random: &mut Random| Percent::new(random.below(101) as u8);
        cache.set_dirty_limits(DirtyLimits { clean_above: percent(random), max: percent(random) });
        let mode = match random.below(10) {
            0 | 1 => Mode::PassThrough,
            2 => Mode::ReadOnly,
            _ => draw_mode(&self.made, random),
        };
        let application = self.clone();
        let untold = application.history().untold();
        async move {
            let is_heard = cache.set_mode(mode).await.is_ok() && application.is_powered();
            // Write-back promises durability, also of writes acknowledged before; the cache does
            // not know what is in a log above it.
            if is_heard && mode.delays_writes() && !application.running.has_log() {
                // All of them, up to the change: it waits for requests under way, and no loss that comes
                // after it is reported to the client.
                let covered = Covered { untold, ..application.covered() };
                application.history().begin_promise();
                application.take_answers().await;
                application.history().end_promise();
                if application.is_powered() {
                    application.note_durable(&covered);
                }
            }
        }
        .boxed()
    }
}
