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
use super::signal;
use crate::arguments::Attach;
use crate::output::print_line;

/// `forebay attach`.
pub async fn run(arguments: Attach) -> Result<()> {
    let paths = Paths::from_environment()?;
    let signal = signal::termination_or_hangup()?;
    let mut signal = pin!(signal);
    let config = config(arguments, &paths)?;
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

/// The configuration in the command line, and in the file that it names.
fn config(arguments: Attach, paths: &Paths) -> Result<AttachConfig> {
    let mut settings = Settings::default();
    arguments.options.give_to(&mut settings)?;
    for setting in &arguments.set {
        let (key, value) = key_and_value(setting)?;
        settings.give(key, OsStr::new(value), Origin::Set)?;
    }
    let url = arguments.config.as_deref().map(|path| settings.read(path)).transpose()?.flatten();
    match arguments.urls.or(url) {
        Some(urls) => AttachConfig::of(&urls, settings, paths),
        None => Err(Error::new(Failure::Usage, "there is no URL of a logical unit: give one, or `url` in the file")),
    }
}
