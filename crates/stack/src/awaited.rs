//! An attachment whose target cannot be reached yet.
//!
//! Its sockets are there from the first moment. Local applications may connect at once. They get
//! their first answer, with the size of the device, when the target has reported it; until then
//! they wait as they would for a target that went away later. When the replacement timeout has
//! passed, waiting and new applications are disconnected; the search goes on.
//!
//! ```text
//! start ─► reconnecting ──login──► Attachment
//!              │    │   └─ gone again before its stores are open: the search goes on
//!              │    └─ refused (no such target, no access): the end, with that error
//!     replacement timeout
//!              ▼
//!           failing: applications are turned away, the search goes on
//! ```
//!
//! Until the login nothing else is touched: no cache is opened or made, since its LUN is not known.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use base::clock::Clock;

use crate::attach::{AttachConfig, Attachment, opened_over};
use crate::error::{Failure, Result};
use crate::listeners::Listeners;
use crate::metrics::MetricsServer;
use crate::paths::Paths;
use crate::search::{Search, Sought};
use crate::systemd;
use crate::time::system_clock;

/// An attachment that listens, and waits for its target.
pub struct Awaited {
    config: AttachConfig,
    listeners: Listeners,
}

impl Awaited {
    /// Opens the listeners of all fronts.
    ///
    /// # Errors
    /// A name or an address that is taken.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(config: AttachConfig, paths: &Paths) -> Result<Self> {
        let listeners = Listeners::open(&config.stack.name, config.metrics, &config.fronts, paths)?;
        Ok(Self { config, listeners })
    }

    /// The addresses of its fronts, in the form that applications take.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.fronts.addresses()
    }

    /// The address where it listens for scrapes, which are answered when the target is found.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.listeners.metrics.as_ref().map(MetricsServer::address)
    }

    /// Waits for the target and attaches. `None` when it was detached, or `signal` came, before
    /// that.
    ///
    /// # Errors
    /// Errors that waiting does not cure: credentials, a LUN that does not exist; and those of an
    /// attachment ([`Attachment::start`]).
    pub async fn attach(self, paths: &Paths, signal: impl Future<Output = ()>) -> Result<Option<Attachment>> {
        let Self { config, listeners } = self;
        let config = config.stack;
        let clock: Arc<dyn Clock> = system_clock()?;
        let may_have_dirty_data = (config.cache.is_some() && config.difference.is_none()) || config.log.is_some();
        let mut signal = pin!(signal);
        systemd::ready();
        let mut lost = None;
        loop {
            let sought = Sought::Attachment(listeners.fronts.clone(), Box::new(config.start_status()));
            let search = Search::new(sought, &config.name, &config.remotes, listeners.control.events())
                .with_dirty_data(may_have_dirty_data)
                .after(lost.take());
            let found = search.until_found(&config.remotes, &clock, &listeners.control, signal.as_mut()).await?;
            let Some(remotes) = found else { return Ok(None) };
            match opened_over(remotes, config.clone(), paths, Arc::clone(&clock), signal.as_mut()).await {
                Err(error) if error.failure() == Failure::Unreachable => lost = Some(error),
                opened => return Attachment::with_listeners(listeners, opened?).await,
            }
        }
    }
}
