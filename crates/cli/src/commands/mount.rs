//! `mount`: the ext2 of a logical unit in a directory, in the foreground.

use std::pin::pin;

use stack::mount::{Mount as Running, MountConfig};
use stack::paths::Paths;
use stack::settings::Settings;
use stack::{Error, Failure, Result};

use super::signal;
use crate::arguments::Mount;
use crate::output::print_line;

/// `forebay mount`.
pub async fn run(arguments: Mount) -> Result<()> {
    let paths = Paths::from_environment()?;
    let signal = signal::termination_or_hangup()?;
    let mut signal = pin!(signal);
    let config = config(arguments)?;
    let ended = || Error::new(Failure::Other, "ended before anything was mounted");
    let running = Running::start(config, &paths, signal.as_mut()).await?.ok_or_else(ended)?;
    print_line(&format!("ready: {}", running.directory().display()));
    let again = async || match signal::termination_or_hangup() {
        Ok(signal) => signal.await,
        // It is still ended in time by the first one.
        Err(_) => std::future::pending().await,
    };
    running.run(signal, again).await
}

fn config(arguments: Mount) -> Result<MountConfig> {
    let mut settings = Settings::default();
    arguments.login.give_to(&mut settings)?;
    settings.check()?;
    let directory = std::path::absolute(&arguments.directory);
    let directory = directory.map_err(|error| Error::io(arguments.directory.display(), &error))?;
    Ok(MountConfig {
        source: arguments.source,
        directory,
        name: arguments.name,
        is_read_only: arguments.read_only,
        is_shared: arguments.shared,
        waits_for_target: arguments.wait,
        settings,
    })
}
