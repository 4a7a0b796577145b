//! Response times over time, in bounded memory.
//!
//! Every request is a sample until there are too many; then every second one is dropped and from there on only every
//! second one is kept, and so on: a series of any length keeps an even thinning of itself. Means of groups of 1000
//! requests (the iCache paper's figure 6) are kept beside it and are exact.

use std::time::Duration;

use crate::access::AccessKind;
use crate::limits::{GROUP_REQUESTS, GROUPS_MAX, SAMPLES_MAX};

/// One finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it finished, in nanoseconds since the run began.
    pub at_ns: u64,
    /// How long it took, in nanoseconds.
    pub latency_ns: u64,
    /// The kind of access.
    pub kind: AccessKind,
}

/// The samples of a run.
#[derive(Clone, Debug)]
pub struct Series {
    samples: Vec<Sample>,
    samples_max: usize,
    /// Every `stride`-th request is kept.
    stride: u64,
    seen: u64,
    groups: Groups,
}

impl Default for Series {
    fn default() -> Self {
        Self::with_bound(SAMPLES_MAX)
    }
}

impl Series {
    /// A series without samples.
    pub fn new() -> Self {
        Self::default()
    }

    /// A series that keeps at most `samples_max` samples (at least two).
    pub fn with_bound(samples_max: usize) -> Self {
        let groups = Groups { means_ns: Vec::new(), size: GROUP_REQUESTS, sum_ns: 0, count: 0 };
        Self { samples: Vec::new(), samples_max: samples_max.max(2), stride: 1, seen: 0, groups }
    }

    /// Adds a finished request.
    pub fn push(&mut self, sample: Sample) {
        self.groups.push(sample.latency_ns);
        if self.seen.is_multiple_of(self.stride) {
            if self.samples.len() == self.samples_max {
                self.thin();
            }
            if self.seen.is_multiple_of(self.stride) {
                self.samples.push(sample);
            }
        }
        self.seen += 1;
    }

    /// The samples kept, in the order in which the requests finished.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Requests seen, kept or not.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Count of requests for each sample kept.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Mean response times of successive groups of [`Series::group_size`] requests; a last, unfinished group is left
    /// out.
    pub fn group_means(&self) -> impl Iterator<Item = Duration> {
        self.groups.means_ns.iter().map(|&mean_ns| Duration::from_nanos(mean_ns))
    }

    /// Requests of one group: 1000, or a power of two times that in a very long run.
    pub fn group_size(&self) -> u64 {
        self.groups.size
    }

    fn thin(&mut self) {
        let mut index = 0u64;
        self.samples.retain(|_| {
            index += 1;
            !index.is_multiple_of(2)
        });
        self.stride *= 2;
    }
}

#[derive(Clone, Debug)]
struct Groups {
    means_ns: Vec<u64>,
    size: u64,
    sum_ns: u128,
    count: u64,
}

impl Groups {
    fn push(&mut self, latency_ns: u64) {
        self.sum_ns += u128::from(latency_ns);
        self.count += 1;
        if self.count < self.size {
            return;
        }
        let mean_ns = u64::try_from(self.sum_ns / u128::from(self.count)).unwrap_or(u64::MAX);
        self.means_ns.push(mean_ns);
        (self.sum_ns, self.count) = (0, 0);
        if self.means_ns.len() == GROUPS_MAX {
            self.means_ns = self.means_ns.chunks_exact(2).map(|pair| pair[0].midpoint(pair[1])).collect();
            self.size *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ns: u64) -> Sample {
        Sample { at_ns, latency_ns: at_ns * 10, kind: AccessKind::Write }
    }

    #[test]
    fn a_long_series_thins_evenly() {
        let mut series = Series::with_bound(100);
        (0..10_000).for_each(|at_ns| series.push(sample(at_ns)));
        assert_eq!(series.seen(), 10_000);
        assert!((50..=100).contains(&series.samples().len()));
        let stride = series.stride();
        for (index, kept) in series.samples().iter().enumerate() {
            assert_eq!(*kept, sample(index as u64 * stride));
        }
    }

    #[test]
    fn group_means_are_exact() {
        let mut series = Series::with_bound(2);
        (0..2500).for_each(|at_ns| series.push(sample(at_ns)));
        let means: Vec<u128> = series.group_means().map(|mean| mean.as_nanos()).collect();
        assert_eq!(means, [4995, 14995]);
        assert_eq!(series.group_size(), 1000);
    }
}
