//! The open file as the engines use it, and the effects of a failed durable call.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use base::range::ByteRange;
use block::{Error, Event, EventHub, Geometry, Identity};
use rustix::io::{Errno, ReadWriteFlags};

use crate::durable_call::DurableCall;
use crate::failure;
use crate::file_end::FileEnd;
use crate::job::{Job, Progress};
use crate::open::OpenFile;
use crate::patience::Patience;
use crate::promises::{Moment, Promises};
use crate::sync_files::{SyncFile, SyncFiles};

/// The open file, as the engines use it.
pub(crate) struct Shared {
    pub(crate) open: OpenFile,
    pub(crate) sync_files: SyncFiles,
    pub(crate) identity: Identity,
    /// Size in bytes; it may grow.
    pub(crate) size_bytes: AtomicU64,
    pub(crate) end: FileEnd,
    pub(crate) events: EventHub,
    /// Whether the file system supports reads that do not wait (`RWF_NOWAIT`).
    pub(crate) can_read_inline: AtomicBool,
    pub(crate) can_write_inline: AtomicBool,
    pub(crate) promises: Promises,
    /// For durable writes that are carried out on the spot.
    pub(crate) patience: Option<Patience>,
    /// For the shared syncs that are made on the spot.
    pub(crate) sync_patience: Patience,
}

impl Shared {
    pub(crate) fn path(&self) -> &str {
        &self.open.path
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.open.file.as_raw_fd()
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Acquire), ..self.open.geometry }
    }

    /// A borrowed open file for the next call of a job, if it needs one of its own.
    pub(crate) fn take_sync_file(&self, job: &Job) -> Option<SyncFile> {
        (job.durable_call() == Some(DurableCall::Write)).then(|| self.own_sync_file()).flatten()
    }

    pub(crate) fn own_sync_file(&self) -> Option<SyncFile> {
        if self.open.is_direct { None } else { self.sync_files.take(&self.open.file) }
    }

    /// Notes the end of a durable call, made with the open file `own` or with the device's.
    pub(crate) fn note_durable_call(&self, call: DurableCall, own: Option<SyncFile>, failure: Option<Errno>) {
        let has_own_descriptor = own.is_some() || self.open.is_direct;
        if let Some(file) = own {
            self.sync_files.give_back(file, failure.is_some());
        }
        if let Some(errno) = failure
            && self.promises.call_failed(call, errno, has_own_descriptor)
            && self.promises.go_on()
        {
            if !self.open.is_direct {
                self.forget_pages();
            }
            // Before any request that failed with it is answered.
            self.events.publish(&Event::WritesLost);
        }
    }

    /// Looks whether the file was cut, and notes it: what was written behind its end is lost.
    pub(crate) fn look_at_end(&self) {
        if self.open.is_block_device || !self.end.look(&self.open.file, self.size_bytes.load(Ordering::Acquire)) {
            return;
        }
        self.promises.part_lost();
        if self.promises.go_on() {
            self.events.publish(&Event::WritesLost);
        }
    }

    /// The error of a read, with the reason if that is a cut.
    fn read_error(&self, range: ByteRange, error: Error) -> Error {
        self.look_at_end();
        self.end.check(range, self.path()).err().unwrap_or(error)
    }

    /// Drops the pages that could not be written: later reads return what the medium has.
    pub(crate) fn forget_pages(&self) {
        if let Err(errno) = rustix::fs::fadvise(&self.open.file, 0, None, rustix::fs::Advice::DontNeed) {
            tracing::warn!(
                "{} may show bytes that its medium has not got, until it leaves the page cache: {errno}",
                self.path()
            );
        }
    }

    /// Writes bytes on the spot, past the page cache.
    ///
    /// # Errors
    /// Those that may mean that bytes of others were not made durable, either. Other errors are
    /// left to the engine, which meets them again.
    pub(crate) fn write_durably(&self, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
        let began = Instant::now();
        let result = rustix::io::pwritev2(&self.open.file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::DSYNC);
        if let Some(patience) = &self.patience {
            patience.took(began.elapsed());
        }
        match result {
            Err(Errno::INTR | Errno::AGAIN | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(0),
            result => {
                self.note_durable_call(DurableCall::Write, None, result.err());
                result
            }
        }
    }

    /// Makes the writes durable on the spot, if that is worth waiting for; `None` if it is not.
    pub(crate) fn sync_now(&self) -> Option<Result<(), Errno>> {
        // Through the page cache there may be any amount to write first.
        if !self.open.is_direct || !self.sync_patience.waits() {
            return None;
        }
        let began = Instant::now();
        let result = rustix::fs::fdatasync(&self.open.file);
        self.sync_patience.took(began.elapsed());
        Some(result)
    }

    /// The outcome of a sync for the requests that share it.
    pub(crate) fn synced(&self, result: Result<(), Errno>) -> Result<(), Error> {
        self.note_durable_call(DurableCall::Sync, None, result.err());
        result.map_err(|errno| failure::error(errno, format!("making writes to {} durable", self.path())))
    }

    /// Passes the result of a call to its job; the call was made with the open file `own` or with
    /// the device's.
    pub(crate) fn handle(&self, job: &mut Job, own: Option<SyncFile>, result: Result<usize, Errno>) -> Progress {
        let Some(call) = job.durable_call() else {
            let progress = job.handle(result, self.path());
            return match progress {
                Progress::Done(Ok(())) if job.is_read() => Progress::Done(self.open.check_whole()),
                Progress::Done(Err(error)) if job.is_read() => Progress::Done(Err(self.read_error(job.range(), error))),
                progress => progress,
            };
        };
        let progress = job.handle(result, self.path());
        let has_failed = matches!(&progress, Progress::Done(Err(_)));
        self.note_durable_call(call, own, result.err().filter(|_| has_failed));
        match progress {
            // A flush of the disk that failed meanwhile may have dropped these bytes, too.
            Progress::Done(Ok(())) => Progress::Done(self.check_promises(job.moment())),
            progress => progress,
        }
    }

    /// # Errors
    /// `Media` once a durable call has failed since.
    pub(crate) fn check_promises(&self, since: Moment) -> Result<(), Error> {
        self.promises.check(since, self.path())
    }
}
