//! What goes to the origin with one flush.

use crate::core::Pins;
use crate::epoch::Part;
use crate::images::Images;
use crate::map::Piece;

/// How segments are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Epoch,
    Lba,
    Newest,
    Oldest,
}

/// What a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Room, age, or an idle moment.
    Background,
    /// All that the origin lacks now.
    Everything,
}

/// What is sent to the origin with one flush.
pub(crate) struct Batch {
    /// Disjoint, ascending.
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of the log that are in RAM for it.
    pub(crate) images: Images,
    /// With [`Choice::Epoch`]: which part of the epoch it is.
    pub(crate) part: Option<Part>,
    pub(crate) _pins: Pins,
}

impl Batch {
    /// Nothing yet.
    pub(crate) fn new(pins: Pins) -> Self {
        Self { pieces: Vec::new(), images: Images::default(), part: None, _pins: pins }
    }
}
