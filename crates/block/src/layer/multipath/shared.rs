//! The part of the device that requests under way keep alive.

use std::sync::Arc;

use base::clock::Clock;

use super::paths::Paths;
use crate::copies::Copies;
use crate::range_lock::RangeLock;

/// The part of the device that requests under way keep alive.
pub(super) struct Shared {
    pub(super) paths: Paths,
    pub(super) lock: RangeLock,
    pub(super) clock: Arc<dyn Clock>,
    /// Of a unit that several hosts share.
    pub(super) copies: Option<Copies>,
}
