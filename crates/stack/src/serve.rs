//! Serving: targets and their logical units, from flags or a configuration file, until a signal.
//!
//! A file or block device LUN keeps its serial number in a sidecar; a RAM LUN has a new one at every start, so that no cache is ever matched with data that
//! is gone.

use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use base::clock::Clock;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::disk::DiskLayer;
use block::memory::MemoryDevice;
use block::{Geometry, Identity, SharedDevice};
use file::{FileDevice, FileOptions};
use iscsi::chap::Credentials;
use iscsi::target::{AccessList, AccessRule, TargetPortal};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, ReservationStore, SavedReservations};
use serde_json::{Value, json};
use target::server::PORTAL_GROUP_DEFAULT;
use target::{BoundServer, Target, TargetServer, TargetServerOptions};
use tokio::sync::watch;
use uuid::Uuid;

use crate::control::{ControlServer, Handler, Progress, Request};
use crate::error::{Error, Failure, Result};
use crate::lun_spec::{Backend, LunSpec};
use crate::metrics::MetricsServer;
use crate::paths::{Paths, check_name};
use crate::sidecar::Sidecar;
use crate::systemd;
use crate::time::system_clock;

/// What to serve.
#[derive(Debug)]
pub struct ServeConfig {
    /// Name for the control socket.
    pub name: String,
    /// Addresses to listen on.
    pub portals: Vec<SocketAddr>,
    /// Whether addresses beyond this machine's loopback are meant.
    pub allow_remote: bool,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// What peers may hold.
    pub quota: target::Quota,
    /// Sockets that are bound already, in the place of the portals.
    pub listeners: Vec<std::net::TcpListener>,
    /// The targets.
    pub targets: Vec<TargetConfig>,
}

/// One target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Its iSCSI name.
    pub iqn: String,
    /// Its logical units.
    pub luns: Vec<LunSpec>,
    /// Who may log in; nobody in here: everybody.
    pub accounts: Vec<Credentials>,
}

impl ServeConfig {
    fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        let usage = |message: String| Err(Error::new(Failure::Usage, message));
        if self.targets.is_empty() {
            return usage("there is no target to serve".into());
        }
        if let Some(portal) = self.portals.iter().find(|portal| !portal.ip().is_loopback())
            && !self.allow_remote
        {
            return usage(format!("{portal} can be reached from other machines: give --allow-remote if that is meant"));
        }
        for (index, target) in self.targets.iter().enumerate() {
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
        Ok(())
    }
}

/// A disk imitated in front of a logical unit, by the setting that switches it.
struct DiskSwitch {
    setting: String,
    disk: Arc<DiskLayer>,
}

/// A bound server.
pub struct Serving {
    name: String,
    server: TargetServer,
    bound: BoundServer,
    units: Vec<Arc<LogicalUnit>>,
    workers: Workers,
    switches: Vec<DiskSwitch>,
    control: ControlServer,
    metrics: Option<MetricsServer>,
}

impl Serving {
    /// Opens every backend and binds every portal; nothing is served before [`Serving::run`].
    ///
    /// # Errors
    /// Whatever stands in the way.
    pub fn start(config: ServeConfig, paths: &Paths) -> Result<Self> {
        config.check()?;
        let control = ControlServer::bind(&paths.control_socket(&config.name))?;
        let bind_metrics = |address| MetricsServer::bind(address, config.allow_remote);
        let metrics = config.metrics.map(bind_metrics).transpose()?;
        let mut builder = Builder {
            clock: system_clock()?,
            workers: Workers::new(),
            units: Vec::new(),
            switches: Vec::new(),
            is_single_target: config.targets.len() == 1,
            sidecars: paths.sidecars(),
        };
        let targets = config.targets.iter().map(|target| builder.target(target)).collect::<Result<Vec<_>>>()?;
        let portals = config.portals.iter().map(|&address| TargetPortal { address, group: PORTAL_GROUP_DEFAULT });
        let portals = portals.collect();
        let options = TargetServerOptions { portals, quota: config.quota, ..TargetServerOptions::default() };
        let server = TargetServer::new(targets, options);
        let bound = if config.listeners.is_empty() { server.bind() } else { server.adopt(config.listeners) };
        let bound = bound.map_err(|error| Error::io("cannot serve", &error))?;
        let Builder { workers, units, switches, .. } = builder;
        Ok(Self { name: config.name, server, bound, units, workers, switches, control, metrics })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.bound.addresses()
    }

