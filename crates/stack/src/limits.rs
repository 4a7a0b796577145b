//! The bounds of this crate.

/// Longest line on a control socket: a status of some thousand sessions fits, a mistake does not fill the memory.
pub const CONTROL_LINE_BYTES_MAX: u64 = 4 << 20;

/// Connections to one control socket served at once; more wait in the listen queue.
pub const CONTROL_CONNECTIONS_MAX: usize = 16;
