//! The bounds of this crate.

// Text and negotiation.

/// Characters of a key (RFC 7143 6.1: a standard label).
pub const TEXT_KEY_CHARACTERS_MAX: usize = 63;

/// Bytes of one value. RFC 7143 6.1 says 255 unless a key says otherwise; the longest we know is a 1024-byte CHAP value
/// in hexadecimal (2050), and SendTargets never needs more.
pub const TEXT_VALUE_BYTES_MAX: usize = 4096;
const _: () = assert!(TEXT_VALUE_BYTES_MAX >= 2 + 2 * CHAP_BINARY_BYTES_MAX);

/// Keys of one text, except for an answer to SendTargets, and of all texts of one negotiation. The
/// standards define some sixty, and each end has a handful of its own; conformance tests that send
/// many are still answered. Any client may send them, before it is authenticated.
pub const TEXT_KEYS_MAX: usize = 512;

/// Bytes of one logical text data segment during login: the size that RFC 7143 6.1 requires for
/// long authentication items.
pub const LOGIN_TEXT_BYTES_MAX: usize = 64 << 10;

/// Bytes of a SendTargets answer an initiator takes: about 8000 targets with two portals each.
pub const SEND_TARGETS_BYTES_MAX: usize = 1 << 20;

/// Values of one list that an acceptor examines; real lists have at most five.
pub const NEGOTIATION_LIST_ITEMS_MAX: usize = 32;

/// Login or text exchanges before a negotiation is given up. RFC 7143 6.2 asks for at least six; CHAP both ways and
/// both stages take five.
pub const NEGOTIATION_EXCHANGES_MAX: u32 = 32;

/// MaxRecvDataSegmentLength we declare: large enough that header cost vanishes, small enough to keep latency of a mixed
/// stream low.
pub const RECV_DATA_SEGMENT_BYTES: u32 = 256 << 10;

/// PDUs made ahead of their turn of those that carry one buffer in pieces: more than one vectored write takes.
pub const SERIES_PDUS_MADE: usize = 64;

/// Bytes of a CHAP challenge or response (RFC 7143 12.1.3).
pub const CHAP_BINARY_BYTES_MAX: usize = 1024;

/// Bytes of the CHAP challenge we send: as long as the longest digest, so that it never is the weak part.
pub const CHAP_CHALLENGE_BYTES: usize = 32;

/// Least bytes of a CHAP secret: 96 bits, below which RFC 7143 9.2.1 would have us ask for IPsec.
pub const CHAP_SECRET_BYTES_MIN: usize = 12;

/// Most bytes of a CHAP secret; a typed one is shorter.
pub const CHAP_SECRET_BYTES_MAX: usize = 256;

/// Bytes of an iSCSI name (RFC 7143 4.2.7.2).
pub const NAME_BYTES_MAX: usize = 223;

/// Bytes that a receiver reads at once when it does not know yet what they belong to: a few dozen
/// small PDUs per system call.
pub const STAGING_BYTES: usize = 64 << 10;

/// Bytes a receiver reads at once after a large data segment: enough for a header, and little enough that hardly any of
/// the next large segment has to be copied out of the staging buffer.
pub const STAGING_BYTES_AFTER_LARGE: usize = 4 << 10;

/// A data segment from this size on is large. Copying less than this costs less than a system call of its own.
pub const LARGE_SEGMENT_BYTES: usize = 16 << 10;

/// Remaining bytes of a data segment from which on they are read straight into their destination.
pub const DIRECT_READ_BYTES_MIN: usize = 4 << 10;

/// Bytes of a destination that are allocated and received at a time where its memory is not
/// allocated yet: some 20 us, and up to 60 where the system has to find the memory.
pub const MAKING_BYTES: usize = 64 << 10;
const _: () = assert!(DIRECT_READ_BYTES_MIN <= MAKING_BYTES);

/// Longest header of a PDU: BHS, additional header segments of 255 words, digest.
pub const HEADER_BYTES_MAX: usize = 48 + 255 * 4 + 4;

const _: () = assert!(HEADER_BYTES_MAX <= STAGING_BYTES_AFTER_LARGE);
const _: () = assert!(STAGING_BYTES_AFTER_LARGE < STAGING_BYTES);
const _: () = assert!(DIRECT_READ_BYTES_MIN <= LARGE_SEGMENT_BYTES);

