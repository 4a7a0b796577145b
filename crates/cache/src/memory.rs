//! The memory that a cache takes, and the user's bound for it (paper 2.3).
//!
//! Nearly all of it belongs to frames, and is taken when the cache is opened: see the table in
//! [`frames`](crate::frames). Deferred data may use what the frames leave of the bound, up to a
//! bound of its own. Memory of requests is bounded elsewhere and not counted here.

use base::units::ByteSize;
use block::{Error, ErrorKind};

use crate::index::SCANNED_WAYS_MAX;
use crate::layout::Layout;
use crate::limits::{DEFERRED_BYTES_MAX, DEFERRED_LOG_SHARE, LINE_BYTES_MAX, LINES_PER_SEEN_SLOT};
use crate::line_size::LineSize;
use crate::options::FormatOptions;
use crate::replacement::Replacement;

/// The parameters of a cache from which its memory follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    frame_count: u64,
    ways: u64,
    line_size: LineSize,
    replacement: Replacement,
    has_checksums: bool,
}

impl Need {
    pub(crate) fn of(layout: &Layout, replacement: Replacement, has_checksums: bool) -> Self {
        Self {
            frame_count: u64::from(layout.frame_count()),
            ways: u64::from(layout.ways),
            line_size: layout.line_size,
            replacement,
            has_checksums,
        }
    }

    /// Bytes, to within some percent: vectors and tables, with `seen_slots` for blocks remembered
    /// for a second use.
    pub(crate) fn bytes(&self) -> u64 {
        let count = self.frame_count;
        let set_count = count.div_ceil(self.ways.max(1));
        let is_scanned = self.ways <= u64::from(SCANNED_WAYS_MAX);
        // A hash table has a power of two of places, of which it fills seven eighths.
        let index =
            if is_scanned { count } else { (count.saturating_mul(8) / 7).next_power_of_two().saturating_mul(5) };
        let links = if is_scanned { 2 } else { 8 };
        let bitmaps = 2 * self.line_size.bitmap_bytes() as u64;
        let checksum = if self.has_checksums { 4 } else { 0 };
        // Tag, state, mark; two bits for what the origin has not flushed.
        let frame = 4 + 1 + 1 + links + bitmaps + checksum;
        let ways = u32::try_from(self.ways).unwrap_or(u32::MAX);
        let ghosts = self.replacement.ghosts_max(ways) as u64 * if is_scanned { 4 } else { 56 } * set_count;
        let ends = 48 * set_count;
        let seen = count * 4 / LINES_PER_SEEN_SLOT as u64;
        (count.saturating_mul(frame) + count / 4).saturating_add(index).saturating_add(ghosts + ends + seen)
    }

    /// Bytes that deferred data may take in a cache of at most `bytes_max`: what the log can hold,
    /// and the frames leave.
    pub(crate) fn deferred_bytes_max(&self, log_bytes: u64, bytes_max: Option<u64>) -> usize {
        let left = bytes_max.unwrap_or(u64::MAX).saturating_sub(self.bytes());
        let most = left.min(log_bytes / DEFERRED_LOG_SHARE);
        usize::try_from(most).unwrap_or(usize::MAX).min(DEFERRED_BYTES_MAX)
    }

    /// Refuses a cache that takes more than `bytes_max`. The message says what would fit.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn check(&self, bytes_max: Option<u64>) -> Result<(), Error> {
        let (bytes, bytes_max) = (self.bytes(), bytes_max.unwrap_or(u64::MAX));
        if bytes <= bytes_max {
            return Ok(());
        }
        let data_bytes = self.frame_count.saturating_mul(self.line_size.bytes());
        let sizes = std::iter::successors(Some(self.line_size.bytes() * 2), |size| Some(size * 2));
        let larger = sizes.take_while(|&size| size <= LINE_BYTES_MAX).filter_map(LineSize::new).find(|&line_size| {
            let frame_count = data_bytes / line_size.bytes();
            // A cache with checksums has lines of one size only.
            !self.has_checksums && Self { frame_count, line_size, ..*self }.bytes() <= bytes_max
        });
        let smaller = u128::from(data_bytes) * u128::from(bytes_max) / u128::from(bytes);
        let smaller = ByteSize(u64::try_from(smaller).unwrap_or(u64::MAX) >> 20 << 20);
        let is_lru_enough = Self { replacement: Replacement::Lru, ..*self }.bytes() <= bytes_max;
        let policy =
            if is_lru_enough { "choose lru as its replacement policy, which remembers nothing, or " } else { "" };
        let advice = match (larger, smaller.0) {
            (Some(size), 1..) => {
                format!("make its lines larger, {}, or the cache smaller, {smaller}", ByteSize(size.bytes()))
            }
            (Some(size), 0) => format!("make its lines larger, {}", ByteSize(size.bytes())),
            (None, 1..) => format!("make the cache smaller, {smaller}"),
            (None, 0) => "allow it more".to_owned(),
        };
        let context = format!(
            "a cache of {} lines of {} takes {} of memory, and it may have {}: {policy}{advice}",
            self.frame_count,
            ByteSize(self.line_size.bytes()),
            ByteSize(bytes.next_multiple_of(1 << 10)),
            ByteSize(bytes_max >> 10 << 10)
        );
        Err(Error::new(ErrorKind::NoSpace, context))
    }
}

