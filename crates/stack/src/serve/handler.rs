//! A target while it is served: its requests, its reloads and its end.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use base::clock::Clock;
use iscsi::target::Authentication;
use target::{BoundServer, TargetServer};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::reloading::{ReloadSource, Reread};
use crate::control::{ControlRequest, Handler, Progress, is_no_daemon};
use crate::error::{Error, Failure, Result};
use crate::events::{EventKind, EventLog};
use crate::limits::{LAST_FLUSH_TIME_MAX, RETIRING_WAIT_MAX, WATCH_INTERVAL};
use crate::metrics::MetricsServer;
use crate::reload_lines::ReloadLines;
use crate::settings::kind::switch;
use crate::status::target::{ServedTarget, TargetStatus};
use crate::status::{Answer, ProcessStatus, Reloaded};
use crate::systemd;
use crate::units::{Changes, Units};

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// A target that is served.
pub(super) struct ServeHandler {
    name: String,
    events: Rc<EventLog>,
    server: TargetServer,
    /// Never borrowed across a wait.
    units: RefCell<Units>,
    reload: ReloadSource,
    lines: ReloadLines,
    /// Held by one reload at a time, and by the end.
    reloading: tokio::sync::Mutex<()>,
    stopping: watch::Sender<bool>,
    /// The result of the end, once it has come.
    ended: watch::Sender<Option<std::result::Result<(), String>>>,
}

impl ServeHandler {
    pub(super) fn new(
        name: String,
        (server, units): (TargetServer, Units),
        reload: ReloadSource,
        (clock, events): (Arc<dyn Clock>, Rc<EventLog>),
    ) -> Self {
        Self {
            name,
            events,
            server,
            units: RefCell::new(units),
            reload,
            lines: ReloadLines::new(clock),
            reloading: tokio::sync::Mutex::new(()),
            stopping: watch::Sender::new(false),
            ended: watch::Sender::new(None),
        }
    }

    /// Waits until it stops.
    pub(super) fn stopping(&self) -> impl Future<Output = ()> + use<> {
        let mut receiver = self.stopping.subscribe();
        async move {
            // An error means that the sender is gone, and all that could be waited for.
            let _ = receiver.wait_for(|is_stopping| *is_stopping).await;
        }
    }

