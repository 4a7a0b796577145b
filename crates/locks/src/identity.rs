//! Numbers that name clients, their transactions and requests. Each is a type of its own, so that
//! they are not confused.

use std::fmt;
use std::ops::RangeInclusive;

/// A client's life at the target. Never used again: the high half counts the target's starts, the low half
/// registrations since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

impl ClientId {
    /// The client that was registered as `registration` after the start `boot_epoch`.
    pub fn new(boot_epoch: BootEpoch, registration: u32) -> Self {
        Self(u64::from(boot_epoch.0) << 32 | u64::from(registration))
    }

    /// The id from its bits on the wire.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits of the id on the wire.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The start of the target that assigned it.
    pub fn boot_epoch(self) -> BootEpoch {
        BootEpoch((self.0 >> 32) as u32)
    }

    /// The number of this registration since that start.
    pub fn registration(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.boot_epoch().0, self.registration())
    }
}

/// Counts the starts of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootEpoch(pub u32);

/// A transaction of a client. The client counts them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

impl TransactionId {
    /// The client itself: it keeps such locks until they are called back.
    pub const OWN: Self = Self(0);
}

/// The holder of a lock: a client itself, or one of its explicit transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The client.
    pub client: ClientId,
    /// [`TransactionId::OWN`] or an explicit one.
    pub transaction: TransactionId,
}

impl Owner {
    /// The client itself.
    pub fn own(client: ClientId) -> Self {
        Self { client, transaction: TransactionId::OWN }
    }

    /// A client and all its transactions.
    pub fn all_of(client: ClientId) -> RangeInclusive<Self> {
        Self::own(client)..=Self { client, transaction: TransactionId(u64::MAX) }
    }

    /// Whether its locks are cached, and called back. An explicit transaction keeps its locks until
    /// it ends.
    pub fn is_own(self) -> bool {
        self.transaction == TransactionId::OWN
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transaction {
            TransactionId::OWN => write!(f, "client {}", self.client),
            TransactionId(number) => write!(f, "transaction {number} of client {}", self.client),
        }
    }
}

/// A request for locks. The client counts them up; one that it sends again keeps its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Counts the grants of a client, so that messages that cross are distinguished: whenever the
/// target reports that a lock is held, it does so with a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantNumber(pub u64);

/// Counts the callbacks that a client was sent, of locks and of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallbackNumber(pub u64);

/// The age of a request or a transaction: the smaller, the older. A transaction that is tried again
/// keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Birth(pub u64);

/// A command that reads or changes blocks, as the target counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// Counts the changes of a logical unit that purge copies, over all starts of the target. Data read
/// with a smaller generation than a purge's is old.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl Generation {
    /// The first one after a start: larger than any of the starts before.
    pub fn at_start(boot_epoch: BootEpoch) -> Self {
        Self(u64::from(boot_epoch.0) << 32)
    }
}
