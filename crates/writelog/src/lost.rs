//! Lost data: bytes that only the log had and that cannot be read back from it.

use std::sync::atomic::Ordering;

use block::Error;

use crate::core::Core;
use crate::limits::UNIT_BYTES;
use crate::map::Piece;
use crate::numbers::Sector;
use crate::sectors::range_of;

impl Core {
    /// Marks a piece lost: from now on reading it is an error until it is written again.
    pub(crate) fn lose(&self, piece: &Piece, error: &Error) {
        tracing::error!(%error, range = %range_of(piece), "data that only the log had is lost; reading it is an error \
                                                           until it is written again");
        let state = &mut *self.state();
        state.contents.map.retag(piece, |tag| tag.is_dirty().then(|| tag.to_lost()), |_| {});
        state.contents.shadow.lose(piece);
        self.counters.lost_bytes.fetch_add(piece.sectors * UNIT_BYTES, Ordering::Relaxed);
    }

    /// Lost bytes since the log was opened.
    pub(crate) fn lost_bytes_ever(&self) -> u64 {
        self.counters.lost_bytes.load(Ordering::Relaxed)
    }

    /// Whether the log still has lost data, also below slots.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost_bytes_ever() > 0 && self.state().contents.owed_from(Sector::FIRST).any(|piece| piece.tag.is_lost())
    }

    /// Lost bytes that were not written again.
    pub(crate) fn lost_bytes_now(&self) -> u64 {
        let state = self.state();
        state
            .contents
            .map
            .dirty_from(Sector::FIRST)
            .filter(|piece| piece.tag.is_lost())
            .map(|piece| piece.sectors * UNIT_BYTES)
            .sum()
    }
}
