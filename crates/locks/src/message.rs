//! The messages between the two ends. The transport turns them into bytes.

use std::time::Duration;

use crate::blocks::BlockRange;
use crate::error::LockError;
use crate::identity::{BootEpoch, CallbackNumber, ClientId, Generation, GrantNumber, RequestId, TransactionId};
use crate::mode::Mode;
use crate::resource::Resource;

/// A resource and the mode it is wanted in.
pub type Wanted = (Resource, Mode);

/// A lock that is now held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantedLock {
    /// What is locked.
    pub resource: Resource,
    /// How it is held, which can be more than was asked for.
    pub mode: Mode,
    /// The number of this grant.
    pub number: GrantNumber,
}

/// A lock to give back, or to lower to a weaker mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// What is locked.
    pub resource: Resource,
    /// The grant that is meant: a newer one is not affected.
    pub number: GrantNumber,
    /// The mode to keep; `None` gives the lock back.
    pub to: Option<Mode>,
}

/// A client's answer to a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallbackAnswer {
    /// The lock was lowered to the requested mode, or the copies are purged. For a file, its block
    /// groups as well.
    Done,
    /// The lock is in use. Done follows.
    InUse,
    /// Dirty data has to be written first, and the client makes progress. Done follows.
    GettingOn,
}

/// The outcome of a request for locks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// All of it is held.
    Granted(Vec<GrantedLock>),
    /// It waits. A message follows.
    Queued,
}

/// A client's request to the target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FromClient {
    /// Gives the client an identity.
    Register {
        /// The life before, whose locks it wants to reclaim.
        previous: Option<ClientId>,
    },
    /// Prolongs the lease.
    Renew(ClientId),
    /// Requests locks. Sent again with the same number, it is the same request.
    Lock {
        /// The client.
        client: ClientId,
        /// [`TransactionId::OWN`] or an explicit one.
        transaction: TransactionId,
        /// Its number.
        request: RequestId,
        /// What is wanted, files before their block groups.
        batch: Vec<Wanted>,
        /// Whether it was held before the target started again.
        is_reclaim: bool,
    },
    /// Withdraws a request for locks.
    Cancel(ClientId, RequestId),
    /// Gives locks of its own back.
    Unlock(ClientId, Vec<Release>),
    /// Answers a callback.
    Acknowledge(ClientId, CallbackNumber, CallbackAnswer),
}

/// The target's immediate answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    /// To `Register`.
    Registered(Registration),
    /// To `Lock`: all of it is held.
    Granted(Vec<GrantedLock>),
    /// To `Lock`: it waits; [`ToClient::Granted`] or [`ToClient::Refused`] follows.
    Queued,
    /// To every other request.
    Done,
}

/// What a client learns when it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Registration {
    /// Its identity.
    pub client: ClientId,
    /// How long its grants last while it is silent.
    pub lease: Duration,
    /// The target's start.
    pub boot_epoch: BootEpoch,
    /// Whether only reclaims are granted for now.
    pub is_in_grace: bool,
}

/// A message that the target sends to a client by itself; in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToClient {
    /// A request that waited is granted, whole.
    Granted {
        /// The request.
        request: RequestId,
        /// Its transaction.
        transaction: TransactionId,
        /// The locks that are held for it now.
        locks: Vec<GrantedLock>,
    },
    /// A waiting request will never be granted.
    Refused {
        /// The request.
        request: RequestId,
        /// The reason.
        error: LockError,
    },
    /// A lock of the client's own is to be given up.
    Callback {
        /// To be named in the answer.
        number: CallbackNumber,
        /// What is locked.
        resource: Resource,
        /// The grant that is meant.
        grant: GrantNumber,
        /// The mode that may be kept.
        to: Option<Mode>,
    },
    /// Copies of blocks are to be dropped.
    Purge {
        /// To be named in the answer.
        number: CallbackNumber,
        /// The blocks.
        range: BlockRange,
        /// Data read with a smaller generation must not be kept.
        generation: Generation,
    },
}
