//! The device that `bench` and `replay` work on: a logical unit by its URL, or an attachment by its
//! name.

use std::sync::Arc;

use base::clock::Clock;
use block::device::DeviceExt;
use block::{ErrorKind, ExtentKind, Identity, SharedDevice};
use front::{ListenAddress, NbdClient};
use stack::caches::Caches;
use stack::control::{ControlRequest, call};
use stack::freshness::note_writable_opening;
use stack::newest_data;
use stack::paths::{Paths, check_name};
use stack::registry::{Registry, UnitLock};
use stack::remotes::{Remotes, RemotesConfig, number_sessions};
use stack::settings::Settings;
use stack::status::fronts::{FrontStatus, FrontsStatus};
use stack::status::stores::CacheSummary;
use stack::status::{self, Shown};
use stack::time::system_clock;
use stack::{Error, Failure, Result};

use crate::output::confirm;

/// A device to work on, and the sessions that it needs.
pub struct Subject {
    /// The device.
    pub device: SharedDevice,
    /// The same device, opened as often as asked for, each time by a session or connection of its
    /// own; the first is `device`.
    pub devices: Vec<SharedDevice>,
    /// The clock it runs by.
    pub clock: Arc<dyn Clock>,
    label: String,
    /// The logical units that are used without their caches.
    identities: Vec<Identity>,
    attachment: Option<String>,
    /// The process at the other end, where it runs on this host.
    pub server_pid: Option<u32>,
    /// The sessions of the device, kept open as long as it is used.
    _remotes: Vec<Remotes>,
    _lock: Option<UnitLock>,
}

impl Subject {
    /// Opens what `subject` names.
    ///
    /// # Errors
    /// When it cannot be reached, or its newest data lies in a cache of this host.
    pub async fn open(subject: &str, settings: &Settings) -> Result<Self> {
        Self::open_many(subject, settings, 1).await
    }

    /// Opens what `subject` names, `count` times.
    ///
    /// # Errors
    /// As [`Subject::open`].
    pub async fn open_many(subject: &str, settings: &Settings, count: u32) -> Result<Self> {
        let clock: Arc<dyn Clock> = system_clock()?;
        let paths = Paths::from_environment()?;
        if subject.contains("://") {
            let mut config = RemotesConfig::of(subject, settings)?;
            let remotes = config.connect(&clock).await?;
            let (registry, caches) = (Registry::open(&paths)?, Caches::open(&paths)?);
            let identities = remotes.identities();
            let lock = UnitLock::acquire(&paths, &identities, "forebay")?;
            newest_data::check(&remotes, (&registry, &caches), &[], clock.as_ref()).await?;
            let (device, label) = (remotes.device(), remotes.identity().to_string());
            let mut all = vec![remotes];
            for _ in 1..count {
                let last = config.remotes.last().and_then(|remote| remote.isid);
                number_sessions(&mut config.remotes, last.map(|isid| isid.further(1)));
                all.push(config.connect(&clock).await?);
            }
            let devices = all.iter().map(Remotes::device).collect();
            let server_pid = server_of(&paths, &config).await;
            return Ok(Self {
                device,
                devices,
                clock,
                label,
                identities,
                attachment: None,
                server_pid,
                _remotes: all,
                _lock: Some(lock),
            });
        }
        check_name(subject)?;
        let status = call(&paths.control_socket(subject), &ControlRequest::Status, |_| {}).await?;
        let status = status::read::<Shown>(&status)?.attachment().unwrap_or_default();
        let front = nbd_front(&status.fronts).ok_or_else(|| {
            Error::new(
                Failure::Usage,
                format!("\"{subject}\" is no attachment that offers NBD without TLS: attach it with one more --as nbd"),
            )
        })?;
        let mut devices = Vec::new();
        for _ in 0..count {
            devices.push(nbd_device(&front).await?);
        }
        let device = Arc::clone(devices.first().ok_or_else(|| Error::new(Failure::Usage, "nothing is to be opened"))?);
        let server_pid = Some(status.pid);
        let (label, attachment) = (format!("\"{subject}\""), Some(subject.to_owned()));
        Ok(Self {
            device,
            devices,
            clock,
            label,
            identities: Vec::new(),
            attachment,
            server_pid,
            _remotes: Vec::new(),
            _lock: None,
        })
    }

