//! The blocks of an ext2 that is mounted: cached, changed in transactions, and whole after any crash.
//!
//! ```text
//!   ext2 (names, files)
//!      │  operations: read, change, end
//!   SharedBlocks ── Pins      whoever reads or changes a block holds it, shared or exclusive
//!      │         └─ Cache     what was read, in bounded memory; the least recently used is evicted
//!      │  the running transaction: what ended operations changed
//!   Commit: Redo              all of it, or nothing, becomes durable; then it goes to its place
//!      │
//!   Device
//! ```
//! Operations join the running transaction when they end, so none is ever cut by a commit, and the order of operations
//! is that of commits. A crash leaves what some commit left, the last that was acknowledged or a later one.
//!
//! Today one mount has the file system for itself: [`pins::SingleHost`]. Locks of several hosts take its place, and a
//! commit at the target that of [`Redo`].
//!
//! | module | holds |
//! |---|---|
//! | `open` | [`open()`], [`close()`]: from a device to a file system, and back |
//! | `blocks` | [`SharedBlocks`]: what the file system asks for |
//! | `operation` | [`SharedOperation`] |
//! | `shared` | the running transaction, and what operations share |
//! | `cache` | unchanged blocks in memory |
//! | [`pins`] | who may read and change which block |
//! | [`commit`] | how a transaction becomes durable |
//! | `redo`, `recovery` | [`Redo`]: in an area of the file system's own; what a crash left there |
//! | `area`, `record` | where that is; its bytes |
//! | [`limits`] | the bounds of this crate |
//!
//! `docs/formats/redo.md` describes the bytes. Nothing here knows a runtime, an operating system or a clock.

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
