//! Against which bound counts what waits to be written.

/// What bounds that which waits to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The connection's bound of answers.
    Answers,
    /// The bounds of the commands that brought it: what they may read.
    Commands,
}
