//! The device requests for each NBD command.
//!
//! | command | device |
//! |---|---|
//! | read, write | the same, in steps where the device takes less at once than NBD allows, or for partial blocks |
//! | write with FUA | the same |
//! | flush | the same, shared by flushes that come meanwhile ([`Flushes`](crate::flushes::Flushes)) |
//! | trim | discard, and a flush after it for FUA |
//! | write zeroes | the same, may discard unless `NO_HOLE`; with `FAST_ZERO` only where a discard does it |
//! | cache | reads whose data is dropped: the caches below keep it |
//! | block status | extents; a device without them has one allocated extent |
//!
//! Long commands without payload wait in one line, and are carried out in pieces
//! ([`LongRequests`]).
//!
//! Reads and writes of heavy connections take turns, in pieces
//! ([`Admission`](crate::admission::Admission)).
//!
//! A command that changes data takes its turn first: one at a time for each block. A change of part
//! of a block reads and writes all of it, and must not write back what another command changed
//! meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use block::range_lock::{RangeGuard, RangeLock};
use block::{Buffer, ByteRange, Completion, Error, ErrorKind, Geometry, Request, Response, SharedDevice};
use nbd::Command;
use nbd::server::{Reply, Ticket};
use tokio::sync::OwnedSemaphorePermit;

use crate::admission::DeviceTurns;
use crate::counters::RequestKind;
use crate::error_table::to_failure;
use crate::limits::{PIECE_BYTES_MIN, STEP_BYTES};
use crate::long_requests::{LongRequests, Part, WorkShare, is_long};
use crate::partial::{Blocks, around, is_whole, to_status};

/// A request under way, with the resources that it holds until its end.
pub(crate) struct Job {
    pub(crate) ticket: Ticket,
    pub(crate) kind: RequestKind,
    /// Bytes of memory it holds.
    pub(crate) bytes: u64,
    /// Bytes of the buffer it got from the connection's share, if any.
    pub(crate) buffer_bytes: Option<usize>,
    /// Its turn among changes of the same blocks, held until it has ended.
    pub(crate) turn: Option<RangeGuard>,
    /// Its part of the connection's share of work, held until it has ended.
    pub(crate) part: Option<OwnedSemaphorePermit>,
}

/// The surroundings in which the commands of a connection are carried out.
pub(crate) struct CommandContext<'a> {
    pub(crate) device: &'a SharedDevice,
    pub(crate) geometry: &'a Geometry,
    pub(crate) turns: &'a RangeLock,
    pub(crate) work_share: &'a WorkShare,
    pub(crate) long_requests: &'a Arc<LongRequests>,
    /// The turns of this request, where it must take turns with other connections.
    pub(crate) device_turns: Option<DeviceTurns>,
}

impl CommandContext<'_> {
    /// Most bytes of a read or write that is one request of the device.
    fn piece_bytes_max(&self) -> u64 {
        let transfer_max = u64::from(self.geometry.transfer_bytes_max.max(self.geometry.logical_block_bytes));
        if self.device_turns.is_some() { transfer_max.min(PIECE_BYTES_MIN) } else { transfer_max }
    }
}

/// A request that has ended.
pub(crate) struct Finished {
    pub(crate) job: Job,
    pub(crate) reply: Reply,
}

/// A request that the device has not answered yet.
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
                to_reply(this.job.as_ref().map(|job| job.kind), response)
            }
            Steps::Many(future) => std::task::ready!(future.as_mut().poll(context)),
        };
        let job = this.job.take().expect("a request finishes once");
        Poll::Ready(Finished { job, reply })
    }
}

/// The result of starting a request: a cache or RAM mostly answers at once.
pub(crate) enum Started {
    Finished(Finished),
    Running(Running),
}

/// The kind and the length of a command, for the counters.
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

/// Bytes of a command's own buffer, where it has one.
pub(crate) fn buffer_bytes(command: &Command) -> Option<usize> {
    match command {
        Command::Read { length, .. } => Some(*length as usize),
        Command::Write { buffer, .. } => Some(buffer.len()),
        _ => None,
    }
}

/// Bytes of memory that a command holds until it is answered: its buffer, and that of a step where
/// it takes several. Of the pieces of long commands only one at a time exists in the server.
pub(crate) fn held_bytes(geometry: &Geometry, command: &Command) -> u64 {
    let own = buffer_bytes(command).unwrap_or(0) as u64;
    let range = range_of(command);
    let block_bytes = geometry.logical_block_bytes.into();
    let has_steps = !is_long(command) && !is_whole(block_bytes, range);
    own + if has_steps { around(block_bytes, range).length.min(STEP_BYTES) } else { 0 }
}

