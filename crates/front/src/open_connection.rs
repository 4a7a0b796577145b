//! An open connection in the counters, with the size reported to its client.

use std::sync::Arc;

use block::Geometry;

use crate::shared::Shared;

/// Counts a connection as open while it lives.
pub(crate) struct OpenConnection {
    pub(crate) shared: Arc<Shared>,
    /// The geometry reported to the client.
    pub(crate) geometry: Geometry,
}

impl OpenConnection {
    pub(crate) fn begin(shared: &Arc<Shared>) -> Self {
        let geometry = shared.exported.device.geometry();
        shared.counters.note_opened(geometry.size_bytes);
        Self { shared: Arc::clone(shared), geometry }
    }

    /// Notes that the present size of the device was reported to the client. Returns whether it
    /// differs from the former one.
    pub(crate) fn follow(&mut self) -> bool {
        let geometry = self.shared.exported.device.geometry();
        let before = std::mem::replace(&mut self.geometry, geometry).size_bytes;
        if before == geometry.size_bytes {
            return false;
        }
        self.shared.counters.note_size_sent(before, geometry.size_bytes);
        true
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.shared.counters.note_closed(self.geometry.size_bytes);
    }
}
