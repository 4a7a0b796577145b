//! What a command runs on.

use std::future::Future;
use std::time::Duration;

use stack::{Error, Result};

use super::signal;

/// Runs a command on a runtime of one thread: connections, rings and timers of one stack stay together.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("cannot start the runtime", &error))?;
    let result = runtime.block_on(async {
        signal::survive_size_limit()?;
        future.await
    });
    // A name that is still being resolved, or the like, is not waited for when everything is over.
    runtime.shutdown_timeout(SHUTDOWN_TIME_MAX);
    result
}

/// How long what runs on other threads may take to its end when a command is over: a write to a disk, not an answer of
/// the network.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_millis(500);
