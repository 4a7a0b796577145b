//! The part of the device that requests under way keep alive.

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;

use super::paths::Paths;
use crate::copies::Copies;
use crate::range_lock::RangeLock;

/// The part of the device that requests under way keep alive.
pub(super) struct Shared {
    pub(super) paths: Paths,
    pub(super) lock: RangeLock,
    pub(super) clock: Arc<dyn Clock>,
    /// How long requests wait for paths that are away.
    pub(super) patience: Duration,
    /// Of a unit that several hosts share.
    pub(super) copies: Option<Copies>,
}
