//! How a device carries out each command.
//!
//! | command | device |
//! |---|---|
//! | read, write | the same, in pieces where the device takes less at once than NBD allows |
//! | flush, write with FUA | the same |
//! | trim | discard, and a flush after it for FUA |
//! | write zeroes | the same, allowed to discard unless `NO_HOLE`; with `FAST_ZERO` only where a discard does it |
//! | cache | reads whose data is dropped: whatever caches there are below keep it |
//! | block status | extents; a device that knows none has one allocated extent |

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use block::device::DeviceExt;
use block::{Buffer, Completion, Error, ErrorKind, Extent, ExtentKind, Geometry, Request, Response, SharedDevice};
use nbd::StatusExtent;
use nbd::server::{Command, Reply, Ticket};

use crate::counters::RequestKind;
use crate::error_table::to_failure;
use crate::limits::CACHE_PIECE_BYTES;

/// A request under way: what its end brings.
pub(crate) struct Job {
    pub(crate) ticket: Ticket,
    pub(crate) kind: RequestKind,
    /// Bytes of buffer it holds.
    pub(crate) bytes: u64,
}

/// A request that is over.
pub(crate) struct Finished {
    pub(crate) job: Job,
    pub(crate) reply: Reply,
}

/// A request the device has not answered yet.
pub(crate) struct Running {
    job: Option<Job>,
    steps: Steps,
}

enum Steps {
    One(Completion),
    Many(Pin<Box<dyn Future<Output = Reply> + Send>>),
}

impl Future for Running {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished> {
        let this = &mut *self;
        let reply = match &mut this.steps {
            Steps::One(completion) => {
                let response = std::task::ready!(Pin::new(completion).poll(context));
                to_reply(this.job.as_ref(), response)
            }
            Steps::Many(future) => std::task::ready!(future.as_mut().poll(context)),
        };
        let job = this.job.take().expect("a request finishes once");
        Poll::Ready(Finished { job, reply })
    }
}

/// What came of starting a request: most answers of a cache or of RAM are there at once.
pub(crate) enum Started {
    Finished(Finished),
    Running(Running),
}

/// The kind and the length of a command, for the books.
pub(crate) fn describe(command: &Command) -> (RequestKind, u64) {
    match command {
        Command::Read { length, .. } => (RequestKind::Read, u64::from(*length)),
        Command::Write { buffer, .. } => (RequestKind::Write, buffer.len() as u64),
        Command::Flush => (RequestKind::Flush, 0),
        Command::Trim { length, .. } => (RequestKind::Trim, u64::from(*length)),
        Command::Cache { length, .. } => (RequestKind::Cache, u64::from(*length)),
        Command::WriteZeroes { length, .. } => (RequestKind::WriteZeroes, u64::from(*length)),
        Command::BlockStatus { length, .. } => (RequestKind::BlockStatus, u64::from(*length)),
    }
}

/// Bytes of memory a command holds until it is answered.
pub(crate) fn buffer_bytes(command: &Command) -> u64 {
    match command {
        Command::Read { length, .. } => u64::from(*length),
        Command::Write { buffer, .. } => buffer.len() as u64,
        Command::Cache { length, .. } => u64::from(*length).min(CACHE_PIECE_BYTES.into()),
        _ => 0,
    }
}

/// Starts `command` of `job`. A read gets `buffer`, which is as long as what it reads; other commands do not look at it.
pub(crate) fn start(device: &SharedDevice, geometry: &Geometry, job: Job, command: Command, buffer: Buffer) -> Started {
    let transfer_max = geometry.transfer_bytes_max.max(geometry.logical_block_bytes) as usize;
    let request = match command {
        Command::Read { offset, .. } if buffer.len() > transfer_max => {
            return many(job, read_in_pieces(device.clone(), offset, buffer, transfer_max));
        }
        Command::Read { offset, .. } => Request::read(offset, buffer),
        Command::Write { offset, buffer, fua } if buffer.len() > transfer_max => {
            return many(job, write_in_pieces(device.clone(), offset, buffer, fua, transfer_max));
        }
        Command::Write { offset, buffer, fua } => Request::write(offset, buffer, fua),
        Command::Flush => Request::flush(),
        Command::Trim { offset, length, fua: true } => {
            return many(job, trim_durably(device.clone(), offset, length.into()));
        }
        Command::Trim { offset, length, fua: false } => Request::discard(offset, length.into()),
        Command::Cache { offset, length } => {
            let piece = transfer_max.min(CACHE_PIECE_BYTES as usize) as u32;
            return many(job, warm(device.clone(), offset, length, piece));
        }
        Command::WriteZeroes { offset, length, only_if_fast: true, may_discard, .. }
            if !may_discard || !is_fast_to_zero(geometry, offset, length.into()) =>
        {
            let reply = Reply::Failed(nbd::ErrorCode::NotSupported.into());
            return Started::Finished(Finished { job, reply });
        }
        Command::WriteZeroes { offset, length, fua, may_discard, .. } => {
            Request::write_zeroes(offset, length.into(), fua, may_discard)
        }
        Command::BlockStatus { offset, length, .. } => Request::extents(offset, length.into()),
    };
    let mut completion = device.submit(request);
    match completion.try_take() {
        Some(response) => {
            let reply = to_reply(Some(&job), response);
            Started::Finished(Finished { job, reply })
        }
        None => Started::Running(Running { job: Some(job), steps: Steps::One(completion) }),
    }
}

