//! The bounds of this crate.

use std::time::Duration;

/// Connections of a server at once, those still logging in included. Each has a 64 KiB staging buffer.
pub const CONNECTIONS_MAX: usize = 1024;
const _: () = assert!(CONNECTIONS_MAX * 2 * iscsi::limits::RESPONSE_BYTES_HIGH <= 2 << 30, "their answers have 2 GiB");

/// Sessions of a server at once. TSIHs have 16 bits and zero is reserved.
pub const SESSIONS_MAX: usize = 1024;
const _: () = assert!(SESSIONS_MAX < u16::MAX as usize);
const _: () = assert!(
    iscsi::limits::RETAINED_TOTAL_BYTES_MAX + SESSIONS_MAX * iscsi::limits::RETAINED_ALWAYS_BYTES <= 768 << 20,
    "what they keep for recovery has 768 MiB"
);

/// Connections of one initiator name. A host has one session of eight connections to each of
/// several targets; a host with more needs several names.
pub const INITIATOR_CONNECTIONS_MAX: usize = 512;

/// Connections of one address that have not logged in. A host that comes back logs in to all its
/// targets at once; so does a rack behind one address. With more, the oldest is closed: it had the
/// longest time to log in, and the new one may be another client.
pub const UNAUTHENTICATED_MAX: usize = 256;
const _: () = assert!(UNAUTHENTICATED_MAX < CONNECTIONS_MAX);

/// Connections on their way to one session at once. Further ones are refused, not queued.
pub const JOINING_MAX: usize = 8;

/// Bytes of data-in that one session may have queued or being read at once, over all its
/// connections. A slow peer holds no more buffers than this (and one command's worth, so that any
/// command can run); a fast one over 10 Gbit/s and 10 ms needs 12 MB.
pub const SESSION_DATA_IN_BYTES_MAX: usize = 16 << 20;

/// Bytes of data-in that all sessions may have queued or being read at once, besides the one
/// command of [`DATA_IN_FIRST_BYTES`] that each may always run.
pub const DATA_IN_TOTAL_BYTES_MAX: usize = 1 << 30;

/// Data-in of a command that a session with nothing else queued or being read may always run,
/// whatever others use: the transfer that logical units announce as optimal. A larger one waits
/// until there is room.
pub const DATA_IN_FIRST_BYTES: usize = 1 << 20;

/// Time for a peer to take [`UNREAD_PROGRESS_BYTES`] of its queued data, once others wait for room.
/// A host that reads takes them in a millisecond.
pub const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that count as progress: half a Mbit/s at least.
pub const UNREAD_PROGRESS_BYTES: u64 = 512 << 10;

/// Interval at which a session whose peer is late checks whether others wait.
pub const UNREAD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A session reports its data-in when it has changed by this much: often enough for a good sum,
/// rarely enough that threads do not contend for the counter.
pub const DATA_IN_STEP_BYTES: usize = 256 << 10;

/// Bytes of data-out buffers of all connections together.
pub const DATA_OUT_POOL_BYTES: usize = 256 << 20;
const _: () = assert!(iscsi::limits::SESSION_DATA_OUT_BYTES <= DATA_OUT_POOL_BYTES / 4);

/// Sessions without a connection that are kept for their initiators (ErrorRecoveryLevel 2). With
/// more, the oldest is ended.
pub const UNCONNECTED_MAX: usize = 128;

/// Of these, those of one initiator name. A host has a session or two to each of some targets.
pub const UNCONNECTED_PER_INITIATOR_MAX: usize = 16;

/// Of these, those of one address, which may be a rack's.
pub const UNCONNECTED_PER_ADDRESS_MAX: usize = 32;
const _: () = assert!(UNCONNECTED_PER_ADDRESS_MAX < UNCONNECTED_MAX);

/// Slices of one vectored write: 32 reads' headers and data. Far below IOV_MAX (1024), so that the array stays on the
/// stack.
pub const WRITE_SLICES_MAX: usize = 64;

/// Connections the kernel completes before we accept them.
pub const LISTEN_BACKLOG: i32 = 128;

/// Seconds an initiator is told to log out within, when the server stops, unless the options of the server say
/// otherwise. Those that know the request follow it at once.
pub const DRAIN_SECONDS: u16 = 2;

/// Time beyond these seconds for a logout at the last moment.
pub const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Time for a peer to take the last bytes of a connection that has ended, before it is closed
/// without them. With [`DRAIN_SECONDS`] and [`DRAIN_GRACE`] before it, a server that stops has
/// closed every connection within three seconds; its devices have two more for their last flush,
/// and a busy host for all of it.
pub const LINGER_TIMEOUT: Duration = Duration::from_millis(500);
const _: () = assert!(DRAIN_SECONDS as u128 * 1000 + DRAIN_GRACE.as_millis() + LINGER_TIMEOUT.as_millis() <= 3000);

