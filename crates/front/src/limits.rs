//! The bounds of this crate.

use std::time::Duration;

/// Requests of one connection under way in the device. Twice the deepest queue of the Linux NBD driver and of common benchmarks; above
/// it, no further request is taken from the connection.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 256;

/// Bytes of one connection under way: payloads in the device, and replies not yet sent. Two megabytes would keep a 10 Gbit/s link busy
/// at 1 ms; the rest is room for uneven devices. One request above it is still served, alone.
pub const BYTES_IN_FLIGHT_MAX: u64 = 16 << 20;

/// Connections that have a full share of the buffers at once unless told otherwise: nbdcopy opens four, the Linux driver up to one per processor.
pub const CONNECTIONS_MAX: usize = 16;

/// Connections beside as many as there are full shares. A client may be idle for days and is let be: its file system is mounted. It holds nothing then,
/// and has no share. One connection more is accepted and closed at once.
pub const SPARE_CONNECTIONS_MAX: usize = 48;

/// Bytes of buffers that a connection may have while others have all full shares: one step of a request, and what is small.
pub const SPARE_SHARE_BYTES: usize = 1 << 20;

/// Bytes of buffers one server lends at once unless told otherwise to connections with a full share, an equal one to each: what that may have
/// under way. Requests larger than a share have places beside it.
pub const BUFFER_BYTES_MAX: usize = CONNECTIONS_MAX * BYTES_IN_FLIGHT_MAX as usize;

/// Requests larger than a connection's share that are under way at once, over all connections. They are rare, and one keeps any link busy
/// while the next one is made ready.
pub const LARGE_REQUESTS_MAX: usize = 2;

/// Bytes of buffers for them.
pub const LARGE_BYTES_MAX: usize = LARGE_REQUESTS_MAX * nbd::limits::PAYLOAD_BYTES_MAX as usize;

/// Time for which a client may keep its large request in its hands, payload or reply, while others wait: 1 MiB/s for the largest.
pub const LARGE_TIME_MAX: Duration = Duration::from_secs(32);

/// Time a client has to finish the handshake. Programs take milliseconds, people with a debugger do not matter here.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Time a server that shuts down gives its connections to finish what is under way. Whoever ends the process gives it 5 s or more, and
/// what is below the server needs some of it.
pub const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(3);

/// Pause after `accept` failed for want of descriptors or memory, which does not get better at once.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Slices of one vectored write. Past some dozens the cost per slice stays and the cost per call no longer shows; a reply takes two.
pub const SLICES_PER_WRITE_MAX: usize = 64;

/// Bytes of one step of a request that takes several: a cache request, and whatever is not whole blocks.
pub const STEP_BYTES: u64 = 1 << 20;

/// Bytes of one command of the client that carries no payload: the largest multiple of every block size below 4 GiB.
pub const CLIENT_PIECE_BYTES: u64 = (4 << 30) - (64 << 10);

const _: () = assert!(CLIENT_PIECE_BYTES <= u32::MAX as u64, "lengths on the wire have 32 bits");
const _: () = assert!(BYTES_IN_FLIGHT_MAX >= STEP_BYTES);
const _: () = assert!(SPARE_SHARE_BYTES as u64 >= STEP_BYTES);
