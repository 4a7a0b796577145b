//! The disk of the cache: a medium in RAM with a volatile write cache, which QEMU reaches over NBD.
//! It outlives the guest. At a power loss each write that no flush made durable is kept whole, in
//! part or not at all.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::layer::crash::{CrashLayer, Loss, Power};
use front::{ListenAddress, Listener, NbdOptions, NbdServer};
use tokio::sync::oneshot;

use crate::Result;

/// Size of the disk: 64 MiB of data, and room for the metadata of each cache.
pub const DISK_BYTES: u64 = 128 << 20;

/// The disk, and its NBD server.
pub struct Disk {
    medium: CrashLayer,
    socket: PathBuf,
    seed: u64,
    /// Ends the server when it is dropped.
    _stop: oneshot::Sender<()>,
}

impl Disk {
    /// A new disk of zeroes, at this socket.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn new(socket: &Path, seed: u64) -> Result<Self> {
        Self::serve(CrashLayer::new(DISK_BYTES, seed), socket, seed)
    }

    /// The disk for the next guest, after the last one has ended.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn after(self, is_power_lost: bool) -> Result<Self> {
        let loss = if is_power_lost { Loss::Seeded(self.seed) } else { Loss::InFlightOnly };
        let medium = self.medium.after_power_loss_as(loss, &Power::new());
        // Another socket: the server of the last disk may not have removed its own yet.
        let seed = self.seed + 1;
        Self::serve(medium, &self.socket.with_extension(seed.to_string()), seed)
    }

    /// The name of the disk as QEMU's drive.
    pub fn drive(&self) -> String {
        format!("nbd:unix:{}", self.socket.display())
    }

    fn serve(medium: CrashLayer, socket: &Path, seed: u64) -> Result<Self> {
        let listener = Listener::bind(&ListenAddress::Unix(socket.to_owned()))?;
        let server = NbdServer::new(Arc::new(medium.clone()), NbdOptions::default());
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let stopped = async move { drop(stopped.await) };
            if let Err(error) = server.serve(listener, stopped).await {
                eprintln!("the cache's disk is gone: {error}");
            }
        });
        Ok(Self { medium, socket: socket.to_owned(), seed, _stop: stop })
    }
}
