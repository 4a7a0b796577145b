//! One request as the sequence of system calls it takes, without making them.
//!
//! [`Job::call`] gives the next call, [`Job::handle`] takes its result and returns whether the
//! request is done. Both engines drive jobs by these two, so they behave the same.
//!
//! | request | calls |
//! |---|---|
//! | read, write | one, and more while it comes back short |
//! | flush | `fdatasync` |
//! | discard | punch a hole |
//! | write_zeroes | punch a hole where allowed, else zero the range, else write zeroes; then, for `fua`, `fdatasync` |
//!
//! Where the engine gathers the `fdatasync` of many ([`Syncs`]), a job is [`Progress::Written`] instead of making its
//! own.

use base::range::ByteRange;
use block::{Buffer, Error, ErrorKind, Operation, OperationKind};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::durable_call::DurableCall;
use crate::failure;
use crate::limits::{REPEATS_MAX, ZERO_CHUNK_BYTES};
use crate::promises::Moment;

/// A request on its way.
pub(crate) struct Job {
    kind: OperationKind,
    range: ByteRange,
    buffer: Buffer,
    /// Bytes of `range` that are done.
    done: u64,
    is_fua: bool,
    syncs: Syncs,
    stage: Stage,
    repeat_count: u32,
    /// When it was submitted.
    moment: Moment,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Reads or writes `buffer` itself.
    Transfer,
    /// Allocates, punches or zeroes the range in one call.
    Allocate(FallocateFlags),
    /// Writes `buffer`, which is zero, over the range again and again.
    WriteZeroes,
    Sync,
}

/// Which part makes the `fdatasync` that a job needs, and whether durable writes need one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Syncs {
    /// The job itself. Durable writes need none: they are durable by themselves (`RWF_DSYNC`).
    #[default]
    Own,
    /// The job itself, also for a durable write, which is a plain write and then a sync.
    OwnAfterWrites,
    /// The engine, one for all jobs that wait for one. Durable writes need none: they are durable by themselves
    /// (`RWF_DSYNC`).
    Shared,
    /// The engine, also for durable writes, which are plain writes.
    SharedByWrites,
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Read into the buffer from byte `at` on.
    Read { at: usize, offset: u64, length: usize },
    /// Write the buffer from byte `at` on; `is_durable` asks for `RWF_DSYNC`.
    Write { at: usize, offset: u64, length: usize, is_durable: bool },
    /// `fallocate`.
    Allocate { flags: FallocateFlags, offset: u64, length: u64 },
    /// `fdatasync`.
    Sync,
}

/// What to do after a call.
pub(crate) enum Progress {
    /// Make the next call.
    Again,
    /// What was written is durable after a sync that begins now or later.
    Written,
    /// The request is answered.
    Done(Result<(), Error>),
}

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

impl Job {
    /// The job of an operation on `range`, of which `done` bytes were read or written on the spot.
    /// `is_durable` treats every change as with `fua`. Requests for extents are no jobs.
    pub(crate) fn new(operation: Operation, range: ByteRange, done: usize, is_durable: bool) -> Self {
        let kind = operation.kind();
        let (buffer, is_fua, stage) = match operation {
            Operation::Read { buffer } => (buffer, false, Stage::Transfer),
            Operation::Write { buffer, fua } => (buffer, fua, Stage::Transfer),
            Operation::Discard { .. } => (Buffer::empty(), false, Stage::Allocate(PUNCH)),
            Operation::WriteZeroes { fua, may_discard, .. } => {
                (Buffer::empty(), fua, Stage::Allocate(if may_discard { PUNCH } else { ZERO }))
            }
            Operation::Flush | Operation::Extents { .. } => (Buffer::empty(), false, Stage::Sync),
        };
        let is_fua = is_fua || is_durable;
        Self {
            kind,
            range,
            buffer,
            done: done as u64,
            is_fua,
            syncs: Syncs::Own,
            stage,
            repeat_count: 0,
            moment: Moment::default(),
        }
    }

