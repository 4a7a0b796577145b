//! Common parts of the tests: a server of any device on a socket in its own directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use block::memory::MemoryDevice;
use block::{Geometry, Identity, SharedDevice};
use front::{ListenAddress, Listener, NbdOptions, NbdServer};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

#[allow(dead_code, reason = "not every test needs one")]
pub(crate) mod model;
#[allow(dead_code, reason = "not every test needs one")]
pub(crate) mod raw_client;
#[allow(dead_code, reason = "not every test needs one")]
pub(crate) mod step_client;

/// A server that runs until `stop`.
#[allow(dead_code, reason = "not every test listens")]
pub(crate) struct Running {
    pub(crate) server: NbdServer,
    pub(crate) address: ListenAddress,
    pub(crate) directory: tempfile::TempDir,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

#[allow(dead_code, reason = "not every test listens")]
impl Running {
    pub(crate) fn start(device: SharedDevice, options: NbdOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = ListenAddress::Unix(directory.path().join("nbd.sock"));
        let listener = Listener::bind(&address).unwrap();
        let server = NbdServer::new(device, options);
        let (stop, stopped) = oneshot::channel();
        let serving = server.clone();
        let task = tokio::spawn(async move {
            let shutdown = async move { stopped.await.unwrap_or(()) };
            serving.serve(listener, shutdown).await
        });
        Self { server, address, directory, stop, task }
    }

    /// A path in the server's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Shuts down in order.
    pub(crate) async fn stop(self) {
        self.stop.send(()).expect("the server runs until it is told");
        self.task.await.expect("the server does not panic").unwrap();
        assert_eq!(self.server.counters().connections_open, 0);
        if let ListenAddress::Unix(path) = &self.address {
            assert!(!path.exists(), "the socket file goes with the server");
        }
    }
}

/// What no machine is too slow for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `is_so`.
///
/// # Panics
/// With `what`, when it does not become true in a time that no machine is too slow for.
#[allow(dead_code, reason = "not every test waits")]
pub(crate) async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let is_over = tokio::time::timeout(PATIENCE, waiting).await;
    is_over.unwrap_or_else(|_| panic!("it never came to this: {what}"));
}

/// A memory device.
pub(crate) fn memory(size_bytes: u64) -> SharedDevice {
    Arc::new(MemoryDevice::new(size_bytes, Identity::default()))
}

/// A memory device with a geometry of its own.
#[allow(dead_code, reason = "not every test needs one")]
pub(crate) fn memory_with(geometry: Geometry) -> SharedDevice {
    Arc::new(MemoryDevice::with_geometry(geometry, Identity::default()))
}
