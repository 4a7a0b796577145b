//! The shadow: what the log has of sectors whose newest bytes are in slots of volatile RAM.
//!
//! Such a slot is lost with the power, but data that was flushed before must not be. So with
//! `unsafe-volatile`, a piece of the log that a slot supersedes stays dirty: its segment counts it,
//! checkpoints name it, level 2 sends it in its turn. It is removed when newer bytes of the sector
//! are in the log or on the origin.
//!
//! A sector is in the shadow only while the map has a slot for it, so the shadow and the map's
//! pieces outside of slots never overlap.

use crate::map::{ExtentMap, Piece};
use crate::numbers::Sector;

/// The pieces of the log under slots of volatile RAM. Always empty where slots survive a power
/// loss.
pub(crate) struct Shadow {
    extents: ExtentMap,
    is_kept: bool,
}

impl Shadow {
    /// An empty shadow, of slots that are volatile or not.
    pub(crate) fn new(is_volatile: bool) -> Self {
        Self { extents: ExtentMap::default(), is_kept: is_volatile }
    }

    /// Whether slots are volatile, and so have a shadow.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Keeps a dirty piece. `removed` is called with each piece that it replaces.
    pub(crate) fn insert(&mut self, piece: Piece, removed: impl FnMut(Piece)) {
        self.extents.insert(piece, removed);
    }

    /// Removes all pieces of these sectors; `removed` is called with each.
    pub(crate) fn remove(&mut self, sector: Sector, sectors: u64, removed: impl FnMut(Piece)) {
        self.extents.remove(sector, sectors, removed);
    }

    /// The parts of `held` that the shadow has at the same place.
    pub(crate) fn pieces_at(&self, held: &Piece) -> impl Iterator<Item = Piece> + '_ {
        self.extents.pieces_at(held)
    }

    /// Notes that these bytes cannot be read back.
    pub(crate) fn lose(&mut self, piece: &Piece) {
        self.extents.retag(piece, |tag| Some(tag.to_lost()), |_| {});
    }

    /// The pieces from `sector` on, ascending.
    pub(crate) fn from(&self, sector: Sector) -> impl Iterator<Item = Piece> + '_ {
        self.extents.dirty_from(sector)
    }

    /// The piece that begins before `sector` and reaches behind it, from `sector` on.
    pub(crate) fn across(&self, sector: Sector) -> Option<Piece> {
        self.extents.dirty_across(sector)
    }

    /// Count of extents.
    pub(crate) fn len(&self) -> usize {
        self.extents.dirty_extents()
    }
}
