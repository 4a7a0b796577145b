//! The sockets of an attachment: control, metrics, and its fronts.

use std::net::SocketAddr;

use crate::control::ControlServer;
use crate::error::Result;
use crate::fronts::Fronts;
use crate::fronts::kind::FrontConfig;
use crate::metrics::{MetricsServer, Reach};
use crate::paths::{Paths, check_name};

/// Sockets that are bound and not served yet.
pub(crate) struct Listeners {
    pub(crate) control: ControlServer,
    pub(crate) metrics: Option<MetricsServer>,
    pub(crate) fronts: Fronts,
}

impl Listeners {
    /// Opens all of them.
    ///
    /// # Errors
    /// A name that is taken, an address that is.
    pub(crate) fn open(name: &str, metrics: Option<SocketAddr>, fronts: &[FrontConfig], paths: &Paths) -> Result<Self> {
        check_name(name)?;
        let control = ControlServer::bind_as(paths, name)?;
        let reach = Reach::Loopback { advice: "an attachment serves them on the loopback only, as 127.0.0.1:PORT" };
        let metrics = metrics.map(|address| MetricsServer::bind(address, reach)).transpose()?;
        Ok(Self { control, metrics, fronts: Fronts::listen(fronts)? })
    }
}
