//! The configuration of an attachment, and the settings of the whole.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cache::Mode;
use iscsi::url::Url;

use crate::cache_place::{CacheConfig, may_delay_shared_writes};
use crate::difference_place::DifferenceConfig;
use crate::error::{Error, Failure, Result};
use crate::fronts;
use crate::fronts::kind::FrontConfig;
use crate::fronts::options::FrontOptions;
use crate::log_place::LogConfig;
use crate::login::attachment_isid;
use crate::paths::Paths;
use crate::remotes::{Arrangement, RemotesConfig, number_sessions};
use crate::settings::Settings;
use crate::stack::StackConfig;

/// How long I/O waits for a target that is away, by default: as long as with open-iscsi, enough for
/// a reboot.
const REPLACEMENT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);

/// The configuration of an attachment.
pub struct AttachConfig {
    /// The stack that is offered.
    pub stack: StackConfig,
    /// The fronts.
    pub fronts: Vec<FrontConfig>,
    /// Whether it starts before its target can be reached.
    pub waits_for_target: bool,
    /// The address to serve metrics on; loopback only.
    pub metrics: Option<SocketAddr>,
}

impl AttachConfig {
    /// The LUNs at `urls` with all `settings`.
    ///
    /// # Errors
    /// `Usage` for a setting that is wrong, or settings that exclude each other.
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
        if settings.is_on("shared") {
            check_shared(&remotes, &settings)?;
        }
        let (log, difference) = (LogConfig::of(&settings)?, DifferenceConfig::of(&settings));
        if log.is_some() && difference.is_some() {
            let names = ["log.path", "difference.path"].map(|key| settings.name_of(key));
            return Err(Error::new(Failure::Usage, format!("{} cannot be used with {}", names[1], names[0])));
        }
        let front_options = FrontOptions::of(&settings, &name, paths)?;
        Ok(Self {
            fronts: fronts(&settings, &front_options, &|kind| paths.front_socket(&name, kind))?,
            waits_for_target: settings.is_on("wait"),
            metrics: settings.parsed("metrics")?,
            stack: StackConfig {
                remotes,
                cache: CacheConfig::of(&settings)?,
                log,
                difference,
                overwrites_changes: settings.is_on("overwrite-changes"),
                name,
                settings,
            },
        })
    }
}

/// Refuses settings that are impossible when other hosts use the LUN at the same time.
fn check_shared(remotes: &RemotesConfig, settings: &Settings) -> Result<()> {
    let shared = settings.name_of("shared");
    let refused = |message: String| Err(Error::new(Failure::Usage, message));
    if let Arrangement::Stripe { .. } = remotes.arrangement {
        return refused(format!(
            "{shared} takes one logical unit: it cannot be used with {}",
            settings.name_of("stripe")
        ));
    }
    for key in ["log.path", "difference.path", "generation"] {
        if settings.is_given(key) {
            return refused(format!("{} cannot be used with {shared}", settings.name_of(key)));
        }
    }
    if settings.is_on("cache.exclusive") {
        return refused(format!(
            "{} says that nobody else writes, and {shared} that others do",
            settings.name_of("cache.exclusive")
        ));
    }
    let mode: Option<Mode> = if settings.is_given("cache.mode") { settings.parsed("cache.mode")? } else { None };
    if let Some(mode) = mode.filter(|mode| mode.delays_writes() && !may_delay_shared_writes()) {
        let option = settings.name_of("cache.mode");
        return refused(format!(
            "{option} {mode} would keep from others what is written: with {shared} it is write-through or \
             write-around"
        ));
    }
    Ok(())
}

/// The fronts; those without a place are at `usual`.
fn fronts(settings: &Settings, options: &FrontOptions, usual: &dyn Fn(&str) -> PathBuf) -> Result<Vec<FrontConfig>> {
    let parse = |text: String| {
        let refused = |why| Error::new(Failure::Usage, format!("{} {text}: {why}", settings.name_of("front")));
        let config = fronts::parse(&text, usual).map_err(refused)?;
        Ok(FrontConfig { options: options.clone(), ..config })
    };
    settings.texts("front").into_iter().map(parse).collect()
}

/// The last part of the IQN and the LUN, in characters a file name can have.
fn default_name(url: &Url) -> String {
    let last = url.target.rsplit(':').next().unwrap_or(&url.target);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let clean: String = last.chars().map(|c| if is_allowed(c) { c } else { '-' }).take(40).collect();
    format!("{}-{}", clean.trim_start_matches(['.', '-']), url.lun)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_name_is_a_name() {
        for (url, name) in [
            ("iscsi://h/iqn.2026-11.io.forebay:disk1/0", "disk1-0"),
            ("iscsi://h/iqn.2026-11.io.forebay:a:b.c/3", "b.c-3"),
            ("iscsi://h/iqn.2026-11.io.forebay:-a/3", "a-3"),
            ("iscsi://h/iqn.2026-11.io.forebay/0", "iqn.2026-11.io.forebay-0"),
        ] {
            let made = default_name(&url.parse().unwrap());
            assert_eq!(made, name);
            assert!(crate::paths::check_name(&made).is_ok());
        }
    }
}