    /// Goes on with `work` until it stops.
    pub(super) async fn until_stop(&self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.stopping() => {}
        }
    }

    /// Stops after `signal`.
    pub(super) async fn stop_by(&self, signal: impl Future<Output = ()>) {
        let stop = async {
            signal.await;
            self.stopping.send_replace(true);
        };
        self.until_stop(stop).await;
    }

    /// Serves until it stops, and closes the logical units.
    ///
    /// # Errors
    /// When the server cannot run, or the last flush fails.
    pub(super) async fn serve(&self, bound: BoundServer) -> Result<()> {
        let served = bound.run(self.stopping()).await;
        self.stopping.send_replace(true);
        let closed = self.close().await;
        // The caller that asked for the end gets the answer when the files are not used any more.
        let end = match &closed {
            Ok(()) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        self.ended.send_replace(Some(end));
        served.map_err(|error| Error::io("the target stopped", &error)).and(closed)
    }

    /// Serves the metrics until it stops, if there are any. A target goes on without them.
    pub(super) async fn serve_metrics(&self, metrics: Option<MetricsServer>) {
        let Some(metrics) = metrics else { return };
        if let Err(error) = metrics.serve(async || self.status().await, self.stopping()).await {
            tracing::error!(%error, "there are no metrics any more");
        }
    }

    /// Keeps the service manager informed until it stops.
    pub(super) async fn inform(&self) {
        systemd::ready();
        tokio::select! {
            () = systemd::keep_informed(|| self.summary()) => {}
            () = self.stopping() => systemd::stopping(),
        }
    }

    /// A line for the service manager.
    async fn summary(&self) -> String {
        let status = self.server.status().await;
        format!("{}, {}", counted(status.sessions.len(), "session"), counted(status.connections.len(), "connection"))
    }

    async fn status(&self) -> ProcessStatus {
        let server = self.server.status().await;
        let addresses: Vec<String> = self.server.addresses().iter().map(SocketAddr::to_string).collect();
        let targets = self.server.targets();
        let targets = targets.iter().map(|it| ServedTarget { name: it.name.clone(), luns: it.luns.luns() }).collect();
        let disks = self.units.borrow().disks();
        let troubles = self.units.borrow().troubles();
        let settings = disks.into_iter().map(|(key, disk)| (key, on_or_off(disk.is_enabled()).to_owned())).collect();
        ProcessStatus::Target(Box::new(TargetStatus {
            name: self.name.clone(),
            pid: std::process::id(),
            address: addresses.join(" "),
            targets,
            troubles,
            settings,
            server,
        }))
    }

    /// Looks from time to time, for ever, and logs what is new.
    pub(super) async fn tell_of_troubles(&self) {
        let mut known = Vec::new();
        loop {
            let troubles = self.units.borrow().troubles();
            let noting = self.units.borrow().note_cuts();
            noting.await;
            troubles
                .iter()
                .filter(|trouble| !known.contains(*trouble))
                .for_each(|trouble| tracing::error!("{trouble}"));
            known = troubles;
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    fn set(&self, key: &str, value: &str) -> Result<Answer> {
        let disks = self.units.borrow().disks();
        let Some((_, disk)) = disks.iter().find(|(setting, _)| setting == key) else {
            let known: Vec<&str> = disks.iter().map(|(setting, _)| setting.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("\"{key}\" is no setting of \"{}\", which has {known}", self.name);
            return Err(Error::new(Failure::Usage, message));
        };
        let refused = |why: String| Error::new(Failure::Usage, format!("{key} {value}: {why}"));
        disk.set_enabled(switch(value).map_err(refused)?);
        self.events.note(EventKind::Set, format!("{key}={value}"));
        Ok(Answer::set(key, value))
    }
}

impl ServeHandler {
    /// Makes everything durable, and notes size and time of the LUNs' files.
    async fn close(&self) -> Result<()> {
        let closing = async {
            let _none = self.reloading.lock().await;
            let closing = self.units.borrow_mut().close();
            closing.await
        };
        tokio::time::timeout(LAST_FLUSH_TIME_MAX, closing).await.unwrap_or_else(|_| {
            let message = "the last flush did not end in time: what initiators have not flushed may not be durable";
            Err(Error::new(Failure::Other, message))
        })
    }

    async fn wait_for_end(&self) -> Result<()> {
        let mut receiver = self.ended.subscribe();
        // The sender is this handler's.
        let Ok(ended) = receiver.wait_for(Option::is_some).await else { return Ok(()) };
        match &*ended {
            Some(Err(message)) => Err(Error::new(Failure::Other, message.clone())),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// Reads the configuration again and applies it as a whole or not at all; sessions go on.
    async fn reload(&self) -> Result<Reloaded> {
        let _one = self.reloading.lock().await;
        systemd::reloading();
        let reloaded = self.take_over().await;
        systemd::ready();
        match reloaded {
            Ok(TakenOver { luns, portals: (portals_added, portals_removed), sessions_ended }) => {
                let Changes { added, removed, resized } = luns;
                let reloaded = Reloaded {
                    name: self.name.clone(),
                    luns_added: added,
                    luns_removed: removed,
                    luns_resized: resized,
                    portals_added,
                    portals_removed,
                    sessions_ended,
                };
                self.lines.taken_over(&reloaded);
                Ok(reloaded)
            }
            Err(error) => {
                self.lines.refused(&error);
                Err(error)
            }
        }
    }

    async fn take_over(&self) -> Result<TakenOver> {
        let Reread { portals, targets, discovery, quota } = self.reload.read(self.server.portals())?;
        self.wait_for_retiring().await;
        let portals = portals.map(|portals| self.server.bind_portals(&portals)).transpose();
        let portals = portals.map_err(|error| Error::io("cannot serve", &error))?;
        let (targets, luns) = self.units.borrow_mut().apply(&targets)?;
        self.server.set_quota(quota);
        self.server.set_discovery_authentication(Authentication { accounts: discovery, own: None });
        let portals = portals.map(|portals| self.server.set_portals(portals)).unwrap_or_default();
        let sessions_ended = self.server.set_targets(targets);
        Ok(TakenOver { luns, portals, sessions_ended })
    }

    /// Waits for LUNs that an earlier reload removed: their files may be used again now.
    async fn wait_for_retiring(&self) {
        let deadline = tokio::time::Instant::now() + RETIRING_WAIT_MAX;
        let mut unfinished = self.units.borrow_mut().take_retiring();
        for (spec, retired) in &mut unfinished {
            if tokio::time::timeout_at(deadline, retired).await.is_err() {
                tracing::warn!(lun = %spec, "a LUN that was removed is still in use");
            }
        }
        unfinished.retain(|(_, retired)| !retired.is_finished());
        self.units.borrow_mut().put_retiring(unfinished);
    }

    /// Reloads on SIGHUP. Never ends.
    pub(super) async fn reload_on_hangup(&self) {
        let Ok(mut hangups) = signal(SignalKind::hangup()) else { return std::future::pending().await };
        while hangups.recv().await.is_some() {
            // Errors are logged; no caller waits for an answer.
            let _ = self.reload().await;
        }
    }
}

/// The changes made by a reload of the configuration.
struct TakenOver {
    luns: Changes,
    /// New portals, and those that are gone.
    portals: (usize, usize),
    sessions_ended: usize,
}

fn on_or_off(flag: bool) -> &'static str {
    if flag { "on" } else { "off" }
}

impl Handler for ServeHandler {
    async fn handle(&self, request: ControlRequest, _progress: Progress) -> Result<Answer> {
        match request {
            ControlRequest::Status => Ok(Answer::Status(Box::new(self.status().await))),
            ControlRequest::Events { after } => Ok(self.events.answer(after)),
            ControlRequest::Set { key, value } => self.set(&key, &value),
            ControlRequest::Detach { keep_dirty: false, remove_cache: false } => {
                self.stopping.send_replace(true);
                self.wait_for_end().await?;
                Ok(Answer::ends(&self.name))
            }
            ControlRequest::Reload => self.reload().await.map(Answer::Reloaded),
            ControlRequest::Start { .. } | ControlRequest::Hold { .. } => Err(is_no_daemon(&self.name)),
            ControlRequest::Flush => {
                let message = format!("\"{}\" is a target: its initiators flush what they write", self.name);
                Err(Error::new(Failure::Usage, message))
            }
            ControlRequest::Clean | ControlRequest::Detach { .. } => {
                let message = format!("\"{}\" is a target: it has no cache to clean, to keep or to remove", self.name);
                Err(Error::new(Failure::Usage, message))
            }
        }
    }
}
