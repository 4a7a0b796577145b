//! The signals that end a process in an orderly way.

use stack::{Error, Result};
use tokio::signal::unix::{SignalKind, signal};

/// A future that completes at SIGTERM or SIGINT. The handlers are in place when this returns.
///
/// # Errors
/// When the handlers cannot be set.
pub fn termination() -> Result<impl Future<Output = ()>> {
    let listen = |kind| signal(kind).map_err(|error| Error::io("cannot handle signals", &error));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