/// The bytes that a command concerns.
fn range_of(command: &Command) -> ByteRange {
    let (offset, length) = match command {
        Command::Read { offset, length }
        | Command::Trim { offset, length, .. }
        | Command::Cache { offset, length }
        | Command::WriteZeroes { offset, length, .. }
        | Command::BlockStatus { offset, length, .. } => (*offset, u64::from(*length)),
        Command::Write { offset, buffer, .. } => (*offset, buffer.len() as u64),
        Command::Flush => (0, 0),
    };
    ByteRange { offset, length }
}

/// The whole blocks that a command concerns.
fn blocks_of(geometry: &Geometry, command: &Command) -> ByteRange {
    around(geometry.logical_block_bytes.into(), range_of(command))
}

fn is_mutation(command: &Command) -> bool {
    matches!(command, Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. })
}

/// Starts `command` of `job`. A read gets `buffer`, which has the length of the read; other
/// commands ignore it.
pub(crate) fn start(commands: &CommandContext<'_>, mut job: Job, command: Command, buffer: Buffer) -> Started {
    let CommandContext { geometry, work_share, long_requests, .. } = *commands;
    if let Command::WriteZeroes { offset, length, only_if_fast: true, may_discard, .. } = command
        && (!may_discard || !is_fast_to_zero(geometry, offset, length.into()))
    {
        let reply = Reply::Failed(nbd::ErrorCode::NotSupported.into());
        return Started::Finished(Finished { job, reply });
    }
    let part = work_share.of(&command);
    if is_long(&command) {
        return start_long(commands, job, command, part);
    }
    long_requests.note_other();
    match part {
        Part::Given(part) => {
            job.part = part;
            start_now(commands, job, command, buffer)
        }
        part @ Part::Awaited(..) => start_later(commands, job, (command, buffer), part),
    }
}

fn start_now(commands: &CommandContext<'_>, mut job: Job, command: Command, buffer: Buffer) -> Started {
    let CommandContext { device, geometry, turns, .. } = *commands;
    let device_turns = commands.device_turns.clone();
    let mut later = None;
    if is_mutation(&command) {
        let mut turn = turns.exclusive(blocks_of(geometry, &command));
        job.turn = turn.try_take();
        later = job.turn.is_none().then_some(turn);
    }
    let what = match (to_request(commands, command, buffer), &later) {
        (Ok(request), None) if device_turns.is_none() => return submit(device, job, request),
        (what, _) => what,
    };
    let carried_out = to_the_end(device.clone(), *geometry, job.kind, (what, device_turns));
    many(job, async move {
        let _turn = match later {
            Some(turn) => Some(turn.await),
            None => None,
        };
        carried_out.await
    })
}

/// The turn is taken after the part of the share: so no command waits for one that waits for its
/// own connection.
fn start_later(commands: &CommandContext<'_>, job: Job, (command, buffer): (Command, Buffer), part: Part) -> Started {
    let CommandContext { device, geometry, turns, .. } = *commands;
    let turns = is_mutation(&command).then(|| (turns.clone(), blocks_of(geometry, &command)));
    let what = to_request(commands, command, buffer);
    let carried_out = to_the_end(device.clone(), *geometry, job.kind, (what, commands.device_turns.clone()));
    many(job, async move {
        let _part = part.wait().await;
        let _turn = match turns {
            Some((turns, range)) => Some(turns.exclusive(range).await),
            None => None,
        };
        carried_out.await
    })
}

fn start_long(commands: &CommandContext<'_>, job: Job, command: Command, part: Part) -> Started {
    let CommandContext { device, geometry, turns, long_requests, .. } = *commands;
    let blocks = Blocks::new(device.clone(), geometry, STEP_BYTES, None);
    let (turns, geometry, long_requests) = (turns.clone(), *geometry, Arc::clone(long_requests));
    many(job, async move {
        let _part = part.wait().await;
        long_requests.carry_out(blocks?, (&turns, &geometry), command).await
    })
}

/// Carries out a command by one device request if possible, otherwise in steps.
async fn to_the_end(
    device: SharedDevice,
    geometry: Geometry,
    kind: RequestKind,
    (what, device_turns): (Result<Request, (Command, Buffer)>, Option<DeviceTurns>),
) -> Result<Reply, Error> {
    let request = match what {
        Ok(request) => request,
        Err(what) => return in_steps(device, geometry, what, device_turns).await,
    };
    let response = match device_turns {
        Some(turns) => {
            let place = turns.enter(request.range().unwrap_or_default().length).await;
            place.carry_out(device.submit(request)).await
        }
        None => device.submit(request).await,
    };
    Ok(to_reply(Some(kind), response))
}

