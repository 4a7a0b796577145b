//! One target to serve, as configured by flags or a file.

use iscsi::chap::Credentials;
use iscsi::target::{AccessList, TargetPortal};
use target::LunMask;

use crate::error::{Error, Failure, Result};
use crate::lun_spec::LunSpec;

/// One target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Its iSCSI name.
    pub iqn: String,
    /// A name for people.
    pub alias: Option<String>,
    /// Its logical units.
    pub luns: Vec<LunSpec>,
    /// Portal groups it can be reached in; `None` for all.
    pub portal_groups: Option<Vec<u16>>,
    /// The initiators that may log in.
    pub access: AccessList,
    /// The views of the initiators of each rule; none for all LUNs.
    pub masks: Vec<LunMask>,
    /// The credentials by which the target proves itself to initiators that ask for that.
    pub own: Option<Credentials>,
}

impl TargetConfig {
    pub(crate) fn check(&self, portals: &[TargetPortal]) -> Result<()> {
        let usage = |message: String| Err(Error::new(Failure::Usage, message));
        let is_there = |group: &u16| portals.is_empty() || portals.iter().any(|portal| portal.group == *group);
        if let Some(group) = self.portal_groups.iter().flatten().find(|group| !is_there(group)) {
            return usage(format!("{} is to be in portal group {group}, which has no portals", self.iqn));
        }
        for masked in self.masks.iter().filter_map(|mask| mask.luns.as_ref()).flatten() {
            if !self.luns.iter().any(|spec| u64::from(spec.lun) == masked.of) {
                return usage(format!(
                    "{} shows LUN {} to some initiators, which it does not have",
                    self.iqn, masked.of
                ));
            }
        }
        for mask in self.masks.iter().filter_map(|mask| mask.luns.as_ref()) {
            let twice = mask.iter().enumerate().find(|(at, one)| mask[..*at].iter().any(|other| other.lun == one.lun));
            if let Some((_, one)) = twice {
                return usage(format!("{} shows two LUNs under the number {} to some initiators", self.iqn, one.lun));
            }
        }
        Ok(())
    }
}
