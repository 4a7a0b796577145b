//! Lost data: bytes that only the log had and that cannot be read back from it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::Error;

use crate::counters::{Counters, get};
use crate::limits::UNIT_BYTES;
use crate::log_state::LogState;
use crate::map::Piece;
use crate::numbers::Sector;
use crate::sectors::range_of;

/// Marks data of the log as lost, and says how much of it is.
pub(crate) struct LostData {
    log: Arc<LogState>,
    counters: Arc<Counters>,
}

impl LostData {
    pub(crate) fn new(log: &Arc<LogState>, counters: &Arc<Counters>) -> Self {
        Self { log: Arc::clone(log), counters: Arc::clone(counters) }
    }

    /// Marks a piece lost: from now on reading it is an error until it is written again.
    pub(crate) fn lose(&self, piece: &Piece, error: &Error) {
        tracing::error!(%error, range = %range_of(piece), "data that only the log had is lost; reading it is an error \
                                                           until it is written again");
        let state = &mut *self.log.state();
        state.contents.map.retag(piece, |tag| tag.is_dirty().then(|| tag.to_lost()), |_| {});
        state.contents.shadow.lose(piece);
        self.counters.lost_bytes.fetch_add(piece.sectors * UNIT_BYTES, Ordering::Relaxed);
    }

    /// Lost bytes since the log was opened.
    pub(crate) fn bytes_ever(&self) -> u64 {
        get(&self.counters.lost_bytes)
    }

    /// Whether the log still has lost data, also below slots.
    pub(crate) fn has_any(&self) -> bool {
        self.bytes_ever() > 0 && self.log.state().contents.owed_from(Sector::FIRST).any(|piece| piece.tag.is_lost())
    }

    /// Lost bytes that were not written again.
    pub(crate) fn bytes_now(&self) -> u64 {
        let state = self.log.state();
        let dirty = state.contents.map.dirty_from(Sector::FIRST);
        dirty.filter(|piece| piece.tag.is_lost()).map(|piece| piece.sectors * UNIT_BYTES).sum()
    }
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;
    use crate::tests::Parts;

    #[test]
    fn what_is_lost_is_so_until_it_is_written_again() {
        let mut parts = Parts::new(|_| {});
        let (records, lost) = (Arc::new(parts.assembly.records()), Arc::clone(&parts.assembly.lost));
        let piece = parts.append(&records, 0, 8, 1);
        lost.lose(&piece.clip(Sector(2), Sector(6)), &Error::new(ErrorKind::Corrupt, "it is damaged"));
        assert_eq!((lost.bytes_now(), lost.has_any()), (4 * UNIT_BYTES, true));
        parts.append(&records, 0, 4, 2);
        assert_eq!((lost.bytes_now(), lost.has_any()), (2 * UNIT_BYTES, true));
        parts.append(&records, 4, 4, 2);
        assert_eq!((lost.bytes_now(), lost.has_any(), lost.bytes_ever()), (0, false, 4 * UNIT_BYTES));
    }
}
