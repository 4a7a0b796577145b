//! The locks of a shared LUN as a file system uses them, independent of the transport of the
//! messages.

use std::future::Future;
use std::pin::Pin;

use crate::error::LockError;
use crate::identity::{Birth, TransactionId};
use crate::message::Wanted;
use crate::mode::Mode;
use crate::resource::Resource;

/// What the calls of a [`LockClient`] return.
pub type LockFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'a>>;

/// The locks of one shared LUN, for one of its clients.
pub trait LockClient: Send + Sync {
    /// Waits until all of a batch is held, files before their block groups. A client may keep its
    /// own locks when they are not used any more.
    fn lock<'a>(&'a self, transaction: TransactionId, batch: &'a [Wanted]) -> LockFuture<'a, ()>;

    /// Begins a use of one of the client's own locks. Returns `false` when it has to be locked
    /// first. Never waits.
    fn begin_use(&self, resource: Resource, mode: Mode) -> bool;

    /// Ends a use.
    fn end_use(&self, resource: Resource, mode: Mode);

    /// Begins an explicit transaction; `age` is that of one that is tried again. Returns its number
    /// and its age.
    fn begin_transaction(&self, age: Option<Birth>) -> LockFuture<'_, (TransactionId, Birth)>;

    /// Ends an explicit transaction, committed or not, and releases its locks.
    fn end_transaction(&self, transaction: TransactionId) -> LockFuture<'_, ()>;
}
