//! The name of a request that is under way.

use crate::command::WireRequest;

/// The right and the duty to answer one request.
#[derive(Debug)]
#[must_use = "a request whose ticket is dropped is never answered"]
pub struct Ticket {
    pub(super) cookie: u64,
    pub(super) wire: WireRequest,
}
