//! The requirements of a trace for a device, before anything is written: all its lines are read
//! once, so that a malformed line, or a request that does not fit, is found then and not in the
//! middle of a replay.
//!
//! A trace of a large disk that touched little of it can be moved to a small one: see [`Rebase`].

use std::collections::BTreeSet;
use std::time::Duration;

use base::range::ByteRange;
use serde::Serialize;

use super::error::TraceError;
use super::record::Record;
use crate::access::{Access, AccessKind};
use crate::limits::{REBASE_CHUNK_BYTES, REBASE_CHUNKS_MAX};

/// A request of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 1.
    pub number: u64,
    /// Its range.
    pub range: ByteRange,
}

/// The requirements of a trace, and its counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// Requests.
    pub requests: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Flushes among them.
    pub flushes: u64,
    /// Discards among them.
    pub discards: u64,
    /// SCSI commands that neither read, write nor flush, and are passed over.
    pub other_commands: u64,
    /// Between the first and the last, in seconds.
    #[serde(rename = "seconds", serialize_with = "as_seconds")]
    pub duration: Duration,
    /// Least bytes of a device.
    pub size_bytes: u64,
    /// Least bytes of a device for the rebased trace; `None` when it touches too much.
    pub rebased_size_bytes: Option<u64>,
    /// The request that ends last.
    #[serde(skip)]
    pub last: Place,
    /// The first request with the smallest alignment.
    #[serde(skip)]
    pub finest: Place,
    #[serde(skip)]
    chunks: BTreeSet<u64>,
}

fn as_seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// The power of two that offset and length are multiples of, as an exponent; more than any device's block for an empty
/// range at the start.
fn alignment(range: ByteRange) -> u32 {
    (range.offset | range.length).trailing_zeros()
}

impl Survey {
    /// Reads a trace to its end.
    ///
    /// # Errors
    /// The first malformed line.
    pub fn of(records: impl IntoIterator<Item = Result<Record, TraceError>>) -> Result<Self, TraceError> {
        let mut survey = Self::default();
        let mut has_chunks = true;
        for record in records {
            let Record { at, access } = record?;
            survey.count(at, access);
            has_chunks = has_chunks && survey.note_chunks(access.range);
        }
        if !has_chunks {
            survey.chunks.clear();
        }
        survey.rebased_size_bytes = has_chunks.then(|| survey.chunks.len() as u64 * REBASE_CHUNK_BYTES);
        Ok(survey)
    }

    /// Whether it changes no content.
    pub fn is_read_only(&self) -> bool {
        self.writes + self.discards == 0
    }

    /// The map of the trace to a small device; `None` when it touches too much.
    pub fn rebase(&self) -> Option<Rebase> {
        self.rebased_size_bytes.map(|_| Rebase { chunks: self.chunks.iter().copied().collect() })
    }

    fn count(&mut self, at: Duration, Access { kind, range }: Access) {
        self.requests += 1;
        *match kind {
            AccessKind::Read => &mut self.reads,
            AccessKind::Write => &mut self.writes,
            AccessKind::Flush => &mut self.flushes,
            AccessKind::Discard => &mut self.discards,
        } += 1;
        self.duration = self.duration.max(at);
        let place = Place { number: self.requests, range };
        if range.end() > self.size_bytes {
            (self.size_bytes, self.last) = (range.end(), place);
        }
        if kind != AccessKind::Flush && (self.finest.number == 0 || alignment(range) < alignment(self.finest.range)) {
            self.finest = place;
        }
    }

    /// Notes the chunks of a range; `false` when there are too many.
    fn note_chunks(&mut self, range: ByteRange) -> bool {
        self.chunks.extend(range.offset / REBASE_CHUNK_BYTES..range.end().div_ceil(REBASE_CHUNK_BYTES));
        self.chunks.len() <= REBASE_CHUNKS_MAX
    }
}

/// Moves the parts of a disk that a trace touches together: chunk by chunk, in the order of their
/// addresses, so that adjacent chunks stay adjacent, and each offset keeps its place in its chunk.
#[derive(Clone, Debug)]
pub struct Rebase {
    /// The touched chunks, ascending.
    chunks: Vec<u64>,
}

impl Rebase {
    /// The record at its new address.
    ///
    /// # Panics
    /// For a record of another trace.
    pub fn apply(&self, mut record: Record) -> Record {
        let range = &mut record.access.range;
        if record.access.kind != AccessKind::Flush && !range.is_empty() {
            let chunk = range.offset / REBASE_CHUNK_BYTES;
            let place = self.chunks.binary_search(&chunk).expect("every chunk of the trace was noted");
            range.offset = place as u64 * REBASE_CHUNK_BYTES + range.offset % REBASE_CHUNK_BYTES;
        } else {
            range.offset = 0;
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, TraceReader};
    use super::*;

    const TRACE: &str = "fio version 2 iolog\nd write 1099511627776 8192\nd wait 2000000\nd read 4096 512\nd sync\n\
                         d write 2096640 1024\nd trim 2097152 4096\n";

    fn records(text: &str) -> TraceReader<&[u8]> {
        TraceReader::new(text.as_bytes(), Options::default())
    }

    #[test]
    fn a_trace_says_what_it_wants() {
        let survey = Survey::of(records(TRACE)).unwrap();
        let counts = (survey.requests, survey.reads, survey.writes, survey.flushes, survey.discards);
        assert_eq!(counts, (5, 1, 2, 1, 1));
        assert_eq!((survey.duration, survey.size_bytes), (Duration::from_secs(2), (1 << 40) + 8192));
        assert_eq!((survey.last.number, survey.finest.number), (1, 2));
        assert_eq!(survey.rebased_size_bytes, Some(4 << 20), "two, three and the far one");
        assert!(!survey.is_read_only());
        assert!(Survey::of(records("fio version 2 iolog\nd read 0 512\nd sync\n")).unwrap().is_read_only());
    }

    #[test]
    fn a_rebased_trace_keeps_neighbours_together_and_blocks_whole() {
        let rebase = Survey::of(records(TRACE)).unwrap().rebase().unwrap();
        let moved: Vec<(u64, u64)> = records(TRACE)
            .map(|record| rebase.apply(record.unwrap()).access.range)
            .map(|range| (range.offset, range.length))
            .collect();
        assert_eq!(moved, [(3 << 20, 8192), (4096, 512), (0, 0), (2_096_640, 1024), (2 << 20, 4096)]);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_found_before_the_replay() {
        let error = Survey::of(records("fio version 2 iolog\nd write 0 512\nd frob\n")).unwrap_err();
        assert_eq!(error.to_string(), "line 3 of the trace: \"frob\" is not a fio action");
    }
}