    /// The job with `moment` as the moment of its submission.
    pub(crate) fn at(self, moment: Moment) -> Self {
        Self { moment, ..self }
    }

    /// The moment of its submission.
    pub(crate) fn moment(&self) -> Moment {
        self.moment
    }

    /// The job with syncs made as `syncs` says.
    pub(crate) fn with_syncs(self, syncs: Syncs) -> Self {
        Self { syncs, ..self }
    }

    /// Whether it is a durable write that is [written](Progress::Written) before it is done.
    pub(crate) fn is_write_before_sync(&self) -> bool {
        self.syncs == Syncs::SharedByWrites && self.is_fua && self.kind == OperationKind::Write
    }

    /// Whether it has no call to make and only waits for the engine's next sync.
    pub(crate) fn awaits_sync(&self) -> bool {
        self.is_sync_gathered() && self.stage == Stage::Sync
    }

    fn is_sync_gathered(&self) -> bool {
        matches!(self.syncs, Syncs::Shared | Syncs::SharedByWrites)
    }

    /// The next call.
    pub(crate) fn call(&self) -> Call {
        let offset = self.range.offset + self.done;
        let rest = self.range.length - self.done;
        match self.stage {
            Stage::Transfer => {
                let (at, length) = (self.done as usize, rest as usize);
                match self.kind {
                    OperationKind::Read => Call::Read { at, offset, length },
                    _ => Call::Write { at, offset, length, is_durable: self.is_durable_write() },
                }
            }
            Stage::WriteZeroes => {
                let length = rest.min(self.buffer.len() as u64) as usize;
                Call::Write { at: 0, offset, length, is_durable: false }
            }
            Stage::Allocate(flags) => Call::Allocate { flags, offset: self.range.offset, length: self.range.length },
            Stage::Sync => Call::Sync,
        }
    }

    /// The memory that calls read from and write to. It stays where it is until the job is dropped.
    pub(crate) fn buffer(&mut self) -> &mut Buffer {
        &mut self.buffer
    }

    fn is_durable_write(&self) -> bool {
        self.stage == Stage::Transfer && self.kind == OperationKind::Write && self.is_fua && !self.is_synced_apart()
    }

    /// Whether a durable write is a plain one, followed by a sync.
    fn is_synced_apart(&self) -> bool {
        matches!(self.syncs, Syncs::SharedByWrites | Syncs::OwnAfterWrites)
    }

    /// Which durable call the next call, or the one under way, is; `None` for other calls.
    pub(crate) fn durable_call(&self) -> Option<DurableCall> {
        match self.stage {
            Stage::Sync => Some(DurableCall::Sync),
            _ => self.is_durable_write().then_some(DurableCall::Write),
        }
    }

    /// Whether it returns data of the file to the caller.
    pub(crate) fn is_read(&self) -> bool {
        self.kind == OperationKind::Read
    }

    /// The range of the request.
    pub(crate) fn range(&self) -> ByteRange {
        self.range
    }

    /// The buffer that is returned to the caller.
    pub(crate) fn into_buffer(self) -> Buffer {
        match self.kind {
            OperationKind::Read | OperationKind::Write => self.buffer,
            _ => Buffer::empty(),
        }
    }

