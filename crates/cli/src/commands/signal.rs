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

/// The same, and at SIGHUP: a terminal that is closed ends what was begun there as orderly as Ctrl-C does, unless
/// `nohup` was asked to keep that away.
///
/// # Errors
/// When the handlers cannot be set.
pub fn termination_or_hangup() -> Result<impl Future<Output = ()>> {
    let ended = termination()?;
    let is_ignored = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status));
    let hangup = (!is_ignored).then(|| signal(SignalKind::hangup())).transpose();
    let mut hangup = hangup.map_err(|error| Error::io("cannot handle signals", &error))?;
    Ok(async move {
        let hung_up = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ended => {}
            _ = hung_up => {}
        }
    })
}

/// Whether a process with this `/proc/PID/status` ignores SIGHUP (proc(5), `SigIgn`: bit 0 is signal 1).
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

/// From now on a write that would make a file larger than `ulimit -f` or `LimitFSIZE=` allows
/// fails, as on a full disk. SIGXFSZ, which comes with it, would end the process; the handler set
/// here ignores it for the life of the process.
///
/// # Errors
/// When the handler cannot be set.
pub fn survive_size_limit() -> Result<()> {
    let kind = SignalKind::from_raw(Signal::XFSZ.as_raw());
    signal(kind).map(drop).map_err(|error| Error::io("cannot handle signals", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_keeps_away_is_seen() {
        assert!(ignores_hangup("Name:\tforebay\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("Name:\tforebay\nSigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup(""));
    }
}