fn many(job: Job, future: impl Future<Output = Result<Reply, Error>> + Send + 'static) -> Started {
    let future = async move { future.await.unwrap_or_else(|error| Reply::Failed(to_failure(&error))) };
    Started::Running(Running { job: Some(job), steps: Steps::Many(Box::pin(future)) })
}

fn to_reply(job: Option<&Job>, response: Response) -> Reply {
    let kind = job.map(|job| job.kind);
    match (response.result, kind) {
        (Ok(()), Some(RequestKind::Read)) => Reply::Data(response.buffer),
        (Ok(()), Some(RequestKind::BlockStatus)) => Reply::Status(to_status(&response.extents)),
        (Ok(()), _) => Reply::Done,
        // Whoever does not know what is allocated says that everything is ("base:allocation").
        (Err(error), Some(RequestKind::BlockStatus)) if error.kind() == ErrorKind::Unsupported => {
            Reply::Status(Vec::new())
        }
        (Err(error), _) => Reply::Failed(to_failure(&error)),
    }
}

fn to_status(extents: &[Extent]) -> Vec<StatusExtent> {
    let to_extent = |extent: &Extent| {
        let is_hole = extent.kind == ExtentKind::Hole;
        let length_bytes = u32::try_from(extent.range.length).unwrap_or(u32::MAX);
        StatusExtent { length_bytes, is_hole, is_zero: is_hole }
    };
    extents.iter().filter(|extent| !extent.range.is_empty()).map(to_extent).collect()
}

/// Whether zeroing the range is only a discard: the device's discards read as zeroes and the range covers whole granules.
fn is_fast_to_zero(geometry: &Geometry, offset: u64, length: u64) -> bool {
    let Some(granule) = geometry.discard_granularity_bytes.map(u64::from) else { return false };
    let end = offset + length;
    let ends_well = end.is_multiple_of(granule) || end == geometry.size_bytes;
    geometry.discard_reads_zeroes && offset.is_multiple_of(granule) && ends_well
}

/// Reads more than the device takes at once: each piece through a buffer of its own.
async fn read_in_pieces(device: SharedDevice, offset: u64, mut buffer: Buffer, piece: usize) -> Result<Reply, Error> {
    let mut at = offset;
    for target in buffer.chunks_mut(piece) {
        let bytes = device.read(at, Buffer::zeroed(target.len())).await?;
        target.copy_from_slice(&bytes);
        at += target.len() as u64;
    }
    Ok(Reply::Data(buffer))
}

/// Writes more than the device takes at once.
async fn write_in_pieces(
    device: SharedDevice,
    offset: u64,
    buffer: Buffer,
    fua: bool,
    piece: usize,
) -> Result<Reply, Error> {
    let mut at = offset;
    for source in buffer.chunks(piece) {
        device.write(at, Buffer::copy_of(source), fua).await?;
        at += source.len() as u64;
    }
    Ok(Reply::Done)
}

async fn trim_durably(device: SharedDevice, offset: u64, length: u64) -> Result<Reply, Error> {
    device.discard(offset, length).await?;
    device.flush().await?;
    Ok(Reply::Done)
}

/// Reads a range and drops what it reads.
async fn warm(device: SharedDevice, offset: u64, length: u32, piece: u32) -> Result<Reply, Error> {
    let mut buffer = Buffer::zeroed(piece.min(length) as usize);
    let mut done = 0;
    while done < length {
        buffer.set_length(piece.min(length - done) as usize);
        let count = buffer.len() as u32;
        buffer = device.read(offset + u64::from(done), buffer).await?;
        done += count;
    }
    Ok(Reply::Done)
}
