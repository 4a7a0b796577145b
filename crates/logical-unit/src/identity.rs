//! Names of the logical unit, derived from its device's identity: the same device has the same names at every start.

use base::checksum::crc32c;
use block::Identity;
use scsi::vpd::{Designator, PortDesignator};

use crate::nexus::NexusId;
use crate::unit::LogicalUnit;

/// Serial number for VPD 80h: the device's own.
pub(crate) fn serial(identity: &Identity) -> String {
    identity.serial.clone()
}

/// Designators for VPD 83h. The NAA name is locally assigned and made from a hash of target, unit and serial number;
/// the T10 name carries the serial number in clear.
pub(crate) fn designators(vendor: &str, identity: &Identity) -> Vec<Designator> {
    let t10 = format!("{vendor:8.8}{}", identity.serial);
    vec![Designator::locally_assigned(hash(identity)), Designator::T10Vendor(t10)]
}

/// Designators of a logical unit.
pub(crate) fn designators_of(unit: &LogicalUnit) -> Vec<Designator> {
    designators(&unit.options.vendor, &unit.device().identity())
}

/// Number of the only target port of a group.
pub(crate) const RELATIVE_PORT: u16 = 1;

/// Number of the nexus's target port group: its portal group tag, or 1 in a name without one.
pub(crate) fn port_group(nexus: &NexusId) -> u16 {
    nexus.portal_group().unwrap_or(1)
}

/// Designators of the target port and the target device, as the nexus names them.
pub(crate) fn ports(nexus: &NexusId) -> Vec<PortDesignator> {
    let port = nexus.target_port();
    let mut ports = vec![PortDesignator::RelativePort(RELATIVE_PORT), PortDesignator::Group(port_group(nexus))];
    if let Some((device, _)) = port.rsplit_once(",t,") {
        ports.push(PortDesignator::PortName(port.to_owned()));
        ports.push(PortDesignator::DeviceName(device.to_owned()));
    }
    ports
}

/// 64 bits of FNV-1a over the three names with their lengths, folded with their CRC32C: FNV alone
/// mixes its high bits badly on short names.
fn hash(identity: &Identity) -> u64 {
    let mut bytes = Vec::new();
    for name in [&identity.target, &identity.unit, &identity.serial] {
        bytes.extend((name.len() as u64).to_be_bytes());
        bytes.extend(name.as_bytes());
    }
    let fnv = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    fnv ^ u64::from(crc32c(&bytes)) << 28
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(target: &str, unit: &str, serial: &str) -> Identity {
        Identity { target: target.into(), unit: unit.into(), serial: serial.into() }
    }

    /// Frozen: initiators remember disks by these.
    #[test]
    fn golden_names() {
        let names = designators("FOREBAY", &identity("file", "/disk", "0123"));
        assert_eq!(names[0].to_string(), GOLDEN_NAA);
        assert_eq!(names[1], Designator::T10Vendor("FOREBAY 0123".into()));
    }
    const GOLDEN_NAA: &str = "naa.3ed3340f4fe653b0";

    #[test]
    fn every_part_counts_and_borders_between_them_too() {
        let hashes = [
            hash(&identity("a", "b", "c")),
            hash(&identity("ab", "", "c")),
            hash(&identity("a", "bc", "")),
            hash(&identity("a", "b", "d")),
        ];
        for (index, left) in hashes.iter().enumerate() {
            assert!(hashes[..index].iter().all(|right| left != right));
        }
    }
}