/// Time for which a session that has ended waits for its I/O with the backends, unless the server
/// ends. Disks give up within 30 s; after a minute a backend is stuck, and the initiator's next
/// session does not wait for it any longer.
pub const SETTLING_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after a failed accept (out of descriptors, mostly), so that the loop does not spin.
pub const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Slots of counters of a logical unit, one for each thread that serves sessions. Further threads share them; an unused
/// slot costs only its lock.
pub const TALLY_SLOTS: usize = 16;

/// Interval at which the counters of logical units are sampled.
pub const RATE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples kept: rates are over this many intervals. Long enough to be read, short enough to be
/// current.
pub const RATE_SAMPLES: usize = 5;

/// Time for a session to report its state. It answers at its next wake-up, which is at once unless
/// its thread is stuck.
pub const REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Turns of a session's loop in one poll before it lets the others of its shard run.
pub const TURNS_PER_POLL_MAX: usize = 32;

/// Time after which a poll starts no further turn, where a session is alone on its thread: all
/// commands of a client at depth 32 are carried out in one poll. A new session waits that long
/// once, and the thread counts as shared then.
pub const POLL_BUDGET_ALONE: Duration = Duration::from_micros(400);

/// The same where several sessions work on the thread, all of them heavy: about the duration of a
/// small command with its round trip.
pub const POLL_BUDGET: Duration = Duration::from_micros(100);
const _: () = assert!(POLL_BUDGET.as_nanos() < POLL_BUDGET_ALONE.as_nanos());

/// The same where several sessions work on the thread, one of them light. With the duration of a
/// turn it is the time between two answers to a session that asks for one small block at a time,
/// and half of that is its own.
pub const POLL_BUDGET_SHARED: Duration = Duration::from_micros(30);
const _: () = assert!(POLL_BUDGET_SHARED.as_nanos() < POLL_BUDGET.as_nanos());

/// Bytes that commands may move in one turn, not counting the last one, where a session is alone on
/// its thread: eight answers of 128 KiB are sent in one system call, and wake their reader once. As
/// many bytes are received and sent at once.
pub const TURN_BYTES_ALONE: usize = 1 << 20;

/// The same where several sessions work on the thread, all of them heavy: as much as memory moves
/// in [`POLL_BUDGET`].
pub const TURN_BYTES: usize = 256 << 10;

/// The same where several sessions work on the thread, one of them light: a read of 128 KiB with
/// its header is sent at once.
pub const TURN_BYTES_SHARED: usize = 132 << 10;

/// Polls with work, all by the same session, after which it counts as alone on its thread; and
/// polls after which no session counts as light any more.
pub const SHARED_POLLS: u32 = 64;

/// Time of sessions of one host between two looks at the sockets, where several sessions work on the thread, but for
/// the one that is called. When it is used up no further poll begins: so it is a portion of each of two initiator
/// names.
pub const FREE_TIME_OF_HOST: Duration = Duration::from_micros(45);

/// Of that, time of sessions of one name: one portion, which leaves another name of the host its own, or three small
/// commands.
pub const FREE_TIME_OF_NAME: Duration = Duration::from_micros(15);
const _: () = assert!(FREE_TIME_OF_NAME.as_nanos() < POLL_BUDGET_SHARED.as_nanos());
const _: () = assert!(POLL_BUDGET_SHARED.as_nanos() < FREE_TIME_OF_HOST.as_nanos());

/// Time beyond that which a name has to wait for at most, by as many looks at the sockets: the system may have run
/// other processes during its poll.
pub const FREE_TIME_DEBT_MAX: Duration = Duration::from_micros(60);

/// Time that a poll counts at least: what a small command costs with its system calls.
pub const FREE_TIME_MIN: Duration = Duration::from_micros(5);

/// Turns for which a poll goes on regardless of the time: one command and its answer take two, and
/// the system may have run other processes meanwhile.
pub const LIGHT_TURNS: usize = 3;

/// Bytes received and sent up to which [`LIGHT_TURNS`] applies. A command of no more bytes counts
/// as small.
pub const LIGHT_BYTES: u64 = 16 << 10;

/// Commands after which a turn reads the clock, where bytes show their cost: commands without data
/// take a microsecond. After any other command it reads the clock at once.
pub const COMMANDS_PER_LOOK: usize = 4;

/// Time after an accepted connection before the next one is, while sessions work: a host that comes back with all its
/// sessions is there within seconds.
pub const ACCEPT_INTERVAL: Duration = Duration::from_millis(1);
