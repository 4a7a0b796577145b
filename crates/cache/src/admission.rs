//! Decides what is worth a frame: sequential cut-off, second use, and reading ahead.
//!
//! Streams are requests of one kind that follow each other without a gap. A stream longer than the
//! cut-off would evict what is used again, so the rest of it goes past the cache. With admission on
//! second use a block gets a frame when it misses for the second time within a while. A table of
//! one number a slot remembers blocks that missed; a newer block overwrites an older one in its
//! slot. A read stream may be read ahead: its next bytes are fetched before a client asks for them.
//! Where lines are large, the rest of a line may be fetched with the first part of it that is read
//! (paper 2.3: larger blocks read ahead more).

use base::range::ByteRange;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::counters::RequestKind;
use crate::limits::{LINE_BYTES_MIN, LINES_PER_SEEN_SLOT, STREAMS_MAX};
use crate::numbers::BlockNumber;

/// When a block gets a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// When it misses.
    #[default]
    Always,
    /// When it misses again.
    SecondUse,
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Always => "always",
            Self::SecondUse => "second-use",
        })
    }
}

impl FromStr for Admission {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "always" => Ok(Self::Always),
            "second-use" => Ok(Self::SecondUse),
            _ => Err(format!("\"{text}\" is no admission policy: always or second-use")),
        }
    }
}

/// What a user chooses. Can be changed while the cache runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tuning {
    /// When a block gets a frame.
    pub admission: Admission,
    /// Bytes of a stream after which it goes past the cache; `None` for never.
    pub cutoff_bytes: Option<u64>,
    /// Bytes of a read stream that are fetched ahead; zero for none.
    pub prefetch_bytes: u64,
    /// Whether the rest of a line is fetched as soon as a part of it is read that misses.
    pub prefetches_lines: bool,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    kind: RequestKind,
    end: u64,
    bytes: u64,
    requests: u64,
    /// End of what was fetched ahead.
    ahead: u64,
}

/// What to do about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Whether it goes past the cache, as far as that is possible.
    pub(crate) is_past: bool,
    /// What to fetch ahead.
    pub(crate) ahead: Option<ByteRange>,
    /// The whole lines of the request, when they are to be fetched, too.
    pub(crate) lines: Option<ByteRange>,
}

/// How many blocks are remembered for a second use, in a cache of `frame_count` frames.
pub(crate) fn seen_slots(frame_count: u32) -> usize {
    frame_count as usize / LINES_PER_SEEN_SLOT
}

/// The streams that are followed, and the blocks that missed once.
pub(crate) struct Admissions {
    tuning: Tuning,
    /// Least recently moved first.
    streams: Vec<Stream>,
    seen: Vec<u32>,
}

/// Requests that must follow each other before anything is fetched ahead.
const REQUESTS_TO_TRUST: u64 = 3;

impl Admissions {
    /// `slot_count` bounds how many blocks are remembered for a second use.
    pub(crate) fn new(tuning: Tuning, slot_count: usize) -> Self {
        let mut admissions = Self { tuning: Tuning::default(), streams: Vec::new(), seen: Vec::new() };
        admissions.set(tuning, slot_count);
        admissions
    }

    pub(crate) fn tuning(&self) -> Tuning {
        self.tuning
    }

    pub(crate) fn set(&mut self, tuning: Tuning, slot_count: usize) {
        self.tuning = tuning;
        self.seen = match tuning.admission {
            Admission::Always => Vec::new(),
            Admission::SecondUse => vec![0; slot_count.max(1)],
        };
    }

    /// Whether streams are followed.
    pub(crate) fn follows_streams(&self) -> bool {
        self.tuning.cutoff_bytes.is_some() || self.tuning.prefetch_bytes > 0
    }

    /// Notes a request and says what to do about it. `size_bytes` is the device's size.
    pub(crate) fn advise(&mut self, kind: RequestKind, range: ByteRange, size_bytes: u64) -> Advice {
        if !self.follows_streams() {
            return Advice::default();
        }
        let found = self.streams.iter().position(|stream| stream.kind == kind && stream.end == range.offset);
        let mut stream = match found {
            Some(at) => self.streams.remove(at),
            None => Stream { kind, end: range.offset, bytes: 0, requests: 0, ahead: 0 },
        };
        stream.end = range.end();
        stream.bytes += range.length;
        stream.requests += 1;
        let is_past = self.tuning.cutoff_bytes.is_some_and(|cutoff| stream.bytes > cutoff);
        let ahead = if is_past { None } else { self.ahead(&mut stream, size_bytes) };
        if self.streams.len() == STREAMS_MAX {
            self.streams.remove(0);
        }
        self.streams.push(stream);
        Advice { is_past, ahead, lines: None }
    }

