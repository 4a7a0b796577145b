//! Stores that are not part of the stack in some lives, and the changes meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::range::ByteRange;

use crate::layers::Layers;

/// The stores that are away, and the changes since.
#[derive(Default)]
pub(crate) struct Away {
    /// Changes of the LUN while there was no cache.
    pub(crate) unseen: Unseen,
    /// Whether the cache, and the log, were closed when they were taken away.
    is_cache_closed: bool,
    is_log_closed: bool,
}

/// Changes that no cache sees.
#[derive(Clone, Default)]
pub(crate) struct Unseen(Arc<Mutex<Vec<ByteRange>>>);

/// Stores that have to be made.
pub(crate) struct Wanting {
    pub(crate) cache: bool,
    pub(crate) log: bool,
}

impl Unseen {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<ByteRange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a range that changes now.
    pub(crate) fn note(&self, range: ByteRange) {
        self.lock().push(range);
    }
}

impl Away {
    /// Changes the layers. A store that was closed when it was taken away comes back with its
    /// content, unless it `renews`.
    pub(crate) fn follow(&mut self, before: Layers, layers: Layers, is_closed: bool, renews: bool) -> Wanting {
        let goes = |has: fn(Layers) -> bool| has(before) && !has(layers);
        let comes = |has: fn(Layers) -> bool| !has(before) && has(layers);
        if goes(Layers::has_cache) {
            self.is_cache_closed = is_closed;
        }
        if goes(Layers::has_log) {
            self.is_log_closed = is_closed;
        }
        let wanting = Wanting {
            cache: comes(Layers::has_cache) && (renews || !self.is_cache_closed),
            log: comes(Layers::has_log) && (renews || !self.is_log_closed),
        };
        if wanting.cache {
            self.unseen.lock().clear();
        }
        wanting
    }
}
