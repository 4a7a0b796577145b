//! The parts of a stripe's request: one request for each member.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;

use super::shared::Shared;
use crate::completion::Completion;
use crate::error::{Error, ErrorKind};
use crate::limits::{EXTENTS_PER_RESPONSE_MAX, STRIPE_EXTENT_PIECES_MAX};
use crate::request::{Extent, ExtentKind, Operation, Request, Response};

/// A request under way on its members.
pub(super) struct Parts {
    shared: Arc<Shared>,
    /// The bytes of the stripe in the request.
    range: ByteRange,
    is_mutation: bool,
    gathering: Gathering,
    parts: Vec<Part>,
}

/// How the members' answers become one answer.
enum Gathering {
    /// The member's buffer is the caller's.
    Pass,
    /// The members' buffers are copied into the caller's.
    Scatter(Buffer),
    /// The caller's buffer was copied, or there is none.
    Keep(Buffer),
    /// The members' extents become the stripe's.
    Extents,
}

struct Part {
    member: usize,
    /// The bytes of the member in this part.
    range: ByteRange,
    completion: Completion,
    response: Option<Response>,
}

impl Parts {
    /// Submits to the members, in order, their parts of `request`, which was checked and has this
    /// `range`.
    pub(super) fn begin(shared: &Arc<Shared>, range: ByteRange, request: Request) -> Self {
        let is_mutation = request.is_mutation();
        let mut parts =
            Self { shared: Arc::clone(shared), range, is_mutation, gathering: Gathering::Pass, parts: Vec::new() };
        parts.gathering = match request.operation {
            Operation::Flush => {
                for member in 0..shared.members.len() {
                    parts.submit(member, ByteRange { offset: 0, length: 0 }, Request::flush());
                }
                Gathering::Keep(Buffer::empty())
            }
            Operation::Read { .. } | Operation::Write { .. } if shared.layout.is_in_one_unit(range) => {
                let (member, offset) = shared.layout.place(range.offset);
                parts.submit(member, ByteRange { offset, ..range }, Request { offset, ..request });
                Gathering::Pass
            }
            Operation::Read { buffer } => {
                parts.submit_each(range, |part| Request::read(part.offset, shared.buffer(part.length)));
                Gathering::Scatter(buffer)
            }
            Operation::Write { buffer, fua } => {
                let mut copies = shared.gather(range, &buffer).into_iter();
                parts.submit_each(range, |part| {
                    Request::write(part.offset, copies.next().expect("each part has its copy"), fua)
                });
                Gathering::Keep(buffer)
            }
            Operation::Discard { .. } => {
                parts.submit_each(range, |part| Request::discard(part.offset, part.length));
                Gathering::Keep(Buffer::empty())
            }
            Operation::WriteZeroes { fua, may_discard, .. } => {
                parts.submit_each(range, |part| Request::write_zeroes(part.offset, part.length, fua, may_discard));
                Gathering::Keep(Buffer::empty())
            }
            Operation::Extents { .. } => {
                let pieces_bytes = STRIPE_EXTENT_PIECES_MAX.saturating_mul(shared.layout.unit_bytes);
                parts.range.length = range.length.min(pieces_bytes);
                parts.submit_each(parts.range, |part| Request::extents(part.offset, part.length));
                Gathering::Extents
            }
        };
        parts
    }

    /// Submits one request to each member that has some of `range`.
    fn submit_each(&mut self, range: ByteRange, mut request: impl FnMut(ByteRange) -> Request) {
        for member in 0..self.shared.members.len() {
            let part = self.shared.layout.on_member(member, range);
            if part.length > 0 {
                self.submit(member, part, request(part));
            }
        }
    }

    fn submit(&mut self, member: usize, range: ByteRange, request: Request) {
        let mut completion = self.shared.members[member].submit(request);
        let response = completion.try_take();
        self.parts.push(Part { member, range, completion, response });
    }

    /// The answer, if all members answered at once.
    pub(super) fn try_finish(&mut self) -> Option<Response> {
        self.parts.iter().all(|part| part.response.is_some()).then(|| self.answer())
    }

    /// The answer, when all members have answered.
    pub(super) async fn finish(mut self) -> Response {
        for part in &mut self.parts {
            if part.response.is_none() {
                part.response = Some((&mut part.completion).await);
            }
        }
        self.answer()
    }

    fn answer(&mut self) -> Response {
        let result = self.result();
        let is_done = result.is_ok();
        let (buffer, extents) = match std::mem::replace(&mut self.gathering, Gathering::Pass) {
            Gathering::Pass => (self.take_buffers().pop().unwrap_or_default(), Vec::new()),
            Gathering::Scatter(mut buffer) => {
                if is_done {
                    self.scatter(&mut buffer);
                }
                (buffer, Vec::new())
            }
            Gathering::Keep(buffer) => (buffer, Vec::new()),
            Gathering::Extents if is_done => (Buffer::empty(), self.extents()),
            Gathering::Extents => (Buffer::empty(), Vec::new()),
        };
        Response { result, buffer, extents }
    }

