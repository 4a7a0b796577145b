//! One recorded request.

use std::time::Duration;

use crate::access::Access;

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time since the first record (zero where the format has none).
    pub at: Duration,
    /// Kind and range.
    pub access: Access,
}
