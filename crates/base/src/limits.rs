//! The bounds of this crate.

/// Bytes a [`BufferPool`](crate::buffer::BufferPool) keeps for reuse per size class before it frees them: enough for 64
/// requests of 64 KiB in flight without going back to the allocator.
pub const POOL_IDLE_BYTES_PER_CLASS_MAX: usize = 4 << 20;

/// Largest single buffer. Equal to the largest transfer a logical unit announces (VPD B0h) times two, so that a
/// request can always be held in one buffer.
pub const BUFFER_BYTES_MAX: usize = 64 << 20;

/// Alignment of every buffer, and its unit of allocation: what O_DIRECT asks on every disk we know.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// Time in which the log tells of [`REFUSALS_LOGGED_MAX`] refusals of one kind.
pub const REFUSAL_LOG_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);

/// Refusals that the log tells of one by one in that time: who looks for the reason sees it, and a flood does not fill
/// the disk.
pub const REFUSALS_LOGGED_MAX: u32 = 10;
