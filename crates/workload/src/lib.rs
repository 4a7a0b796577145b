//! Workload generators, trace replay and their reports.
//!
//! | module | holds |
//! |---|---|
//! | [`access`] | [`Access`]: one access, without content |
//! | [`generator`] | seeded streams of accesses: mix, sizes, uniform, zipf, sequential |
//! | [`zipf`], [`permutation`] | what skewed streams are made of |
//! | [`content`] | content whose 512-byte units name their write and their place |
//! | [`ledger`] | [`Ledger`]: the expected content, and the exact fault of wrong content |
//! | [`closed_loop`] | [`ClosedLoop`]: a generator at a depth against a device, verified, resumable after a failure |
//! | [`mod@bench`] | the patterns of `forebay bench` |
//! | [`verify`] | [`verify_all`](verify::verify_all): everything read back |
//! | [`trace`] | recorded requests: cloudPhysics CSV, blkparse, fio iolog and others; made-up ones |
//! | [`mod@replay`] | a trace onto a device, verified |
//! | [`miss_ratio`] | the exact LRU miss ratio for every cache size |
//! | [`report`] | the demo's HTML page |
//! | [`measurement`], [`series`] | the figures of a run |

#![forbid(unsafe_code)]

pub mod access;
pub mod bench;
pub mod closed_loop;
pub mod content;
mod engine;
pub mod generator;
pub mod ledger;
pub mod limits;
pub mod measurement;
pub mod miss_ratio;
pub mod permutation;
pub mod replay;
pub mod report;
pub mod series;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod verify;
pub mod zipf;

pub use access::{Access, AccessKind};
pub use closed_loop::{ClosedLoop, Ending, Limit, Plan};
pub use generator::{Generator, Pattern, Profile};
pub use ledger::{InitialContent, Ledger};
pub use measurement::Measurement;
