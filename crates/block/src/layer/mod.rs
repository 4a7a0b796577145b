//! Layers: devices over devices, with one purpose each.
//!
//! | layer | what it does |
//! |---|---|
//! | [`crash`] | not a layer but the medium below a stack under test: it loses power, and with it what was not flushed |
//! | [`delay`] | answers later, by a fixed or seeded latency per operation |
//! | [`disk`] | answers as late as a disk with one actuator would |
//! | [`error`] | fails chosen requests with a chosen error |
//! | [`loss_record`] | records which losses the flushes of a device report |
//! | [`multipath`] | one unit over several paths, with failover or round robin |
//! | [`read_only`] | refuses what would change the device |
//! | [`shared_flush`] | turns durable writes into writes that share a flush: a file or disk without FUA |
//! | [`small_blocks`] | blocks of 512 bytes over a device of larger ones |
//! | [`stats`] | counts requests, bytes, sizes and latencies |
//! | [`stripe`] | one device over several, a unit on each in turn (RAID-0) |
//! | [`submitter`] | sets the submitter of each request |
//! | [`switch`] | replaces one device by another, while requests wait |
//! | [`window`] | a part of a device |
//!
//! `delay`, `disk` and `stats` pass a request down before they wait, so they never reorder and hold no range lock.

pub mod crash;
pub mod delay;
pub mod disk;
pub mod error;
pub mod loss_record;
pub mod multipath;
pub mod read_only;
pub mod shared_flush;
pub mod small_blocks;
pub mod stats;
pub mod stripe;
pub mod submitter;
pub mod switch;
pub mod window;