    /// Where it listens for scrapes.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(MetricsServer::address)
    }

    /// Serves until `signal` or until it is asked to stop, then lets sessions end and makes everything durable.
    ///
    /// # Errors
    /// When the server cannot run, or the last flush fails.
    pub async fn run(self, signal: impl Future<Output = ()>) -> Result<()> {
        let Self { name, server, bound, units, workers, switches, control, metrics } = self;
        let stopping = Rc::new(watch::Sender::new(false));
        let background: Vec<_> = units
            .iter()
            .map(|unit| tokio::spawn(unit.run()))
            .chain([tokio::spawn({
                let workers = workers.clone();
                async move { workers.run().await }
            })])
            .collect();
        let wait_for_stop = || {
            let mut receiver = stopping.subscribe();
            async move {
                // An error means that the sender is gone, and with it everything to wait for.
                let _ = receiver.wait_for(|is_stopping| *is_stopping).await;
            }
        };
        let handler = Rc::new(ServeHandler {
            name,
            server,
            switches,
            addresses: bound.addresses().to_vec(),
            stopping: Rc::clone(&stopping),
        });
        let on_signal = async {
            tokio::select! {
                () = signal => { stopping.send_replace(true); }
                () = wait_for_stop() => {}
            }
        };
        let serve = async {
            let served = bound.run(wait_for_stop()).await;
            stopping.send_replace(true);
            served.map_err(|error| Error::io("the target stopped", &error))
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
        let control = control.serve(handler, wait_for_stop());
        let ((), served, ..) = tokio::join!(on_signal, serve, control, metrics, informing);
        let mut flushed = Ok(());
        for unit in &units {
            flushed = flushed.and(unit.device().flush().await);
        }
        background.iter().for_each(tokio::task::JoinHandle::abort);
        served.and(flushed.map_err(Error::from))
    }
}

/// Makes logical units.
struct Builder {
    clock: Arc<dyn Clock>,
    workers: Workers,
    units: Vec<Arc<LogicalUnit>>,
    switches: Vec<DiskSwitch>,
    is_single_target: bool,
    /// Where the sidecars of block devices are.
    sidecars: PathBuf,
}

impl Builder {
    fn target(&mut self, config: &TargetConfig) -> Result<Target> {
        let luns = LunMap::new();
        for spec in &config.luns {
            let unit = self.unit(&config.iqn, spec)?;
            luns.insert(u64::from(spec.lun), Arc::clone(&unit));
            self.units.push(unit);
        }
        let mut target = Target::new(config.iqn.clone(), luns);
        target.access = AccessList(vec![AccessRule::everybody(config.accounts.clone())]);
        Ok(target)
    }

    /// A file keeps reservations in its sidecar; a RAM LUN is gone with the process, and they with it.
    fn reservations(&self, spec: &LunSpec) -> Result<(Option<Arc<dyn ReservationStore>>, SavedReservations)> {
        match &spec.backend {
            Backend::Ram { .. } => Ok((None, SavedReservations::default())),
            Backend::File { path, .. } => {
                let (store, saved) = Sidecar::of(path, &self.sidecars)?.reservations()?;
                Ok((Some(Arc::new(store)), saved))
            }
        }
    }

    fn unit(&mut self, iqn: &str, spec: &LunSpec) -> Result<Arc<LogicalUnit>> {
        let mut device =
            backend_device(iqn, spec, &self.sidecars).map_err(|error| error.context(format!("LUN {spec}")))?;
        if let Some(model) = spec.disk {
            let disk = Arc::new(DiskLayer::new(device, Arc::clone(&self.clock), &self.workers, model));
            let setting = if self.is_single_target {
                format!("lun.{}.disk", spec.lun)
            } else {
                format!("{iqn}.lun.{}.disk", spec.lun)
            };
            self.switches.push(DiskSwitch { setting, disk: Arc::clone(&disk) });
            device = disk;
        }
        let (reservation_store, saved_reservations) =
            self.reservations(spec).map_err(|error| error.context(format!("LUN {spec}")))?;
        let options = LogicalUnitOptions {
            is_removable: spec.is_removable,
            is_thin: spec.is_thin,
            is_read_only: spec.is_read_only,
            is_rotational: spec.disk.is_some(),
            logical_block_bytes: Some(spec.block_bytes),
            physical_block_bytes: spec.physical_block_bytes.or_else(|| physical_block_bytes(&spec.backend, &device)),
            atomic_bytes_max: atomic_bytes_max(&spec.backend),
            reservation_store,
            saved_reservations,
            clock: Some(Arc::clone(&self.clock)),
            ..LogicalUnitOptions::default()
        };
        Ok(LogicalUnit::new(device, options))
    }
}

/// RAM loses everything or nothing, so every write of it is atomic; of a file nothing is known but its sectors, which are less than
/// initiators ask WRITE ATOMIC for.
fn atomic_bytes_max(backend: &Backend) -> u32 {
    match backend {
        Backend::Ram { .. } => u32::MAX,
        Backend::File { .. } => 0,
    }
}

