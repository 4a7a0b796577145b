//! The bounds of this crate.

use std::time::Duration;

/// Events that a subscriber may leave unread. Events are about states, so a subscriber that falls
/// behind loses the oldest, gets [`Event::Missed`](crate::Event::Missed), and reads the states
/// anew.
pub const EVENTS_UNREAD_MAX: usize = 64;

/// Bytes of one chunk of a memory device: the unit in which RAM is taken, given back and locked. Large enough that most
/// requests touch one, small enough that a sparse device stays sparse.
pub const MEMORY_CHUNK_BYTES: usize = 256 << 10;

/// Chunks of a memory device in one part of its table: 1 GiB of device, and 96 KiB of table that is made when the first
/// of them is written.
pub const MEMORY_CHUNKS_PER_GROUP: usize = 4096;

/// Extents returned for one `extents` request; the caller asks again from where they end.
pub const EXTENTS_PER_RESPONSE_MAX: usize = 1024;

/// Bytes of completed and not flushed writes that the medium of the crash layer keeps apart; beyond
/// it the oldest become durable, as in a disk whose cache is full. More than any test leaves
/// unflushed, and a bound for one that forgets to flush.
pub const CRASH_VOLATILE_BYTES_MAX: u64 = 64 << 20;

/// Rules an error layer holds at once: they are tried one after the other for each request.
pub const ERROR_RULES_MAX: usize = 64;

/// Members of one stripe. Storage nodes of one attachment; each costs a session, and a request looks at all of them.
pub const STRIPE_MEMBERS_MAX: usize = 64;

/// Bytes of a stripe unit: a larger one than any request would never use two members at once.
pub const STRIPE_UNIT_BYTES_MAX: u64 = 16 << 20;

/// Memory a stripe keeps for the parts of its requests; when it is out, parts take memory of their own, which is
/// bounded by the requests under way.
pub const STRIPE_POOL_BYTES: usize = 64 << 20;

/// Units looked at for one `extents` request of a stripe; the caller asks again from where the answer ends.
pub const STRIPE_EXTENT_PIECES_MAX: u64 = 1 << 16;

/// Paths of one unit: portals of its target. Each is a session, and a request looks at all of them.
pub const PATHS_MAX: usize = 16;

/// Time for which a request is tried again while every path refuses it for its access state: what
/// Linux allows for a change of states without a time of its own.
pub const ACCESS_WAIT_MAX: Duration = Duration::from_secs(60);

/// Pause between two rounds over all paths, where all refuse a request or have lost it: short against a change of
/// states, which takes tenths of seconds and more.
pub const ACCESS_WAIT: Duration = Duration::from_millis(100);

/// Most repetitions of a sync that the kernel asks to repeat, before it counts as failed: it does
/// so while threads end or memory is short, and not for ever.
pub const SYNC_REPEATS_MAX: u32 = 1000;

/// Ranges of a shared device that one host holds alone, with those it has asked for. The target's
/// bound for all that a client holds is four times this.
pub const GRANTS_MAX: usize = 16 << 10;

/// Time for which a range that was called back is not asked for again: where several hosts write,
/// each asks for it at most so often.
pub const GRANT_REST_TIME: Duration = Duration::from_secs(1);

/// Time for which a client whose connection broke may come back to be told of a loss: what the kernel's
/// client waits for its server. Whoever comes meanwhile may be that client.
pub const LEFT_TIME: Duration = Duration::from_secs(300);

/// What is kept of clients that left: of so many different counts of losses they may know. Beyond that
/// the oldest two are one, which knows least and is kept longest.
pub const LEFT_CLIENTS_MAX: usize = 64;

/// Time in which a client that goes on has read an answer that was written to it: what a connection may
/// take to bring it, with a retransmission or two, and a program that is busy to look at it.
pub const ANSWER_READ_TIME: Duration = Duration::from_secs(10);
