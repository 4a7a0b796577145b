//! What a target process serves.

use std::net::SocketAddr;
use std::path::PathBuf;

use iscsi::chap::Credentials;
use iscsi::target::TargetPortal;
use target::Quota;

use crate::busy_polling::BusyPolling;
use crate::error::{Error, Failure, Result};
use crate::lun_check;
use crate::lun_spec::{FileIdentity, LunSpec};
use crate::own_stores::OwnStores;
use crate::paths::{Paths, check_name};
use crate::target_config::TargetConfig;

/// The configuration of a target process.
#[derive(Debug)]
pub struct ServeConfig {
    /// Name for the control socket.
    pub name: String,
    /// Addresses to listen on.
    pub portals: Vec<TargetPortal>,
    /// Whether the user allows addresses that other machines reach.
    pub allow_remote: bool,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// How long sessions poll their sockets before they sleep.
    pub busy_polling: BusyPolling,
    /// The limits for peers.
    pub quota: Quota,
    /// Sockets that are bound already, in place of the portals.
    pub listeners: Vec<std::net::TcpListener>,
    /// The accounts for discovery; without any, every initiator may ask for the targets.
    pub discovery: Vec<Credentials>,
    /// The targets.
    pub targets: Vec<TargetConfig>,
    /// The configuration file, to be read again.
    pub source: Option<PathBuf>,
}

impl ServeConfig {
    /// Refuses an impossible configuration, without opening any file.
    ///
    /// # Errors
    /// The first error.
    pub fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        let usage = |message: String| Err(Error::new(Failure::Usage, message));
        if self.targets.is_empty() {
            return usage("there is no target to serve".into());
        }
        if let Some(portal) =
            self.portals.iter().map(|portal| portal.address).find(|address| !address.ip().is_loopback())
            && !self.allow_remote
        {
            return usage(format!("{portal} can be reached from other machines: give --allow-remote if that is meant"));
        }
        for (index, target) in self.targets.iter().enumerate() {
            target.check(&self.portals)?;
            if !iscsi::url::is_iscsi_name(&target.iqn) {
                return usage(format!(
                    "\"{}\" is no iSCSI name: write it like iqn.2026-11.org.example:disks",
                    target.iqn
                ));
            }
            if self.targets[..index].iter().any(|other| other.iqn.eq_ignore_ascii_case(&target.iqn)) {
                return usage(format!("the target {} is there twice", target.iqn));
            }
            for (index, lun) in target.luns.iter().enumerate() {
                if target.luns[..index].iter().any(|other| other.lun == lun.lun) {
                    return usage(format!("{} has two LUNs {}", target.iqn, lun.lun));
                }
            }
        }
        self.check_files()
    }

    /// Checks the files and devices of the LUNs before they are opened; with `paths`, also against
    /// the stores of this host.
    ///
    /// # Errors
    /// The first logical unit that cannot be served.
    pub fn check_backends(&self, paths: Option<&Paths>) -> Result<()> {
        let own_stores = paths.map(OwnStores::find).transpose()?;
        self.targets.iter().flat_map(|target| &target.luns).try_for_each(|lun| {
            lun_check::check(lun)?;
            own_stores.as_ref().map_or(Ok(()), |stores| stores.check(lun))?;
            lun_check::check_size(lun)
        })
    }

    /// Refuses a file that is two LUNs: each would have its own reservations, and its own order of
    /// overlapping commands.
    fn check_files(&self) -> Result<()> {
        let all = self.targets.iter().flat_map(|target| target.luns.iter().map(move |lun| (&target.iqn, lun)));
        let mut seen: Vec<(FileIdentity, (&String, &LunSpec))> = Vec::new();
        for (iqn, lun) in all {
            let Some(file) = lun.file() else { continue };
            if let Some((_, (other_iqn, other))) = seen.iter().find(|(known, _)| *known == file) {
                let message = format!("LUN {lun} of {iqn} and LUN {other} of {other_iqn} are the same file");
                return Err(Error::new(Failure::Usage, message));
            }
            seen.push((file, (iqn, lun)));
        }
        Ok(())
    }
}
