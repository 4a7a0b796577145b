//! The io_uring engine: one ring per device.
//!
//! ```text
//! submit ─► slot + SQE ─► enter ─► kernel ─► CQE ─► reap ─► response
//!    │         (all slots taken: the line)             │
//!    └ alone: enters at once                           └ by the driver when the ring's descriptor is readable,
//!      others there: the driver enters for all           or by the submitter when its call was over at once
//! ```
//! A request that finds the ring idle is entered within `submit`, for its latency; when others are in flight the
//! driver, woken once, enters what was submitted in the same turn of the runtime with one system call, or `submit` does
//! as soon as it is [`ENTERED_TOGETHER_MAX`]. A ring per device keeps devices apart (a slow disk fills no queue but its
//! own) and lets requests come from any thread; the mutex around it costs less than the system call that follows, which
//! the kernel serialises anyway. `examples/depth.rs` measures it. `IORING_SETUP_COOP_TASKRUN` made no difference beyond
//! the noise and would delay completions while a foreign submitting thread computes, so it is not set.
//!
//! Everything that waits for an `fdatasync` shares one ([`shared_sync`]), on the device's own
//! descriptor, on which no other call asks for write-back errors: so none is missed. Past the page
//! cache of a disk without FUA each durable write would be a write and a flush of the whole disk.
//! There they are plain writes, and share the sync, too. When nothing else is in flight, and the
//! disk is fast, the sync is made on the spot.
//!
//! Memory: a job, with its buffer, stays in its slot from the SQE until its CQE was seen, whoever dropped the
//! completion; the driver holds the ring until nothing is in flight, and when the runtime drops the driver it waits for
//! the rest.

#![expect(unsafe_code, reason = "the kernel is handed addresses of buffers and the reactor a descriptor")]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use block::shared_sync::SharedSync;
use block::{Error, ErrorKind};
use futures_util::task::AtomicWaker;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::job::{Call, Job, Progress};
use crate::limits::{ENTERED_TOGETHER_MAX, IN_FLIGHT_MAX, QUEUE_MAX};
use crate::promises::Moment;
use crate::shared::Shared;
use crate::sync_files::SyncFile;
use crate::work::Work;

/// The engine.
pub(crate) struct Ring {
    file: Arc<Shared>,
    waker: AtomicWaker,
    /// Responses are completed after its release, since they wake other tasks.
    state: Mutex<State>,
}

struct State {
    ring: IoUring,
    slots: Vec<Option<Work>>,
    /// The open files of the slots whose call is a durable write.
    sync_files: Vec<Option<SyncFile>>,
    free: Vec<usize>,
    /// Work that waits for a free slot.
    line: VecDeque<Work>,
    /// Writes and flushes that share syncs.
    shared_sync: SharedSync<usize>,
    /// SQEs that were not entered yet.
    unsubmitted: usize,
    /// SQEs entered whose CQE was not seen yet.
    in_kernel: usize,
    is_closing: bool,
    is_stopped: bool,
}

/// One entry of the ring is for the sync that writes share.
const SLOTS: usize = IN_FLIGHT_MAX - 1;

/// User data of the shared sync.
const SYNC: u64 = u64::MAX;

/// Work that is over, and its result.
type Finished = Vec<(Work, Result<(), Error>)>;

