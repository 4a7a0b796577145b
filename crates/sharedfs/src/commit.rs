//! Commits: a transaction becomes durable as a whole or not at all.

use std::collections::BTreeMap;
use std::future::Future;

use ext2::{Block, BlockNumber, Error};

/// The blocks that a transaction changed.
pub type Changes = BTreeMap<BlockNumber, Block>;

/// Makes transactions durable, in their order, one at a time: the caller waits for each before the
/// next.
pub trait Commit: Send + Sync + 'static {
    /// Most blocks that one transaction may change.
    fn blocks_max(&self) -> usize;

    /// Whether nothing can be committed.
    fn is_read_only(&self) -> bool;

    /// Makes a transaction durable. A crash leaves all of it or nothing. After an error it is
    /// unknown which, until the same changes, or more, are committed.
    fn commit(&self, changes: &Changes) -> impl Future<Output = Result<(), Error>> + Send;

    /// The content of a block that is committed and not yet written to its place.
    fn not_in_place(&self, block: BlockNumber) -> Option<Block>;

    /// Writes all committed blocks to their places, durably.
    fn settle(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Does that, and leaves nothing that another host would have to write to its place.
    fn hand_over(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Looks at what other hosts left, and writes nothing. Returns whether all of it is in its place,
    /// so that it can be read.
    ///
    /// # Errors
    /// `NotClean` when it is not the file system any more that was mounted.
    fn look_over(&self) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Whether the last that became durable by what this host knows is the last that is there, and of
    /// the same mount: else the file system was restored or replaced.
    fn is_as_left(&self) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Whether what [`take_over`](Self::take_over) went on from is there: for a host that had looked at
    /// it, under the same lock, before the file system was restored or replaced.
    fn has_taken_what_was_left(&self) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Begins anew after other hosts may have changed the file system: what the last of them did
    /// not write to its place is written there.
    ///
    /// # Errors
    /// `NotClean` when it is not the file system any more that was mounted.
    fn take_over(&self) -> impl Future<Output = Result<(), Error>> + Send;
}
