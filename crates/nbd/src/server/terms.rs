//! What the two ends of a connection have agreed on.

/// The context id of `base:allocation` on this server's connections.
pub(super) const ALLOCATION_CONTEXT: u32 = 1;

/// The result of negotiation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    pub(super) is_fixed_newstyle: bool,
    pub(super) is_without_zeroes: bool,
    pub(super) is_structured: bool,
    pub(super) has_block_status: bool,
}
