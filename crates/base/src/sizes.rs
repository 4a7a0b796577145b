//! Histograms of sizes in bytes.
//!
//! Classes end at one below a power of two, so that "below 128 bytes" is one of them: papers
//! describe small packets in this way.

/// Sizes up to 32 MiB, to one significant digit; three KiB of memory.
#[derive(Clone, Debug)]
pub struct SizeHistogram(hdrhistogram::Histogram<u64>);

/// Larger sizes are counted as this.
const SIZE_BYTES_MAX: u64 = (1 << 25) - 1;

impl SizeHistogram {
    /// A histogram without samples.
    pub fn new() -> Self {
        Self(hdrhistogram::Histogram::new_with_bounds(1, SIZE_BYTES_MAX, 1).expect("the bounds are constants in order"))
    }

    /// Counts one size. Nothing is allocated.
    pub fn record(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.0.saturating_record(bytes.clamp(1, SIZE_BYTES_MAX));
    }

    /// Adds another histogram's samples.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// Count of samples.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Count of samples below `bytes`, which is a power of two.
    pub fn count_below(&self, bytes: u64) -> u64 {
        debug_assert!(bytes.is_power_of_two(), "other bounds lie inside of what is kept together");
        self.0.count_between(0, bytes.saturating_sub(1).min(SIZE_BYTES_MAX))
    }

    /// Classes that end at 63, 127, 255 ... bytes, up to the largest sample: the largest size of
    /// each, and the count of samples up to it.
    pub fn classes(&self) -> Vec<(u64, u64)> {
        let mut classes = Vec::new();
        for exponent in 6..=25 {
            if classes.last().map_or(0, |&(_, count)| count) == self.count() {
                break;
            }
            let end = 1u64 << exponent;
            classes.push((end - 1, self.count_below(end)));
        }
        classes
    }
}

impl Default for SizeHistogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_end_below_powers_of_two() {
        let mut sizes = SizeHistogram::new();
        assert_eq!(sizes.classes(), []);
        for bytes in [0, 48, 63, 64, 127, 128, 48 + 512] {
            sizes.record(bytes);
        }
        assert_eq!(sizes.classes(), [(63, 3), (127, 5), (255, 6), (511, 6), (1023, 7)]);
        assert_eq!(sizes.count_below(128), 5);
    }

    #[test]
    fn what_is_larger_than_anything_is_in_the_last_class() {
        let mut sizes = SizeHistogram::new();
        sizes.record(usize::MAX);
        sizes.record((1 << 24) - 1);
        assert_eq!(sizes.classes().last(), Some(&((1 << 25) - 1, 2)));
        let mut sum = SizeHistogram::new();
        sum.record(1);
        sum.merge(&sizes);
        assert_eq!((sum.count(), sum.count_below(1 << 24)), (3, 2));
    }
}
