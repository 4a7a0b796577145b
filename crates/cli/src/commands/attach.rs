//! `attach`: a remote LUN for local applications, in the foreground.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::pin::pin;

use stack::attach::{AttachConfig, Attachment};
use stack::awaited::Awaited;
use stack::paths::Paths;
use stack::settings::{Origin, Settings};
use stack::{Error, Failure, Result};

use super::control::key_and_value;
use super::{keeping, signal};
use crate::arguments::Attach;
use crate::output::print_line;

/// `forebay attach`.
pub async fn run(arguments: Attach) -> Result<()> {
    let ended = attach(arguments).await;
    // A daemon that did not start this process learns from it how it ended.
    daemon::end_note::leave(&ended);
    ended
}

async fn attach(arguments: Attach) -> Result<()> {
    let paths = Paths::from_environment()?;
    if arguments.persist {
        let (urls, settings) = given(arguments)?;
        return keeping::persist(&urls, &settings, &paths).await;
    }
    let signal = signal::termination_or_hangup()?;
    let mut signal = pin!(signal);
    let (urls, settings) = given(arguments)?;
    let config = AttachConfig::of(&urls, settings, &paths)?;
    // Everything runs on this thread, so that each line of the log has the name.
    let _named = tracing::error_span!("attachment", name = %config.stack.name).entered();
    let attachment = if config.waits_for_target {
        let awaited = Awaited::start(config, &paths)?;
        announce(&awaited.addresses(), awaited.metrics_address());
        match awaited.attach(&paths, signal.as_mut()).await? {
            Some(attachment) => attachment,
            // The signal came after `ready:` was printed: an orderly end.
            None => return Ok(()),
        }
    } else {
        let interrupted = || Error::new(Failure::Other, "ended by a signal before anything was attached");
        let attachment = Attachment::start(config, &paths, signal.as_mut()).await?.ok_or_else(interrupted)?;
        announce(&attachment.addresses(), attachment.metrics_address());
        attachment
    };
    attachment.run(signal).await
}

fn announce(addresses: &[String], metrics: Option<SocketAddr>) {
    if let Some(metrics) = metrics {
        print_line(&format!("metrics: {metrics}"));
    }
    for address in addresses {
        print_line(&format!("ready: {address}"));
    }
}

/// What the command line says, and the file that it names: the logical units, and the settings.
fn given(arguments: Attach) -> Result<(String, Settings)> {
    let mut settings = Settings::default();
    arguments.options.give_to(&mut settings)?;
    for setting in &arguments.set {
        let (key, value) = key_and_value(setting)?;
        settings.give(key, OsStr::new(value), Origin::Set)?;
    }
    let url = arguments.config.as_deref().map(|path| settings.read(path)).transpose()?.flatten();
    match arguments.urls.or(url) {
        Some(urls) => Ok((urls, settings)),
        None => Err(Error::new(Failure::Usage, "there is no URL of a logical unit: give one, or `url` in the file")),
    }
}
