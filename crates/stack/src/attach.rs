//! An attachment: a stack, offered to local applications by its fronts, that answers under its name.
//!
//! ```text
//! fronts  ->  stack (difference, write log, cache, or none)  ->  remote LUN, or several as one
//! ```
//!
//! Order of the beginning: the sockets first (a name or place that is taken is refused at once),
//! then the stack. Applications that connect before it is open wait. Order of the end: the fronts
//! accept no more clients and finish the requests under way, then the stack is closed. Until the
//! end the attachment answers on its control socket: it reports what it waits for, and can be told
//! to keep dirty data.
//!
//! A start can be interrupted wherever it waits. What was opened is closed then, and the end comes
//! within five seconds.
//!
//! This file holds the start; `running` what runs side by side while it serves, and `config` the
//! settings of the whole.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use base::clock::Clock;
use front::Exported;
use tokio::sync::watch::Sender;

use crate::control::ControlServer;
use crate::error::Result;
use crate::fronts::Fronts;
use crate::fronts::kind::Served;
use crate::listeners::Listeners;
use crate::metrics::MetricsServer;
use crate::paths::Paths;
use crate::remotes::Remotes;
use crate::stack::{Stack, StackConfig};
use crate::time::system_clock;

mod config;
mod running;

pub use config::AttachConfig;

/// An attachment that is open and not served yet.
pub struct Attachment {
    stack: Stack,
    fronts: Fronts,
    control: ControlServer,
    metrics: Option<MetricsServer>,
}

impl Attachment {
    /// Listens, connects and opens; nothing is served before [`Attachment::run`]. `None` when
    /// `signal` came before that was done.
    ///
    /// # Errors
    /// Whatever prevents the start; nothing is changed then.
    pub async fn start(config: AttachConfig, paths: &Paths, signal: impl Future<Output = ()>) -> Result<Option<Self>> {
        let listeners = Listeners::open(&config.stack.name, config.metrics, &config.fronts, paths)?;
        let clock: Arc<dyn Clock> = system_clock()?;
        let opening = async |interrupted: &Sender<bool>| Stack::open(config.stack, paths, clock, interrupted).await;
        let stack = interruptible(signal, opening).await?;
        Self::with_listeners(listeners, stack).await
    }

    /// Begins to serve a stack that is open at these listeners.
    ///
    /// # Errors
    /// As [`Attachment::start`]; the stack is closed then.
    pub(crate) async fn with_listeners(listeners: Listeners, stack: Option<Stack>) -> Result<Option<Self>> {
        let Listeners { control, metrics, fronts } = listeners;
        let Some(stack) = stack else { return Ok(None) };
        let attached = match fronts.open(&served(&stack)) {
            Ok(()) => stack.note_attached().await,
            refused => refused,
        };
        if let Err(error) = attached {
            stack.note_unused();
            let ended = stack.end_at_once().await;
            stack.stop_background();
            return ended.and(Err(error));
        }
        Ok(Some(Self { stack, fronts, control, metrics }))
    }

    /// The addresses of its fronts, in the form that applications take.
    pub fn addresses(&self) -> Vec<String> {
        self.fronts.addresses()
    }

    /// The address where it listens for scrapes.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(MetricsServer::address)
    }
}

/// Opens the stack over a login that was done before. `None` when `signal` came before that was done.
///
/// # Errors
/// As [`Attachment::start`].
pub(crate) async fn opened_over(
    remotes: Remotes,
    config: StackConfig,
    paths: &Paths,
    clock: Arc<dyn Clock>,
    signal: impl Future<Output = ()>,
) -> Result<Option<Stack>> {
    let opening = async |interrupted: &Sender<bool>| Stack::over(remotes, config, paths, clock, interrupted).await;
    interruptible(signal, opening).await
}

/// The device that the fronts offer, and its locks.
fn served(stack: &Stack) -> Served {
    let (device, losses, turns, admission) = (stack.device(), stack.losses(), stack.turns(), stack.admission());
    let exported = Exported { device, losses, turns, admission };
    Served { exported, compares_below: stack.compares_below() }
}

/// Runs `work` with a flag that is raised when `signal` comes.
async fn interruptible<T>(signal: impl Future<Output = ()>, work: impl AsyncFnOnce(&Sender<bool>) -> T) -> T {
    let interrupted = Sender::new(false);
    let telling = async {
        signal.await;
        interrupted.send_replace(true);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = telling => unreachable!("it is pending for ever"),
        done = work(&interrupted) => done,
    }
}

#[cfg(test)]
mod tests;