// The initiator's side.

/// Commands that an initiator has sent and that have not ended. Targets grant windows of 32 to 256;
/// a tag has room for 2^16.
pub const INITIATOR_TASKS_MAX: usize = 1024;

/// Unanswered immediate requests of ours (NOP-Out, task management, Logout). RFC 7143 4.2.2.1 lets a target refuse more
/// than one or two.
pub const IMMEDIATE_REQUESTS_MAX: usize = 8;

/// Bytes of write data waiting to be sent above which no further command is sent, so that a new
/// read does not wait behind megabytes.
pub const TRANSMIT_BYTES_HIGH: usize = 4 << 20;

/// Pieces of one read that may arrive ahead of earlier ones. Targets send in order; one that cuts a
/// read finer than this out of order is broken or hostile.
pub const DATA_IN_PIECES_MAX: usize = 256;

/// Targets taken from one discovery.
pub const DISCOVERED_TARGETS_MAX: usize = 8192;

/// Text responses of one SendTargets exchange. The longest answer in pieces of 512 bytes, the shortest that may be
/// declared, and as many empty ones.
pub const TEXT_RESPONSES_MAX: usize = 2 * SEND_TARGETS_BYTES_MAX / 512;

/// Answers to NOP-Ins and acknowledgements of data-in that wait to be written on one connection. A
/// target has a few NOP-Ins under way, and asks for one acknowledgement per burst of data-in; one
/// that asks and does not read the answers is broken or hostile.
pub const REPLIES_WAITING_MAX: usize = 4096;

/// Events of one connection that its driver has not taken. While it is logged in the driver takes
/// them after every read, which brings at most [`STAGING_BYTES`].
pub const EVENTS_WAITING_MAX: usize = 2 * STAGING_BYTES / crate::pdu::BHS_BYTES;

/// Bytes kept of sense data, of a command or of an event: it has no more (SPC-4 4.5.1).
pub const SENSE_BYTES_MAX: usize = 252;

/// Bytes kept of the data of a vendor's event: a message of a shared unit fits in the smallest segment of a client that
/// shares.
pub const EVENT_BYTES_MAX: usize = crate::sharing::SEGMENT_BYTES_MIN as usize;

/// Other connections of the session that a target says it has dropped, until the driver reads them:
/// more than a session has.
pub const DROPPED_CONNECTIONS_MAX: usize = 64;

// The target's side.

/// Commands of one session that a target takes before their responses: the CmdSN window. As deep as
/// initiators queue (open-iscsi: 128 per session), and with [`DATA_OUT_BYTES_MAX`] the limit of
/// what a session can make a target hold.
pub const COMMAND_WINDOW: u32 = 128;

/// News of responses ([`Outcome::news`](crate::target::Outcome::news)) that a session keeps until they are
/// acknowledged: twice the commands of a window. What goes for want of room is told once more.
pub const NEWS_MAX: usize = 2 * COMMAND_WINDOW as usize;

/// News that a session knows to be known, one of each logical unit that came: as many as can be addressed. With less,
/// an initiator that goes round more units would be told of each for ever.
pub const KNOWN_NEWS_MAX: usize = scsi::limits::REPORTED_LUNS_MAX;

/// Immediate SCSI commands of one session under way beyond the window. RFC 7143 4.2.2.1 asks for at least one; a client
/// of a shared unit answers 64 callbacks at once, and renews its lease meanwhile.
pub const IMMEDIATE_TASKS_MAX: usize = 72;

/// Bytes of data that an immediate command may bring whatever else its session holds: the answers
/// of a client of a shared unit are shorter.
pub const IMMEDIATE_DATA_BYTES: usize = 512;

/// Immediate commands of a session under way of which that is true. A buffer is larger than what they bring, and there
/// may be a thousand sessions.
pub const IMMEDIATE_DATA_TASKS_MAX: usize = 8;

/// Task management requests of one session that wait for their tasks.
pub const TASK_MANAGEMENT_MAX: usize = 16;

/// Connections of one session. More than the processors that serve them gain nothing, and four
/// saturate 10 Gbit/s.
pub const SESSION_CONNECTIONS_MAX: u16 = 8;

/// Answered tasks of one session that are kept for recovery (ErrorRecoveryLevel above 0) before they count against the
/// command window: an initiator that fills its window must be able to fill it again before it acknowledges anything.
pub const RETAINED_ANSWERS: usize = COMMAND_WINDOW as usize;

