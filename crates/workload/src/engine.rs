//! The requests in flight on a device, and what follows their responses.
//!
//! It makes the content of writes, splits requests that are larger than the device takes, checks
//! the data of reads against the [`Ledger`], and keeps buffers for the next request. It keeps no
//! order: its caller does not submit a request that [conflicts](Engine::conflicts) with one in
//! flight, so at every moment each byte has one expected content and the checks are exact.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base::clock::{Clock, Instant};
use base::random::Random;
use base::range::ByteRange;
use block::{Buffer, Completion, Error, Request, Response, SharedDevice};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::access::{Access, AccessKind};
use crate::ledger::{Ledger, Mismatch, Version};
use crate::limits::{READY_IN_A_ROW_MAX, UNIT_BYTES};

/// A request of a run: its access, its version if it writes, and when it was first issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) access: Access,
    pub(crate) version: Version,
    pub(crate) issued_at: Instant,
}

/// A request that has ended, with all its parts.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) task: Task,
    pub(crate) finished_at: Instant,
    pub(crate) result: Result<(), Failure>,
}

/// Why a request did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    Device(Error),
    Mismatch(Box<Mismatch>),
}

/// The requests in flight on one device.
pub(crate) struct Engine {
    device: SharedDevice,
    clock: Arc<dyn Clock>,
    transfer_bytes_max: u64,
    slots: Vec<Option<Slot>>,
    free_slots: Vec<usize>,
    in_flight: FuturesUnordered<Part>,
    /// Parts that were answered at once.
    answered: VecDeque<(PartInfo, Response)>,
    answered_in_a_row: u32,
    buffers: Vec<Buffer>,
    buffers_max: usize,
    filler: Random,
}

/// One request, of one or more parts.
struct Slot {
    task: Task,
    parts_left: u32,
    failure: Option<Failure>,
}

#[derive(Clone, Copy)]
struct PartInfo {
    slot: usize,
    offset: u64,
}

struct Part {
    info: PartInfo,
    completion: Completion,
}

impl Future for Part {
    type Output = (PartInfo, Response);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(Pin::new(&mut self.completion).poll(context));
        Poll::Ready((self.info, response))
    }
}

impl Engine {
    /// An engine without requests; it keeps up to `depth` buffers for reuse.
    pub(crate) fn new(device: SharedDevice, clock: Arc<dyn Clock>, depth: u32) -> Self {
        let geometry = device.geometry();
        let block = u64::from(geometry.logical_block_bytes.max(UNIT_BYTES as u32));
        let transfer_bytes_max = (u64::from(geometry.transfer_bytes_max) / block * block).max(block);
        Self {
            device,
            clock,
            transfer_bytes_max,
            slots: Vec::new(),
            free_slots: Vec::new(),
            in_flight: FuturesUnordered::new(),
            answered: VecDeque::new(),
            answered_in_a_row: 0,
            buffers: Vec::new(),
            buffers_max: depth as usize,
            filler: Random::new(0),
        }
    }

    /// Count of requests in flight.
    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// Whether the order of `access` and a request in flight matters.
    pub(crate) fn conflicts(&self, access: &Access) -> bool {
        self.slots.iter().flatten().any(|slot| slot.task.access.conflicts_with(access))
    }

