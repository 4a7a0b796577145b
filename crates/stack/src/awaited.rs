//! An attachment whose target is not there yet.
//!
//! Its sockets are there from the first moment. Local applications may connect at once; they get their first answer, with the size of the
//! device, when the target has given it, and in between they wait as they would for a target that went away later. When the replacement
//! timeout has passed they are hung up on, those that wait and those that come; the search goes on.
//!
//! ```text
//! start ─► reconnecting ──login──► Attachment
//!              │    └─ refused (no such target, no access): the end, with that error
//!     replacement timeout
//!              ▼
//!           failing: applications are turned away, the search goes on
//! ```
//!
//! Until the login nothing else is touched: no cache is opened or made, since it is not known for which LUN.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::attach::{AttachConfig, Attachment};
use crate::control::{Handler, Progress, Request};
use crate::error::{Error, Failure, Result};
use crate::flag::wait_until;
use crate::fronts::Fronts;
use crate::limits::{SEARCH_WAIT_MAX, SEARCH_WAIT_MIN};
use crate::listeners::Listeners;
use crate::metrics::MetricsServer;
use crate::paths::Paths;
use crate::remotes::{Remotes, RemotesConfig};
use crate::settings::Settings;
use crate::stack::StackConfig;
use crate::systemd;
use crate::time::system_clock;

/// An attachment that listens, and waits for its target.
pub struct Awaited {
    config: AttachConfig,
    listeners: Listeners,
}

impl Awaited {
    /// Listens.
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

    /// Where applications reach it, as they take it.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.fronts.addresses()
    }

    /// Where it listens for scrapes, which are answered when the target is there.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.listeners.metrics.as_ref().map(MetricsServer::address)
    }

    /// Waits for the target and attaches it. `None` when it was detached, or `signal` came, before that.
    ///
    /// # Errors
    /// What waiting does not help with: credentials, a LUN that does not exist; and all that may be wrong with an attachment
    /// ([`Attachment::start`]).
    pub async fn attach(self, paths: &Paths, signal: impl Future<Output = ()>) -> Result<Option<Attachment>> {
        let Self { config, listeners } = self;
        let config = config.stack;
        let clock: Arc<dyn Clock> = system_clock()?;
        let search = Rc::new(Search::new(&config, listeners.fronts.clone()));
        let mut signal = pin!(signal);
        systemd::ready();
        let found = async {
            let found = tokio::select! {
                biased;
                () = signal.as_mut() => Ok(None),
                () = wait_until(&search.stopping) => Ok(None),
                found = search.run(&config.remotes, &clock) => found.map(Some),
                () = search.turn_away() => unreachable!("applications are turned away for ever"),
                () = systemd::keep_informed(|| async { search.summary() }) => unreachable!("it is told for ever"),
            };
            search.ended.send_replace(true);
            found
        };
        let (found, ()) = tokio::join!(found, listeners.control.serve(Rc::clone(&search), wait_until(&search.ended)));
        let Some(remotes) = found? else { return Ok(None) };
        Attachment::over(remotes, config, paths, listeners, clock, signal).await
    }
}

/// How the search for a target stands.
struct Search {
    name: String,
    fronts: Fronts,
    portal: String,
    replacement_timeout: Duration,
    may_have_dirty_data: bool,
    state: RefCell<State>,
    hurry: Notify,
    /// `true` once nobody wants it any more.
    stopping: watch::Sender<bool>,
    /// `true` once it has come to an end.
    ended: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    attempts: u32,
    wait: Option<Duration>,
    last_error: Option<String>,
    is_failing: bool,
}

impl Search {
    fn new(config: &StackConfig, fronts: Fronts) -> Self {
        let remotes = &config.remotes.remotes;
        Self {
            name: config.name.clone(),
            fronts,
            portal: remotes.first().map(|remote| remote.url.portal.to_string()).unwrap_or_default(),
            replacement_timeout: remotes.iter().map(|remote| remote.waits.replacement).max().unwrap_or_default(),
            may_have_dirty_data: (config.cache.is_some() && config.difference.is_none()) || config.log.is_some(),
            state: RefCell::default(),
            hurry: Notify::new(),
            stopping: watch::Sender::new(false),
            ended: watch::Sender::new(false),
        }
    }

    /// Logs in, as often as it takes.
    async fn run(&self, config: &RemotesConfig, clock: &Arc<dyn Clock>) -> Result<Remotes> {
        let mut wait = SEARCH_WAIT_MIN;
        loop {
            self.state.borrow_mut().attempts += 1;
            let error = match config.connect(clock).await {
                Ok(remotes) => return Ok(remotes),
                Err(error) if may_pass(&error) => error,
                Err(error) => return Err(error),
            };
            tracing::warn!(%error, "the target is not there yet");
            {
                let mut state = self.state.borrow_mut();
                state.last_error = Some(error.to_string());
                state.wait = Some(wait);
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => wait = (wait * 2).min(SEARCH_WAIT_MAX),
                () = self.hurry.notified() => wait = SEARCH_WAIT_MIN,
            }
        }
    }

    /// Hangs up on applications when they have waited long enough, for ever.
    async fn turn_away(&self) {
        tokio::time::sleep(self.replacement_timeout).await;
        self.state.borrow_mut().is_failing = true;
        self.fronts.turn_away().await;
    }

    fn state_in_a_word(&self) -> &'static str {
        if self.state.borrow().is_failing { "failing" } else { "reconnecting" }
    }

    /// For the service manager, in a line.
    fn summary(&self) -> String {
        format!("{}: {} is not there yet", self.state_in_a_word(), self.portal)
    }

    /// As an attachment's, as far as it is known.
    fn status(&self) -> Value {
        let state = self.state.borrow();
        let mut status = json!({
            "kind": "attachment",
            "name": self.name,
            "pid": std::process::id(),
            "lun": null,
            "size_bytes": null,
            "remote": {
                "state": self.state_in_a_word(),
                "portal": self.portal,
                "last_error": state.last_error,
                "sessions": 0,
                "connections": 0,
                "reconnect_attempts": state.attempts,
                "reconnect_wait_ms": state.wait.map(|wait| wait.as_millis() as u64),
            },
            "cache": null,
            "log": null,
        });
        self.fronts.add_to(&mut status);
        status
    }

    fn detach(&self, keep_dirty: bool) -> Result<Value> {
        if self.may_have_dirty_data && !keep_dirty {
            let message =
                format!("{}: what may be dirty cannot be written back; --keep-dirty leaves it", self.summary());
            return Err(Error::new(Failure::Unreachable, message));
        }
        self.stopping.send_replace(true);
        Ok(json!({ "name": self.name }))
    }

    fn set(&self, key: &str, value: &str) -> Result<Value> {
        if key != "reconnect" {
            return Err(self.refusal());
        }
        Settings::of_running(key, value)?;
        self.hurry.notify_one();
        Ok(json!({ key: value }))
    }

    fn refusal(&self) -> Error {
        Error::new(Failure::Unreachable, self.summary())
    }
}

/// Whether the next attempt may come to something else without anybody doing anything here.
pub(crate) fn may_pass(error: &Error) -> bool {
    matches!(error.failure(), Failure::Unreachable | Failure::InUse)
}

impl Handler for Search {
    async fn handle(&self, request: Request, _progress: Progress) -> Result<Value> {
        match request {
            Request::Status => Ok(self.status()),
            Request::Clean | Request::Reload => Err(self.refusal()),
            Request::Set { key, value } => self.set(&key, &value),
            // A cache that was not opened is not removed either: it may hold dirty data.
            Request::Detach { keep_dirty, .. } => self.detach(keep_dirty),
        }
    }
}
