//! The signals that end a process in an orderly way, and one that ends none.

use rustix::process::Signal;
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

/// From now on a write that would make a file larger than `ulimit -f` or `LimitFSIZE=` allows fails, as on a disk that
/// is full. SIGXFSZ, which comes with it, would end the process; it is handled from here to its end, whether anybody
/// waits for it or not.
///
/// # Errors
/// When the handler cannot be set.
pub fn survive_size_limit() -> Result<()> {
    let kind = SignalKind::from_raw(Signal::XFSZ.as_raw());
    signal(kind).map(drop).map_err(|error| Error::io("cannot handle signals", &error))
}
