//! Data from the other end that does not follow its standard.

/// The name of the malformed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} from the other end is malformed or cut short")]
pub struct Malformed(pub &'static str);
