//! How a transaction becomes durable: all of it, or nothing.

use std::collections::BTreeMap;
use std::future::Future;

use ext2::{Block, BlockNumber, Error};

/// What a transaction changed.
pub type Changes = BTreeMap<BlockNumber, Block>;

/// Makes transactions durable, in their order, one at a time: whoever calls it waits for one before the next.
pub trait Commit: Send + Sync + 'static {
    /// The most blocks that one transaction may change.
    fn blocks_max(&self) -> usize;

    /// Whether nothing can be committed.
    fn is_read_only(&self) -> bool;

    /// Makes a transaction durable. A crash leaves all of it or nothing. So does an error, and it is not known which of
    /// both until the same changes, or more, are committed.
    fn commit(&self, changes: &Changes) -> impl Future<Output = Result<(), Error>> + Send;

    /// A block that is committed while its place still has older content.
    fn not_in_place(&self, block: BlockNumber) -> Option<Block>;

    /// Brings everything that is committed to its place, durably.
    fn settle(&self) -> impl Future<Output = Result<(), Error>> + Send;
}
