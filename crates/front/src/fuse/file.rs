//! Serves a device as a file.

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::process::{getegid, geteuid};
use tokio::runtime::Handle;

use super::counters::FuseCounters;
use super::mountpoint::Mountpoint;
use super::openers::Openers;
use super::requests::{Ownership, Requests};
use super::session::{self, Ended};
use super::work::Work;
use crate::exported::Exported;
use crate::limits::SHUTDOWN_TIME_MAX;
use crate::listener::SocketAccess;

/// The options of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseOptions {
    /// Whether it refuses to be opened for writing.
    pub is_read_only: bool,
    /// The users that may open it. Users other than the serving process's own, root included, only
    /// get in where this allows a group or all users.
    pub access: SocketAccess,
}

/// A device as a file. The file exists from the beginning; a program that opens it waits until it
/// is served.
pub struct FuseFile {
    work: Arc<Work>,
    /// `None` once it is served. It is dropped before the mountpoint.
    session: Mutex<Option<Session<Requests>>>,
    mountpoint: Mountpoint,
}

impl FuseFile {
    /// Mounts a device as a file. It is served on the calling runtime.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount(mountpoint: Mountpoint, exported: Exported, options: FuseOptions) -> io::Result<Self> {
        let openers = Openers::new(Arc::clone(&exported.losses));
        let work = Arc::new(Work::new(exported));
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
            openers,
            handle: Handle::current(),
            ownership,
            is_read_only: options.is_read_only,
            mounted_at: SystemTime::now(),
        };
        let session = Session::new(requests, mountpoint.path(), &config)?;
        Ok(Self { work, session: Mutex::new(Some(session)), mountpoint })
    }

    /// The counters of requests so far.
    pub fn counters(&self) -> FuseCounters {
        self.work.counters.snapshot()
    }

    /// Serves it until `stop`; after that no request is begun, and it ends when those under way are
    /// answered. Programs that still have it open get errors from then on. It is served once.
    ///
    /// # Errors
    /// `NotConnected` when another process unmounts it.
    ///
    /// # Panics
    /// When it was served before.
    pub async fn serve(&self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        let session = session.expect("a file is served once");
        match session::serve(session, self.mountpoint.path(), stop, self.work.close(SHUTDOWN_TIME_MAX)).await? {
            Ended::Stopped => Ok(()),
            Ended::Unmounted => Err(io::Error::new(io::ErrorKind::NotConnected, "somebody has unmounted it")),
        }
    }
}
