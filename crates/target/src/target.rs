//! A target: a name, its logical units, and which initiators see which of them.

use std::sync::Arc;

use iscsi::chap::Credentials;
use iscsi::target::{AccessList, AskedDataOut, DataOutOf, SessionRequest, TargetDescription, TargetPortal};
use logical_unit::{LunMap, Mapping};

/// Block size assumed for missing LUNs, whose commands end with CHECK CONDITION in any case.
const BLOCK_BYTES_DEFAULT: u32 = 512;

/// A target. Clones share the logical units.
#[derive(Clone)]
pub struct Target {
    /// iSCSI name, for example `iqn.2026-01.io.example:disk1`.
    pub name: String,
    /// Its alias, for people.
    pub alias: Option<String>,
    /// Its logical units. A session's view of them is made when it begins, and again by
    /// [`TargetServer::set_targets`](crate::TargetServer::set_targets).
    pub luns: LunMap,
    /// Portal groups in which it can be reached; `None` for all.
    pub portal_groups: Option<Vec<u16>>,
    /// The initiators that may log in.
    pub access: AccessList,
    /// The views of the initiators of each rule of `access`; a rule without a mask shows all units.
    pub masks: Vec<LunMask>,
    /// The credentials by which the target proves itself to initiators that ask for that.
    pub own: Option<Credentials>,
}

/// The view that some initiators have of a target's logical units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LunMask {
    /// Only these; `None` for all, under their own numbers.
    pub luns: Option<Vec<MaskedLun>>,
    /// Whether writes are refused.
    pub is_read_only: bool,
}

/// One logical unit in such a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedLun {
    /// The number they see.
    pub lun: u64,
    /// The number it has in the target.
    pub of: u64,
    /// Whether they may only read it.
    pub is_read_only: bool,
}

impl Target {
    /// A target that every initiator may log in to.
    pub fn new(name: impl Into<String>, luns: LunMap) -> Self {
        Self {
            name: name.into(),
            alias: None,
            luns,
            portal_groups: None,
            access: AccessList::default(),
            masks: Vec::new(),
            own: None,
        }
    }

    /// The view of a session; `None` where its initiator has no access (any more).
    pub(crate) fn view(&self, request: &SessionRequest) -> Option<Vec<Mapping>> {
        let is_in_group = self.portal_groups.as_ref().is_none_or(|groups| groups.contains(&request.portal_group_tag));
        let rule = self.access.find(&request.initiator_name, request.authenticated_name.as_deref());
        let mask = self.masks.get(rule.filter(|_| is_in_group)?).cloned().unwrap_or_default();
        let all = || self.luns.luns().into_iter().map(|lun| MaskedLun { lun, of: lun, is_read_only: false }).collect();
        let seen = |masked: MaskedLun| {
            let is_read_only = masked.is_read_only || mask.is_read_only;
            Some(Mapping { lun: masked.lun, unit: self.luns.get(masked.of)?, is_read_only })
        };
        Some(mask.luns.unwrap_or_else(all).into_iter().filter_map(seen).collect())
    }

    /// Its description for the protocol.
    pub(crate) fn describe(&self, portals: &[TargetPortal]) -> TargetDescription {
        let is_its =
            |portal: &&TargetPortal| self.portal_groups.as_ref().is_none_or(|groups| groups.contains(&portal.group));
        TargetDescription {
            name: self.name.clone(),
            alias: self.alias.clone(),
            portals: portals.iter().filter(is_its).copied().collect(),
            portal_groups: self.portal_groups.clone(),
            access: self.access.clone(),
            own: self.own.clone(),
            data_out_of: data_out_of(&self.luns),
        }
    }
}

/// The data-out that CDBs to these logical units ask for. Connections keep this until they end, so it must not keep
/// units alive that a reload removes.
pub(crate) fn data_out_of(luns: &LunMap) -> DataOutOf {
    let luns = luns.downgrade();
    Arc::new(move |lun, cdb| {
        let unit = luns.upgrade().and_then(|luns| luns.get(lun_number(lun)));
        let block_bytes = unit.as_ref().map_or(BLOCK_BYTES_DEFAULT, |unit| unit.geometry().logical_block_bytes);
        let asked = cdb.class().data_out;
        let is_held = unit.is_some_and(|unit| unit.may_hold_data(cdb));
        AskedDataOut { bytes: asked.bytes(block_bytes), is_exact: asked.is_exact(), is_held }
    })
}

/// The number in a LUN field. A LUN in an unsupported format gets a number that no logical unit
/// has.
pub(crate) fn lun_number(field: u64) -> u64 {
    scsi::lun::decode(field.to_be_bytes()).unwrap_or(u64::MAX)
}
