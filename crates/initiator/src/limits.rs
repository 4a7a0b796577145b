//! The bounds of this crate.

use std::time::Duration;

/// Requests that wait or are under way, for a target that answers nothing. Callers keep far fewer in flight; one that
/// does not gets `Busy`.
pub const REQUESTS_MAX: usize = 16 << 10;

/// Largest read or write taken at once. Larger than most targets allow in one command: we split.
pub const TRANSFER_BYTES_MAX: u32 = 16 << 20;

/// Largest command we send, whatever the target allows: one that large already amortises everything, and a larger one
/// only keeps others waiting.
pub const COMMAND_BYTES_MAX: u32 = 4 << 20;

/// Commands of one request under way at once. Parts of reads and writes are copied: that takes no more memory than the
/// requests themselves have, and eight of the largest command fill any link.
pub const PARTS_MAX: usize = 8;

/// Descriptors of one UNMAP, whatever the target takes: each covers up to 2^32 - 1 blocks.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Bytes of zeroes sent at once where the target cannot make them itself.
pub const ZEROES_BYTES_MAX: u32 = 1 << 20;

/// Connections or pairs of a session: more of them than this never helped, and each is a socket at both ends.
pub const CONNECTIONS_MAX: u16 = 32;

/// First wait after a lost session, unless the options say another; doubled each time. A target that was started again
/// is back in about that.
pub const RECONNECT_WAIT_MIN: Duration = Duration::from_millis(100);

/// Longest wait between attempts to log in again, unless the options say another: what a target that is back is waited
/// for needlessly, at most.
pub const RECONNECT_WAIT_MAX: Duration = Duration::from_secs(5);
const _: () = assert!(RECONNECT_WAIT_MIN.as_nanos() <= RECONNECT_WAIT_MAX.as_nanos());

/// First wait after one more connection of a session could not be made; doubled each time.
pub const JOIN_WAIT_MIN: Duration = Duration::from_millis(200);

/// Longest wait between attempts to make one more connection.
pub const JOIN_WAIT_MAX: Duration = Duration::from_secs(30);

/// How long the target may take to let go of a lost connection, and to let its tasks go on, before the session is given
/// up.
pub const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Seconds that the tasks of a lost connection are kept at the target, as we propose it (DefaultTime2Retain).
pub const RETAIN_SECONDS: u16 = 20;

/// Slices of one vectored write: IOV_MAX is 1024, and a write of more than a hundred PDUs gains nothing.
pub const WRITE_SLICES_MAX: usize = 128;

/// Unit attentions taken at login before the LUN is called broken: SPC-4 queues one per cause, and there are about 30.
pub const UNIT_ATTENTIONS_MAX: u32 = 64;

/// Times a command that fails for no lasting reason (ABORTED COMMAND, TASK ABORTED, a rejected PDU) is tried.
pub const ATTEMPTS_MAX: u32 = 8;

/// Retained changes after which the LUN is flushed: discards and zeroes take no room for copies, only some hundred
/// bytes each. Where the flush takes its time, changes wait from twice as many on.
pub const RETAINED_ENTRIES_MAX: usize = 32 << 10;

/// Retained writes on their way at once after a reconnect.
pub const REPLAY_DEPTH: usize = 16;

/// Time without a loss of the unit's cache after which it counts as well again. A unit that is not slow answers in it
/// what is sent behind a replay; resets that follow each other faster let nothing come to its end.
pub const WELL_TIME: Duration = Duration::from_secs(1);

/// Redirections followed in one connect.
pub const REDIRECTIONS_MAX: u32 = 4;

/// Time between log lines about requests that the unit fails for the same reason. The status has the last one.
pub const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Log lines of one kind about the sessions of a LUN and its changes in [`FAILURE_LOG_INTERVAL`]: a target that is
/// started again, or a network that is mended, makes fewer.
pub const NOTICES_MAX: u32 = 10;

/// Rounds in which the unit is asked what it is now, and reports something again each time, after which its session
/// counts as one that failed. They take some two seconds; a target that starts, or is reconfigured, reports less.
pub const ROUNDS_MAX: u32 = 12;

/// First wait after BUSY or TASK SET FULL; doubled each time.
pub const BUSY_WAIT_MIN: Duration = Duration::from_millis(2);

/// Longest wait after BUSY or TASK SET FULL.
pub const BUSY_WAIT_MAX: Duration = Duration::from_millis(500);

/// How long an orderly logout may take before the connection is closed. An administrator that ends
/// the process allows 5 s or more; a conforming target answers within a round trip when nothing is
/// under way. Longer than an attachment waits at its end before it says that its target is silent.
pub const LOGOUT_TIMEOUT: Duration = Duration::from_millis(3500);

/// How long unregistering from a shared LUN may take. Without it other hosts wait for the end of
/// the lease.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Answers to callbacks of a shared LUN under way at once: a target that asks for 4096 copies at a time, all that its
/// mailbox holds, has every answer within 64 round trips, which over a link of 100 ms is less than the 10 s of each.
pub const ANSWERS_UNDER_WAY_MAX: usize = 64;
const _: () = assert!(
    ANSWERS_UNDER_WAY_MAX + RENEWALS_UNDER_WAY_MAX < iscsi::limits::IMMEDIATE_TASKS_MAX,
    "renewals go beside them"
);

/// Renewals of the lease of a shared LUN under way at once, by several connections of a session: two of them may carry
/// nothing any more.
pub const RENEWALS_UNDER_WAY_MAX: usize = 3;

