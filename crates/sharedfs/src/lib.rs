//! The blocks of an ext2 that is mounted: cached, changed in transactions, and whole after any crash.
//!
//! ```text
//!   ext2 (names, files)
//!      │  operations: read, change, end
//!   SharedBlocks ── Pins      an operation holds each block that it reads or changes, shared or exclusive
//!      │         └─ Cache     blocks that were read, in bounded memory; the least recently used is evicted
//!      │  the running transaction: the changes of ended operations
//!   Commit: Redo              all of it, or nothing, becomes durable; then it is written to its place
//!      │
//!   Device
//! ```
//! Operations join the running transaction when they end, so no commit ever cuts one, and they are
//! committed in their order. A crash leaves the state of some commit: the last acknowledged one, or
//! a later one.
//!
//! At present one mount has the file system for itself: [`pins::SingleHost`]. Locks of several
//! hosts will take its place, and commits at the target that of [`Redo`].
//!
//! | module | holds |
//! |---|---|
//! | `open` | [`open()`], [`close()`]: from a device to a file system, and back |
//! | `blocks` | [`SharedBlocks`]: the interface that the file system uses |
//! | `operation` | [`SharedOperation`] |
//! | `shared` | the running transaction, and the state that operations share |
//! | `cache` | unchanged blocks in memory |
//! | [`pins`] | which operation may read and change which block |
//! | [`commit`] | how a transaction becomes durable |
//! | `redo`, `recovery` | [`Redo`]: commits in an area of the file system's own; recovery after a crash |
//! | `area`, `record` | the area; the bytes of a record |
//! | [`limits`] | the bounds of this crate |
//!
//! `docs/formats/redo.md` describes the bytes. This crate does not depend on a runtime, an
//! operating system or a clock.

#![forbid(unsafe_code)]

mod area;
mod blocks;
mod cache;
pub mod commit;
pub mod limits;
mod open;
mod operation;
pub mod pins;
mod record;
mod recovery;
mod redo;
mod shared;

pub use blocks::SharedBlocks;
pub use open::{Mounted, close, open};
pub use operation::SharedOperation;
pub use redo::Redo;
pub use shared::Counters;
