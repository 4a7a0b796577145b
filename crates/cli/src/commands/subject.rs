//! What `bench` and `replay` work on: a logical unit by its URL, or an attachment by its name.

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::{ErrorKind, ExtentKind, SharedDevice};
use front::{ListenAddress, NbdClient};
use iscsi::url::Url;
use serde_json::Value;
use stack::control::{Request, call};
use stack::login::{credentials, default_initiator_name};
use stack::paths::{Paths, check_name};
use stack::registry::{Registry, UnitLock};
use stack::remote::RemoteConfig;
use stack::remotes::{Arrangement, Remotes, RemotesConfig};
use stack::time::system_clock;
use stack::{Error, Failure, Result};

use crate::arguments::{Arrange, Login};
use crate::output::confirm;

/// A device to work on, and what keeps it there.
pub struct Subject {
    /// The device.
    pub device: SharedDevice,
    /// The clock it runs by.
    pub clock: Arc<dyn Clock>,
    label: String,
    attachment: Option<String>,
    /// Kept up for as long as the device is used.
    _remotes: Option<Remotes>,
    _locks: Vec<UnitLock>,
}

impl Subject {
    /// Opens what `subject` names.
    ///
    /// # Errors
    /// When it cannot be reached, or its newest data lies in a cache of this host.
    pub async fn open(subject: &str, arrangement: &Arrange, login: &Login) -> Result<Self> {
        let clock: Arc<dyn Clock> = system_clock()?;
        let paths = Paths::from_environment()?;
        if subject.contains("://") {
            let remotes = remotes_config(subject, arrangement, login)?.connect(&clock).await?;
            let registry = Registry::open(&paths)?;
            let mut locks = Vec::new();
            for identity in remotes.identities() {
                locks.push(UnitLock::acquire(&paths, &identity, "forebay")?);
                registry.check(&identity, None)?;
            }
            let (device, label) = (remotes.device(), remotes.identity().to_string());
            return Ok(Self { device, clock, label, attachment: None, _remotes: Some(remotes), _locks: locks });
        }
        check_name(subject)?;
        let status = call(&paths.control_socket(subject), &Request::Status, |_| {}).await?;
        let front: ListenAddress = status["front"]
            .as_str()
            .unwrap_or_default()
            .parse()
            .map_err(|_| Error::new(Failure::Usage, format!("\"{subject}\" is no attachment that offers NBD")))?;
        let device = nbd_device(&front).await?;
        let (label, attachment) = (format!("\"{subject}\""), Some(subject.to_owned()));
        Ok(Self { device, clock, label, attachment, _remotes: None, _locks: Vec::new() })
    }

    /// Asks before anything on the device is overwritten, unless nothing is there.
    ///
    /// # Errors
    /// `WouldLoseData` when it must not be.
    pub async fn confirm_overwrite(&self, is_allowed: bool) -> Result<()> {
        if is_allowed || self.is_empty().await? {
            return Ok(());
        }
        confirm(&format!("{} is not empty, and this overwrites what it holds", self.label))
    }

    /// Whether the device says that nothing is stored on it. One that cannot tell is taken to hold something.
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
    pub async fn cache_status(&self) -> Result<Option<Value>> {
        let Some(name) = &self.attachment else { return Ok(None) };
        let socket = Paths::from_environment()?.control_socket(name);
        let mut status = call(&socket, &Request::Status, |_| {}).await?;
        Ok(status.get_mut("cache").map(Value::take).filter(|cache| !cache.is_null()))
    }
}

/// An NBD server as a device; its driver runs on the current runtime.
///
/// # Errors
/// When it cannot be reached.
pub async fn nbd_device(address: &ListenAddress) -> Result<SharedDevice> {
    let (client, driver) = NbdClient::connect(address).await?;
    tokio::spawn(driver);
    Ok(client)
}

/// How to reach the LUNs at `urls`, and what they make together.
///
/// # Errors
/// A bad URL, bad credentials, or several LUNs without a word on how they are one device.
pub fn remotes_config(urls: &str, arrange: &Arrange, login: &Login) -> Result<RemotesConfig> {
    let remotes = urls.split(',').map(|url| remote_config(url, login)).collect::<Result<Vec<RemoteConfig>>>()?;
    let arrangement = match (remotes.len(), arrange.stripe) {
        (1, None) => Arrangement::Single,
        (1, Some(_)) => {
            return Err(Error::new(Failure::Usage, "--stripe takes at least two URLs, separated by commas"));
        }
        (_, Some(unit)) => Arrangement::Stripe { unit_bytes: unit.0 },
        (_, None) => {
            let words = "several logical units are one device only as a stripe: give --stripe 64KiB";
            return Err(Error::new(Failure::Usage, words));
        }
    };
    Ok(RemotesConfig { remotes, arrangement })
}

/// How to reach the LUN at `url`.
///
/// # Errors
/// A bad URL or bad credentials.
pub fn remote_config(url: &str, login: &Login) -> Result<RemoteConfig> {
    let url: Url = url.parse().map_err(|error| Error::new(Failure::Usage, format!("{error}")))?;
    let user = login.chap_user.as_deref().or(url.user.as_deref());
    let credentials = credentials(user, login.chap_file.as_deref())?;
    Ok(RemoteConfig {
        credentials,
        initiator_name: initiator_name(login)?,
        with_digests: login.digests,
        link_round_trip: login.link_round_trip,
        replacement_timeout: REPLACEMENT_TIMEOUT_DEFAULT,
        connections: login.connections,
        split_connections: login.split_connections,
        url,
    })
}

/// How long a measurement waits for a target that is away: long enough for its restart.
const REPLACEMENT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// The initiator name to log in with.
///
/// # Errors
/// When the one given is none.
pub fn initiator_name(login: &Login) -> Result<String> {
    match &login.initiator_name {
        Some(name) if !iscsi::url::is_iscsi_name(name) => Err(Error::new(
            Failure::Usage,
            format!("\"{name}\" is no iSCSI name: write it like iqn.2026-11.org.example:host"),
        )),
        Some(name) => Ok(name.clone()),
        None => Ok(default_initiator_name()),
    }
}
