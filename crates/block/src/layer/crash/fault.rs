//! Errors that a medium was told to answer with while its power is on.

use base::range::ByteRange;

use crate::error::ErrorKind;
use crate::request::OperationKind;

/// The orders, and the counts they go by.
#[derive(Default)]
pub(super) struct Faults {
    writes_seen: u64,
    flushes_seen: u64,
    writes: Vec<Fault>,
    flushes: Vec<Fault>,
    unreadable: Vec<ByteRange>,
}

struct Fault {
    /// Ordinal of the request it strikes.
    at: u64,
    /// Whether it strikes all later ones, too.
    is_persistent: bool,
    kind: ErrorKind,
}

impl Fault {
    fn strikes(&self, ordinal: u64) -> bool {
        ordinal == self.at || (self.is_persistent && ordinal > self.at)
    }
}

impl Faults {
    pub(super) fn fail_write_once(&mut self, at: u64, kind: ErrorKind) {
        self.writes.push(Fault { at, is_persistent: false, kind });
    }

    pub(super) fn fail_writes_from(&mut self, at: u64, kind: ErrorKind) {
        self.writes.push(Fault { at, is_persistent: true, kind });
    }

    pub(super) fn fail_flush_once(&mut self, at: u64, kind: ErrorKind) {
        self.flushes.push(Fault { at, is_persistent: false, kind });
    }

    pub(super) fn fail_reads_of(&mut self, range: ByteRange) {
        self.unreadable.push(range);
    }

    pub(super) fn heal(&mut self) {
        self.writes.clear();
        self.flushes.clear();
        self.unreadable.clear();
    }

    pub(super) fn writes_seen(&self) -> u64 {
        self.writes_seen
    }

    pub(super) fn flushes_seen(&self) -> u64 {
        self.flushes_seen
    }

    /// Counts a request and says what it fails with, if it does.
    pub(super) fn see(&mut self, kind: OperationKind, range: &ByteRange) -> Option<ErrorKind> {
        match kind {
            OperationKind::Read => self.unreadable.iter().any(|bad| bad.overlaps(range)).then_some(ErrorKind::Media),
            OperationKind::Write | OperationKind::Discard | OperationKind::WriteZeroes => {
                strike(&self.writes, &mut self.writes_seen)
            }
            OperationKind::Flush => strike(&self.flushes, &mut self.flushes_seen),
            OperationKind::Extents => None,
        }
    }
}

fn strike(faults: &[Fault], seen: &mut u64) -> Option<ErrorKind> {
    let ordinal = *seen;
    *seen += 1;
    faults.iter().find(|fault| fault.strikes(ordinal)).map(|fault| fault.kind)
}
