//! The status of a client of a shared LUN.

use std::time::Duration;

/// A moment's view of a client of a shared unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharingStatus {
    /// Its number at the target; none before it was registered.
    pub client: Option<u64>,
    /// Whether it is registered and its lease lasts, so that its copies may be used.
    pub is_alive: bool,
    /// The time left until its lease ends, unless it is renewed.
    pub lease_left: Duration,
    /// How often it was asked to drop copies.
    pub purges: u64,
    /// Ranges that it holds alone, or the whole unit, also to read.
    pub ranges_held: u64,
    /// How often it asked for such.
    pub asks: u64,
    /// How often such that it used were called back.
    pub callbacks: u64,
    /// How many lives it has had.
    pub lives: u64,
}
