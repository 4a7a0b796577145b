//! Several parts of forebay under one virtual clock and one seed.
//!
//! The tests of this crate assemble production code over models of disks, links and power, and run it in virtual time. A run is its seed: the
//! same seed gives the same run to the nanosecond, so a failure is replayed by the seed it prints: `FOREBAY_SEED=17` runs that one alone.
//! `FOREBAY_SEEDS` says how many seeds to run (`make soak`); without it a few.
//!
//! | module | holds |
//! |---|---|
//! | [`layers`], [`made`], [`choice`] | which layers stand on a LUN, what they are made with, what differs from life to life |
//! | [`lun`], [`region`], [`media`] | what they stand on, and what that does wrong |
//! | [`running`], [`application`], [`history`] | a stack in one life, who uses it, and what may be read |
//! | [`link`] | a connection |

#![forbid(unsafe_code)]

pub mod application;
pub mod choice;
pub mod history;
pub mod layers;
pub mod link;
pub mod lun;
pub mod made;
pub mod media;
pub mod region;
pub mod running;

/// The seeds to run: the one that `FOREBAY_SEED` names; otherwise `count`, or as many as `FOREBAY_SEEDS` says.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_SEEDS").unwrap_or(count),
    }
}
