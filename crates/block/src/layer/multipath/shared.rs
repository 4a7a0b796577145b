//! What requests under way keep of the device.

use std::sync::Arc;

use base::clock::Clock;

use super::paths::Paths;
use crate::range_lock::RangeLock;

/// What requests under way keep, too.
pub(super) struct Shared {
    pub(super) paths: Paths,
    pub(super) lock: RangeLock,
    pub(super) clock: Arc<dyn Clock>,
}
