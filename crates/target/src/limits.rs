//! The bounds of this crate.

use std::time::Duration;

/// Connections of a server at once, those still logging in included. Each has a 64 KiB staging buffer.
pub const CONNECTIONS_MAX: usize = 1024;

/// Sessions of a server at once. TSIHs have 16 bits and zero is reserved.
pub const SESSIONS_MAX: usize = 1024;
const _: () = assert!(SESSIONS_MAX < u16::MAX as usize);

/// Connections of one initiator name. A host has one session of eight connections to each of some targets; one with more names more.
pub const INITIATOR_CONNECTIONS_MAX: usize = 512;

/// Connections of one address that have not logged in. A host that comes back logs in to everything at once; a rack behind one address
/// does, too.
pub const UNAUTHENTICATED_MAX: usize = 256;
const _: () = assert!(UNAUTHENTICATED_MAX < CONNECTIONS_MAX);

/// Connections on their way to one session at once. More wait for nobody: they are refused.
pub const JOINING_MAX: usize = 8;

/// Bytes of data-in that one connection may have queued or being read at once. A slow peer holds no more buffers than this
/// (and one command's worth, so that any command can run); a fast one over 10 Gbit/s and 10 ms needs 12 MB.
pub const DATA_IN_BYTES_MAX: usize = 16 << 20;

/// Bytes of data-in that all sessions may have queued or being read at once, beyond the one command that each may always run.
pub const DATA_IN_TOTAL_BYTES_MAX: usize = 1 << 30;

/// A session tells of its data-in when it has changed by this much: often enough to keep the sum within reason, rarely enough that the
/// shards do not meet at the counter.
pub const DATA_IN_STEP_BYTES: usize = 256 << 10;

/// Bytes of data-out buffers of all connections together.
pub const DATA_OUT_POOL_BYTES: usize = 256 << 20;

/// Slices of one vectored write: 32 reads' headers and data. Far below IOV_MAX (1024), so that the array stays on the stack.
pub const WRITE_SLICES_MAX: usize = 64;

/// Connections the kernel completes before we accept them.
pub const LISTEN_BACKLOG: i32 = 128;

/// Time a connection has to end by itself after it was asked to log out, when the server stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(iscsi::limits::LOGOUT_REQUEST_SECONDS as u64);

/// Time a peer has to take the last words of a connection that is over, before it is closed without them.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Time a session that is over waits for its I/O with the backends. Disks give up within 30 s; after a minute a backend is stuck, and neither
/// the initiator's next session nor the end of the server waits for it any longer.
pub const SETTLING_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after a failed accept (out of descriptors, mostly), so that the loop does not spin.
pub const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Threads that count for themselves, for each logical unit. More take turns; an unused one costs nothing but its lock.
pub const TALLY_SLOTS: usize = 16;

/// Time between two samples of what logical units did.
pub const RATE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples kept: rates are over as many intervals. Long enough to be read, short enough to be of now.
pub const RATE_SAMPLES: usize = 5;

/// Time a session has to say how it is. It answers at its next wake-up, which is at once unless its thread is stuck.
pub const REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Turns of the connection's loop in one poll before it lets the other connections of its shard run.
pub const TURNS_PER_POLL_MAX: usize = 32;

/// Longest time a session looks at its sockets before it sleeps: about what waking a thread on another processor costs (35 to 70 us on a
/// virtual machine), so that spinning in vain costs at most as much again as sleeping would have.
pub const SPIN_MAX: Duration = Duration::from_micros(50);

/// Responses that the initiator had not acknowledged when it sent its last command: as many commands it keeps in flight. Up to here it is
/// the latency that it waits for, beyond it has work to do while we wake.
pub const SPIN_DEPTH_MAX: u32 = 2;

/// Most confidence that spinning pays; each hit adds one.
pub const SPIN_CONFIDENCE_MAX: u32 = 16;

/// Confidence that a spin in vain takes: a spin must be right in four cases of five to go on.
pub const SPIN_IN_VAIN_COST: u32 = 4;

/// Pauses of which one is tried without confidence: at most 50 us in 64 pauses are lost.
pub const SPIN_TRIAL_INTERVAL: u32 = 64;
