//! Serves a device as a file.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use block::SharedDevice;
use block::range_lock::RangeLock;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use rustix::process::{getegid, geteuid};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::counters::FuseCounters;
use super::mountpoint::{Mountpoint, detach};
use super::requests::{Ownership, Requests};
use super::work::Work;
use crate::limits::SHUTDOWN_TIME_MAX;
use crate::listener::SocketAccess;

/// How a device is offered as a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseOptions {
    /// Whether it refuses to be opened for writing.
    pub is_read_only: bool,
    /// Who may open it. Others than whoever serves it, root included, are let in only where this allows a group or everybody.
    pub access: SocketAccess,
}

/// A device as a file. It is there from the beginning; whoever opens it waits until it is served.
pub struct FuseFile {
    work: Arc<Work>,
    /// Until it is served. It goes before the mountpoint does.
    session: Mutex<Option<Session<Requests>>>,
    mountpoint: Mountpoint,
}

impl FuseFile {
    /// Mounts `device` as a file. Whoever changes a part of a block takes `turns` with the other fronts of that device. It is served on the runtime that this
    /// is called on.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount(
        mountpoint: Mountpoint,
        device: SharedDevice,
        turns: RangeLock,
        options: FuseOptions,
    ) -> io::Result<Self> {
        let work = Arc::new(Work::new(device, turns));
        let mode = options.access.mode_bits()?;
        let mut config = Config::default();
        let names = [MountOption::FSName("forebay".to_owned()), MountOption::Subtype("forebay".to_owned())];
        config.mount_options = names.into();
        config.mount_options.extend([MountOption::NoDev, MountOption::NoSuid, MountOption::DefaultPermissions]);
        config.acl = if mode & 0o077 == 0 { SessionACL::Owner } else { SessionACL::All };
        let writable = if options.is_read_only { !0o222 } else { !0 };
        let ownership = Ownership {
            user: geteuid().as_raw(),
            group: options.access.group.unwrap_or_else(|| getegid().as_raw()),
            mode: (mode & writable) as u16,
        };
        let requests = Requests {
            work: Arc::clone(&work),
            handle: Handle::current(),
            ownership,
            is_read_only: options.is_read_only,
            mounted_at: SystemTime::now(),
        };
        let session = Session::new(requests, mountpoint.path(), &config)?;
        Ok(Self { work, session: Mutex::new(Some(session)), mountpoint })
    }

    /// What was asked of it so far.
    pub fn counters(&self) -> FuseCounters {
        self.work.counters.snapshot()
    }

    /// Serves it until `stop`; then nothing new is begun, and it ends when what was begun is answered. Whoever has it open still gets errors from then on. It is
    /// served once.
    ///
    /// # Errors
    /// `NotConnected` when somebody else unmounts it.
    ///
    /// # Panics
    /// When it was served before.
    pub async fn serve(&self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut session = session.expect("a file is served once");
        let unmounter = session.unmount_callable();
        let (sender, ended) = oneshot::channel();
        // It looks at the kernel's door, and answers what the device answers on the spot.
        std::thread::Builder::new().name("fuse".to_owned()).spawn(move || {
            let _ = sender.send(session.run());
        })?;
        let (mut ended, stop) = (pin!(ended), pin!(stop));
        tokio::select! {
            () = stop => {}
            ended = &mut ended => {
                ended.unwrap_or_else(|_| Err(io::Error::other("its thread has ended")))?;
                return Err(io::Error::new(io::ErrorKind::NotConnected, "somebody has unmounted it"));
            }
        }
        self.work.close(SHUTDOWN_TIME_MAX).await;
        let path = self.mountpoint.path().to_owned();
        tokio::task::spawn_blocking(move || unmount(unmounter, &path)).await.map_err(io::Error::other)?
    }
}

/// Takes the file away, also from under those who have it open.
fn unmount(mut unmounter: SessionUnmounter, path: &std::path::Path) -> io::Result<()> {
    match unmounter.unmount() {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            tracing::warn!("{} is still open: whoever has it open gets errors from now on", path.display());
            detach(path)
        }
        done => done,
    }
}