    /// Starts a request. With a ledger a write has the content of its version; without, that of the
    /// buffer.
    pub(crate) fn submit(&mut self, task: Task, ledger: Option<&Ledger>) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let range = task.access.range;
        let parts_left = match task.access.kind {
            AccessKind::Read | AccessKind::Write => range.length.div_ceil(self.transfer_bytes_max).max(1),
            AccessKind::Flush | AccessKind::Discard => 1,
        };
        let parts_left = u32::try_from(parts_left).expect("a request is at most a GiB, a part at least a block");
        self.slots[slot] = Some(Slot { task, parts_left, failure: None });
        match task.access.kind {
            AccessKind::Flush => self.submit_part(PartInfo { slot, offset: 0 }, Request::flush()),
            AccessKind::Discard => {
                let request = Request::discard(range.offset, range.length);
                self.submit_part(PartInfo { slot, offset: range.offset }, request);
            }
            AccessKind::Read | AccessKind::Write => {
                for index in 0..u64::from(parts_left) {
                    let offset = range.offset + index * self.transfer_bytes_max;
                    let part = ByteRange { offset, length: (range.end() - offset).min(self.transfer_bytes_max) };
                    let request = self.transfer(task, part, ledger);
                    self.submit_part(PartInfo { slot, offset }, request);
                }
            }
        }
    }

    fn transfer(&mut self, task: Task, part: ByteRange, ledger: Option<&Ledger>) -> Request {
        let length = usize::try_from(part.length).expect("a part is no larger than a transfer");
        let mut buffer = self.take_buffer(length);
        if task.access.kind == AccessKind::Read {
            return Request::read(part.offset, buffer);
        }
        if let Some(ledger) = ledger {
            ledger.fill(part.offset, task.version, &mut buffer);
        }
        Request::write(part.offset, buffer, false)
    }

    fn submit_part(&mut self, info: PartInfo, request: Request) {
        let mut completion = self.device.submit(request);
        match completion.try_take() {
            Some(response) => self.answered.push_back((info, response)),
            None => self.in_flight.push(Part { info, completion }),
        }
    }

    /// The next request that ends; pending for ever when none is in flight.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>, ledger: Option<&Ledger>) -> Poll<Done> {
        loop {
            let (info, response) = match self.answered.pop_front() {
                Some(answered) => {
                    self.answered_in_a_row += 1;
                    if self.answered_in_a_row > READY_IN_A_ROW_MAX {
                        self.answered_in_a_row = 0;
                        self.answered.push_front(answered);
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    answered
                }
                None => match ready!(self.in_flight.poll_next_unpin(context)) {
                    Some(answered) => answered,
                    None => return Poll::Pending,
                },
            };
            if let Some(done) = self.settle(info, response, ledger) {
                return Poll::Ready(done);
            }
        }
    }

    /// Notes the response of a part. Returns the request, if that was its last part.
    fn settle(&mut self, info: PartInfo, response: Response, ledger: Option<&Ledger>) -> Option<Done> {
        let slot = self.slots[info.slot].as_mut().expect("a slot is taken until its last part is back");
        let checked = match response.result {
            Err(error) => Err(Failure::Device(error)),
            Ok(()) => match ledger.filter(|_| slot.task.access.kind == AccessKind::Read) {
                Some(ledger) => ledger.check(info.offset, &response.buffer).map_err(Failure::Mismatch),
                None => Ok(()),
            },
        };
        if let Err(failure) = checked {
            slot.failure.get_or_insert(failure);
        }
        slot.parts_left -= 1;
        let is_last = slot.parts_left == 0;
        self.keep_buffer(response.buffer);
        if !is_last {
            return None;
        }
        let Slot { task, failure, .. } = self.slots[info.slot].take()?;
        self.free_slots.push(info.slot);
        Some(Done { task, finished_at: self.clock.now(), result: failure.map_or(Ok(()), Err) })
    }

    /// A buffer for `length` bytes. New ones hold noise, so that an unverified write is not one of zeroes.
    fn take_buffer(&mut self, length: usize) -> Buffer {
        if let Some(mut buffer) = self.buffers.pop()
            && buffer.capacity() >= length
        {
            buffer.set_length(length);
            return buffer;
        }
        let mut buffer = Buffer::zeroed(length);
        self.filler.fill(&mut buffer);
        buffer
    }

    fn keep_buffer(&mut self, buffer: Buffer) {
        if buffer.capacity() > 0 && self.buffers.len() < self.buffers_max {
            self.buffers.push(buffer);
        }
    }
}
