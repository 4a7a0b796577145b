//! The system calls that make something durable.

/// A call after which something is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurableCall {
    /// `RWF_DSYNC`.
    Write,
    /// `fdatasync`.
    Sync,
}
