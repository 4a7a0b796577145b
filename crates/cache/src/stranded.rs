//! Dirty data beyond the end of an origin that became smaller.
//!
//! It was acknowledged, so it is given up only on the user's explicit command; and it cannot be
//! sent, so it must not keep the rest from being cleaned. Lines with such data are *stranded*:
//!
//! - Cleaning sends their part within the end, and the rest stays dirty. A caller that asked for
//!   everything to be cleaned gets an error with the bytes that stay dirty.
//! - They do not start background cleaning.
//! - They survive like all that is dirty, and are counted and named by `status` and `inspect`.
//! - When the origin is as large again it gets them like other dirty data: meanwhile no host can
//!   have written there, except through another cache.
//!
//! [`discard_beyond_end`](crate::discard_beyond_end) gives them up.

use base::range::ByteRange;
use block::{Error, ErrorKind};
use serde::Serialize;

use crate::core::Core;
use crate::format::Line;
use crate::limits::STRANDED_RANGES_MAX;
use crate::line_size::LineSize;
use crate::lines::State;
use crate::numbers::BlockNumber;
use crate::sectors::Sectors;

/// Dirty data beyond the end of the origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stranded {
    /// Bytes of it.
    #[serde(rename = "stranded_bytes")]
    pub bytes: u64,
    /// Where on the origin it would be, ascending: the first [`STRANDED_RANGES_MAX`] runs.
    #[serde(rename = "stranded")]
    pub ranges: Vec<StrandedRange>,
}

/// A run of bytes of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StrandedRange {
    /// First byte.
    pub offset: u64,
    /// Count of bytes.
    pub length: u64,
}

impl Stranded {
    /// The part of these dirty lines (ascending) behind `end`; both count `padding` bytes before
    /// the origin (see `alignment`).
    pub(crate) fn of(
        lines: impl Iterator<Item = (BlockNumber, Sectors)>,
        line_size: LineSize,
        end: u64,
        padding: u64,
    ) -> Self {
        let mut all = Self::default();
        let mut last_end = None;
        for (block, dirty) in lines {
            for run in (dirty & !within(line_size, block, end)).runs() {
                let offset = (line_size.line_range(block).offset + run.offset()).saturating_sub(padding);
                let length = run.length();
                all.bytes += length;
                let may_name = all.ranges.len() < STRANDED_RANGES_MAX;
                match all.ranges.last_mut().filter(|_| last_end == Some(offset)) {
                    Some(last) => last.length += length,
                    None if may_name => all.ranges.push(StrandedRange { offset, length }),
                    // This range is not joined to the last one that is named.
                    None => continue,
                }
                last_end = Some(offset + length);
            }
        }
        all
    }

    /// A text for people: how much, and where.
    pub fn words(&self) -> String {
        let named: Vec<String> =
            self.ranges.iter().map(|range| format!("{}..{}", range.offset, range.offset + range.length)).collect();
        let named_bytes: u64 = self.ranges.iter().map(|range| range.length).sum();
        let more = if named_bytes < self.bytes { " and more" } else { "" };
        format!("{} bytes, at bytes {}{more}", self.bytes, named.join(", "))
    }
}

/// The sectors of `block` that lie before `end`.
pub(crate) fn within(line_size: LineSize, block: BlockNumber, end: u64) -> Sectors {
    line_size.part_of(block, ByteRange { offset: 0, length: end }).0
}

impl Core {
    /// The dirty sectors of a line that an origin ending at `end` can get.
    pub(crate) fn sendable(&self, block: BlockNumber, line: &Line, end: u64) -> Sectors {
        if line.is_lost { Sectors::NONE } else { line.dirty & within(self.line_size(), block, end) }
    }

    /// Finds the stranded lines after the end of the origin has moved. No request writes behind the
    /// end.
    pub(crate) fn find_stranded(&self) {
        let end = self.origin.end();
        {
            let state = &mut *self.lines.state();
            let blocks = state.frames.dirty_in(self.line_size().block_at(end)..BlockNumber::END).into_iter();
            let is_stranded = |&block: &BlockNumber| {
                let found = state.frames.find(block);
                // A lost line is counted as lost.
                found.is_some_and(|(_, line)| {
                    !line.is_lost && !(line.dirty & !within(self.line_size(), block, end)).is_empty()
                })
            };
            let stranded = blocks.filter(is_stranded).collect();
            state.frames.stranded = stranded;
        }
        self.lines.wake_all();
    }

    /// What is stranded.
    pub(crate) fn stranded(&self, state: &State) -> Stranded {
        let lines = state.frames.stranded.iter();
        let lines = lines.filter_map(|&block| state.frames.find(block).map(|(_, line)| (block, line.dirty)));
        Stranded::of(lines, self.line_size(), self.origin.end(), self.origin.padding)
    }

    /// Refuses to call everything clean while lines are stranded.
    ///
    /// # Errors
    /// `InvalidRange`, with the bytes that stay dirty.
    pub(crate) fn check_nothing_stranded(&self) -> Result<(), Error> {
        let stranded = self.stranded(&self.lines.state());
        if stranded.bytes == 0 {
            return Ok(());
        }
        let context = format!(
            "{} of dirty data lie beyond the end of the disk, which has {} bytes now: they stay in the cache until it \
             is as large again, or until they are discarded (beyond its end)",
            stranded.words(),
            self.origin.geometry().size_bytes
        );
        Err(Error::new(ErrorKind::InvalidRange, context))
    }
}
