//! A target: a name and its logical units.

use std::net::SocketAddr;
use std::sync::Arc;

use iscsi::target::{Authentication, DataOutBytes, TargetDescription};
use logical_unit::{LunMap, data_out_bytes};

/// Block size assumed for LUNs that are not there; their commands end in CHECK CONDITION whatever it is.
const BLOCK_BYTES_DEFAULT: u32 = 512;

/// A target. Clones share the logical units.
#[derive(Clone)]
pub struct Target {
    /// iSCSI name, for example `iqn.2026-01.io.example:disk1`.
    pub name: String,
    /// Name for people.
    pub alias: Option<String>,
    /// Its logical units.
    pub luns: LunMap,
    /// Who may log in.
    pub authentication: Authentication,
}

impl Target {
    /// A target that everyone may log in to.
    pub fn new(name: impl Into<String>, luns: LunMap) -> Self {
        Self { name: name.into(), alias: None, luns, authentication: Authentication::default() }
    }

    /// What the protocol needs to know of it.
    pub(crate) fn describe(&self, portals: &[SocketAddr]) -> TargetDescription {
        TargetDescription {
            name: self.name.clone(),
            alias: self.alias.clone(),
            portals: portals.to_vec(),
            authentication: self.authentication.clone(),
            data_out_bytes: self.data_out_bytes(),
        }
    }

    fn data_out_bytes(&self) -> DataOutBytes {
        let luns = self.luns.clone();
        Arc::new(move |lun, cdb| {
            let unit = luns.get(lun_number(lun));
            let block_bytes = unit.map_or(BLOCK_BYTES_DEFAULT, |unit| unit.geometry().logical_block_bytes);
            data_out_bytes(cdb, block_bytes)
        })
    }
}

/// The number in a LUN field. A LUN of a kind that cannot exist here gets a number that no logical unit has.
pub(crate) fn lun_number(field: u64) -> u64 {
    scsi::lun::decode(field.to_be_bytes()).unwrap_or(u64::MAX)
}