/// What a block device says of its medium. Of a file nothing is known: what the file system writes at once is no property of a medium.
fn physical_block_bytes(backend: &Backend, device: &SharedDevice) -> Option<u32> {
    let Backend::File { path, .. } = backend else { return None };
    let is_block_device = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    is_block_device.then(|| device.geometry().physical_block_bytes)
}

fn backend_device(iqn: &str, spec: &LunSpec, sidecars: &Path) -> Result<SharedDevice> {
    match &spec.backend {
        Backend::Ram { size_bytes } => {
            let identity = Identity {
                target: iqn.to_owned(),
                unit: format!("lun {}", spec.lun),
                serial: Uuid::new_v4().simple().to_string(),
            };
            if !size_bytes.is_multiple_of(u64::from(spec.block_bytes)) {
                let message = format!("{size_bytes} bytes are not whole blocks of {}", spec.block_bytes);
                return Err(Error::new(Failure::Usage, message));
            }
            let geometry = Geometry {
                logical_block_bytes: spec.block_bytes,
                is_write_cache_volatile: spec.is_write_cache_volatile,
                ..Geometry::plain(*size_bytes)
            };
            Ok(Arc::new(MemoryDevice::with_geometry(geometry, identity)))
        }
        Backend::File { path, size_bytes, is_direct } => {
            file_device(iqn, spec, sidecars, path, *size_bytes, *is_direct)
        }
    }
}

fn file_device(
    iqn: &str,
    spec: &LunSpec,
    sidecars: &Path,
    path: &Path,
    size_bytes: Option<u64>,
    is_direct: bool,
) -> Result<SharedDevice> {
    if size_bytes.is_none() && !path.exists() {
        let message = format!("{} does not exist: give size=SIZE to make it", path.display());
        return Err(Error::new(Failure::NotFound, message));
    }
    let serial = Sidecar::of(path, sidecars)?.serial()?;
    let identity = Identity { target: iqn.to_owned(), unit: format!("lun {}", spec.lun), serial };
    let options = FileOptions {
        size: size_bytes,
        direct: is_direct,
        exclusive: true,
        read_only: spec.is_read_only,
        identity,
        is_write_cache_volatile: spec.is_write_cache_volatile,
        ..FileOptions::default()
    };
    Ok(FileDevice::open(path, options)?)
}

struct ServeHandler {
    name: String,
    server: TargetServer,
    addresses: Vec<SocketAddr>,
    switches: Vec<DiskSwitch>,
    stopping: Rc<watch::Sender<bool>>,
}

impl ServeHandler {
    /// For the service manager, in a line.
    async fn summary(&self) -> String {
        let status = self.server.status().await;
        format!("{} sessions, {} connections", status.sessions.len(), status.connections.len())
    }

    async fn status(&self) -> Value {
        let mut status = json!(self.server.status().await);
        status["kind"] = json!("target");
        status["name"] = json!(self.name);
        status["pid"] = json!(std::process::id());
        status["address"] = json!(self.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" "));
        status["targets"] = self
            .server
            .targets()
            .iter()
            .map(|target| json!({ "name": target.name, "luns": target.luns.luns() }))
            .collect();
        status["settings"] = self
            .switches
            .iter()
            .map(|switch| (switch.setting.clone(), json!(on_or_off(switch.disk.is_enabled()))))
            .collect();
        status
    }

    fn set(&self, key: &str, value: &str) -> Result<Value> {
        let Some(switch) = self.switches.iter().find(|switch| switch.setting == key) else {
            let known: Vec<&str> = self.switches.iter().map(|switch| switch.setting.as_str()).collect();
            let message = format!("\"{key}\" is no setting of \"{}\": it has {known:?}", self.name);
            return Err(Error::new(Failure::Usage, message));
        };
        match value {
            "on" | "off" => switch.disk.set_enabled(value == "on"),
            _ => return Err(Error::new(Failure::Usage, format!("{key} is on or off, not \"{value}\""))),
        }
        Ok(json!({ key: value }))
    }
}

fn on_or_off(flag: bool) -> &'static str {
    if flag { "on" } else { "off" }
}

impl Handler for ServeHandler {
    async fn handle(&self, request: Request, _progress: Progress) -> Result<Value> {
        match request {
            Request::Status => Ok(self.status().await),
            Request::Set { key, value } => self.set(&key, &value),
            Request::Detach { .. } => {
                self.stopping.send_replace(true);
                Ok(json!({ "name": self.name }))
            }
            Request::Clean => {
                let message = format!("\"{}\" is a target: it has no cache to clean", self.name);
                Err(Error::new(Failure::Usage, message))
            }
        }
    }
}
