//! How a logical unit is shared.

use std::sync::Arc;
use std::time::Duration;

use locks::limits;
use locks::settings::Profile;

use crate::sharing::store::{SavedSharing, SharingStore};

/// Times of sharing, and where what outlives a start is kept.
#[derive(Clone)]
pub struct SharingOptions {
    /// What is done with grants and commands.
    pub profile: Profile,
    /// How long grants of a silent client stand.
    pub lease: Duration,
    /// How long a client has to answer a callback that it does not defer.
    pub callback_time: Duration,
    /// How long a callback can be deferred at most.
    pub callback_time_max: Duration,
    /// How long a lock is held before it is called back.
    pub hold_time_min: Duration,
    /// Messages that a client may leave untaken.
    pub untaken_max: usize,
    /// Where it is kept; none for a unit that ends with the process.
    pub store: Option<Arc<dyn SharingStore>>,
    /// How it stands at this start.
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
            store: None,
            saved: SavedSharing::default().next_start(),
        }
    }
}
