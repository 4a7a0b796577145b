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
//! One mount has the file system for itself, or the mounts of several hosts have it by turns: a
//! request holds the lock of all of it ([`Hosts`]), and an operation begins only while there is such
//! a hold. When another host wants the lock, everything is brought to its place, durably, and
//! nothing stays in memory; whoever gets it reads what it needs anew. Locks of single blocks will
//! take its place, and commits at the target that of [`Redo`].
//!
//! | module | holds |
//! |---|---|
//! | `open` | [`open()`], [`close()`]: from a device to a file system, and back |
//! | `blocks` | [`SharedBlocks`]: the interface that the file system uses |
//! | `operation` | [`SharedOperation`] |
//! | `shared` | the running transaction, and the state that operations share |
//! | `cache` | unchanged blocks in memory |
//! | `hosts` | the lock by which hosts share: [`Hosts`], [`Hold`] |
//! | `keeping` | what happens when another host wants the lock |
//! | [`pins`] | which operation may read and change which block |
//! | [`commit`] | how a transaction becomes durable |
//! | `redo`, `recovery` | [`Redo`]: commits in an area of the file system's own; recovery after a crash |
//! | `replay` | what a crash, or another host, left in the area is written to its place |
//! | `area`, `author`, `record` | the area; who commits in it, and how far; the bytes of a record |
//! | [`limits`] | the bounds of this crate |
//!
//! `docs/formats/redo.md` describes the bytes. This crate does not depend on a runtime, an
//! operating system or a clock.

#![forbid(unsafe_code)]

mod area;
mod author;
mod blocks;
mod cache;
pub mod commit;
mod hosts;
mod keeping;
pub mod limits;
mod open;
mod operation;
pub mod pins;
mod record;
mod recovery;
mod redo;
mod replay;
mod shared;

pub use blocks::SharedBlocks;
pub use hosts::{Hold, Hosts, Others, Probe};
pub use open::{Mounted, close, open};
pub use operation::SharedOperation;
pub use redo::Redo;
pub use shared::Counters;
