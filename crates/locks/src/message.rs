//! What the two ends say to each other. Bytes are given to it by whoever carries it.

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

/// A lock to give back, or to come down with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// What is locked.
    pub resource: Resource,
    /// The grant that is meant: a newer one stays.
    pub number: GrantNumber,
    /// What to keep; none gives it back.
    pub to: Option<Mode>,
}

/// What a client answers to a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallbackAnswer {
    /// The lock was given up down to the mode that was asked for, or the copies are purged. Of a file, its block groups
    /// as well.
    Done,
    /// The lock is in use. Done follows.
    InUse,
    /// What is called back has to be written first, and the client is getting on with it. Done follows.
    GettingOn,
}

/// What becomes of a request for locks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// All of it is held.
    Granted(Vec<GrantedLock>),
    /// It waits. A message follows.
    Queued,
}

/// What a client asks the target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FromClient {
    /// Gives the client an identity.
    Register {
        /// The life before, of which it wants to reclaim locks.
        previous: Option<ClientId>,
    },
    /// Prolongs the lease.
    Renew(ClientId),
    /// Asks for locks. Sent again with the same number, it is the same request.
    Lock {
        /// Who asks.
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
    /// Wants the locks of a request no more.
    Cancel(ClientId, RequestId),
    /// Gives locks of its own back.
    Unlock(ClientId, Vec<Release>),
    /// Answers a callback.
    Acknowledge(ClientId, CallbackNumber, CallbackAnswer),
}

/// What the target answers at once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    /// To `Register`.
    Registered(Registration),
    /// To `Lock`: all of it is held.
    Granted(Vec<GrantedLock>),
    /// To `Lock`: it waits; [`ToClient::Granted`] or [`ToClient::Refused`] follows.
    Queued,
    /// To everything else.
    Done,
}

/// What a client learns when it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Registration {
    /// Its identity.
    pub client: ClientId,
    /// How long its grants stand when it is silent.
    pub lease: Duration,
    /// The target's start.
    pub boot_epoch: BootEpoch,
    /// Whether only reclaims are granted for now.
    pub is_in_grace: bool,
}

/// What the target tells a client without being asked, in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToClient {
    /// A request that waited is granted, whole.
    Granted {
        /// The request.
        request: RequestId,
        /// Its transaction.
        transaction: TransactionId,
        /// What is held for it now.
        locks: Vec<GrantedLock>,
    },
    /// A request that waited never will be.
    Refused {
        /// The request.
        request: RequestId,
        /// Why.
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
        /// What may be kept.
        to: Option<Mode>,
    },
    /// Copies of blocks are to be dropped.
    Purge {
        /// To be named in the answer.
        number: CallbackNumber,
        /// The blocks.
        range: BlockRange,
        /// What was read with a smaller generation must not be kept.
        generation: Generation,
    },
}
