//! The bounds of this crate.

use std::time::Duration;

/// Requests of one connection under way in the device. Twice the deepest queue of the Linux NBD driver and of common benchmarks; above
/// it, no further request is taken from the connection.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 256;

/// Bytes of one connection under way: payloads in the device, and replies not yet sent. Two megabytes would keep a 10 Gbit/s link busy
/// at 1 ms; the rest is room for uneven devices. One request above it is still served, alone.
pub const BYTES_IN_FLIGHT_MAX: u64 = 16 << 20;

/// Connections a server serves at once unless told otherwise: nbdcopy opens four, the Linux driver up to one per processor.
/// One more is accepted and closed at once.
pub const CONNECTIONS_MAX: usize = 16;

/// Bytes of buffers one server lends at once unless told otherwise: what all connections may have under way.
pub const BUFFER_BYTES_MAX: usize = CONNECTIONS_MAX * BYTES_IN_FLIGHT_MAX as usize;

/// Time a client has to finish the handshake. Programs take milliseconds, people with a debugger do not matter here.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Time a server that shuts down gives its connections to finish what is under way.
pub const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(10);

/// Pause after `accept` failed for want of descriptors or memory, which does not get better at once.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Slices of one vectored write. Past some dozens the cost per slice stays and the cost per call no longer shows; a reply takes two.
pub const SLICES_PER_WRITE_MAX: usize = 64;

/// Bytes read at once to carry out a cache request, which goes on piece by piece.
pub const CACHE_PIECE_BYTES: u32 = 1 << 20;

/// Bytes of one command of the client that carries no payload: the largest multiple of every block size below 4 GiB.
pub const CLIENT_PIECE_BYTES: u64 = (4 << 30) - (64 << 10);

const _: () = assert!(CLIENT_PIECE_BYTES <= u32::MAX as u64, "lengths on the wire have 32 bits");
const _: () = assert!(BYTES_IN_FLIGHT_MAX >= CACHE_PIECE_BYTES as u64);
