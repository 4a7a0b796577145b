//! What of the configuration file can change while it is served.

use std::path::PathBuf;

use iscsi::chap::Credentials;
use iscsi::target::TargetPortal;
use target::Quota;

use super::config::ServeConfig;
use crate::busy_polling::BusyPolling;
use crate::config::{self, Configuration};
use crate::error::{Error, Failure, Result};
use crate::target_config::TargetConfig;

/// The configuration file, and the settings that cannot change while it is served.
pub(super) struct ReloadSource {
    path: Option<PathBuf>,
    allow_remote: bool,
    name: String,
    /// The sockets come from the service manager, and the portals in the file are ignored.
    has_passed_sockets: bool,
}

/// The changeable settings in the file now.
pub(super) struct Reread {
    /// `None` to keep the present ones.
    pub(super) portals: Option<Vec<TargetPortal>>,
    pub(super) targets: Vec<TargetConfig>,
    pub(super) discovery: Vec<Credentials>,
    pub(super) quota: Quota,
}

impl ReloadSource {
    pub(super) fn of(config: &ServeConfig) -> Self {
        Self {
            path: config.source.clone(),
            allow_remote: config.allow_remote,
            name: config.name.clone(),
            has_passed_sockets: !config.listeners.is_empty(),
        }
    }

    pub(super) fn read(&self, current: Vec<TargetPortal>) -> Result<Reread> {
        let Some(path) = &self.path else {
            let message = format!("\"{}\" was started without --config: there is no file to read again", self.name);
            return Err(Error::new(Failure::Usage, message));
        };
        let Configuration { portals, quota, discovery, targets, .. } = config::read(path)?;
        let portals = portals.filter(|_| !self.has_passed_sockets);
        let checked = if self.has_passed_sockets { Vec::new() } else { portals.clone().unwrap_or(current) };
        let config = ServeConfig {
            name: self.name.clone(),
            portals: checked,
            allow_remote: self.allow_remote,
            metrics: None,
            busy_polling: BusyPolling::default(),
            quota,
            listeners: Vec::new(),
            discovery,
            targets,
            source: None,
        };
        config.check()?;
        Ok(Reread { portals, targets: config.targets, discovery: config.discovery, quota })
    }
}
