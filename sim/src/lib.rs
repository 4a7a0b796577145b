//! Several parts of forebay under one virtual clock and one seed.
//!
//! The tests of this crate assemble production code over models of disks, links and power, and run it in virtual time. A run is its seed: the
//! same seed gives the same run to the nanosecond, so a failure is replayed by the seed it prints. `FOREBAY_SEEDS` says how many seeds to run
//! (`make soak`); without it a few.

#![forbid(unsafe_code)]

/// The seeds to run: `count`, or as many as `FOREBAY_SEEDS` says.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let wanted = std::env::var("FOREBAY_SEEDS").ok().and_then(|text| text.parse().ok());
    0..wanted.unwrap_or(count)
}
