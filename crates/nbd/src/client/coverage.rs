//! The answered bytes of a read. Every byte is answered exactly once ("`NBD_CMD_READ`": content
//! chunks never overlap and, without an error, cover everything). Chunks usually come in ascending
//! order and touch, so one growing run is enough.

use crate::limits::READ_CHUNKS_MAX;

/// Answered bytes of a read of `length` bytes.
pub(super) struct Coverage {
    length: u32,
    covered: u32,
    /// The run that grows.
    run: (u32, u32),
    /// Runs that ended because the next chunk did not touch them.
    others: Vec<(u32, u32)>,
}

impl Coverage {
    pub(super) fn new(length: u32) -> Self {
        Self { length, covered: 0, run: (0, 0), others: Vec::new() }
    }

    /// Adds a chunk; `false` when it is empty, reaches outside, overlaps an earlier one, or is one too many.
    #[must_use]
    pub(super) fn add(&mut self, start: u64, count: u64) -> bool {
        let length = u64::from(self.length);
        let Some(end) = start.checked_add(count).filter(|&end| count > 0 && end <= length) else { return false };
        let (start, end) = (start as u32, end as u32);
        let overlaps = |&(from, to): &(u32, u32)| start < to && from < end;
        if overlaps(&self.run) || self.others.iter().any(overlaps) {
            return false;
        }
        if start != self.run.1 {
            if self.others.len() == READ_CHUNKS_MAX {
                return false;
            }
            self.others.push(std::mem::replace(&mut self.run, (start, start)));
        }
        self.run.1 = end;
        self.covered += end - start;
        true
    }

    pub(super) fn is_complete(&self) -> bool {
        self.covered == self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_map_of_bytes(chunks in prop::collection::vec((0u64..40, 0u64..12), 0..24)) {
            let mut coverage = Coverage::new(32);
            let mut bytes = [false; 32];
            for (start, count) in chunks {
                let range = start as usize..(start + count) as usize;
                let fits = count > 0 && bytes.get(range.clone()).is_some_and(|bytes| !bytes.contains(&true));
                prop_assert_eq!(coverage.add(start, count), fits);
                if fits {
                    bytes[range].fill(true);
                }
                prop_assert_eq!(coverage.is_complete(), !bytes.contains(&false));
            }
        }
    }

    #[test]
    fn the_end_of_a_chunk_does_not_overflow() {
        assert!(!Coverage::new(8).add(u64::MAX, 2));
    }
}
