//! The interface to persistent memory.
//!
//! Stored bytes survive a power loss once [`PersistentRegion::persist`] has returned; before that
//! any part of them may survive, byte by byte. Crate `file` maps such memory and flushes the
//! processor's caches.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A run of bytes of persistent memory.
pub trait PersistentRegion: Send + Sync + 'static {
    /// Count of bytes.
    fn size_bytes(&self) -> usize;

    /// Copies from `offset` on into `bytes`.
    ///
    /// # Panics
    /// Outside the region.
    fn load(&self, offset: usize, bytes: &mut [u8]);

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// Outside the region.
    fn store(&self, offset: usize, bytes: &[u8]);

    /// Makes the stored bytes of the range durable; returns when they are.
    fn persist(&self, offset: usize, length: usize);
}

/// Plain RAM in place of persistent memory: for `unsafe-volatile`, and for models.
pub struct VolatileRegion {
    bytes: Mutex<Vec<u8>>,
}

impl VolatileRegion {
    /// `size_bytes` zero bytes.
    pub fn new(size_bytes: usize) -> Self {
        Self::of(vec![0; size_bytes])
    }

    /// A region with these bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        Self { bytes: Mutex::new(bytes) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PersistentRegion for VolatileRegion {
    fn size_bytes(&self) -> usize {
        self.lock().len()
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.lock()[offset..offset + bytes.len()]);
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        self.lock()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn persist(&self, _offset: usize, _length: usize) {}
}
