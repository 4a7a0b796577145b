//! The bounds of this crate.

use std::time::Duration;

/// How long a process of the stage may take until it is ready.
pub const READY_TIME_MAX: Duration = Duration::from_secs(20);

/// Size of the logical units of the experiments: far more than the data in flight, and small enough
/// to be made at once.
pub const UNIT_BYTES: u64 = 64 << 20;

/// Requests of one run in virtual time: enough for a steady state at every depth, few enough that a whole experiment
/// takes seconds.
pub const VIRTUAL_REQUESTS: u64 = 400;

/// Bytes that a modelled link holds at its ends, as sockets do.
pub const SOCKET_BYTES: usize = 256 << 10;

/// Packets between the ends of a link with delay: 10 ms of 10 Gbit/s in small frames.
pub const PACKETS_UNDER_WAY_MAX: usize = 20_000;

/// A packet shorter than this is a small one (paper 000, section 1).
pub const SMALL_PACKET_BYTES: usize = 127;

/// Largest packet: more than the largest frame.
pub const PACKET_BYTES_MAX: usize = 64 << 10;

/// A gigabit per second, the wire of the paper's machines.
pub const WAN_TIME_PER_BYTE: Duration = Duration::from_nanos(8);

/// Longest queue before the wire, as time; packets beyond it are lost. A switch of that time has as
/// much, and it is one round trip of the longest way.
pub const WAN_BUFFER: Duration = Duration::from_millis(10);
