//! One request as the system calls it takes, without making them.
//!
//! [`Job::call`] says what is to be called next, [`Job::handle`] takes the result and says whether that was all. Both
//! engines drive jobs by these two, so they behave the same.
//!
//! | request | calls |
//! |---|---|
//! | read, write | one, and more while it comes back short |
//! | flush | `fdatasync` |
//! | discard | punch a hole |
//! | write_zeroes | punch a hole where allowed, else zero the range, else write zeroes; then, for `fua`, `fdatasync` |

use base::range::ByteRange;
use block::{Buffer, Error, ErrorKind, Operation, OperationKind};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::failure;
use crate::limits::{REPEATS_MAX, ZERO_CHUNK_BYTES};

/// A request on its way.
pub(crate) struct Job {
    kind: OperationKind,
    range: ByteRange,
    buffer: Buffer,
    /// Bytes of `range` that are done.
    done: u64,
    is_fua: bool,
    /// Whether a durable write ends with a sync that it shares with others, instead of being durable by itself.
    shares_sync: bool,
    stage: Stage,
    repeat_count: u32,
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
    /// The job of an operation on `range`, of which `done` bytes were read or written on the spot. `is_durable` asks
    /// of every mutation what `fua` asks of one. Questions for extents are no jobs.
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
        Self { kind, range, buffer, done: done as u64, is_fua, shares_sync: false, stage, repeat_count: 0 }
    }

    /// The same; where it is a durable write, made so by a sync that it shares with others.
    pub(crate) fn sharing_sync(self, may_share: bool) -> Self {
        let shares_sync = may_share && self.is_fua && self.kind == OperationKind::Write;
        Self { shares_sync, ..self }
    }

    /// Whether it is [written](Progress::Written) before it is done.
    pub(crate) fn shares_sync(&self) -> bool {
        self.shares_sync
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
                    _ => Call::Write { at, offset, length, is_durable: self.is_fua && !self.shares_sync },
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

    /// Whether the next call, or the one under way, makes something durable.
    pub(crate) fn is_durable_call(&self) -> bool {
        match self.stage {
            Stage::Sync => true,
            Stage::Transfer => self.is_fua && self.kind == OperationKind::Write,
            Stage::Allocate(_) | Stage::WriteZeroes => false,
        }
    }

    /// Whether the call under way is an `fdatasync`.
    pub(crate) fn is_syncing(&self) -> bool {
        self.stage == Stage::Sync
    }

    /// The buffer that goes back to the caller.
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
            // Cancelled: the thread that submitted it ended; it was not carried out, or may be carried out again with
            // the same effect.
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

    /// The bytes are there; what is left is to make those durable that no `RWF_DSYNC` did.
    fn after_content(&mut self) -> Progress {
        if self.shares_sync {
            return Progress::Written;
        }
        if self.is_fua && self.stage != Stage::Transfer {
            self.stage = Stage::Sync;
            return Progress::Again;
        }
        Progress::Done(Ok(()))
    }

    /// Another way to zeroes, if there is one: a hole where allowed, else the range zeroed (which block devices do by
    /// writing, if they must), else written.
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
        assert!(job.is_syncing());
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
            assert_eq!(finish(job.handle(Ok(8192), "/p")), Ok(()));
        }
    }
}
