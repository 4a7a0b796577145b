//! A batch: the pieces that go to the origin with one flush.

use crate::epoch::Part;
use crate::images::Images;
use crate::limits::{BATCH_BYTES_WHEN_FULL, BATCH_TIME_WHEN_FULL, BATCHES_A_LOG};
use crate::log_state::State;
use crate::map::Piece;
use crate::pins::Pins;
use crate::settings::Settings;

/// How segments are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Epoch,
    Lba,
    Newest,
    Oldest,
}

/// The purpose of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Room, age, or an idle moment.
    Background,
    /// All that the origin lacks now.
    Everything,
}

/// The pieces that go to the origin with one flush.
pub(crate) struct Batch {
    /// Disjoint, ascending.
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of the log that are in RAM for these pieces.
    pub(crate) images: Images,
    /// With [`Choice::Epoch`]: which part of the epoch it is.
    pub(crate) part: Option<Part>,
    pub(crate) _pins: Pins,
}

impl Batch {
    /// An empty batch.
    pub(crate) fn new(pins: Pins) -> Self {
        Self { pieces: Vec::new(), images: Images::default(), part: None, _pins: pins }
    }
}

/// How much a batch takes, in bytes of log. A larger one sends less, since more is superseded
/// in it and more pieces are adjacent. But its room comes back all at once, and a writer that
/// waits for room waits for the whole batch.
pub(crate) fn batch_bytes(state: &State, settings: &Settings) -> u64 {
    let most = settings.level2().batch_bytes;
    let log_bytes = state.contents.layout.log_bytes();
    let usual = (log_bytes / BATCHES_A_LOG).max(BATCH_BYTES_WHEN_FULL);
    let freed_per_second = state.pace.freed_per_second().unwrap_or(0.0);
    let when_full = (freed_per_second * BATCH_TIME_WHEN_FULL.as_secs_f64()) as u64;
    let least = when_full.clamp(BATCH_BYTES_WHEN_FULL, usual);
    // At most what the free space lasts for, if as much comes as leaves. Slots last longer.
    let free_bytes = if settings.is_staged() { usual } else { state.free_bytes() };
    let wanted = if state.room.is_wanted() { least } else { free_bytes.clamp(least, usual) };
    wanted.min(most)
}