    /// The next bytes of a read stream, when half of those fetched ahead are used up.
    fn ahead(&self, stream: &mut Stream, size_bytes: u64) -> Option<ByteRange> {
        let window = self.tuning.prefetch_bytes / LINE_BYTES_MIN * LINE_BYTES_MIN;
        let is_trusted = stream.kind == RequestKind::Read && stream.requests >= REQUESTS_TO_TRUST;
        if !is_trusted || window == 0 || stream.ahead.saturating_sub(stream.end) > window / 2 {
            return None;
        }
        let from = stream.ahead.max(stream.end.next_multiple_of(LINE_BYTES_MIN));
        let to = (stream.end.saturating_add(window) / LINE_BYTES_MIN * LINE_BYTES_MIN)
            .min(size_bytes / LINE_BYTES_MIN * LINE_BYTES_MIN);
        if to <= from {
            return None;
        }
        stream.ahead = to;
        Some(ByteRange { offset: from, length: to - from })
    }

    /// Notes a miss of a block. Returns whether it gets a frame.
    pub(crate) fn admits(&mut self, block: BlockNumber) -> bool {
        let count = self.seen.len() as u64;
        if count == 0 {
            return true;
        }
        let mixed = block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Never zero, which means an empty slot.
        let name = (mixed >> 32) as u32 | 1;
        let Some(slot) = self.seen.get_mut(((mixed ^ mixed >> 29) % count) as usize) else { return true };
        std::mem::replace(slot, name) == name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const SIZE: u64 = 1 << 30;

    fn range(offset: u64, length: u64) -> ByteRange {
        ByteRange { offset, length }
    }

    #[test]
    fn a_long_stream_goes_past_and_others_do_not() {
        let tuning = Tuning { cutoff_bytes: Some(256 * KIB), ..Tuning::default() };
        let mut admissions = Admissions::new(tuning, 0);
        let mut past = Vec::new();
        for step in 0..8 {
            past.push(admissions.advise(RequestKind::Read, range(step * 64 * KIB, 64 * KIB), SIZE).is_past);
            // Requests of another stream in between, and a write where the stream stands.
            assert!(!admissions.advise(RequestKind::Read, range(SIZE / 2 + step * KIB * 512, KIB), SIZE).is_past);
            assert!(!admissions.advise(RequestKind::Write, range((step + 1) * 64 * KIB, KIB), SIZE).is_past);
        }
        assert_eq!(past, [false, false, false, false, true, true, true, true]);
        admissions.set(Tuning::default(), 0);
        assert!(!admissions.advise(RequestKind::Read, range(8 * 64 * KIB, KIB), SIZE).is_past, "switched off");
    }

    #[test]
    fn a_stream_is_fetched_ahead_once_and_not_beyond_the_end() {
        let tuning = Tuning { prefetch_bytes: 128 * KIB, ..Tuning::default() };
        let mut admissions = Admissions::new(tuning, 0);
        let size = 512 * KIB + 512;
        let mut fetched = Vec::new();
        for step in 0..32 {
            let advice = admissions.advise(RequestKind::Read, range(step * 16 * KIB, 16 * KIB), size);
            fetched.extend(advice.ahead);
        }
        assert_eq!(fetched[0], range(48 * KIB, 128 * KIB), "after three requests that follow each other");
        assert!(fetched.windows(2).all(|pair| pair[0].end() == pair[1].offset), "{fetched:?}");
        assert_eq!(fetched.last().map(ByteRange::end), Some(512 * KIB));
        let mut random = Admissions::new(tuning, 0);
        assert!((0..100).all(|step| {
            random.advise(RequestKind::Read, range(step * 7919 % 1000 * 4 * KIB, 4 * KIB), SIZE).ahead.is_none()
        }));
    }

    #[test]
    fn a_second_use_is_admitted() {
        let tuning = Tuning { admission: Admission::SecondUse, ..Tuning::default() };
        let mut admissions = Admissions::new(tuning, 1000);
        assert!(!admissions.admits(BlockNumber(7)) && !admissions.admits(BlockNumber(8)));
        assert!(
            admissions.admits(BlockNumber(7))
                && admissions.admits(BlockNumber(8))
                && !admissions.admits(BlockNumber(9))
        );
        let mut always = Admissions::new(Tuning::default(), 1000);
        assert!(always.admits(BlockNumber(7)));
    }
}