fn submit(device: &SharedDevice, job: Job, request: Request) -> Started {
    let mut completion = device.submit(request);
    match completion.try_take() {
        Some(response) => {
            let reply = to_reply(Some(job.kind), response);
            Started::Finished(Finished { job, reply })
        }
        None => Started::Running(Running { job: Some(job), steps: Steps::One(completion) }),
    }
}

/// The one device request for a command; or the command and its buffer where it takes several.
fn to_request(commands: &CommandContext<'_>, command: Command, buffer: Buffer) -> Result<Request, (Command, Buffer)> {
    let bytes_max = commands.piece_bytes_max();
    if !is_whole(commands.geometry.logical_block_bytes.into(), range_of(&command)) {
        return Err((command, buffer));
    }
    match command {
        Command::Read { offset, .. } if buffer.len() as u64 <= bytes_max => Ok(Request::read(offset, buffer)),
        Command::Write { offset, buffer, fua } if buffer.len() as u64 <= bytes_max => {
            Ok(Request::write(offset, buffer, fua))
        }
        Command::Flush => Ok(Request::flush()),
        Command::Trim { offset, length, fua: false } => Ok(Request::discard(offset, length.into())),
        Command::WriteZeroes { offset, length, fua, may_discard, .. } => {
            Ok(Request::write_zeroes(offset, length.into(), fua, may_discard))
        }
        Command::BlockStatus { offset, length, .. } => Ok(Request::extents(offset, length.into())),
        Command::Read { .. } | Command::Write { .. } | Command::Trim { .. } | Command::Cache { .. } => {
            Err((command, buffer))
        }
    }
}

/// Carries out a command by several device requests.
async fn in_steps(
    device: SharedDevice,
    geometry: Geometry,
    (command, buffer): (Command, Buffer),
    device_turns: Option<DeviceTurns>,
) -> Result<Reply, Error> {
    let range = range_of(&command);
    let is_copied = matches!(command, Command::Read { .. } | Command::Write { .. });
    // Whole blocks come here only where the device takes less at once, or other connections take
    // turns.
    let is_long = is_copied && is_whole(geometry.logical_block_bytes.into(), range);
    let blocks = Blocks::new(device, &geometry, if is_long { u64::MAX } else { STEP_BYTES }, device_turns)?;
    match command {
        Command::Read { offset, .. } => return Ok(Reply::Data(blocks.read(offset, buffer).await?)),
        Command::BlockStatus { .. } => return Ok(Reply::Status(blocks.status(range).await?)),
        Command::Write { offset, buffer, fua } => blocks.write(offset, buffer, fua).await?,
        Command::Flush => {}
        Command::Trim { fua, .. } => blocks.discard(range, fua).await?,
        Command::Cache { .. } => blocks.warm(range).await?,
        Command::WriteZeroes { fua, may_discard, .. } => blocks.write_zeroes(range, fua, may_discard).await?,
    }
    Ok(Reply::Done)
}

fn many(job: Job, future: impl Future<Output = Result<Reply, Error>> + Send + 'static) -> Started {
    let future = async move { future.await.unwrap_or_else(|error| Reply::Failed(to_failure(&error))) };
    Started::Running(Running { job: Some(job), steps: Steps::Many(Box::pin(future)) })
}

fn to_reply(kind: Option<RequestKind>, response: Response) -> Reply {
    match (response.result, kind) {
        (Ok(()), Some(RequestKind::Read)) => Reply::Data(response.buffer),
        (Ok(()), Some(RequestKind::BlockStatus)) => Reply::Status(to_status(&response.extents)),
        (Ok(()), _) => Reply::Done,
        // A device that does not know its allocation reports all as allocated ("base:allocation").
        (Err(error), Some(RequestKind::BlockStatus)) if error.kind() == ErrorKind::Unsupported => {
            Reply::Status(Vec::new())
        }
        (Err(error), _) => Reply::Failed(to_failure(&error)),
    }
}

/// Whether zeroing the range can be a discard: the device's discards read as zeroes and the range
/// covers whole granules.
fn is_fast_to_zero(geometry: &Geometry, offset: u64, length: u64) -> bool {
    let Some(granule) = geometry.discard_granularity_bytes.map(u64::from) else { return false };
    let end = offset + length;
    let ends_well = end.is_multiple_of(granule) || end == geometry.size_bytes;
    geometry.discard_reads_zeroes && offset.is_multiple_of(granule) && ends_well
}
