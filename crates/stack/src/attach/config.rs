//! What to attach, and how: what settings say of the whole.

use std::net::SocketAddr;
use std::time::Duration;

use front::{ListenAddress, SocketAccess};
use iscsi::url::Url;

use crate::cache_place::CacheConfig;
use crate::difference_place::DifferenceConfig;
use crate::error::{Error, Failure, Result};
use crate::log_place::LogConfig;
use crate::login::attachment_isid;
use crate::paths::Paths;
use crate::remotes::{RemotesConfig, number_sessions};
use crate::settings::Settings;
use crate::socket_names::{group_of, mode_of};

/// How long I/O waits for a target that is away, where nobody says it: as long as open-iscsi's, enough for a reboot.
const REPLACEMENT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);

/// What to attach, and how.
pub struct AttachConfig {
    /// The LUN or LUNs, and how to log in.
    pub remotes: RemotesConfig,
    /// Name for the control socket.
    pub name: String,
    /// The cache, if there is to be one.
    pub cache: Option<CacheConfig>,
    /// The write log, if there is to be one: over the cache, if there is one, too.
    pub log: Option<LogConfig>,
    /// Where what is written goes, if the LUN is to stay as it is; not beside a log.
    pub difference: Option<DifferenceConfig>,
    /// Where to offer it.
    pub front: ListenAddress,
    /// Who may connect there, where it is a socket file.
    pub front_access: SocketAccess,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Whether dirty data may replace what others have written there since.
    pub overwrites_changes: bool,
    /// Whether it is to be ready before the target is there.
    pub waits_for_target: bool,
    /// Where to serve metrics; loopback only.
    pub metrics: Option<SocketAddr>,
    /// What all this was made of.
    pub settings: Settings,
}

impl AttachConfig {
    /// The LUNs at `urls` with all that `settings` say.
    ///
    /// # Errors
    /// What cannot be, or cannot be together.
    pub fn of(urls: &str, settings: Settings, paths: &Paths) -> Result<Self> {
        settings.check()?;
        let mut remotes = RemotesConfig::of(urls, &settings)?;
        if !settings.is_given("timeout.replacement") {
            remotes.remotes.iter_mut().for_each(|remote| remote.waits.replacement = REPLACEMENT_TIMEOUT_DEFAULT);
        }
        let name = match (settings.text("name"), remotes.remotes.first()) {
            (Some(name), _) => name,
            (None, Some(first)) => default_name(&first.url),
            (None, None) => return Err(Error::new(Failure::Usage, "there is no URL of a logical unit to attach")),
        };
        let isid = settings.parsed("isid")?.unwrap_or_else(|| attachment_isid(&paths.control_socket(&name)));
        number_sessions(&mut remotes.remotes, Some(isid));
        let (log, difference) = (LogConfig::of(&settings)?, DifferenceConfig::of(&settings));
        if log.is_some() && difference.is_some() {
            let names = ["log.path", "difference.path"].map(|key| settings.name_of(key));
            return Err(Error::new(Failure::Usage, format!("{} cannot be used with {}", names[1], names[0])));
        }
        Ok(Self {
            remotes,
            cache: CacheConfig::of(&settings)?,
            log,
            difference,
            front: front(&settings, paths, &name)?,
            front_access: front_access(&settings)?,
            is_read_only: settings.is_on("read-only"),
            overwrites_changes: settings.is_on("overwrite-changes"),
            waits_for_target: settings.is_on("wait"),
            metrics: settings.parsed("metrics")?,
            name,
            settings,
        })
    }
}

fn front(settings: &Settings, paths: &Paths, name: &str) -> Result<ListenAddress> {
    let text = settings.text("front").unwrap_or_default();
    let refused = |why: String| Error::new(Failure::Usage, format!("{} {text}: {why}", settings.name_of("front")));
    match text.split_once(':') {
        None if text == "auto" => Ok(ListenAddress::Unix(paths.nbd_socket(name))),
        Some(("nbd", address)) => {
            absolute(address.parse().map_err(|error: front::address::ParseAddressError| refused(error.to_string()))?)
        }
        _ => Err(refused("use nbd:unix:PATH, nbd:ADDRESS:PORT or auto".to_owned())),
    }
}

fn front_access(settings: &Settings) -> Result<SocketAccess> {
    let number = |key: &str, parse: fn(&str) -> std::result::Result<u32, String>| {
        let context = |why| Error::new(Failure::Usage, format!("{}: {why}", settings.name_of(key)));
        settings.text(key).map(|text| parse(&text).map_err(context)).transpose()
    };
    Ok(SocketAccess { mode: number("socket.mode", mode_of)?, group: number("socket.group", group_of)? })
}

/// Other commands, run from other directories, find the socket by what `status` says.
fn absolute(address: ListenAddress) -> Result<ListenAddress> {
    match address {
        ListenAddress::Unix(path) => {
            let path = std::path::absolute(&path).map_err(|error| Error::io(path.display(), &error))?;
            Ok(ListenAddress::Unix(path))
        }
        tcp => Ok(tcp),
    }
}

/// The last part of the IQN and the LUN, in characters a file name can have.
fn default_name(url: &Url) -> String {
    let last = url.target.rsplit(':').next().unwrap_or(&url.target);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let clean: String = last.chars().map(|c| if is_allowed(c) { c } else { '-' }).take(40).collect();
    format!("{}-{}", clean.trim_start_matches('.'), url.lun)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_name_is_a_name() {
        for (url, name) in [
            ("iscsi://h/iqn.2026-11.io.forebay:disk1/0", "disk1-0"),
            ("iscsi://h/iqn.2026-11.io.forebay:a:b.c/3", "b.c-3"),
            ("iscsi://h/iqn.2026-11.io.forebay/0", "iqn.2026-11.io.forebay-0"),
        ] {
            let made = default_name(&url.parse().unwrap());
            assert_eq!(made, name);
            assert!(crate::paths::check_name(&made).is_ok());
        }
    }
}
