//! What a file system asks of the locks of a shared LUN, whoever carries the messages.

use std::future::Future;
use std::pin::Pin;

use crate::error::LockError;
use crate::identity::{Birth, TransactionId};
use crate::message::Wanted;
use crate::mode::Mode;
use crate::resource::Resource;

/// What the calls of a [`LockClient`] return.
pub type LockFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'a>>;

/// Locks of one shared LUN, as one of its clients has them.
pub trait LockClient: Send + Sync {
    /// Waits until all of a batch is held, files before their block groups. What a client holds of its own it may keep
    /// when it is used no more.
    fn lock<'a>(&'a self, transaction: TransactionId, batch: &'a [Wanted]) -> LockFuture<'a, ()>;

    /// Begins to use what is held of the client's own; false when it has to be locked first. Never waits.
    fn begin_use(&self, resource: Resource, mode: Mode) -> bool;

    /// Ends a use.
    fn end_use(&self, resource: Resource, mode: Mode);

    /// Begins an explicit transaction; with the age of one that is tried again. Returns its number and its age.
    fn begin_transaction(&self, age: Option<Birth>) -> LockFuture<'_, (TransactionId, Birth)>;

    /// Ends an explicit transaction, committed or not, and releases its locks.
    fn end_transaction(&self, transaction: TransactionId) -> LockFuture<'_, ()>;
}
