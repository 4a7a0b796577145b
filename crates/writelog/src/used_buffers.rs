//! Buffers of records and of segments that level 2 reads, used again and again: new pages would cost more than the
//! work on them.

use base::buffer::{Buffer, BufferPool};

/// A pool of such buffers. Clones share it.
#[derive(Clone)]
pub(crate) struct UsedBuffers(BufferPool);

impl UsedBuffers {
    /// Keeps up to `bytes_max`.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self(BufferPool::new(bytes_max))
    }

    /// A buffer with arbitrary former contents.
    pub(crate) fn take(&self, length: usize) -> Buffer {
        self.0.try_acquire(length).unwrap_or_else(|| Buffer::zeroed(length))
    }
}
