//! The bounds of this crate.

/// Bytes that a [`BufferPool`](crate::buffer::BufferPool) keeps for reuse per size class before it
/// frees them: enough for 64 requests of 64 KiB in flight without new allocations.
pub const POOL_IDLE_BYTES_PER_CLASS_MAX: usize = 4 << 20;

/// Largest buffer: twice the largest transfer that a logical unit announces (VPD B0h), so that a
/// request always fits in one buffer.
pub const BUFFER_BYTES_MAX: usize = 64 << 20;

/// Alignment of every buffer, and its unit of allocation: what O_DIRECT requires on every known
/// disk.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// Interval in which the log reports [`REFUSALS_LOGGED_MAX`] refusals of one kind.
pub const REFUSAL_LOG_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);

/// Refusals reported one by one in that interval: enough to find the reason, and too few to fill
/// the disk with log.
pub const REFUSALS_LOGGED_MAX: u32 = 10;
