//! One request, from the range lock to its answer, through as many paths as it takes.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::range::ByteRange;

use super::shared::Shared;
use crate::error::{Error, ErrorKind};
use crate::limits::{ACCESS_WAIT, ACCESS_WAIT_MAX};
use crate::range_lock::{Acquire, RangeGuard};
use crate::request::{Operation, Request, Response};

/// A request that can be repeated with the buffer that its failure returned.
#[derive(Clone, Copy)]
enum Again {
    Read { length: usize },
    Write { length: usize, fua: bool },
    Flush,
    Discard { length: u64 },
    WriteZeroes { length: u64, fua: bool, may_discard: bool },
    Extents { length: u64 },
}

impl Again {
    /// The repeatable form of `request`, and its buffer; `is_durable` makes every change a durable
    /// one.
    fn of(request: Request, is_durable: bool) -> (Self, Buffer) {
        match request.operation {
            Operation::Read { buffer } => (Self::Read { length: buffer.len() }, buffer),
            Operation::Write { buffer, fua } => (Self::Write { length: buffer.len(), fua: fua || is_durable }, buffer),
            Operation::Flush => (Self::Flush, Buffer::empty()),
            Operation::Discard { length } if is_durable => {
                (Self::WriteZeroes { length, fua: true, may_discard: true }, Buffer::empty())
            }
            Operation::Discard { length } => (Self::Discard { length }, Buffer::empty()),
            Operation::WriteZeroes { length, fua, may_discard } => {
                (Self::WriteZeroes { length, fua: fua || is_durable, may_discard }, Buffer::empty())
            }
            Operation::Extents { length } => (Self::Extents { length }, Buffer::empty()),
        }
    }

    /// The request once more; `None` if its buffer was lost with a path.
    fn request(self, offset: u64, buffer: Buffer) -> Option<Request> {
        Some(match self {
            Self::Read { length } if buffer.len() == length => Request::read(offset, buffer),
            Self::Read { length } => Request::read(offset, Buffer::zeroed(length)),
            Self::Write { length, fua } if buffer.len() == length => Request::write(offset, buffer, fua),
            Self::Write { .. } => return None,
            Self::Flush => Request::flush(),
            Self::Discard { length } => Request::discard(offset, length),
            Self::WriteZeroes { length, fua, may_discard } => Request::write_zeroes(offset, length, fua, may_discard),
            Self::Extents { length } => Request::extents(offset, length),
        })
    }
}

/// Carries out `request`, which was checked and has this `range`. It takes its place among
/// overlapping requests in this call.
pub(super) fn carry_out(
    shared: &Arc<Shared>,
    range: ByteRange,
    request: Request,
) -> impl Future<Output = Response> + Send + use<> {
    let shared = Arc::clone(shared);
    let (is_mutation, is_flush) = (request.is_mutation(), matches!(request.operation, Operation::Flush));
    let place = place_in_line(&shared, range, &request);
    async move {
        let _guard = match place {
            Place::Granted(guard) => guard,
            Place::InLine(acquire) => Some(acquire.await),
        };
        if is_mutation && let Some(path) = shared.paths.doubtful(range) {
            let words = format!(
                "{range} cannot be changed: an earlier change through path {} may still land there, until that path is \
                 back",
                path + 1
            );
            return request.fail(Error::new(ErrorKind::Busy, words));
        }
        let response = try_paths(&shared, range, request, is_mutation).await;
        if is_flush { tell_of_loss(&shared, response) } else { response }
    }
}

/// The answer to a flush that no path was left to tell of what was lost, but this device.
fn tell_of_loss(shared: &Shared, mut response: Response) -> Response {
    let is_told = response.result.as_ref().is_err_and(|error| !error.kind().was_not_done());
    if !is_told && shared.paths.take_losses() {
        let words = "a path to the unit has reported that writes that were acknowledged are lost, or may be";
        response.result = Err(Error::new(ErrorKind::OutcomeUnknown, words));
    }
    response
}

enum Place {
    Granted(Option<RangeGuard>),
    InLine(Acquire),
}

