//! Where an attachment is reached: by its name, for scrapes of metrics, and by local applications.

use std::io::ErrorKind;
use std::net::SocketAddr;

use front::{ListenAddress, Listener, SocketAccess};

use crate::control::ControlServer;
use crate::error::{Error, Failure, Result};
use crate::metrics::{MetricsServer, Reach};
use crate::paths::{Paths, check_name};

/// Bound, and not served yet.
pub(crate) struct Doors {
    pub(crate) control: ControlServer,
    pub(crate) metrics: Option<MetricsServer>,
    /// For local applications, where they may come before there is anything for them.
    pub(crate) front: Option<(Listener, ListenAddress)>,
}

impl Doors {
    /// Opens all but the front.
    ///
    /// # Errors
    /// A name that is taken, an address that is.
    pub(crate) fn open(name: &str, metrics: Option<SocketAddr>, paths: &Paths) -> Result<Self> {
        check_name(name)?;
        let control = ControlServer::bind(&paths.control_socket(name))?;
        let reach = Reach::Loopback { advice: "an attachment serves them on the loopback only, as 127.0.0.1:PORT" };
        let metrics = metrics.map(|address| MetricsServer::bind(address, reach)).transpose()?;
        Ok(Self { control, metrics, front: None })
    }
}

/// A socket for local applications, and where it is.
///
/// # Errors
/// An address that is taken, or none to listen on.
pub(crate) fn listen(address: &ListenAddress, access: SocketAccess) -> Result<(Listener, ListenAddress)> {
    let context = |error: &std::io::Error| match error.kind() {
        // Something that is no socket, and stays what it is.
        ErrorKind::AlreadyExists => Error::new(Failure::Usage, format!("cannot listen on {address}: {error}")),
        _ => Error::io(format!("cannot listen on {address}"), error),
    };
    let listener = Listener::bind_with(address, access).map_err(|error| context(&error))?;
    let address = listener.address().map_err(|error| Error::io("the listener", &error))?;
    Ok((listener, address))
}
