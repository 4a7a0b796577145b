//! Faults: errors with which a medium answers on demand while its power is on, and what it does all
//! the same.

use base::range::ByteRange;

use crate::error::ErrorKind;
use crate::request::OperationKind;

/// What a mutating request that fails on demand does to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEffect {
    /// Nothing changes.
    None,
    /// It is carried out, and reported as failed.
    Whole,
    /// Some of its 512-byte units are stored, as the medium's seed draws.
    Torn,
    /// One of the three, as the medium's seed draws.
    ByChance,
}

/// What a flush that fails on demand does to the writes that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushEffect {
    /// They stay volatile: a later flush makes them durable.
    None,
    /// Each write becomes durable, becomes so in part, or is lost, as the medium's seed draws; no later flush brings it
    /// back. Reads return what is left, as those of a disk that drops its cache.
    Drops,
    /// The same, and reads return what was written until the power fails, as those through a page cache.
    DropsUnseen,
}

/// How often an error is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// By this request only; the next one works.
    Once,
    /// By all requests of the kind from this one on, until [`heal`](super::CrashLayer::heal).
    ForGood,
}

/// A request that fails on demand.
#[derive(Clone, Copy)]
pub(super) struct Struck {
    pub(super) kind: ErrorKind,
    pub(super) effect: Effect,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Write(WriteEffect),
    Flush(FlushEffect),
}

/// The ordered faults, and the counts of requests.
#[derive(Default)]
pub(super) struct Faults {
    reads_seen: u64,
    writes_seen: u64,
    flushes_seen: u64,
    reads: Vec<Fault>,
    writes: Vec<Fault>,
    flushes: Vec<Fault>,
    unreadable: Vec<ByteRange>,
}

struct Fault {
    /// Ordinal of the request that it strikes.
    at: u64,
    reported: Reported,
    struck: Struck,
}

impl Fault {
    fn strikes(&self, ordinal: u64) -> bool {
        ordinal == self.at || (self.reported == Reported::ForGood && ordinal > self.at)
    }
}

impl Faults {
    pub(super) fn fail_write(&mut self, at: u64, kind: ErrorKind, effect: WriteEffect, reported: Reported) {
        let effect = if effect == WriteEffect::None { Effect::None } else { Effect::Write(effect) };
        self.writes.push(Fault { at, reported, struck: Struck { kind, effect } });
    }

    pub(super) fn fail_flush(&mut self, at: u64, kind: ErrorKind, effect: FlushEffect, reported: Reported) {
        let effect = if effect == FlushEffect::None { Effect::None } else { Effect::Flush(effect) };
        self.flushes.push(Fault { at, reported, struck: Struck { kind, effect } });
    }

    pub(super) fn fail_read(&mut self, at: u64, kind: ErrorKind) {
        self.reads.push(Fault { at, reported: Reported::Once, struck: Struck { kind, effect: Effect::None } });
    }

    pub(super) fn fail_reads_of(&mut self, range: ByteRange) {
        self.unreadable.push(range);
    }

    pub(super) fn heal(&mut self) {
        self.reads.clear();
        self.writes.clear();
        self.flushes.clear();
        self.unreadable.clear();
    }

    pub(super) fn reads_seen(&self) -> u64 {
        self.reads_seen
    }

    pub(super) fn writes_seen(&self) -> u64 {
        self.writes_seen
    }

    pub(super) fn flushes_seen(&self) -> u64 {
        self.flushes_seen
    }

    /// Counts a request. Returns how it fails, if it does.
    pub(super) fn see(&mut self, kind: OperationKind, range: &ByteRange) -> Option<Struck> {
        match kind {
            OperationKind::Read => {
                let struck = strike(&self.reads, &mut self.reads_seen);
                let is_unreadable = self.unreadable.iter().any(|bad| bad.overlaps(range));
                struck.or(is_unreadable.then_some(Struck { kind: ErrorKind::Media, effect: Effect::None }))
            }
            OperationKind::Write | OperationKind::Discard | OperationKind::WriteZeroes => {
                strike(&self.writes, &mut self.writes_seen)
            }
            OperationKind::Flush => strike(&self.flushes, &mut self.flushes_seen),
            OperationKind::Extents => None,
        }
    }
}

fn strike(faults: &[Fault], seen: &mut u64) -> Option<Struck> {
    let ordinal = *seen;
    *seen += 1;
    faults.iter().find(|fault| fault.strikes(ordinal)).map(|fault| fault.struck)
}
