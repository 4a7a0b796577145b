//! The bounds of this crate. Each is the default of a field of [`Limits`]; a target may set others.

use std::time::Duration;

/// Clients registered at a time. One more is refused, [`Table::Clients`](crate::error::Table::Clients). A cluster of
/// ext2 hosts is far smaller.
pub const CLIENTS_MAX: usize = 256;

/// Locks of one request or release. More are refused: a batch is decided at once, and other clients
/// wait meanwhile.
pub const BATCH_MAX: usize = 64;

/// Locks that one client holds, its transactions' included. A request that could pass it is refused,
/// [`Table::Grants`](crate::error::Table::Grants); the client gives some back. 65,536 metadata blocks of 4 KiB are 256
/// MiB.
pub const GRANTS_OF_CLIENT_MAX: usize = 65_536;

/// Requests of one client that wait. One more is refused, [`Table::Waiting`](crate::error::Table::Waiting).
pub const WAITING_OF_CLIENT_MAX: usize = 256;

/// Locks of the waiting requests of one client. One more is refused,
/// [`Table::Waiting`](crate::error::Table::Waiting): each change examines those that it touches.
pub const WAITING_LOCKS_OF_CLIENT_MAX: usize = 2048;

/// Open explicit transactions of one client. One more is refused,
/// [`Table::Transactions`](crate::error::Table::Transactions).
pub const TRANSACTIONS_OF_CLIENT_MAX: usize = 256;

/// Open files of one client, each counted as often as it is open. One more is refused,
/// [`Table::OpenFiles`](crate::error::Table::OpenFiles).
pub const OPENS_OF_CLIENT_MAX: usize = 65_536;

/// Ranges of blocks that clients may hold copies of, of all clients. When full, the oldest is
/// called back, and reads wait for room.
pub const REGISTRATIONS_MAX: usize = 1 << 20;

/// Reads and changes that wait at the gate or are under way there. One more is refused,
/// [`Table::Commands`](crate::error::Table::Commands): TASK SET FULL.
pub const COMMANDS_MAX: usize = 4096;

/// Locks that are checked to see whether a client holds a range alone. A longer change waits like
/// any other.
pub const ALONE_LOCKS_MAX: u64 = 64;

/// Steps of a search for circles that are taken at once, each a look at a request or at one that it
/// waits for: more than ordinary hosts need. They take some 60 us.
pub const SEARCH_STEPS_MAX: usize = 1024;

/// The rest after this many steps. So searches take at most a tenth of the time, and a circle of a
/// thousand requests is found within a tenth of a second.
pub const SEARCH_REST: Duration = Duration::from_micros(600);

/// Messages for one client that wait to be taken. With one more the client is fenced: it does not
/// receive what it must give back.
pub const MAILBOX_MAX: usize = 4096;

/// Locks that all clients of a unit hold or wait for, and times that they have files open. Once half of that is taken
/// a host gets no more than it leaves to others, so that alone it has half: what one client may have. They take some
/// 0.5 KiB each.
pub const HOLDINGS_MAX: usize = 2 * GRANTS_OF_CLIENT_MAX;

/// What a host may have of that whatever others have: the locks of one request.
pub const HOLDINGS_OF_HOST_MIN: usize = BATCH_MAX;

/// Bytes of all messages for the clients of a unit that wait to be taken. With more the one that leaves most of them
/// untaken is fenced: those who take theirs have a few KiB.
pub const MAILBOX_BYTES_OF_ALL_MAX: usize = 32 << 20;

/// Fenced clients that a report still names; when full, the one that was fenced first is dropped.
/// No decision depends on them.
pub const FENCED_REMEMBERED_MAX: usize = 64;

/// How long the grants of a silent client last.
pub const LEASE: Duration = Duration::from_secs(10);

/// How long a client that does not defer has to answer a callback: as long as a lease, so that a host that is merely
/// slow is not fenced before one that is silent.
pub const CALLBACK_TIME: Duration = Duration::from_secs(10);

/// By how much a deferral moves the deadline.
pub const DEFERRAL_STEP: Duration = Duration::from_secs(5);

/// When the last deferral of a callback is over.
pub const CALLBACK_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a holder keeps a lock before it is called back, so that it can do some work with it: as
/// in GFS2, a few round trips of a campus.
pub const HOLD_TIME_MIN: Duration = Duration::from_millis(20);

/// By how many percent two clocks may run apart. A client counts its lease as that much shorter.
pub const CLOCK_DRIFT_PERCENT: u32 = 1;

/// A client renews its lease after this part of it, so that two renewals may be lost.
pub const RENEWALS_PER_LEASE: u32 = 3;

const _: () = assert!(CALLBACK_TIME_MAX.as_secs() >= CALLBACK_TIME.as_secs());
const _: () = assert!(HOLD_TIME_MIN.as_millis() * 10 < CALLBACK_TIME.as_millis());
const _: () = assert!(MAILBOX_MAX > 2 * WAITING_OF_CLIENT_MAX);

/// The bounds of one lock manager, with the names of the constants above.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// [`CLIENTS_MAX`].
    pub clients_max: usize,
    /// [`BATCH_MAX`].
    pub batch_max: usize,
    /// [`GRANTS_OF_CLIENT_MAX`].
    pub grants_of_client_max: usize,
    /// [`WAITING_OF_CLIENT_MAX`].
    pub waiting_of_client_max: usize,
    /// [`WAITING_LOCKS_OF_CLIENT_MAX`].
    pub waiting_locks_of_client_max: usize,
    /// [`TRANSACTIONS_OF_CLIENT_MAX`].
    pub transactions_of_client_max: usize,
    /// [`OPENS_OF_CLIENT_MAX`].
    pub opens_of_client_max: usize,
    /// [`REGISTRATIONS_MAX`].
    pub registrations_max: usize,
    /// [`COMMANDS_MAX`].
    pub commands_max: usize,
    /// [`MAILBOX_MAX`].
    pub mailbox_max: usize,
    /// [`SEARCH_STEPS_MAX`].
    pub search_steps_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients_max: CLIENTS_MAX,
            batch_max: BATCH_MAX,
            grants_of_client_max: GRANTS_OF_CLIENT_MAX,
            waiting_of_client_max: WAITING_OF_CLIENT_MAX,
            waiting_locks_of_client_max: WAITING_LOCKS_OF_CLIENT_MAX,
            transactions_of_client_max: TRANSACTIONS_OF_CLIENT_MAX,
            opens_of_client_max: OPENS_OF_CLIENT_MAX,
            registrations_max: REGISTRATIONS_MAX,
            commands_max: COMMANDS_MAX,
            mailbox_max: MAILBOX_MAX,
            search_steps_max: SEARCH_STEPS_MAX,
        }
    }
}