fn place_in_line(shared: &Shared, range: ByteRange, request: &Request) -> Place {
    match request.operation {
        Operation::Flush | Operation::Extents { .. } => Place::Granted(None),
        Operation::Read { .. } => match shared.lock.try_shared(range) {
            Some(guard) => Place::Granted(Some(guard)),
            None => Place::InLine(shared.lock.shared(range)),
        },
        Operation::Write { .. } | Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
            match shared.lock.try_exclusive(range) {
                Some(guard) => Place::Granted(Some(guard)),
                None => Place::InLine(shared.lock.exclusive(range)),
            }
        }
    }
}

/// Tries path after path while each reports that nothing was done, and from the first again as long as one of them may
/// still do it.
async fn try_paths(shared: &Shared, range: ByteRange, request: Request, is_mutation: bool) -> Response {
    let offset = request.offset;
    let is_flush = matches!(request.operation, Operation::Flush);
    let (again, mut buffer) = Again::of(request, shared.paths.must_be_durable());
    let began = shared.clock.now();
    let mut round = Round::default();
    loop {
        let Some(chosen) = shared.paths.choose(&round.tried, round.may_wait(), is_flush) else {
            let patience = round.patience(shared.patience);
            if patience.is_none_or(|patience| shared.clock.now() >= began + patience) {
                break;
            }
            shared.clock.sleep(ACCESS_WAIT).await;
            round = Round::default();
            continue;
        };
        let path = chosen.path;
        let Some(request) = again.request(offset, std::mem::take(&mut buffer)) else { break };
        let had_lost = is_flush && shared.paths.has_lost(path);
        let response = chosen.device.submit(request).await;
        match &response.result {
            Err(error) if error.kind().was_not_done() => {
                let is_refusal = error.kind() == ErrorKind::NoAccess;
                let said = match shared.paths.was_away(&chosen) {
                    true => Said::Away { has_handed_on: is_refusal },
                    false if is_refusal => {
                        shared.paths.note_refusal(path);
                        Said::Refused
                    }
                    false => Said::Failed,
                };
                round.note(path, said, error);
            }
            Err(error) => {
                if is_mutation && error.kind() == ErrorKind::OutcomeUnknown && shared.copies.is_none() {
                    shared.paths.doubt(path, range);
                }
                if is_flush {
                    shared.paths.note_told(path);
                }
                return response;
            }
            Ok(()) => {
                // What it lost before, it has told already.
                if had_lost {
                    shared.paths.note_told(path);
                }
                return response;
            }
        }
        buffer = response.buffer;
    }
    let error = round.error.unwrap_or_else(|| Error::new(ErrorKind::Gone, "there is no path to the unit"));
    Response::failed(error, buffer)
}

/// What a path that did nothing has said by that; the weightiest comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    /// It had no session, or lost it. One that did not wait for the next has handed the request on: another path of the
    /// same client has one.
    Away { has_handed_on: bool },
    /// Its target failed the request.
    Failed,
    /// Its target port refused the request for its access state, which may be about to change.
    Refused,
}

/// The paths to which a request was given since the last pause, each once.
#[derive(Default)]
struct Round {
    tried: Vec<usize>,
    /// The weightiest that they said.
    said: Option<Said>,
    /// The error with that.
    error: Option<Error>,
}

impl Round {
    fn note(&mut self, path: usize, said: Said, error: &Error) {
        self.tried.push(path);
        if self.said.is_none_or(|before| before <= said) {
            self.said = Some(said);
            self.error = Some(error.clone());
        }
    }

    /// Whether the next path may be one that is away: it may be back sooner than its events say, and each waits for its
    /// target by itself. What a target failed does not wait for one.
    fn may_wait(&self) -> bool {
        matches!(self.said, None | Some(Said::Away { .. }))
    }

    /// How long after it began a request is given to all the paths again, after a pause; `None` where it is not.
    /// Requests wait for a path that is away for `away`.
    fn patience(&self, away: Duration) -> Option<Duration> {
        match self.said? {
            Said::Away { has_handed_on } => has_handed_on.then_some(away),
            Said::Failed => None,
            Said::Refused => Some(ACCESS_WAIT_MAX),
        }
    }
}
