//! What the log has of sectors whose newest bytes are in slots of volatile RAM.
//!
//! Such a slot is gone with the power, and what was flushed before must not be. So with `unsafe-volatile`, what a slot
//! supersedes in the log stays dirty: its segment counts it, checkpoints name it, level 2 sends it when its turn comes.
//! It goes when newer bytes of the sector are in the log or on the origin.
//!
//! A sector is here only while the map has a slot for it, so what is here and what the map has outside of slots never
//! overlap.

use crate::map::{ExtentMap, Piece};
use crate::numbers::Sector;

/// What the log has under slots of volatile RAM. Always empty where slots survive the power.
pub(crate) struct Shadow {
    extents: ExtentMap,
    is_kept: bool,
}

impl Shadow {
    /// Of slots that are `volatile`, or do survive.
    pub(crate) fn new(is_volatile: bool) -> Self {
        Self { extents: ExtentMap::default(), is_kept: is_volatile }
    }

    /// Whether slots cast any.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Keeps a dirty piece. `removed` is told what was kept of its sectors.
    pub(crate) fn insert(&mut self, piece: Piece, removed: impl FnMut(Piece)) {
        self.extents.insert(piece, removed);
    }

    /// Lets go of all that is kept of these sectors; `removed` is told what that was.
    pub(crate) fn remove(&mut self, sector: Sector, sectors: u64, removed: impl FnMut(Piece)) {
        self.extents.remove(sector, sectors, removed);
    }

    /// What is kept of `held` at the place it says.
    pub(crate) fn pieces_at(&self, held: &Piece) -> impl Iterator<Item = Piece> + '_ {
        self.extents.pieces_at(held)
    }

    /// Notes that these bytes cannot be read back.
    pub(crate) fn lose(&mut self, piece: &Piece) {
        self.extents.retag(piece, |tag| Some(tag.to_lost()), |_| {});
    }

    /// All of it from `sector` on, ascending.
    pub(crate) fn from(&self, sector: Sector) -> impl Iterator<Item = Piece> + '_ {
        self.extents.dirty_from(sector)
    }

    /// What reaches across the start of `sector`, from there on.
    pub(crate) fn across(&self, sector: Sector) -> Option<Piece> {
        self.extents.dirty_across(sector)
    }

    /// Count of extents.
    pub(crate) fn len(&self) -> usize {
        self.extents.dirty_extents()
    }
}
