//! Serving: targets and their logical units, from flags or a configuration file, until a signal.
//!
//! A file or block device LUN keeps its serial number in a sidecar; a RAM LUN has a new one at
//! every start, so that no cache ever matches data that is lost.
//!
//! | module | holds |
//! |---|---|
//! | `config` | what is served, and its checks |
//! | `reloading` | what of the configuration file can change while it is served |
//! | `handler` | the target while it is served: requests, reloads, the end |
//! | here | its start |

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use base::clock::Clock;
use iscsi::target::Authentication;
use target::{BoundServer, TargetServer, TargetServerOptions};

use crate::control::ControlServer;
use crate::descriptors;
use crate::error::{Error, Result};
use crate::events::EventKind;
use crate::metrics::{MetricsServer, Reach};
use crate::paths::Paths;
use crate::time::system_clock;
use crate::units::Units;

mod config;
mod handler;
mod reloading;

pub use config::ServeConfig;
use handler::ServeHandler;
use reloading::ReloadSource;

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
        let workers = units.workers();
        let working = tokio::spawn(base::background::named("unit-workers", async move { workers.run().await }));
        let addresses: Vec<String> = bound.addresses().iter().map(SocketAddr::to_string).collect();
        let handler = Rc::new(ServeHandler::new(name, (server, units), reload, (clock, control.events())));
        control.events().note(EventKind::Started, format!("at {}", addresses.join(" ")));
        let control = control.serve(Rc::clone(&handler), handler.stopping());
        let ((), served, ..) = tokio::join!(
            handler.stop_by(signal),
            handler.serve(bound),
            control,
            handler.serve_metrics(metrics),
            handler.inform(),
            handler.until_stop(base::background::named("reload", handler.reload_on_hangup())),
            handler.until_stop(handler.tell_of_troubles()),
        );
        working.abort();
        served
    }
}
