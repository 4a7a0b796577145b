//! The name of a request that is under way.

/// The right and the duty to answer one request.
#[derive(Debug)]
#[must_use = "a request whose ticket is dropped is never answered"]
pub struct Ticket {
    pub(super) cookie: u64,
    pub(super) command: u16,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
}