/// A renewal that has no answer after this part of the lease is sent again, by another connection of the session: the
/// first one may carry nothing any more, which its pings show only later. A lease is renewed after a third of it, so
/// that leaves time for all of [`RENEWALS_UNDER_WAY_MAX`].
pub const RENEWAL_TRIES_PER_LEASE: u32 = 6;
const _: () = assert!(
    RENEWAL_TRIES_PER_LEASE as usize
        > RENEWALS_UNDER_WAY_MAX + (RENEWAL_TRIES_PER_LEASE / locks::limits::RENEWALS_PER_LEASE) as usize
);

/// The shortest lease of use: a third of a second for each of three renewals, which is a round trip round the world on
/// a busy machine. A target that grants a shorter one is refused.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
const _: () = assert!(LEASE_MIN.as_millis() < locks::limits::LEASE.as_millis());

/// The wait after a second renewal that was not carried out, or a second registration that was of no use; doubled each
/// time. After the first one there is none.
pub const SHARING_WAIT_MIN: Duration = Duration::from_millis(100);

/// The longest wait between renewals that are not carried out: some of them within each third of a lease.
pub const RENEWAL_WAIT_MAX: Duration = Duration::from_secs(1);
const _: () = assert!(RENEWAL_WAIT_MAX.as_millis() * 3 <= locks::limits::LEASE.as_millis() / 3);

/// The longest wait between registrations that are of no use: their lease is over before they are answered, or the
/// target does not know the client any more.
pub const REJOIN_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long a connection of several may have been silent, with commands under way, before others are preferred: its
/// pings show only later that it carries nothing any more.
pub const SILENCE_IN_DOUBT: Duration = Duration::from_secs(1);

/// What a target of a shared LUN may have asked for and is not done, and what is not told it yet. A purge is two such
/// until its copies are dropped; ours has at most one for each command at its gate, one callback for each range that we
/// hold, and its mailbox beside.
pub const OWED_MAX: usize = 64 << 10;
const _: () = assert!(
    OWED_MAX >= 2 * (locks::limits::COMMANDS_MAX + locks::limits::MAILBOX_MAX + block::limits::GRANTS_MAX),
    "what a target that keeps to the rules asks for is done"
);

/// An answer to a callback that has no status after this part of the callback's time is sent by another path, too: the
/// path may carry nothing any more, which its pings show only later. Early enough for three more.
pub const ANSWER_TRIES_PER_CALLBACK: u32 = 4;

/// How long an answer to a registration is waited for before it is asked for again, or tried by another path.
pub const REGISTRATION_WAIT: Duration = Duration::from_secs(1);

/// How long a path whose target does not know the client leaves it to the others to register: they may lead to a target
/// that does. Longer than a lease of 10 s, after which the client is over there in any case.
pub const UNKNOWN_WAIT: Duration = Duration::from_secs(15);
const _: () = assert!(UNKNOWN_WAIT.as_secs() > locks::limits::LEASE.as_secs());

/// Bytes asked for in INQUIRY, VPD and MODE SENSE data: all the pages we read fit.
pub const CONTROL_DATA_BYTES: usize = 512;

/// Bytes of one answer to PERSISTENT RESERVE IN: a thousand keys; a cluster has a few.
pub const RESERVATION_DATA_BYTES: usize = 8 << 10;

/// Bytes of one answer to REPORT MARKS: as many as are parsed.
pub const MARKS_BYTES: usize = 4 + 40 * scsi::limits::REPORTED_MARKS_MAX;

/// Bytes of one answer to REPORT CHANGES: eight thousand runs. The rest is asked for again.
pub const CHANGE_REPORT_BYTES: usize = 64 << 10;

/// Answers of one report, those of contents that changed meanwhile included: a million ranges make half a million runs
/// at most.
pub const CHANGE_REPORTS_MAX: u32 = 128;

/// Ranges changed by others that are published one by one; more become one event. Receivers keep
/// some dozens of events.
pub const EVENTS_OF_CHANGES_MAX: usize = 16;

/// Bytes of one answer to SHARING IN, REPORT: some hundred records. The rest is read with the next
/// command.
pub const SHARING_REPORT_BYTES: usize = 16 + 48 * 512;

/// Answers that make one report: clients, their locks and waits are bounded at the target, and a
/// person has to read them.
pub const SHARING_REPORTS_MAX: u32 = 256;

/// Bytes of one answer to GET LBA STATUS: a header and 256 runs, as many as our target tells. The caller asks again
/// from where they end.
pub const LBA_STATUS_BYTES: usize = 8 + 256 * 16;

/// Bytes of the ranges of a shared LUN that one client may hold alone: a block group of the unit.
pub const GRANT_BYTES: u64 = 1 << 20;

/// Time for a command on a shared unit beyond the time for which another host can hold it up: for a
/// fence, a flush, and the command itself. A registration, or a request for a lock, that the target
/// has taken and says nothing of for as long ends the client.
pub const WITHHELD_MARGIN: Duration = Duration::from_secs(5);

/// The longest timeout of a command on a shared unit, whatever its target says of its own bounds.
pub const WITHHELD_TIME_MAX: Duration = Duration::from_secs(300);

/// Ranges that are asked for at a time.
pub const LOCKS_ASKED_MAX: usize = 16;

/// Wait before a request for locks is sent again, if the target could not answer it: it has just
/// started, or a table is full.
pub const LOCK_RETRY_TIME: Duration = Duration::from_secs(1);

/// Times in a row that bytes move over a session's connections before its deadlines are looked at: a peer that sends
/// without end must not keep them from being met.
pub const MOVES_MAX: u32 = 16;
