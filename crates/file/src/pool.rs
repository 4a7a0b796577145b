//! The engine where io_uring is not permitted (seccomp, `io_uring_disabled`): blocking calls on tokio's threads.
//!
//! At most [`BLOCKING_MAX`] threads at a time; each takes work from one queue until it is empty.
//! One thread at a time makes an `fdatasync`: the kernel reports a write-back error to the first
//! call on a descriptor, and the next call begins once that is noted.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Error, ErrorKind};
use rustix::io::Errno;
use tokio::runtime::Handle;

use crate::durable_call::DurableCall;
use crate::job::{Call, Job, Progress};
use crate::limits::{BLOCKING_MAX, QUEUE_MAX};
use crate::shared::Shared;
use crate::work::Work;

/// The engine.
pub(crate) struct Pool {
    file: Arc<Shared>,
    runtime: Handle,
    state: Mutex<State>,
    /// Held during an `fdatasync` and until its result is noted. `state` is not locked inside.
    sync_turn: Mutex<()>,
}

#[derive(Default)]
struct State {
    line: VecDeque<Work>,
    thread_count: usize,
}

impl Pool {
    pub(crate) fn new(file: Arc<Shared>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { file, runtime, state: Mutex::default(), sync_turn: Mutex::default() })
    }

    /// Queues work, and starts a thread for it if there may be one more.
    pub(crate) fn submit(self: &Arc<Self>, work: Work) {
        let mut state = self.lock();
        if state.line.len() == QUEUE_MAX {
            drop(state);
            let context = format!("{QUEUE_MAX} requests wait for {} already", self.file.path());
            return work.finish(Err(Error::new(ErrorKind::Busy, context)));
        }
        state.line.push_back(work);
        if state.thread_count == BLOCKING_MAX {
            return;
        }
        state.thread_count += 1;
        drop(state);
        let pool = Arc::clone(self);
        self.runtime.spawn_blocking(move || pool.work_off());
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().thread_count == 0
    }

    fn work_off(&self) {
        loop {
            base::background::turn("file-pool");
            let work = {
                let mut state = self.lock();
                match state.line.pop_front() {
                    Some(work) => work,
                    None => {
                        state.thread_count -= 1;
                        return;
                    }
                }
            };
            self.carry_out(work);
        }
    }

    fn carry_out(&self, mut work: Work) {
        loop {
            let own = self.file.take_sync_file(&work.job);
            let is_sync = work.job.durable_call() == Some(DurableCall::Sync);
            let turn = is_sync.then(|| self.sync_turn.lock().unwrap_or_else(PoisonError::into_inner));
            let result = call(own.as_ref().map_or(&self.file.open.file, |own| &own.file), &mut work.job);
            let progress = self.file.handle(&mut work.job, own, result);
            drop(turn);
            if let Progress::Done(result) = progress {
                return work.finish(result);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the job's next call.
fn call(file: &File, job: &mut Job) -> Result<usize, Errno> {
    match job.call() {
        Call::Read { at, offset, length } => rustix::io::pread(file, &mut job.buffer()[at..at + length], offset),
        Call::Write { at, offset, length, is_durable: false } => {
            rustix::io::pwrite(file, &job.buffer()[at..at + length], offset)
        }
        Call::Write { at, offset, length, is_durable: true } => {
            let source = [std::io::IoSlice::new(&job.buffer()[at..at + length])];
            rustix::io::pwritev2(file, &source, offset, rustix::io::ReadWriteFlags::DSYNC)
        }
        Call::Allocate { flags, offset, length } => rustix::fs::fallocate(file, flags, offset, length).map(|()| 0),
        Call::Sync => rustix::fs::fdatasync(file).map(|()| 0),
    }
}
