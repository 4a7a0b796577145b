//! The configuration of sharing for a logical unit.

use std::sync::Arc;
use std::time::Duration;

use locks::limits;
use locks::settings::Profile;

use crate::sharing::store::{SavedSharing, SharingStore};

/// The times of sharing, and the store for what outlives a start.
#[derive(Clone)]
pub struct SharingOptions {
    /// The profile, which decides what grants and commands mean.
    pub profile: Profile,
    /// How long the grants of a silent client last.
    pub lease: Duration,
    /// Time for the answer to a callback that the client does not defer.
    pub callback_time: Duration,
    /// Longest time by which a callback can be deferred.
    pub callback_time_max: Duration,
    /// Shortest time for which a lock is held before it is called back.
    pub hold_time_min: Duration,
    /// Messages that a client may leave unacknowledged.
    pub untaken_max: usize,
    /// Bytes of messages that all clients may leave unacknowledged.
    pub untaken_bytes_max: usize,
    /// Locks and open files of all clients.
    pub holdings_max: usize,
    /// The store for the durable state; `None` for a unit that ends with the process.
    pub store: Option<Arc<dyn SharingStore>>,
    /// The durable state at this start.
    pub saved: SavedSharing,
}

impl Default for SharingOptions {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            lease: limits::LEASE,
            callback_time: limits::CALLBACK_TIME,
            callback_time_max: limits::CALLBACK_TIME_MAX,
            hold_time_min: limits::HOLD_TIME_MIN,
            untaken_max: limits::MAILBOX_MAX,
            untaken_bytes_max: limits::MAILBOX_BYTES_OF_ALL_MAX,
            holdings_max: limits::HOLDINGS_MAX,
            store: None,
            saved: SavedSharing::default().next_start(),
        }
    }
}