/// Answered tasks of one session that are kept at most. The window bounds those of other commands; an initiator whose
/// immediate commands leave more is cut off.
pub const RETAINED_ANSWERS_MAX: usize = 3 * COMMAND_WINDOW as usize;

/// Responses of one session sent and not acknowledged. Far more than a window and its NOP-Ins;
/// an initiator that never acknowledges is cut off.
pub const UNACKNOWLEDGED_RESPONSES_MAX: usize = 8 * COMMAND_WINDOW as usize;

/// Bytes of memory that one session keeps for recovery: answered tasks with their data-in, responses with what they
/// carry (data of NOP-Ins, lists of targets, rejected headers). Beyond, the oldest lose their data, and a SNACK for it
/// is rejected, as RFC 7143 7.8 allows.
pub const RETAINED_DATA_BYTES_MAX: usize = 16 << 20;

/// Bytes of memory that answers keep which wait to be written on one connection, above which nothing more of what came
/// on it is looked at. What is asked for in a few bytes (data or status again, a list of targets) can be megabytes, and
/// a peer may ask for it faster than it takes it. What commands read does not count: it has bounds of its own. A
/// megabyte is a millisecond of 10 Gbit/s, and an answer beyond it may be as long as answers get.
pub const RESPONSE_BYTES_HIGH: usize = 1 << 20;

/// Bytes of answers that wait to be written on a connection, or of memory for them, beyond which no message of ours is
/// added: whoever sends it has it still, and a peer that takes none gets no more of them. Half of what requests wait
/// for, so that messages alone keep nobody's requests from being read; 300 of the longest.
pub const MESSAGE_BYTES_HIGH: usize = RESPONSE_BYTES_HIGH / 2;

/// Bytes of memory that all sessions keep for recovery, but for what each always may. Enough for sixteen busy sessions;
/// with more, or with some that acknowledge late, each keeps less.
pub const RETAINED_TOTAL_BYTES_MAX: usize = 256 << 20;

/// Bytes that a session may keep for recovery whatever others keep: all its answers and responses without what they
/// carry, which are never forgotten, and an answer or two of the usual size.
pub const RETAINED_ALWAYS_BYTES: usize = 512 << 10;

/// Bytes of reusable buffers for data of NOP-Outs and texts: clearing a new buffer for the largest
/// NOP-Out takes longer than receiving it. Beyond them requests get memory of their own, within
/// [`RESPONSE_BYTES_HIGH`] for each connection.
pub const REQUEST_DATA_POOL_BYTES: usize = 16 << 20;

/// Work on the received PDUs of a connection before others have their turn. A PDU counts one, and
/// each [`WORK_TEXT_BYTES`] of a text one more: some 20 us, or one text.
pub const WORK_PER_TURN: usize = 64;

/// Bytes of a text that take as long as a PDU: a short key.
pub const WORK_TEXT_BYTES: usize = 8;

/// Interval in which a connection may use [`PACE_WORK_MAX`] for PDUs that are neither command nor
/// data: as fine as a runtime's timers.
pub const PACE_INTERVAL: std::time::Duration = std::time::Duration::from_millis(1);

/// That work in an interval: a PDU counts one, each [`WORK_TEXT_BYTES`] of a text and each
/// [`PACE_DATA_BYTES`] of other data one more. It takes some 80 us, or as long as one long text or
/// NOP-Out: a twelfth of a thread's time.
pub const PACE_WORK_MAX: usize = 256;
const _: () = assert!(PACE_WORK_MAX >= WORK_PER_TURN);

/// Bytes of data of a NOP-Out that take as long as a PDU.
pub const PACE_DATA_BYTES: usize = 1 << 10;

/// Lost connections of one session that are remembered until their Time2Retain is over.
pub const LOST_CONNECTIONS_MAX: usize = 16;

/// Time for which an abort of several tasks waits for data and commands that are still to come (RFC
/// 7143 4.2.3.3). Common initiators stop sending data once they have sent a reset, although only
/// FastAbort allows that; they must not wait for ever.
pub const ABORT_DATA_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Time for which a function that aborts several tasks waits until the other connections of its session have
/// acknowledged what they were sent. They acknowledge with the answer to a ping, for which they have [`PING_TIMEOUT`];
/// one that answers without acknowledging is ended.
pub const FENCE_TIMEOUT: std::time::Duration = PING_TIMEOUT;

