//! The runtime of a command.

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
    // A blocking task, such as a name lookup, may still run: it is not waited for longer.
    runtime.shutdown_timeout(SHUTDOWN_TIME_MAX);
    result
}

/// How long blocking tasks may still run when a command is over: enough for a write to a disk, not
/// for an answer from the network.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_millis(500);
