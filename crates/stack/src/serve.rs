//! Serving: targets and their logical units, from flags or a configuration file, until a signal.
//!
//! A file or block device LUN keeps its serial number in a sidecar; a RAM LUN has a new one at
//! every start, so that no cache ever matches data that is lost.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use base::clock::Clock;
use iscsi::chap::Credentials;
use iscsi::target::{Authentication, TargetPortal};
use target::{BoundServer, Quota, TargetServer, TargetServerOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::busy_polling::BusyPolling;
use crate::config::{self, Configuration};
use crate::control::{ControlRequest, ControlServer, Handler, Progress, is_no_daemon};
use crate::descriptors;
use crate::error::{Error, Failure, Result};
use crate::limits::{LAST_FLUSH_TIME_MAX, RETIRING_WAIT_MAX, WATCH_INTERVAL};
use crate::lun_check;
use crate::lun_spec::{FileIdentity, LunSpec};
use crate::metrics::{MetricsServer, Reach};
use crate::own_stores::OwnStores;
use crate::paths::{Paths, check_name};
use crate::reload_lines::ReloadLines;
use crate::settings::kind::switch;
use crate::status::target::{ServedTarget, TargetStatus};
use crate::status::{Answer, ProcessStatus, Reloaded};
use crate::systemd;
use crate::target_config::TargetConfig;
use crate::time::system_clock;
use crate::units::{Changes, Units};

/// The configuration of a target process.
#[derive(Debug)]
pub struct ServeConfig {
    /// Name for the control socket.
    pub name: String,
    /// Addresses to listen on.
    pub portals: Vec<TargetPortal>,
    /// Whether the user allows addresses that other machines reach.
    pub allow_remote: bool,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// How long sessions poll their sockets before they sleep.
    pub busy_polling: BusyPolling,
    /// The limits for peers.
    pub quota: Quota,
    /// Sockets that are bound already, in place of the portals.
    pub listeners: Vec<std::net::TcpListener>,
    /// The accounts for discovery; without any, every initiator may ask for the targets.
    pub discovery: Vec<Credentials>,
    /// The targets.
    pub targets: Vec<TargetConfig>,
    /// The configuration file, to be read again.
    pub source: Option<PathBuf>,
}

impl ServeConfig {
    /// Refuses an impossible configuration, without opening any file.
    ///
    /// # Errors
    /// The first error.
    pub fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        let usage = |message: String| Err(Error::new(Failure::Usage, message));
        if self.targets.is_empty() {
            return usage("there is no target to serve".into());
        }
        if let Some(portal) =
            self.portals.iter().map(|portal| portal.address).find(|address| !address.ip().is_loopback())
            && !self.allow_remote
        {
            return usage(format!("{portal} can be reached from other machines: give --allow-remote if that is meant"));
        }
        for (index, target) in self.targets.iter().enumerate() {
            target.check(&self.portals)?;
            if !iscsi::url::is_iscsi_name(&target.iqn) {
                return usage(format!(
                    "\"{}\" is no iSCSI name: write it like iqn.2026-11.org.example:disks",
                    target.iqn
                ));
            }
            if self.targets[..index].iter().any(|other| other.iqn.eq_ignore_ascii_case(&target.iqn)) {
                return usage(format!("the target {} is there twice", target.iqn));
            }
            for (index, lun) in target.luns.iter().enumerate() {
                if target.luns[..index].iter().any(|other| other.lun == lun.lun) {
                    return usage(format!("{} has two LUNs {}", target.iqn, lun.lun));
                }
            }
        }
        self.check_files()
    }

    /// Checks the files and devices of the LUNs before they are opened; with `paths`, also against
    /// the stores of this host.
    ///
    /// # Errors
    /// The first logical unit that cannot be served.
    pub fn check_backends(&self, paths: Option<&Paths>) -> Result<()> {
        let own_stores = paths.map(OwnStores::find).transpose()?;
        self.targets.iter().flat_map(|target| &target.luns).try_for_each(|lun| {
            lun_check::check(lun)?;
            own_stores.as_ref().map_or(Ok(()), |stores| stores.check(lun))?;
            lun_check::check_size(lun)
        })
    }

    /// Refuses a file that is two LUNs: each would have its own reservations, and its own order of
    /// overlapping commands.
    fn check_files(&self) -> Result<()> {
        let all = self.targets.iter().flat_map(|target| target.luns.iter().map(move |lun| (&target.iqn, lun)));
        let mut seen: Vec<(FileIdentity, (&String, &LunSpec))> = Vec::new();
        for (iqn, lun) in all {
            let Some(file) = lun.file() else { continue };
            if let Some((_, (other_iqn, other))) = seen.iter().find(|(known, _)| *known == file) {
                let message = format!("LUN {lun} of {iqn} and LUN {other} of {other_iqn} are the same file");
                return Err(Error::new(Failure::Usage, message));
            }
            seen.push((file, (iqn, lun)));
        }
        Ok(())
    }
}

