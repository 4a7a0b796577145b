//! Who is talking to whom.

use std::fmt;
use std::sync::Arc;

/// An I_T nexus: initiator port name and target port name, as RFC 7143 4.2.7.1 writes them, with a comma between:
/// `INITIATOR,i,0xISID,TARGET,t,0xTPGT`. The same initiator port coming back to the same target port is the same nexus, which is what
/// persistent reservations hang on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub Arc<str>);

impl NexusId {
    /// A nexus by its name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The initiator port's name, `INITIATOR,i,0xISID`; all of a name that is not written so.
    pub fn initiator_port(&self) -> &str {
        let end = self.0.match_indices(',').nth(2).map_or(self.0.len(), |(at, _)| at);
        self.0.get(..end).unwrap_or(&self.0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initiator_port_comes_first() {
        let nexus = NexusId::new("iqn.a:b,i,0x00023d000001,iqn.c:d,t,0x0001");
        assert_eq!(nexus.initiator_port(), "iqn.a:b,i,0x00023d000001");
        assert_eq!(NexusId::new("short").initiator_port(), "short");
    }
}