/// Refuses options with which a cache on a device of `device_bytes` would take more memory than
/// `bytes_max`. For a cache that is about to be formatted; one that is opened is checked against
/// [`OpenOptions::memory_max`](crate::OpenOptions::memory_max).
///
/// # Errors
/// `NoSpace`, saying what would take less; what is wrong with the options.
pub fn check(
    device_bytes: u64,
    options: &FormatOptions,
    replacement: Replacement,
    bytes_max: Option<u64>,
) -> Result<(), Error> {
    Need::of(&Layout::new(device_bytes, options)?, replacement, options.has_checksums).check(bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Associativity;

    fn need(device_bytes: u64, line_bytes: u64, replacement: Replacement) -> Need {
        let line_size = LineSize::new(line_bytes).unwrap();
        let options = FormatOptions { line_size, ..FormatOptions::default() };
        Need::of(&Layout::new(device_bytes, &options).unwrap(), replacement, false)
    }

    /// `docs/measurements/cache.md`: 9.2 to 12.4 bytes a line of 64 GiB with LRU, and the aim is 16 for every policy.
    #[test]
    fn it_is_what_was_measured() {
        for (replacement, most) in [
            (Replacement::Lru, 13.0),
            (Replacement::Clock, 13.0),
            (Replacement::TwoQueue, 15.0),
            (Replacement::S3Fifo, 16.5),
        ] {
            let need = need(64 << 30, 4096, replacement);
            let per_line = need.bytes() as f64 / need.frame_count as f64;
            assert!((11.0..most).contains(&per_line), "{replacement}: {per_line}");
        }
        let per_4_kib = need(64 << 30, 64 << 10, Replacement::Lru).bytes() as f64 / (64 << 18) as f64;
        assert!((2.0..3.5).contains(&per_4_kib), "{per_4_kib}");
    }

    #[test]
    fn what_takes_too_much_is_refused_with_advice_that_holds() {
        let need = need(64 << 30, 4096, Replacement::Lru);
        assert!(need.check(None).is_ok() && need.check(Some(need.bytes())).is_ok());
        let error = need.check(Some(100 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let text = error.to_string();
        assert!(text.contains("make its lines larger, 16KiB, or the cache smaller, "), "{text}");
        let smaller = text.rsplit(' ').next().unwrap().parse::<ByteSize>().unwrap();
        let options = FormatOptions::default();
        assert!(check(smaller.0, &options, Replacement::Lru, Some(100 << 20)).is_ok(), "{text}");
        let larger = FormatOptions { line_size: LineSize::new(16 << 10).unwrap(), ..options };
        assert!(check(64 << 30, &larger, Replacement::Lru, Some(100 << 20)).is_ok());
        // Only a smaller cache would fit.
        let text = need.check(Some(1 << 20)).unwrap_err().to_string();
        assert!(text.contains("may have 1MiB: make the cache smaller, "), "{text}");
        let text = need.check(Some(1 << 10)).unwrap_err().to_string();
        assert!(text.ends_with("may have 1KiB: allow it more"), "{text}");
    }

    /// The default was LRU once: the message for a cache that fitted then says how it fits now.
    #[test]
    fn what_only_the_policy_makes_too_large_is_told_so() {
        let bytes_max = need(64 << 30, 4096, Replacement::Lru).bytes();
        let text = need(64 << 30, 4096, Replacement::S3Fifo).check(Some(bytes_max)).unwrap_err().to_string();
        assert!(text.contains(": choose lru as its replacement policy, which remembers nothing, or "), "{text}");
    }

    #[test]
    fn extreme_shapes_are_counted_without_overflow() {
        for associativity in [Associativity::Ways(1), Associativity::Full] {
            let options = FormatOptions { associativity, ..FormatOptions::default() };
            let layout = Layout::new(1 << 43, &options).unwrap();
            assert!(Need::of(&layout, Replacement::S3Fifo, true).bytes() > 16 << 30);
        }
    }
}
