//! The load of a cache, for a program that divides memory or disk space among several (paper 002,
//! 3: middleware).
//!
//! The totals count from the opening on. A program that wants the load takes them twice and
//! computes the difference: it chooses the window, and the cache needs no clock for it.

use serde::{Deserialize, Serialize};

/// What a cache has done since it was opened. Nothing here ever falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadTotals {
    /// Nanoseconds since it was opened.
    pub open_ns: u64,
    /// Reads that were served.
    pub reads: u64,
    /// Of these, by the cache device alone.
    pub read_hits: u64,
    /// Writes that were served.
    pub writes: u64,
    /// Response times in nanoseconds, all together, as a sample of the requests says.
    pub served_ns: u64,
}

/// What a cache did between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Reads a second.
    pub reads_per_second: f64,
    /// Writes a second.
    pub writes_per_second: f64,
    /// Share of the reads that the cache device served alone; `None` without reads.
    pub hit_ratio: Option<f64>,
    /// Requests in flight at a time, on average: how busy it was. 0 is idle, 1 is one request after the other without a
    /// pause.
    pub in_flight: f64,
}

impl LoadTotals {
    /// The load since `earlier`, totals of the same cache; `None` when no time lies between, or when it was opened anew
    /// since.
    pub fn since(&self, earlier: &Self) -> Option<Load> {
        let open_ns = self.open_ns.checked_sub(earlier.open_ns).filter(|&open_ns| open_ns > 0)? as f64;
        let reads = self.reads.checked_sub(earlier.reads)? as f64;
        let read_hits = self.read_hits.checked_sub(earlier.read_hits)? as f64;
        let writes = self.writes.checked_sub(earlier.writes)? as f64;
        let served_ns = self.served_ns.checked_sub(earlier.served_ns)? as f64;
        Some(Load {
            reads_per_second: reads * 1e9 / open_ns,
            writes_per_second: writes * 1e9 / open_ns,
            hit_ratio: (reads > 0.0).then(|| read_hits / reads),
            in_flight: served_ns / open_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_what_lies_between() {
        let earlier = LoadTotals { open_ns: 1_000_000_000, reads: 10, read_hits: 5, writes: 1, served_ns: 100 };
        let now = LoadTotals { open_ns: 3_000_000_000, reads: 110, read_hits: 80, writes: 1, served_ns: 1_000_000_100 };
        let load = Load { reads_per_second: 50.0, writes_per_second: 0.0, hit_ratio: Some(0.75), in_flight: 0.5 };
        assert_eq!(now.since(&earlier), Some(load));
        assert_eq!(now.since(&now), None);
        assert_eq!(earlier.since(&now), None, "it was opened anew");
        let idle = LoadTotals { open_ns: 4_000_000_000, ..now };
        assert_eq!(idle.since(&now).and_then(|load| load.hit_ratio), None);
    }
}
