//! The write log as a device: the type that its users hold.

use std::future::Future;
use std::sync::Arc;

use base::range::ByteRange;
use block::{Completion, Device, Error, EventReceiver, Geometry, Identity, Request, SharedDevice};
use futures_util::future::{join, join4};

use crate::core::Core;
use crate::level2::DestageProgress;
use crate::open;
use crate::options::{FormatOptions, Level2, OpenOptions};
use crate::status::Status;

/// A block device that acknowledges writes from its log and brings them to its origin later.
///
/// Poll [`WriteLog::run`] as long as the log is in use: records, destaging and detached requests make progress there.
pub struct WriteLog {
    core: Arc<Core>,
}

impl WriteLog {
    /// Makes `log_device` an empty log for `origin`. What was on it is gone: the caller asks first.
    ///
    /// # Errors
    /// `InvalidRange` when it is too small, `Unsupported` for sizes or names that cannot be recorded, the device's own.
    pub async fn format(log_device: &SharedDevice, origin: &SharedDevice, options: FormatOptions) -> Result<(), Error> {
        open::format(log_device, origin, options).await
    }

    /// Opens a log made by [`WriteLog::format`], recovering it when it was not closed. One program
    /// at a time: the caller keeps others off the device. Reads and writes may start at once; dirty
    /// data is destaged in the background. Nothing is sent before [`run`](Self::run) or
    /// [`run_destaging`](Self::run_destaging) is polled: a caller that has yet to find out what
    /// other hosts wrote polls them afterwards. Where the order changes to `log`, all dirty data
    /// goes before anything newer.
    ///
    /// # Errors
    /// `Corrupt` when the device is no write log, is damaged or was cut, failed in use, belongs to
    /// another origin or another NVRAM, or holds data beyond the end of an origin that shrank;
    /// `InvalidRange` for more slots than it has room for; `Unsupported` for impossible options;
    /// [`ConflictingChanges`](crate::ConflictingChanges), as the source of `Unsupported`, when
    /// other hosts changed what is dirty; the devices' own.
    pub async fn open(
        log_device: SharedDevice,
        origin: SharedDevice,
        options: OpenOptions,
    ) -> Result<Arc<Self>, Error> {
        let core = open::open(log_device, origin, options).await?;
        Ok(Arc::new(Self { core }))
    }

    /// All background work. Ends when the log is closed.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        let (requests, destaging) = (self.run_requests(), self.run_destaging());
        async move {
            join(requests, destaging).await;
        }
    }

    /// The background work that requests wait for: records and level 1. With
    /// [`WriteLog::run_destaging`] it is all of [`WriteLog::run`]: two futures, so that two threads
    /// can poll them, and requests need not wait while level 2 works through a batch.
    pub fn run_requests(&self) -> impl Future<Output = ()> + Send + 'static {
        let core = Arc::clone(&self.core);
        async move {
            let workers = core.workers.clone();
            join4(workers.run(), core.mover.run(), core.notes.run(), core.origin_events.follow()).await;
        }
    }

    /// The background work of level 2, and checkpoints.
    pub fn run_destaging(&self) -> impl Future<Output = ()> + Send + 'static {
        let core = Arc::clone(&self.core);
        async move {
            join(core.destager.run(), core.checkpoints.run()).await;
        }
    }

    /// Counts and states now.
    pub fn status(&self) -> Status {
        self.core.status()
    }

    /// The present options of level 2.
    pub fn level2(&self) -> Level2 {
        self.core.settings.level2()
    }

    /// Changes the options of level 2 while the log is in use. The pool of RAM for batches keeps
    /// the size of the open; larger batches allocate anew.
    pub fn set_level2(&self, level2: Level2) {
        self.core.destager.set_level2(level2);
    }

    /// Destages everything that is acknowledged now, and makes it durable on the origin. `progress`
    /// is called after each batch.
    ///
    /// # Errors
    /// The devices' own. What could not be destaged stays dirty, and nothing is lost.
    pub async fn destage(&self, progress: impl FnMut(DestageProgress)) -> Result<(), Error> {
        self.core.destager.destage_all(progress).await
    }

    /// Forgets what is clean of these bytes of the origin, which other hosts changed; the log is
    /// durably without it when this returns. Dirty data there is refused, unless it
    /// `is_overwritten`: the log cannot tell whether it was written before the change or since.
    ///
    /// # Errors
    /// [`ConflictingChanges`](crate::ConflictingChanges), as the source of `Unsupported`: nothing has changed then.
    /// `Gone` when it is closed; the log device's.
    pub async fn invalidate(&self, changed: &[ByteRange], is_overwritten: bool) -> Result<(), Error> {
        self.core.invalidate(changed, is_overwritten).await
    }

    /// Refuses what others changed where something is dirty, as an open would.
    ///
    /// # Errors
    /// [`ConflictingChanges`](crate::ConflictingChanges), as the source of `Unsupported`.
    pub fn check_changes(&self, changed: &[ByteRange]) -> Result<(), Error> {
        self.core.log.state().contents.check_kept_changes(changed)
    }

    /// Waits for all requests, destages unless `keep_dirty` (dirty data then stays in the log,
    /// durably), and closes. Requests from now on fail with `Gone`.
    ///
    /// # Errors
    /// When destaging failed the log goes on as before; close again with `keep_dirty`. When the log device failed it is
    /// closed as after a crash.
    pub async fn close(&self, keep_dirty: bool) -> Result<(), Error> {
        self.core.close(keep_dirty, |_| {}).await
    }
}

impl Device for WriteLog {
    fn geometry(&self) -> Geometry {
        self.core.geometry()
    }

    fn identity(&self) -> Identity {
        self.core.origin.device().identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.core.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.core.events.subscribe()
    }
}