    /// Takes the result of the call.
    pub(crate) fn handle(&mut self, result: Result<usize, Errno>, path: &str) -> Progress {
        match result {
            Ok(count) => self.advance(count as u64, path),
            // Cancelled because the thread that submitted it has ended: it was not carried out, or
            // can be repeated with the same effect.
            Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) if self.repeat_count < REPEATS_MAX => {
                self.repeat_count += 1;
                Progress::Again
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) if self.fall_back() => Progress::Again,
            Err(errno) => Progress::Done(Err(failure::error(errno, self.describe(path)))),
        }
    }

    fn advance(&mut self, count: u64, path: &str) -> Progress {
        match self.stage {
            Stage::Transfer | Stage::WriteZeroes => {
                self.done = (self.done + count).min(self.range.length);
                if self.done == self.range.length {
                    return self.after_content();
                }
                if count == 0 {
                    let what =
                        if self.kind == OperationKind::Read { "the file is shorter" } else { "nothing was written" };
                    let context = format!("{}: {what}", self.describe(path));
                    return Progress::Done(Err(Error::new(ErrorKind::Media, context)));
                }
                Progress::Again
            }
            Stage::Allocate(_) => self.after_content(),
            Stage::Sync => Progress::Done(Ok(())),
        }
    }

    /// All bytes are read, written or zeroed; the next step is a sync, if durability still needs
    /// one.
    fn after_content(&mut self) -> Progress {
        if self.is_write_before_sync() {
            return Progress::Written;
        }
        let is_durable = self.stage == Stage::Transfer && !self.is_synced_apart();
        if self.is_fua && self.kind != OperationKind::Read && !is_durable {
            self.stage = Stage::Sync;
            return if self.is_sync_gathered() { Progress::Written } else { Progress::Again };
        }
        Progress::Done(Ok(()))
    }

    /// Changes to the next way of making zeroes, if there is one: a hole where allowed, then
    /// zeroing the range (which block devices do by writing, if they must), then writing.
    fn fall_back(&mut self) -> bool {
        match self.stage {
            Stage::Allocate(_) if self.kind != OperationKind::WriteZeroes => return false,
            Stage::Allocate(PUNCH) => self.stage = Stage::Allocate(ZERO),
            Stage::Allocate(_) => {
                self.stage = Stage::WriteZeroes;
                self.buffer = Buffer::zeroed(self.range.length.min(ZERO_CHUNK_BYTES as u64) as usize);
            }
            Stage::Transfer | Stage::WriteZeroes | Stage::Sync => return false,
        }
        true
    }

    fn describe(&self, path: &str) -> String {
        match self.kind {
            OperationKind::Flush => format!("flush of {path}"),
            kind => format!("{} of {} of {path}", kind.as_str(), self.range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: ByteRange = ByteRange { offset: 4096, length: 8192 };

    fn finish(progress: Progress) -> Result<(), ErrorKind> {
        match progress {
            Progress::Again | Progress::Written => panic!("the job goes on"),
            Progress::Done(result) => result.map_err(|error| error.kind()),
        }
    }

    fn is_again(progress: &Progress) -> bool {
        matches!(progress, Progress::Again)
    }

    #[test]
    fn a_short_read_goes_on_where_it_stopped() {
        let mut job = Job::new(Operation::Read { buffer: Buffer::zeroed(8192) }, RANGE, 512, false);
        assert_eq!(job.call(), Call::Read { at: 512, offset: 4608, length: 7680 });
        assert!(is_again(&job.handle(Ok(3584), "/p")));
        assert_eq!(job.call(), Call::Read { at: 4096, offset: 8192, length: 4096 });
        assert_eq!(finish(job.handle(Ok(4096), "/p")), Ok(()));
        assert_eq!(job.into_buffer().len(), 8192);
    }

    #[test]
    fn a_read_past_the_end_of_a_truncated_file_is_a_medium_error() {
        let mut job = Job::new(Operation::Read { buffer: Buffer::zeroed(8192) }, RANGE, 0, false);
        assert!(is_again(&job.handle(Ok(4096), "/p")));
        assert_eq!(finish(job.handle(Ok(0), "/p")), Err(ErrorKind::Media));
    }

    #[test]
    fn zeroes_fall_back_to_writing_and_end_in_a_sync_for_fua() {
        let operation = Operation::WriteZeroes { length: RANGE.length, fua: true, may_discard: true };
        let mut job = Job::new(operation, RANGE, 0, false);
        assert_eq!(job.call(), Call::Allocate { flags: PUNCH, offset: 4096, length: 8192 });
        assert!(is_again(&job.handle(Err(Errno::OPNOTSUPP), "/p")));
        assert_eq!(job.call(), Call::Allocate { flags: ZERO, offset: 4096, length: 8192 });
        assert!(is_again(&job.handle(Err(Errno::OPNOTSUPP), "/p")));
        assert_eq!(job.call(), Call::Write { at: 0, offset: 4096, length: 8192, is_durable: false });
        assert!(is_again(&job.handle(Ok(8192), "/p")));
        assert_eq!(job.call(), Call::Sync);
        assert_eq!(job.durable_call(), Some(DurableCall::Sync));
        assert_eq!(finish(job.handle(Ok(0), "/p")), Ok(()));
        assert_eq!(job.into_buffer().len(), 0);
    }

    #[test]
    fn an_interrupted_call_is_repeated_and_not_for_ever() {
        let mut job = Job::new(Operation::Flush, ByteRange::default(), 0, false);
        for _ in 0..REPEATS_MAX {
            assert!(is_again(&job.handle(Err(Errno::INTR), "/p")));
        }
        assert!(finish(job.handle(Err(Errno::INTR), "/p")).is_err());
    }

    #[test]
    fn a_write_that_must_be_durable_says_so() {
        for (fua, is_durable) in [(true, false), (false, true)] {
            let operation = Operation::Write { buffer: Buffer::zeroed(8192), fua };
            let mut job = Job::new(operation, RANGE, 0, is_durable);
            assert_eq!(job.call(), Call::Write { at: 0, offset: 4096, length: 8192, is_durable: true });
            assert_eq!(job.durable_call(), Some(DurableCall::Write));
            assert_eq!(finish(job.handle(Ok(8192), "/p")), Ok(()));
        }
    }

    #[test]
    fn what_needs_a_sync_leaves_it_to_the_engine_that_gathers_them() {
        let write = || Operation::Write { buffer: Buffer::zeroed(8192), fua: true };
        let mut job = Job::new(write(), RANGE, 0, false).with_syncs(Syncs::SharedByWrites);
        assert_eq!((job.is_write_before_sync(), job.durable_call()), (true, None));
        assert_eq!(job.call(), Call::Write { at: 0, offset: 4096, length: 8192, is_durable: false });
        assert!(matches!(job.handle(Ok(8192), "/p"), Progress::Written));
        let mut job = Job::new(write(), RANGE, 0, false).with_syncs(Syncs::OwnAfterWrites);
        assert!(!job.is_write_before_sync() && !job.awaits_sync() && job.durable_call().is_none());
        assert_eq!(job.call(), Call::Write { at: 0, offset: 4096, length: 8192, is_durable: false });
        assert!(is_again(&job.handle(Ok(8192), "/p")));
        assert_eq!((job.call(), job.durable_call()), (Call::Sync, Some(DurableCall::Sync)));
        assert_eq!(finish(job.handle(Ok(0), "/p")), Ok(()));
        let read = Operation::Read { buffer: Buffer::zeroed(8192) };
        let mut job = Job::new(read, RANGE, 0, true).with_syncs(Syncs::OwnAfterWrites);
        assert_eq!(finish(job.handle(Ok(8192), "/p")), Ok(()));
        let job = Job::new(write(), RANGE, 0, false).with_syncs(Syncs::Shared);
        assert_eq!((job.is_write_before_sync(), job.durable_call()), (false, Some(DurableCall::Write)));
        for syncs in [Syncs::Shared, Syncs::SharedByWrites] {
            assert!(Job::new(Operation::Flush, ByteRange::default(), 0, false).with_syncs(syncs).awaits_sync());
            let zeroes = Operation::WriteZeroes { length: RANGE.length, fua: true, may_discard: true };
            let mut job = Job::new(zeroes, RANGE, 0, false).with_syncs(syncs);
            assert!(!job.awaits_sync() && !job.is_write_before_sync());
            assert!(matches!(job.handle(Ok(0), "/p"), Progress::Written));
        }
    }
}