    fn take_buffers(&mut self) -> Vec<Buffer> {
        let responses = self.parts.iter_mut().filter_map(|part| part.response.take());
        responses.map(|response| response.buffer).collect()
    }

    /// The worst error of the members: an unknown outcome before any other, else the first.
    fn result(&self) -> Result<(), Error> {
        let errors =
            || self.parts.iter().filter_map(|part| Some((part.member, part.response.as_ref()?.result.as_ref().err()?)));
        let is_unknown = |(_, error): &(usize, &Error)| error.kind() == ErrorKind::OutcomeUnknown;
        let Some((member, error)) = errors().find(is_unknown).or_else(|| errors().next()) else { return Ok(()) };
        let is_partly_done = self.is_mutation && errors().count() < self.parts.len();
        let kind = match error.kind() {
            ErrorKind::TimedOut if is_partly_done => ErrorKind::OutcomeUnknown,
            kind => kind,
        };
        Err(Error::with_source(kind, format!("{}: {error}", self.shared.name(member)), error.clone()))
    }

    /// Copies the bytes read from the members to their positions.
    fn scatter(&mut self, buffer: &mut Buffer) {
        let layout = self.shared.layout;
        let mut sources: Vec<(usize, u64, Buffer)> = Vec::with_capacity(self.parts.len());
        for part in &mut self.parts {
            let response = part.response.take().expect("it is looked at when all have answered");
            sources.push((part.member, part.range.offset, response.buffer));
        }
        for piece in layout.pieces(self.range) {
            let source = sources.iter().find(|(member, ..)| *member == piece.member);
            let (_, offset, source) = source.expect("a member with a piece was asked for it");
            let from = (piece.member_offset - offset) as usize;
            let (at, length) = (piece.at as usize, piece.length as usize);
            buffer[at..at + length].copy_from_slice(&source[from..from + length]);
        }
    }

    /// The stripe's extents, up to where every member's answer reaches.
    fn extents(&self) -> Vec<Extent> {
        let layout = self.shared.layout;
        let mut extents: Vec<Extent> = Vec::new();
        for piece in layout.pieces(self.range) {
            let wanted = ByteRange { offset: piece.member_offset, length: piece.length };
            let part = self.parts.iter().find(|part| part.member == piece.member);
            let known = part.and_then(|part| part.response.as_ref()).map_or(&[][..], |response| &response.extents);
            let mut covered = wanted.offset;
            let first = known.partition_point(|extent| extent.range.end() <= wanted.offset);
            for extent in known.iter().skip(first).take_while(|extent| extent.range.offset < wanted.end()) {
                let end = extent.range.end().min(wanted.end());
                let offset = self.range.offset + piece.at + (covered - wanted.offset);
                if !push(&mut extents, offset, end - covered, extent.kind) {
                    return extents;
                }
                covered = end;
            }
            if covered < wanted.end() {
                break;
            }
        }
        extents
    }
}

/// Extends the last extent or adds one; `false` when there are enough.
fn push(extents: &mut Vec<Extent>, offset: u64, length: u64, kind: ExtentKind) -> bool {
    let count = extents.len();
    match extents.last_mut() {
        Some(last) if last.kind == kind => last.range.length += length,
        _ if count == EXTENTS_PER_RESPONSE_MAX => return false,
        _ => extents.push(Extent { range: ByteRange { offset, length }, kind }),
    }
    true
}

impl Shared {
    fn buffer(&self, length: u64) -> Buffer {
        let length = usize::try_from(length).expect("a part is no larger than its request");
        self.pool.try_acquire(length).unwrap_or_else(|| Buffer::zeroed(length))
    }

    /// The bytes of `range` for each member that has some of them, in the order of the members.
    fn gather(&self, range: ByteRange, bytes: &[u8]) -> Vec<Buffer> {
        let mut copies: Vec<(u64, Option<Buffer>)> = Vec::with_capacity(self.members.len());
        for member in 0..self.members.len() {
            let part = self.layout.on_member(member, range);
            copies.push((part.offset, (part.length > 0).then(|| self.buffer(part.length))));
        }
        for piece in self.layout.pieces(range) {
            let (offset, copy) = &mut copies[piece.member];
            let copy = copy.as_mut().expect("a member with a piece has a copy");
            let to = (piece.member_offset - *offset) as usize;
            let (at, length) = (piece.at as usize, piece.length as usize);
            copy[to..to + length].copy_from_slice(&bytes[at..at + length]);
        }
        copies.into_iter().filter_map(|(_, copy)| copy).collect()
    }
}
