//! The name of an I_T nexus.

use std::fmt;
use std::sync::Arc;

use block::Submitter;

/// An I_T nexus: initiator port name and target port name, as RFC 7143 4.2.7.1 writes them, with a
/// comma between: `INITIATOR,i,0xISID,TARGET,t,0xTPGT`. The same initiator port coming back to the
/// same target port is the same nexus, to which persistent reservations belong. Names are compared
/// without regard to case (RFC 3722), so the whole name is in lower case here.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId {
    name: Arc<str>,
    /// The initiator, which all its nexuses share what there is of the device with.
    submitter: Submitter,
}

impl NexusId {
    /// A nexus by its name.
    pub fn new(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let submitter = Submitter::named(initiator_name(&name));
        Self { name: name.into(), submitter }
    }

    /// The whole name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The submitter of its requests to the device: all nexuses of one initiator name are one.
    pub fn submitter(&self) -> Submitter {
        self.submitter
    }

    /// The initiator port's name, `INITIATOR,i,0xISID`; the whole of a name in another form.
    pub fn initiator_port(&self) -> &str {
        initiator_port(&self.name)
    }

    /// The iSCSI name of the initiator; the whole of a name in another form.
    pub fn initiator_name(&self) -> &str {
        initiator_name(&self.name)
    }

    /// The target port's name, `TARGET,t,0xTPGT`; empty for a name in another form.
    pub fn target_port(&self) -> &str {
        let start = self.name.match_indices(',').nth(2).map_or(self.name.len(), |(at, _)| at + 1);
        self.name.get(start..).unwrap_or("")
    }

    /// The target portal group tag in the target port's name.
    pub fn portal_group(&self) -> Option<u16> {
        let (_, tag) = self.target_port().rsplit_once(",t,0x")?;
        u16::from_str_radix(tag, 16).ok()
    }

    /// The nexus of another initiator port with the same target port.
    #[must_use]
    pub fn with_initiator_port(&self, port: &str) -> Self {
        Self::new(&format!("{port},{}", self.target_port()))
    }
}

fn initiator_port(nexus: &str) -> &str {
    let end = nexus.match_indices(',').nth(2).map_or(nexus.len(), |(at, _)| at);
    nexus.get(..end).unwrap_or(nexus)
}

fn initiator_name(nexus: &str) -> &str {
    let port = initiator_port(nexus);
    port.split_once(",i,").map_or(port, |(name, _)| name)
}

impl fmt::Display for NexusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
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
        assert_eq!((nexus.initiator_name(), NexusId::new("short").initiator_name()), ("iqn.a:b", "short"));
        assert_eq!(NexusId::new("short").initiator_port(), "short");
        assert_eq!((nexus.target_port(), nexus.portal_group()), ("iqn.c:d,t,0x0001", Some(1)));
        assert_eq!(NexusId::new("short").portal_group(), None);
        assert_eq!(nexus.with_initiator_port("a,i,0x1"), NexusId::new("a,i,0x1,iqn.c:d,t,0x0001"));
    }
}
