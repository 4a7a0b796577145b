//! Who is talking to whom.

use std::fmt;
use std::sync::Arc;

/// An I_T nexus: initiator port name and target port name, as the transport writes them. The same initiator port coming back to the same
/// target port is the same nexus, which is what persistent reservations hang on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub Arc<str>);

impl NexusId {
    /// A nexus by its name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for NexusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NexusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NexusId({self})")
    }
}