/// A bound server.
pub struct Serving {
    name: String,
    clock: Arc<dyn Clock>,
    server: TargetServer,
    bound: BoundServer,
    units: Units,
    reload: ReloadSource,
    control: ControlServer,
    metrics: Option<MetricsServer>,
}

impl Serving {
    /// Opens every backend and binds every portal; nothing is served before [`Serving::run`].
    ///
    /// # Errors
    /// Whatever prevents the start.
    pub fn start(config: ServeConfig, paths: &Paths) -> Result<Self> {
        config.check()?;
        let control = ControlServer::bind_as(paths, &config.name)?;
        let reach = match config.allow_remote {
            true => Reach::Everywhere,
            false => Reach::Loopback { advice: "give --allow-remote if that is meant" },
        };
        let bind_metrics = |address| MetricsServer::bind(address, reach);
        let metrics = config.metrics.map(bind_metrics).transpose()?;
        let clock = system_clock()?;
        let mut units = Units::new(Arc::clone(&clock), paths.clone());
        let (targets, _) = units.apply(&config.targets)?;
        let reload = ReloadSource::of(&config);
        let unit_count = config.targets.iter().map(|target| target.luns.len() as u64).sum();
        descriptors::allow(config.quota.connections as u64, unit_count);
        let options = TargetServerOptions {
            portals: config.portals,
            quota: config.quota,
            busy_poll: config.busy_polling.longest(),
            discovery_authentication: Authentication { accounts: config.discovery, own: None },
            ..TargetServerOptions::default()
        };
        let server = TargetServer::new(targets, options);
        let bound = if config.listeners.is_empty() { server.bind() } else { server.adopt(config.listeners) };
        let bound = bound.map_err(|error| Error::io("cannot serve", &error))?;
        Ok(Self { name: config.name, clock, server, bound, units, reload, control, metrics })
    }

