//! The parts that all forebay crates share; none of them touches the operating system.
//!
//! | module | holds |
//! |---|---|
//! | [`background`] | background work by name, so that a test can end it with a panic |
//! | [`buffer`] | owned, page-aligned I/O buffers and the bounded pool they come from |
//! | [`busy_poll`] | whether a task that waits for a peer polls or sleeps |
//! | [`checksum`] | CRC32C, one call and running |
//! | [`clock`] | [`Instant`](clock::Instant), the [`Clock`](clock::Clock) trait, the hand-turned [`VirtualClock`](clock::VirtualClock) |
//! | [`executor`] | a deterministic single-threaded executor over a virtual clock |
//! | [`histogram`] | latency histograms with percentiles only where there are enough samples |
//! | [`random`] | one seeded generator, the same sequence everywhere |
//! | [`range`] | [`ByteRange`](range::ByteRange) |
//! | [`refusals`] | a limit on log messages about refusals |
//! | [`serial`] | RFC 1982 serial numbers (CmdSN, StatSN, DataSN) |
//! | [`signal`] | a counter that tasks wait for to change |
//! | [`sizes`] | histograms of sizes in bytes |
//! | [`units`] | sizes as people write them: `64KiB`, `10GiB` |

#![forbid(unsafe_code)]

pub mod background;
pub mod buffer;
pub mod busy_poll;
pub mod checksum;
pub mod clock;
pub mod executor;
pub mod histogram;
pub mod limits;
pub mod random;
pub mod range;
pub mod refusals;
pub mod serial;
pub mod signal;
pub mod sizes;
pub mod units;
