//! What the driver says in the log about a LUN and its sessions.

/// A kind of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    SessionLost,
    SessionBack,
    NoSession,
    /// Others changed the LUN.
    Changed,
    /// Perhaps they did.
    PerhapsChanged,
    /// The target does not say whether they did.
    Untold,
    /// The LUN has other properties.
    OtherProperties,
}
