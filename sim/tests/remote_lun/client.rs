//! A host with the LUN attached: requests of every kind, several at once, over ranges that overlap
//! with each other and with those of other hosts.
//!
//! Each host has units of its own. Shared units are written through: a volatile copy that one host
//! writes again after its session was lost would undo what another host wrote meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::clock::{Clock, VirtualClock};
use base::random::Random;
use block::device::DeviceExt;
use block::{Buffer, ErrorKind};
use initiator::{Compared, RemoteLun};

use crate::disk::Disk;
use crate::model::{Content, Model, Nature, UNIT};

/// Units shared by all hosts, which come first.
pub(crate) const SHARED: Range<u64> = 0..24;
/// Units of each host.
pub(crate) const OWN: u64 = 40;
/// Longest request.
const LONGEST: u64 = 20;

/// A task of a host, which waits for each answer before it goes on.
pub(crate) struct Worker {
    pub(crate) lun: Arc<RemoteLun>,
    pub(crate) clock: VirtualClock,
    pub(crate) model: Model,
    pub(crate) disk: Disk,
    pub(crate) client: usize,
    pub(crate) random: Random,
}

impl Worker {
    /// No request may fail: everything that breaks is repaired in time.
    pub(crate) async fn run(mut self, rounds: u32) {
        for _ in 0..rounds {
            match self.random.below(100) {
                0..40 => self.write().await,
                40..62 => self.read().await,
                62..72 => self.flush().await,
                72..79 => self.write_zeroes().await,
                79..85 => self.discard().await,
                _ => self.compare_and_write().await,
            }
            let pause = self.random.below(3000);
            self.clock.sleep(Duration::from_micros(pause)).await;
        }
    }

    fn own(&self) -> Range<u64> {
        let first = SHARED.end + self.client as u64 * OWN;
        first..first + OWN
    }

    /// Draws some units, and whether other hosts may touch them.
    fn draw(&mut self) -> (Range<u64>, bool) {
        let is_shared = self.random.chance(0.4);
        let region = if is_shared { SHARED } else { self.own() };
        let first = region.start + self.random.below(region.end - region.start);
        let count = 1 + self.random.below(LONGEST.min(region.end - first));
        (first..first + count, is_shared)
    }

    /// Whether a write to such units is to be durable at once, and its resulting nature.
    fn draw_nature(&mut self, is_shared: bool) -> (bool, Nature) {
        let fua = is_shared || self.random.chance(0.2);
        (fua, if fua || !self.disk.is_volatile() { Nature::Durable } else { Nature::Volatile })
    }

    async fn write(&mut self) {
        let (units, is_shared) = self.draw();
        let (fua, nature) = self.draw_nature(is_shared);
        let begun = self.model.begin(self.client, units.clone(), nature, true);
        let bytes: Vec<u8> = units.clone().flat_map(|unit| Content::Stamp(begun.id).bytes(unit)).collect();
        self.lun.write(units.start * UNIT, Buffer::copy_of(&bytes), fua).await.expect("a write");
        self.model.acknowledge(&begun);
        if nature == Nature::Durable {
            self.disk.check_durable(units, self.model.tick(), "a write that is durable");
        }
    }

    async fn read(&mut self) {
        let (units, _) = self.draw();
        let start = self.model.tick();
        let length = (units.end - units.start) * UNIT;
        let bytes = self.lun.read(units.start * UNIT, Buffer::zeroed(length as usize)).await.expect("a read");
        self.model.check(units.start, &bytes, start, "a read");
    }

    async fn flush(&mut self) {
        let start = self.model.tick();
        if self.disk.flush(&self.lun).await.is_none() {
            return;
        }
        self.disk.check_durable(self.own(), start, "a flush");
        self.disk.check_durable(SHARED, start, "a flush");
    }

    async fn write_zeroes(&mut self) {
        let (units, is_shared) = self.draw();
        let (fua, nature) = self.draw_nature(is_shared);
        let may_discard = self.random.chance(0.5);
        let begun = self.model.begin(self.client, units.clone(), nature, false);
        let length = (units.end - units.start) * UNIT;
        self.lun.write_zeroes(units.start * UNIT, length, fua, may_discard).await.expect("zeroes");
        self.model.acknowledge(&begun);
        if nature == Nature::Durable {
            self.disk.check_durable(units, self.model.tick(), "zeroes that are durable");
        }
    }

    async fn discard(&mut self) {
        let (units, is_shared) = self.draw();
        if is_shared && self.disk.is_volatile() {
            return;
        }
        let begun = self.model.begin(self.client, units.clone(), Nature::Hint, false);
        let length = (units.end - units.start) * UNIT;
        self.lun.discard(units.start * UNIT, length).await.expect("a discard");
        self.model.acknowledge(&begun);
    }

    /// Replaces the content read just before, if it is unchanged.
    async fn compare_and_write(&mut self) {
        let (units, _) = self.draw();
        let unit = units.start;
        let start = self.model.tick();
        let found = self.lun.read(unit * UNIT, Buffer::zeroed(UNIT as usize)).await.expect("a read");
        self.model.check(unit, &found, start, "a read");
        let expected = Content::parse(unit, &found);
        let begun = self.model.begin(self.client, unit..unit + 1, Nature::Once, true);
        let new = Content::Stamp(begun.id).bytes(unit);
        match self.lun.compare_and_write(unit * UNIT, &expected.bytes(unit), &new).await {
            Ok(Compared::Written) => {
                let may_hold = self.model.may_hold(unit, expected, begun.invoked);
                assert!(may_hold, "unit {unit}: {expected:?} was compared with, and cannot have been there");
                self.model.swap(&begun, expected);
                self.disk.check_durable(unit..unit + 1, self.model.tick(), "a compare and write");
            }
            Ok(Compared::Different { .. }) => {
                let may_differ = self.model.may_hold_other(unit, expected, begun.invoked);
                assert!(may_differ, "unit {unit}: {expected:?} was there all the time");
                self.model.void(&begun);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}"),
        }
    }
}