    /// The addresses where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.bound.addresses()
    }

    /// The address where it listens for scrapes.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(MetricsServer::address)
    }

    /// Serves until `signal` or a request to stop, then lets sessions end and makes everything
    /// durable.
    ///
    /// # Errors
    /// When the server cannot run, or the last flush fails.
    pub async fn run(self, signal: impl Future<Output = ()>) -> Result<()> {
        let Self { name, clock, server, bound, units, reload, control, metrics } = self;
        let stopping = Rc::new(watch::Sender::new(false));
        let workers = units.workers();
        let working = tokio::spawn(base::background::named("unit-workers", async move { workers.run().await }));
        let wait_for_stop = || {
            let mut receiver = stopping.subscribe();
            async move {
                // An error means that the sender is gone, and all that could be waited for.
                let _ = receiver.wait_for(|is_stopping| *is_stopping).await;
            }
        };
        let handler = Rc::new(ServeHandler {
            name,
            server,
            units: RefCell::new(units),
            reload,
            lines: ReloadLines::new(clock),
            reloading: tokio::sync::Mutex::new(()),
            stopping: Rc::clone(&stopping),
            ended: watch::Sender::new(None),
        });
        let on_signal = async {
            tokio::select! {
                () = signal => { stopping.send_replace(true); }
                () = wait_for_stop() => {}
            }
        };
        let serving = Rc::clone(&handler);
        let serve = async {
            let served = bound.run(wait_for_stop()).await;
            stopping.send_replace(true);
            let closed = serving.close().await;
            // The caller that asked for the end gets the answer when the files are not used any
            // more.
            let end = match &closed {
                Ok(()) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
            serving.ended.send_replace(Some(end));
            served.map_err(|error| Error::io("the target stopped", &error)).and(closed)
        };
        let scraped = Rc::clone(&handler);
        let metrics = async {
            let Some(metrics) = metrics else { return };
            // A target goes on without its metrics.
            if let Err(error) = metrics.serve(async || scraped.status().await, wait_for_stop()).await {
                tracing::error!(%error, "there are no metrics any more");
            }
        };
        let informed = Rc::clone(&handler);
        let informing = async {
            systemd::ready();
            tokio::select! {
                () = systemd::keep_informed(|| informed.summary()) => {}
                () = wait_for_stop() => systemd::stopping(),
            }
        };
        let hung_up = Rc::clone(&handler);
        let reloading = async {
            tokio::select! {
                () = base::background::named("reload", hung_up.reload_on_hangup()) => {}
                () = wait_for_stop() => {}
            }
        };
        let watched = Rc::clone(&handler);
        let watching = async {
            tokio::select! {
                () = watched.tell_of_troubles() => {}
                () = wait_for_stop() => {}
            }
        };
        let control = control.serve(Rc::clone(&handler), wait_for_stop());
        let ((), served, ..) = tokio::join!(on_signal, serve, control, metrics, informing, reloading, watching);
        working.abort();
        served
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

struct ServeHandler {
    name: String,
    server: TargetServer,
    /// Never borrowed across a wait.
    units: RefCell<Units>,
    reload: ReloadSource,
    lines: ReloadLines,
    /// Held by one reload at a time, and by the end.
    reloading: tokio::sync::Mutex<()>,
    stopping: Rc<watch::Sender<bool>>,
    /// The result of the end, once it has come.
    ended: watch::Sender<Option<std::result::Result<(), String>>>,
}

impl ServeHandler {
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
    async fn tell_of_troubles(&self) {
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
    async fn reload_on_hangup(&self) {
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

/// The configuration file, and the settings that cannot change while it is served.
struct ReloadSource {
    path: Option<PathBuf>,
    allow_remote: bool,
    name: String,
    /// The sockets come from the service manager, and the portals in the file are ignored.
    has_passed_sockets: bool,
}

/// The changeable settings in the file now.
struct Reread {
    /// `None` to keep the present ones.
    portals: Option<Vec<TargetPortal>>,
    targets: Vec<TargetConfig>,
    discovery: Vec<Credentials>,
    quota: Quota,
}

impl ReloadSource {
    fn of(config: &ServeConfig) -> Self {
        Self {
            path: config.source.clone(),
            allow_remote: config.allow_remote,
            name: config.name.clone(),
            has_passed_sockets: !config.listeners.is_empty(),
        }
    }

    fn read(&self, current: Vec<TargetPortal>) -> Result<Reread> {
        let Some(path) = &self.path else {
            let message = format!("\"{}\" was started without --config: there is no file to read again", self.name);
            return Err(Error::new(Failure::Usage, message));
        };
        let Configuration { portals, quota, discovery, targets, .. } = config::read(path)?;
        let portals = portals.filter(|_| !self.has_passed_sockets);
        let checked = if self.has_passed_sockets { Vec::new() } else { portals.clone().unwrap_or(current) };
        let config = ServeConfig {
            name: self.name.clone(),
            portals: checked,
            allow_remote: self.allow_remote,
            metrics: None,
            busy_polling: BusyPolling::default(),
            quota,
            listeners: Vec::new(),
            discovery,
            targets,
            source: None,
        };
        config.check()?;
        Ok(Reread { portals, targets: config.targets, discovery: config.discovery, quota })
    }
}

fn on_or_off(flag: bool) -> &'static str {
    if flag { "on" } else { "off" }
}

impl Handler for ServeHandler {
    async fn handle(&self, request: ControlRequest, _progress: Progress) -> Result<Answer> {
        match request {
            ControlRequest::Status => Ok(Answer::Status(Box::new(self.status().await))),
            ControlRequest::Set { key, value } => self.set(&key, &value),
            ControlRequest::Detach { keep_dirty: false, remove_cache: false } => {
                self.stopping.send_replace(true);
                self.wait_for_end().await?;
                Ok(Answer::ends(&self.name))
            }
            ControlRequest::Reload => self.reload().await.map(Answer::Reloaded),
            ControlRequest::Start { .. } | ControlRequest::Hold { .. } => Err(is_no_daemon(&self.name)),
            ControlRequest::Clean | ControlRequest::Detach { .. } => {
                let message = format!("\"{}\" is a target: it has no cache to clean, to keep or to remove", self.name);
                Err(Error::new(Failure::Usage, message))
            }
        }
    }
}
