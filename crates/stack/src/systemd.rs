//! The service manager: sockets that it passes, and messages to it.
//!
//! Sockets come as descriptors from 3 on (`LISTEN_FDS`, sd_listen_fds(3)); messages go to `NOTIFY_SOCKET`
//! (sd_notify(3)). Without these variables nothing happens.

use std::future::Future;
use std::net::TcpListener;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::error::{Error, Failure, Result};
use crate::limits::SERVICE_STATUS_INTERVAL;

/// The TCP sockets that the service manager passed; none when it passed none.
///
/// # Errors
/// A descriptor that is no listening TCP socket.
pub fn passed_listeners() -> Result<Vec<TcpListener>> {
    let mut passed = listenfd::ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..passed.len() {
        match passed.take_tcp_listener(index) {
            Ok(listener) => listeners.extend(listener),
            Err(error) => {
                let message = format!("descriptor {} from the service manager is no TCP socket: {error}", 3 + index);
                return Err(Error::new(Failure::Usage, message));
            }
        }
    }
    Ok(listeners)
}

/// Reports that the process serves.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Reports that the configuration is being read again, until [`ready`]. The time distinguishes this
/// from an earlier reload (`Type=notify-reload`, sd_notify(3)).
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "there is no clock to tell the service manager of a reload by"),
    }
}

/// Reports that the process ends in order.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Sends `status` to the service manager when it has changed, and the watchdog's beats of this
/// thread, for ever.
pub async fn keep_informed<F: Future<Output = String>>(status: impl Fn() -> F) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return std::future::pending().await;
    }
    // Half the watchdog's time: one beat may be late.
    let watchdog = sd_notify::watchdog_enabled().map(|interval| interval / 2);
    let interval = watchdog.unwrap_or(Duration::MAX).min(SERVICE_STATUS_INTERVAL);
    let mut said = String::new();
    loop {
        let now = status().await;
        if now != said {
            tell(&[NotifyState::Status(&now)]);
            said = now;
        }
        if watchdog.is_some() {
            tell(&[NotifyState::Watchdog]);
        }
        tokio::time::sleep(interval).await;
    }
}

/// A service manager that cannot be reached is not waited for.
fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}