    /// Asks the user before the device is overwritten, unless it is empty, and notes for the caches
    /// of this host that it will be.
    ///
    /// # Errors
    /// `WouldLoseData` when it must not be.
    pub async fn confirm_overwrite(&self, is_allowed: bool) -> Result<()> {
        if !is_allowed && !self.is_empty().await? {
            confirm(&format!("{} is not empty, and this overwrites what it holds", self.label))?;
        }
        // Before the first write: a detached cache of this host has old data from then on.
        note_writable_opening(&Caches::open(&Paths::from_environment()?)?, &self.identities, &[])
    }

    /// Whether the device reports that nothing is stored on it. One that cannot report it is taken
    /// to hold data.
    async fn is_empty(&self) -> Result<bool> {
        let size = self.device.geometry().size_bytes;
        let mut offset = 0;
        while offset < size {
            let extents = match self.device.extents(offset, size - offset).await {
                Ok(extents) => extents,
                Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            let Some(last) = extents.last().filter(|last| last.range.end() > offset) else { return Ok(false) };
            if extents.iter().any(|extent| extent.kind != ExtentKind::Hole) {
                return Ok(false);
            }
            offset = last.range.end();
        }
        Ok(true)
    }

    /// The state of the cache in front of the device, if it is an attachment with one.
    ///
    /// # Errors
    /// When the attachment does not answer.
    pub async fn cache_status(&self) -> Result<Option<CacheSummary>> {
        let Some(name) = &self.attachment else { return Ok(None) };
        let socket = Paths::from_environment()?.control_socket(name);
        let status = call(&socket, &ControlRequest::Status, |_| {}).await?;
        Ok(status::read::<Shown>(&status)?.attachment().and_then(|status| status.cache))
    }
}

/// The process of the one target of this host that listens at the portal of every LUN of `config`.
async fn server_of(paths: &Paths, config: &RemotesConfig) -> Option<u32> {
    let portals: Vec<String> = config.remotes.iter().map(|remote| remote.url.portal.to_string()).collect();
    for name in paths.control_names() {
        let Ok(status) = call(&paths.control_socket(&name), &ControlRequest::Status, |_| {}).await else { continue };
        let Ok(Shown::Target(target)) = status::read(&status) else { continue };
        let is_there = |portal: &String| target.address.split(' ').any(|address| address == portal);
        if portals.iter().all(is_there) {
            return Some(target.pid);
        }
    }
    None
}

/// The address at which an attachment offers NBD to our client, which has no TLS; a disk of the
/// kernel has none.
fn nbd_front(fronts: &FrontsStatus) -> Option<ListenAddress> {
    let is_plain = |front: &&FrontStatus| front.kind == "nbd" && !front.address.starts_with("nbds:");
    fronts.fronts.iter().filter(is_plain).find_map(|front| front.place.parse().ok())
}

/// An NBD server as a device; its driver runs on the current runtime.
///
/// # Errors
/// When it cannot be reached.
pub async fn nbd_device(address: &ListenAddress) -> Result<SharedDevice> {
    let (client, driver) = NbdClient::connect(address).await?;
    tokio::spawn(base::background::named("nbd-driver", driver));
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_fronts_the_one_that_our_client_can_use_is_taken() {
        let front = |kind: &str, place: &str, address: &str| FrontStatus {
            kind: kind.to_owned(),
            place: place.to_owned(),
            address: address.to_owned(),
            ..FrontStatus::default()
        };
        let of =
            |fronts: &[FrontStatus]| nbd_front(&FrontsStatus { fronts: fronts.to_vec(), ..FrontsStatus::default() });
        let others = [
            front("iscsi", "127.0.0.1:3261", "iscsi://127.0.0.1:3261/iqn.a:b/0"),
            front("nbd", "/dev/nbd0", "/dev/nbd0"),
            front("nbd", "127.0.0.1:10809", "nbds://127.0.0.1:10809/"),
        ];
        assert_eq!(of(&others), None);
        let plain = front("nbd", "127.0.0.1:10810", "nbd://127.0.0.1:10810/");
        assert_eq!(of(&[&others[..], &[plain]].concat()), "127.0.0.1:10810".parse().ok());
    }
}