/// Largest data-out buffer of one command, the largest buffer there is. A command that announces
/// more is answered with an error by the device server, from its CDB.
pub const DATA_OUT_BYTES_MAX: u32 = base::limits::BUFFER_BYTES_MAX as u32;

/// Default bytes of data-out buffers for one session: its whole window of the largest first bursts,
/// and four of the largest writes. A quarter of the default for all sessions.
pub const SESSION_DATA_OUT_BYTES: usize = 64 << 20;

/// Bytes of data-out that a session may have besides the pool, when the pool has none for it:
/// whatever others hold, it goes on, one small command at a time.
pub const DATA_OUT_RESERVE_BYTES: usize = 64 << 10;

/// Time in which some of the data that a connection owes must come: requested or announced data. A
/// living host sends gigabytes in it. A dead one is detected earlier, by an unanswered NOP-In.
pub const DATA_OUT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(80);
const _: () = assert!(DATA_OUT_TIMEOUT.as_secs() > PING_INTERVAL.as_secs() + PING_TIMEOUT.as_secs());

/// Bytes of data-out that count as some: at this pace, under a KiB a second, even a very slow link
/// keeps its session.
pub const DATA_OUT_PROGRESS_BYTES: usize = 64 << 10;

/// Time in which some of the data of one command must come, however much comes for others. Twice
/// the time of a session's whole share over one Mbit/s, since initiators answer one R2T after
/// another.
pub const TASK_DATA_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1024);

/// Time for which commands wait for a missing earlier one. On one connection it never comes; on
/// several, one may be slow.
pub const COMMAND_GAP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Interval at which overdue data and commands are looked for.
pub const STALL_CHECK_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);
const _: () = assert!(STALL_CHECK_INTERVAL.as_secs() < DATA_OUT_TIMEOUT.as_secs());

/// Bytes of data of requests other than SCSI commands that a session may send ahead of their turn: a few
/// NOP-Outs and a text.
pub const HELD_REQUEST_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(HELD_REQUEST_BYTES_MAX >= COMMAND_WINDOW as usize * base::limits::BUFFER_ALIGNMENT);

/// Longest time for which the tasks of a lost connection, and a session without a connection, are kept, whatever was
/// negotiated: Time2Wait is the larger of two proposals, so an initiator could get an hour of it. Hosts that come back
/// do so within seconds. As long is kept for recovery what an initiator that goes on does not acknowledge; the answer
/// to a ping would.
pub const RETENTION_MAX: std::time::Duration = std::time::Duration::from_secs(120);

/// Bytes of one text request outside login. SendTargets and a renegotiation of MaxRecvDataSegmentLength fit many times.
pub const TEXT_REQUEST_BYTES_MAX: usize = 16 << 10;

/// Keys of such a text. After the login only two keys of the standards have a meaning, SendTargets
/// and MaxRecvDataSegmentLength. Each of the others requires an answer, too, and a text of 500 took
/// ten times the portion of work for which others wait.
pub const TEXT_REQUEST_KEYS_MAX: usize = 64;
const _: () = assert!(TEXT_REQUEST_KEYS_MAX <= TEXT_KEYS_MAX);

/// Time from the connection to the full feature phase. A human at a password prompt need not be
/// allowed for: CHAP secrets are configured.
pub const LOGIN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(15);

/// Silence inside a login, from one whole Login Request to the next. Both ends answer by themselves within a round trip
/// and the time of a digest; a peer that sends a byte now and then is as silent as one that sends none.
pub const LOGIN_IDLE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Silence after which the target sends a NOP-In as a ping. open-iscsi sends its own after 5 s, so it is normally
/// first.
pub const PING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(15);

/// Time for the NOP-Out that answers it. Initiators in a library answer when their program next
/// handles the connection: libiscsi's own conformance suite sleeps a minute while a medium is
/// sanitized, and would find its session ended after every sleep.
pub const PING_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Interval between attempts to get a data-out buffer when the pool has none and no task of this
/// connection will free one.
pub const BUFFER_RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);

/// Time for which a logout waits for the session's I/O with the backend before it is answered with
/// "cleanup failed". As long as an initiator's next session waits: disks give up within 30 s, after
/// a minute a backend is stuck.
pub const LOGOUT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
