//! The reasons to refuse a request. Each violation is a variant of its own, so that a client can
//! distinguish them.

use thiserror::Error;

use crate::identity::{BootEpoch, CallbackNumber, ClientId, CommandId, TransactionId};
use crate::mode::Mode;
use crate::resource::{FileId, Resource};

/// A table with a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Registered clients.
    Clients,
    /// Locks that a client holds.
    Grants,
    /// Requests of a client that wait.
    Waiting,
    /// Open transactions of a client.
    Transactions,
    /// Open files of a client.
    OpenFiles,
    /// Reads and changes at the gate.
    Commands,
}

/// Why a request was refused. No part of it was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum LockError {
    /// No client has this number, or its life is over.
    #[error("client {0} is fenced or was never registered")]
    Fenced(ClientId),
    /// The client was silent for longer than its lease. It is being fenced.
    #[error("the lease of client {0} is over")]
    LeaseOver(ClientId),
    /// The client was registered before the target started again.
    #[error("the target has started again: this is start {0:?}")]
    WrongEpoch(BootEpoch),
    /// Only reclaims are granted so soon after a start.
    #[error("the target has just started and takes only reclaims")]
    Grace,
    /// The time for reclaims is over.
    #[error("the time for reclaims is over")]
    GraceOver,
    /// Another client has reclaimed a conflicting lock.
    #[error("{0} was reclaimed by another client")]
    ReclaimConflict(Resource),
    /// A reclaim names a life that cannot reclaim: its locks may have been granted to others since,
    /// or another client is reclaiming them.
    #[error("what client {0} held can no longer be reclaimed")]
    NotReclaimable(ClientId),
    /// A client reclaims locks of its own, not of a transaction.
    #[error("locks of a transaction cannot be reclaimed")]
    ReclaimOfTransaction,
    /// There is no such block or block group.
    #[error("{0} lies beyond the end of the logical unit")]
    BeyondEnd(Resource),
    /// The resource is not locked in modes of that kind.
    #[error("{0} cannot be locked in {1}")]
    WrongKind(Resource, Mode),
    /// Block groups are locked as such: nothing lies below them.
    #[error("{0} has nothing below it, so {1} has no meaning there")]
    IntentionOnLeaf(Resource, Mode),
    /// The file must be locked before its block groups.
    #[error("{0} was to be locked before the file it is in")]
    LeafBeforeRoot(Resource),
    /// The file is locked in a mode that does not allow it.
    #[error("{0} cannot be locked in {1}: its file is locked in {2}")]
    RootTooWeak(Resource, Mode, Mode),
    /// The lock on the file is one on each of its block groups.
    #[error("{0} is locked by the lock on its file")]
    Implied(Resource),
    /// Block groups are released before the file.
    #[error("{0} was to be released while block groups of it are locked")]
    RootBeforeLeaf(Resource),
    /// The lock is not held, or no longer by the grant that is named.
    #[error("{0} is not held so")]
    NotHeld(Resource),
    /// A downgrade to what the held mode does not cover.
    #[error("{0} is held in {1}, which is not more than {2}")]
    NotWeaker(Resource, Mode, Mode),
    /// A transaction keeps its locks until it ends.
    #[error("a transaction releases its locks when it ends, not before")]
    HeldUntilEnd,
    /// Too many locks in one request, or none.
    #[error("a batch has from 1 to {0} locks")]
    BatchLength(usize),
    /// A table is full.
    #[error("there is no room for more {0:?}")]
    Full(Table),
    /// The transaction was chosen to end a deadlock, or asks for more after it was. It must end.
    #[error("deadlock: this request is refused so that others can go on")]
    Deadlock,
    /// There is no such transaction, or it has ended.
    #[error("there is no transaction {0:?}")]
    NoTransaction(TransactionId),
    /// The transaction's number was used before.
    #[error("transaction {0:?} was used before")]
    TransactionReused(TransactionId),
    /// No callback of this number was sent to the client.
    #[error("callback {0:?} was never sent")]
    UnknownCallback(CallbackNumber),
    /// A purge cannot be put off: it waits for nothing.
    #[error("callback {0:?} asks for copies, which nothing keeps in use")]
    NotDeferrable(CallbackNumber),
    /// A request's number is in use by another one.
    #[error("the number of the request is in use")]
    RequestReused,
    /// The client has not opened the file in this mode.
    #[error("file {0:?} is not open so")]
    NotOpen(FileId),
    /// A command of that number is at the gate already, or is not there.
    #[error("command {0:?} is not in that state")]
    CommandState(CommandId),
}