impl Ring {
    /// A ring for `file`, or the reason why there is none.
    pub(crate) fn new(file: Arc<Shared>) -> std::io::Result<Arc<Self>> {
        let ring = IoUring::builder().dontfork().build(IN_FLIGHT_MAX as u32)?;
        let state = State {
            ring,
            slots: (0..SLOTS).map(|_| None).collect(),
            sync_files: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS).rev().collect(),
            line: VecDeque::new(),
            shared_sync: SharedSync::default(),
            unsubmitted: 0,
            in_kernel: 0,
            is_closing: false,
            is_stopped: false,
        };
        Ok(Arc::new(Self { file, waker: AtomicWaker::new(), state: Mutex::new(state) }))
    }

    /// Gives work a slot, or queues it.
    pub(crate) fn submit(&self, work: Work) {
        let mut finished = Finished::new();
        let mut state = self.lock();
        if state.is_stopped {
            let error = Error::new(ErrorKind::Gone, format!("the runtime that served {} has ended", self.file.path()));
            drop(state);
            return work.finish(Err(error));
        }
        if state.free.is_empty() {
            if state.line.len() == QUEUE_MAX {
                drop(state);
                let context = format!("{QUEUE_MAX} requests wait for {} already", self.file.path());
                return work.finish(Err(Error::new(ErrorKind::Busy, context)));
            }
            state.line.push_back(work);
            return;
        }
        state.start(work, &self.file);
        // A flush has no call but the shared sync.
        state.sync(&self.file, &mut finished);
        let is_alone = state.in_kernel == 0 && state.unsubmitted == 1;
        if is_alone || state.unsubmitted >= ENTERED_TOGETHER_MAX {
            state.enter();
            state.reap(&self.file, &mut finished);
        }
        // The first one wakes the driver for all that follow until it runs.
        let needs_driver = state.unsubmitted == 1;
        drop(state);
        if needs_driver {
            self.waker.wake();
        }
        finish(finished);
    }

    /// Closes the ring: no work may be submitted any more, and the driver ends once nothing is in
    /// flight. Returns whether nothing is.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        state.is_closing = true;
        let is_idle = state.is_idle();
        drop(state);
        self.waker.wake();
        is_idle
    }

    /// Serves the ring until it is closed and idle. If it is dropped earlier, it waits for the
    /// requests in flight.
    ///
    /// # Errors
    /// When the reactor does not take the ring's descriptor.
    pub(crate) fn driver(self: &Arc<Self>) -> std::io::Result<impl Future<Output = ()> + Send + use<>> {
        let descriptor = self.lock().ring.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` names the same open descriptor, which it owns, for as long as it lives; the `AsyncFd`
        // takes it over and never gives it out.
        let readable = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?;
        let stop = StopOnDrop(Arc::clone(self));
        Ok(async move {
            poll_fn(|context| stop.0.poll_drive(&readable, context)).await;
        })
    }

    fn poll_drive(&self, readable: &AsyncFd<OwnedFd>, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        loop {
            let is_over = self.turn(context);
            if is_over {
                return Poll::Ready(());
            }
            // Cleared before the next reaping, so that what completes after it makes the descriptor readable again.
            match readable.poll_read_ready(context) {
                Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Enters what was submitted and reaps what is over. Returns whether the engine is closed and idle.
    fn turn(&self, context: &Context<'_>) -> bool {
        let mut finished = Finished::new();
        let mut state = self.lock();
        state.reap(&self.file, &mut finished);
        state.enter();
        // Calls that were over at once need not wait for the reactor.
        state.reap(&self.file, &mut finished);
        state.enter();
        if state.unsubmitted > 0 {
            // The kernel lacks a resource for a moment.
            context.waker().wake_by_ref();
        }
        let is_over = state.is_closing && state.is_idle();
        drop(state);
        finish(finished);
        is_over
    }

    /// Waits for all requests in flight and refuses new ones.
    fn stop(&self) {
        let mut finished = Finished::new();
        let mut state = self.lock();
        state.is_stopped = true;
        let line = std::mem::take(&mut state.line);
        while state.in_kernel + state.unsubmitted > 0 {
            state.enter_and_wait();
            state.reap(&self.file, &mut finished);
        }
        drop(state);
        finish(finished);
        for work in line {
            work.finish(Err(ErrorKind::Gone.into()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn finish(finished: Finished) {
    for (work, result) in finished {
        work.finish(result);
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len() && self.line.is_empty()
    }

    /// Gives `work` a slot, of which one is free, and its first SQE, if it has a call of its own.
    fn start(&mut self, work: Work, file: &Shared) {
        let slot = self.free.pop().expect("callers look for a free slot first");
        if work.job.awaits_sync() {
            self.shared_sync.join(slot);
            self.slots[slot] = Some(work);
            return;
        }
        if work.job.is_write_before_sync() {
            self.shared_sync.begin_write();
        }
        self.slots[slot] = Some(work);
        self.push(slot, file);
    }

    /// Writes the SQE for the next call of the job in `slot`.
    fn push(&mut self, slot: usize, file: &Shared) {
        let work = self.slots[slot].as_mut().expect("the slot was just filled, or its call just ended");
        let own = file.take_sync_file(&work.job);
        let descriptor = own.as_ref().map_or(file.descriptor(), |own| own.file.as_raw_fd());
        self.sync_files[slot] = own;
        let entry = entry_of(&mut work.job, types::Fd(descriptor)).user_data(slot as u64);
        // SAFETY: the entry's addresses point into the job's buffer, whose memory is on the heap and does not move with
        // the job. The job is in `slots[slot]`, and only `reap` takes it out, after the kernel posted the CQE with this
        // user data, when it is done with the memory. Nobody else reads or writes the buffer meanwhile: it is reachable
        // through the slot only. `slots` itself is not dropped before all CQEs were seen: the driver holds the ring
        // until it is idle, or waits in `stop`. The descriptor is open as long as `Shared`, which the ring holds, or is
        // in `sync_files[slot]`, from where `reap` takes it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has as many entries as there are slots, and a slot has one");
        self.unsubmitted += 1;
    }

    fn enter(&mut self) {
        while self.unsubmitted > 0 {
            match self.ring.submit() {
                Ok(0) => return,
                Ok(count) => self.entered(count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // EAGAIN, EBUSY: no memory for now, or completions must be reaped first. The driver comes back.
                Err(_) => return,
            }
        }
    }

    fn enter_and_wait(&mut self) {
        if let Ok(count) = self.ring.submit_and_wait(1) {
            self.entered(count);
        }
    }

    fn entered(&mut self, count: usize) {
        let count = count.min(self.unsubmitted);
        self.unsubmitted -= count;
        self.in_kernel += count;
    }

    /// Takes results, starts next calls, and starts queued work in free slots.
    fn reap(&mut self, file: &Shared, finished: &mut Finished) {
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else {
                match self.sync(file, finished) {
                    true => continue,
                    false => return,
                }
            };
            if entry.user_data() == SYNC {
                self.in_kernel -= 1;
                let result = match entry.result() {
                    0.. => Ok(()),
                    errno => Err(Errno::from_raw_os_error(-errno)),
                };
                self.synced(file, result, finished);
                continue;
            }
            let slot = entry.user_data() as usize;
            let result = usize::try_from(entry.result()).map_err(|_| Errno::from_raw_os_error(-entry.result()));
            self.in_kernel -= 1;
            let own = self.sync_files[slot].take();
            let work = self.slots[slot].as_mut().expect("a slot is full until its completion was seen");
            let progress = file.handle(&mut work.job, own, result);
            match (progress, work.job.is_write_before_sync()) {
                (Progress::Again, _) => self.push(slot, file),
                (Progress::Written, true) => self.shared_sync.written(slot),
                (Progress::Written, false) => self.shared_sync.join(slot),
                (Progress::Done(result), is_write_before_sync) => {
                    if is_write_before_sync {
                        self.shared_sync.write_failed();
                    }
                    self.leave(slot, result, file, finished);
                }
            }
        }
    }

    /// Ends the work in `slot`, and starts queued work there.
    fn leave(&mut self, slot: usize, result: Result<(), Error>, file: &Shared, finished: &mut Finished) {
        let work = self.slots[slot].take().expect("a slot is full until its work is over");
        self.free.push(slot);
        finished.push((work, result));
        if let Some(next) = self.line.pop_front() {
            self.start(next, file);
        }
    }

    /// Begins the shared sync, if one is due. Returns whether it was over at once.
    fn sync(&mut self, file: &Shared, finished: &mut Finished) -> bool {
        if !self.shared_sync.begin_sync() {
            return false;
        }
        let is_alone = self.in_kernel + self.unsubmitted == 0;
        if is_alone && let Some(result) = file.sync_now() {
            self.synced(file, result, finished);
            return true;
        }
        let entry = opcode::Fsync::new(types::Fd(file.descriptor())).flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: the entry has no addresses, and its descriptor is open as long as `Shared`, which the ring holds.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(SYNC)) };
        pushed.expect("the ring has an entry more than there are slots");
        self.unsubmitted += 1;
        false
    }

    /// The shared sync has ended.
    fn synced(&mut self, file: &Shared, result: Result<(), Errno>, finished: &mut Finished) {
        // The thread that submitted it has ended, or the kernel asked to try again: repeat it, for
        // what has been written since, too.
        if matches!(result, Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED)) && self.shared_sync.again() {
            return;
        }
        self.end_sync(file.synced(result), file, finished);
    }

    /// Ends the work that waited for the sync.
    fn end_sync(&mut self, outcome: Result<(), Error>, file: &Shared, finished: &mut Finished) {
        let slots = if outcome.is_ok() { self.shared_sync.synced() } else { self.shared_sync.sync_failed() };
        for slot in slots {
            let moment = self.slots[slot].as_ref().map_or(Moment::default(), |work| work.job.moment());
            // Another durable call may have failed since it was submitted.
            let own = outcome.clone().and_then(|()| file.check_promises(moment));
            self.leave(slot, own, file, finished);
        }
    }
}

/// The SQE of the job's next call.
fn entry_of(job: &mut Job, file: types::Fd) -> squeue::Entry {
    match job.call() {
        Call::Read { at, offset, length } => {
            let target = &mut job.buffer()[at..at + length];
            opcode::Read::new(file, target.as_mut_ptr(), target.len() as u32).offset(offset).build()
        }
        Call::Write { at, offset, length, is_durable } => {
            let source = &job.buffer()[at..at + length];
            let flags = if is_durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
            let write = opcode::Write::new(file, source.as_ptr(), source.len() as u32);
            write.offset(offset).rw_flags(flags.bits() as i32).build()
        }
        Call::Allocate { flags, offset, length } => {
            opcode::Fallocate::new(file, length).offset(offset).mode(flags.bits() as i32).build()
        }
        Call::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
    }
}

struct StopOnDrop(Arc<Ring>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
