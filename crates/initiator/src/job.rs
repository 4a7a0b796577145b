//! One request, as a sequence of SCSI commands.
//!
//! A request larger than the target's limit is several commands, its *parts*, of which a few are under way at once; a
//! write with `fua` to a unit that knows no FUA bit is a write and a SYNCHRONIZE CACHE of its range, which leaves when
//! all parts are done. A part that has to be issued again goes before those that were never issued; one that fails ends
//! the job as soon as no other is under way. After a lost session a job starts over.
//!
//! A request that is one command moves from and to its own buffer. Parts have buffers of their own and are copied, so
//! that nothing of a part that is given up reaches the request.

mod part;
mod step;

use std::time::Duration;

use base::clock::Instant;
use block::completion::SlotSender;
use block::range_lock::RangeGuard;
use block::{Buffer, ByteRange, Error, ErrorKind, Extent, ExtentKind, Operation, Request, Response};
use iscsi::initiator::{Command, Data, Outcome};
use iscsi::pdu::TaskAttribute;
use scsi::Cdb;
use scsi::cdb::Transfer;
use scsi::lba_status;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use self::part::{
    blocks, discard_blocks, discard_command, extents_command, extents_of, synchronize, zeroes_blocks, zeroes_command,
};
use self::step::Purpose;
use crate::limits::{BUSY_WAIT_MIN, PARTS_MAX};
use crate::raw_command::{RawCommand, RawOutcome, Repeat};
use crate::unit::Unit;

pub(crate) use self::step::Step;

/// The operation of a job. `found`, the extents reported, is empty until the unit has answered.
#[derive(Debug)]
pub(crate) enum Kind {
    Read { range: ByteRange, buffer: Buffer },
    Write { range: ByteRange, buffer: Buffer, fua: bool },
    Flush,
    Discard { range: ByteRange },
    Zeroes { range: ByteRange, fua: bool, may_discard: bool },
    Extents { range: ByteRange, found: Vec<Extent> },
    Raw(RawCommand),
}

/// The receiver of a job's result.
pub(crate) enum Reply {
    Request(SlotSender),
    Raw(oneshot::Sender<Result<RawOutcome, Error>>),
    /// To the replay: the job is a retained write that is written again.
    Replay,
    /// To no caller: the job is a flush that makes room.
    Nobody,
}

/// One request under way.
pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) reply: Reply,
    pub(crate) since: Instant,
    pub(crate) attempts: u32,
    /// How often the job was restarted because the unit may have lost what was already done of it.
    pub(crate) restarts: u32,
    pub(crate) busy_wait: Duration,
    /// Whether any command of it was ever sent.
    pub(crate) was_sent: bool,
    /// Its place among overlapping requests, held until it is over.
    pub(crate) place: Option<RangeGuard>,
    /// The number of the request by which its host held the whole device when it came.
    pub(crate) tenure: Option<u64>,
    /// Room for a copy, for writes that a volatile unit may lose.
    pub(crate) copy: Option<Buffer>,
    /// The mark of the retained writes that a flush covers; `None` before it is sent.
    pub(crate) flush_mark: Option<u64>,
    /// Whether a flush needs a command; if not, nothing can be undurable and it completes at once.
    pub(crate) is_flush_needed: bool,
    /// Whether any of it was sent to a unit with a volatile cache. Switching that off since makes
    /// nothing durable.
    was_volatile: bool,
    /// Whether nothing more of it is issued until a pause is over.
    pub(crate) is_delayed: bool,
    /// The error that the job will end with, once that is known.
    failure: Option<Error>,
    /// Bytes from its start for which parts were made.
    cut_bytes: u64,
    /// Steps to be issued again.
    again: Vec<Step>,
    /// Steps under way, each with a number that no other one of them has, below [`PARTS_MAX`].
    under_way: SmallVec<[(u64, Step); 1]>,
    /// Whether the last step was made: the only one of a whole, or the SYNCHRONIZE CACHE of a
    /// durable write.
    is_last_made: bool,
    /// Whether a raw command was carried out and its range is being made durable.
    is_synchronizing: bool,
}

impl Job {
    pub(crate) fn new(kind: Kind, reply: Reply, since: Instant) -> Self {
        Self {
            kind,
            reply,
            since,
            attempts: 0,
            restarts: 0,
            busy_wait: BUSY_WAIT_MIN,
            was_sent: false,
            place: None,
            tenure: None,
            copy: None,
            flush_mark: None,
            is_flush_needed: true,
            was_volatile: false,
            is_delayed: false,
            failure: None,
            cut_bytes: 0,
            again: Vec::new(),
            under_way: SmallVec::new(),
            is_last_made: false,
            is_synchronizing: false,
        }
    }

    /// The job of a request that was checked; `None` where the request needs no command and was
    /// answered.
    pub(crate) fn of_request(request: Request, sender: SlotSender, since: Instant) -> Option<Self> {
        let Some(range) = request.range() else {
            sender.complete(request.fail(ErrorKind::InvalidRange));
            return None;
        };
        let kind = match request.operation {
            Operation::Read { buffer } => Kind::Read { range, buffer },
            Operation::Write { buffer, fua } => Kind::Write { range, buffer, fua },
            Operation::Flush => Kind::Flush,
            Operation::Discard { .. } => Kind::Discard { range },
            Operation::WriteZeroes { fua, may_discard, .. } => Kind::Zeroes { range, fua, may_discard },
            Operation::Extents { .. } => Kind::Extents { range, found: Vec::new() },
        };
        Some(Self::new(kind, Reply::Request(sender), since))
    }

    /// The same job, of a host that held the whole device by the request of this number when it came.
    pub(crate) fn under(self, tenure: Option<u64>) -> Self {
        Self { tenure, ..self }
    }

    /// The bytes it touches.
    pub(crate) fn range(&self) -> ByteRange {
        match &self.kind {
            Kind::Read { range, .. }
            | Kind::Write { range, .. }
            | Kind::Discard { range }
            | Kind::Zeroes { range, .. }
            | Kind::Extents { range, .. } => *range,
            Kind::Raw(raw) => raw.range,
            Kind::Flush => ByteRange::default(),
        }
    }

    /// Whether overlapping requests have to wait for it.
    pub(crate) fn is_exclusive(&self) -> bool {
        !matches!(self.kind, Kind::Read { .. } | Kind::Extents { .. })
    }

    /// How a raw command is issued again.
    pub(crate) fn repeat(&self) -> Option<Repeat> {
        match &self.kind {
            Kind::Raw(raw) => Some(raw.repeat),
            _ => None,
        }
    }

    /// Whether it is a raw MODE SELECT, which the unit reports only to other initiators.
    pub(crate) fn is_mode_select(&self) -> bool {
        matches!(&self.kind, Kind::Raw(raw) if matches!(raw.cdb.command(), Some(Cdb::ModeSelect(_))))
    }

    /// Whether it is a raw command that was carried out and is being made durable.
    pub(crate) fn is_synchronizing(&self) -> bool {
        self.is_synchronizing
    }

    /// Whether a good status of this command depends on what is in the unit's cache.
    pub(crate) fn depends_on_cache(&self, token: u64) -> bool {
        let is_synchronize = |step: &Step| step.purpose == Purpose::Synchronize;
        matches!(self.kind, Kind::Read { .. } | Kind::Extents { .. } | Kind::Flush)
            || self.step_of(token).is_some_and(is_synchronize)
    }

    /// Notes that the command that was made last was sent, with this number.
    pub(crate) fn note_sent(&mut self, number: u64) {
        if let Some((_, step)) = self.under_way.last_mut() {
            step.number = number;
        }
    }

    /// The number with which this command was sent, if it is under way.
    pub(crate) fn number_of(&self, token: u64) -> Option<u64> {
        self.step_of(token).map(|step| step.number)
    }

    fn step_of(&self, token: u64) -> Option<&Step> {
        self.under_way.iter().find(|(slot, _)| *slot == token % PARTS_MAX as u64).map(|(_, step)| step)
    }

    /// Whether it changes stored data.
    pub(crate) fn is_mutation(&self) -> bool {
        matches!(self.kind, Kind::Write { .. } | Kind::Discard { .. } | Kind::Zeroes { .. })
    }

    /// Whether it changes bytes for a caller: what is written again is not.
    pub(crate) fn changes_for_a_caller(&self) -> bool {
        let changes = match &self.kind {
            Kind::Raw(raw) => !raw.range.is_empty(),
            _ => self.is_mutation(),
        };
        changes && !matches!(self.reply, Reply::Replay)
    }

    /// Whether somebody waits for what it does with blocks, and it brings that nearer. A flush of our own makes room
    /// for writes that wait. What is written again is so from its start in each session; and a raw command that changes
    /// no bytes asks something, or keeps up what a host holds.
    pub(crate) fn is_waited_for(&self) -> bool {
        match (&self.reply, &self.kind) {
            (Reply::Replay, _) => false,
            (_, Kind::Raw(raw)) => !raw.range.is_empty(),
            _ => true,
        }
    }

    /// Whether it changes what is stored, as far as is known.
    pub(crate) fn may_change(&self) -> bool {
        self.is_mutation() || self.repeat().is_some_and(|repeat| repeat != Repeat::Always)
    }

    /// Whether it is durable on `unit` when it is complete.
    pub(crate) fn is_durable(&self, unit: &Unit) -> bool {
        !self.is_volatile(unit) || matches!(self.kind, Kind::Write { fua: true, .. } | Kind::Zeroes { fua: true, .. })
    }

    /// Whether it changes stored data, and is durable only if no cache is switched on before the
    /// unit carries it out. Discards do not count: no caller expects them to last.
    pub(crate) fn relies_on_no_cache(&self, unit: &Unit) -> bool {
        let has_fua = match &self.kind {
            Kind::Write { fua, .. } => unit.has_fua && (*fua || unit.may_get_cache),
            Kind::Raw(raw) => unit.has_fua && unit.may_get_cache || raw.range.is_empty(),
            Kind::Zeroes { .. } => false,
            Kind::Read { .. } | Kind::Flush | Kind::Discard { .. } | Kind::Extents { .. } => true,
        };
        !unit.is_volatile() && !has_fua
    }

    /// Whether any of it may be, or may get, into a volatile cache.
    fn is_volatile(&self, unit: &Unit) -> bool {
        unit.is_volatile() || self.was_volatile
    }

    /// Bytes of which a copy must be kept when it completes on `unit`.
    pub(crate) fn copy_bytes(&self, unit: &Unit) -> usize {
        match &self.kind {
            Kind::Write { buffer, .. } if !self.is_durable(unit) && !matches!(self.reply, Reply::Replay) => {
                buffer.len()
            }
            _ => 0,
        }
    }

    /// In words, for errors.
    pub(crate) fn words(&self) -> String {
        match &self.kind {
            Kind::Read { range, .. } => format!("reading {range}"),
            Kind::Write { range, .. } => format!("writing {range}"),
            Kind::Flush => "a flush".to_owned(),
            Kind::Discard { range } => format!("discarding {range}"),
            Kind::Zeroes { range, .. } => format!("zeroing {range}"),
            Kind::Extents { range, .. } => format!("asking for the extents of {range}"),
            Kind::Raw(_) => "a SCSI command".to_owned(),
        }
    }

    /// The job that the command of a token belongs to, by its order.
    pub(crate) fn order_of(token: u64) -> u64 {
        token / PARTS_MAX as u64
    }

    /// The next command; `None` when all are made, or when as many are under way as are allowed.
    pub(crate) fn next_command(&mut self, unit: &Unit, order: u64, timeout: Duration) -> Option<Command> {
        if self.failure.is_some() || self.under_way.len() >= PARTS_MAX {
            return None;
        }
        let step = match self.again.pop() {
            Some(step) => self.cut_again(unit, step)?,
            None => Step::new(self.next_purpose(unit)?),
        };
        let (cdb, data) = match step.purpose {
            Purpose::Whole => self.whole_command(unit),
            Purpose::Part(range) => self.part_command(unit, range)?,
            Purpose::Synchronize => (synchronize(unit, Some(self.range())).emit_padded(), Data::None),
        };
        let number = (0..PARTS_MAX as u64).find(|number| self.under_way.iter().all(|(other, _)| other != number))?;
        self.under_way.push((number, step));
        self.was_sent = true;
        self.was_volatile |= unit.is_volatile();
        let token = order * PARTS_MAX as u64 + number;
        Some(Command { token, lun: unit.lun, cdb, attribute: TaskAttribute::Simple, data, timeout })
    }

    /// A step cut to what the unit takes at once now, which may have become less. The rest is left
    /// for later.
    fn cut_again(&mut self, unit: &Unit, step: Step) -> Option<Step> {
        let Purpose::Part(ByteRange { offset, length }) = step.purpose else { return Some(step) };
        let cut = self.part_bytes(unit, ByteRange { offset, length })?;
        if cut < length {
            let purpose = Purpose::Part(ByteRange { offset: offset + cut, length: length - cut });
            self.again.push(Step { purpose, ..step });
        }
        Some(Step { purpose: Purpose::Part(ByteRange { offset, length: cut }), ..step })
    }

    /// The purpose of the next new step, which counts as made.
    fn next_purpose(&mut self, unit: &Unit) -> Option<Purpose> {
        let purpose = self.pending_purpose(unit)?;
        match purpose {
            Purpose::Part(range) => self.cut_bytes = range.end() - self.range().offset,
            Purpose::Whole | Purpose::Synchronize => self.is_last_made = true,
        }
        Some(purpose)
    }

    /// The purpose of the next new step.
    fn pending_purpose(&self, unit: &Unit) -> Option<Purpose> {
        let whole = self.range();
        match &self.kind {
            Kind::Raw(_) => (!self.is_last_made).then_some(Purpose::Whole),
            Kind::Flush => (self.is_flush_needed && !self.is_last_made).then_some(Purpose::Whole),
            _ if self.cut_bytes < whole.length => {
                let (offset, length) = (whole.offset + self.cut_bytes, whole.length - self.cut_bytes);
                self.part_bytes(unit, ByteRange { offset, length })
                    .map(|length| Purpose::Part(ByteRange { offset, length }))
            }
            _ if self.needs_synchronizing(unit) && self.under_way.is_empty() && self.again.is_empty() => {
                Some(Purpose::Synchronize)
            }
            _ => None,
        }
    }

    /// Bytes of the next part, at the start of `rest`; `None` where the unit has no such command.
    fn part_bytes(&self, unit: &Unit, rest: ByteRange) -> Option<u64> {
        let blocks = |count: u64| count * unit.block_bytes();
        match &self.kind {
            Kind::Read { .. } | Kind::Write { .. } => Some(rest.length.min(unit.command_bytes_max.into())),
            Kind::Discard { .. } => discard_blocks(unit, rest).map(blocks),
            Kind::Zeroes { .. } => Some(blocks(zeroes_blocks(unit, rest))),
            Kind::Extents { .. } => unit.has_lba_status.then_some(rest.length),
            Kind::Flush | Kind::Raw(_) => None,
        }
    }

    fn whole_command(&self, unit: &Unit) -> ([u8; 16], Data) {
        match &self.kind {
            Kind::Raw(raw) => raw.parts(unit),
            _ => (synchronize(unit, None).emit_padded(), Data::None),
        }
    }

    fn part_command(&mut self, unit: &Unit, part: ByteRange) -> Option<([u8; 16], Data)> {
        let length = part.length as usize;
        let transfer = Transfer { blocks: blocks(unit, part, part.length), is_dpo: false, is_fua: false };
        let (cdb, data) = match &mut self.kind {
            Kind::Read { range, buffer } => {
                let into = if part == *range { std::mem::take(buffer) } else { Buffer::zeroed(length) };
                (Cdb::Read(transfer), Data::Read(into, 0..length))
            }
            Kind::Write { range, buffer, fua } => {
                let start = (part.offset - range.offset) as usize;
                let is_fua = unit.has_fua && if unit.is_volatile() { *fua } else { *fua || unit.may_get_cache };
                let from = if part == *range {
                    std::mem::take(buffer)
                } else {
                    Buffer::copy_of(&buffer[start..start + length])
                };
                (Cdb::Write(Transfer { is_fua, ..transfer }), Data::Write(from, 0..length))
            }
            Kind::Discard { .. } => discard_command(unit, part),
            Kind::Zeroes { may_discard, .. } => zeroes_command(unit, part, *may_discard),
            Kind::Extents { .. } => extents_command(unit, part),
            Kind::Flush | Kind::Raw(_) => return None,
        };
        Some((cdb.emit_padded(), data))
    }

    /// Whether [`Job::next_command`] would give one now.
    pub(crate) fn has_next(&self, unit: &Unit) -> bool {
        let is_open = self.failure.is_none() && self.under_way.len() < PARTS_MAX;
        is_open && (!self.again.is_empty() || self.pending_purpose(unit).is_some())
    }

    /// Whether any command of it was made since it began, or began again.
    pub(crate) fn has_begun(&self) -> bool {
        self.cut_bytes > 0 || self.is_last_made
    }

    /// Whether some part of it was carried out, where no command is under way.
    pub(crate) fn has_done_any(&self) -> bool {
        let part_bytes = |step: &Step| match step.purpose {
            Purpose::Part(part) => part.length,
            Purpose::Whole | Purpose::Synchronize => 0,
        };
        self.cut_bytes > self.again.iter().map(part_bytes).sum()
    }

    /// Whether no command is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Where the FUA bit is not known, or the command has none, a SYNCHRONIZE CACHE follows.
    fn needs_synchronizing(&self, unit: &Unit) -> bool {
        let is_asked = match &self.kind {
            Kind::Write { fua, .. } => *fua && !unit.has_fua,
            Kind::Zeroes { fua, .. } => *fua,
            _ => false,
        };
        is_asked && self.is_volatile(unit) && !self.is_last_made && !self.range().is_empty()
    }

    /// Ends a command: takes its buffer back and returns its step. `None` when the command is not
    /// one of this job's.
    pub(crate) fn take_step(&mut self, token: u64, returned: &mut Buffer) -> Option<Step> {
        let number = token % PARTS_MAX as u64;
        let index = self.under_way.iter().position(|(other, _)| *other == number)?;
        let (_, step) = self.under_way.swap_remove(index);
        if let Kind::Read { range, buffer } | Kind::Write { range, buffer, .. } = &mut self.kind
            && step.purpose == Purpose::Part(*range)
        {
            *buffer = std::mem::take(returned);
        }
        Some(step)
    }

    /// Bytes that a step must bring; with fewer it has failed.
    pub(crate) fn read_bytes(&self, step: Step) -> usize {
        match (&self.kind, step.purpose) {
            (Kind::Read { .. }, Purpose::Part(part)) => part.length as usize,
            _ => 0,
        }
    }

    /// Notes that a step was carried out; `data` is what a part of a read brought.
    pub(crate) fn advance(&mut self, step: Step, data: &[u8]) {
        if let (Kind::Read { range, buffer }, Purpose::Part(part)) = (&mut self.kind, step.purpose)
            && part != *range
        {
            let start = (part.offset - range.offset) as usize;
            buffer[start..start + data.len()].copy_from_slice(data);
        }
        self.attempts = 0;
        self.busy_wait = BUSY_WAIT_MIN;
    }

    /// Notes that a step was not carried out: it is issued again.
    pub(crate) fn reissue(&mut self, step: Step) {
        self.again.push(step);
    }

    /// Notes that a step cannot be carried out. Only the first error is reported.
    pub(crate) fn give_up(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// The error with which it is given up.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Restarts the job after the session is lost: everything is issued again.
    pub(crate) fn start_over(&mut self) {
        self.failure = None;
        self.is_delayed = false;
        self.cut_bytes = 0;
        self.again.clear();
        self.under_way.clear();
        self.is_last_made = false;
        self.flush_mark = None;
        self.was_volatile = false;
        if let Kind::Extents { found, .. } = &mut self.kind {
            found.clear();
        }
    }

    /// Takes the extents that the unit reported. Returns whether this was such an answer. A
    /// malformed one reports nothing.
    pub(crate) fn take_extents(&mut self, unit: &Unit, outcome: &Outcome, data: &[u8]) -> bool {
        let Kind::Extents { range, found } = &mut self.kind else { return false };
        let Outcome::Status { status: 0, received_bytes, .. } = outcome else { return false };
        let descriptors = data.get(..*received_bytes).and_then(|data| lba_status::parse(data).ok());
        *found = extents_of(&descriptors.unwrap_or_default(), unit.block_bytes(), *range);
        true
    }

    /// Reports the result to the caller that waits.
    pub(crate) fn finish(self, result: Result<(), Error>) {
        let (buffer, extents) = match self.kind {
            Kind::Read { buffer, .. } | Kind::Write { buffer, .. } => (buffer, Vec::new()),
            // Saying that the blocks hold data is never wrong.
            Kind::Extents { range, found } if found.is_empty() && !range.is_empty() => {
                (Buffer::empty(), vec![Extent { range, kind: ExtentKind::Data }])
            }
            Kind::Extents { found, .. } => (Buffer::empty(), found),
            _ => (Buffer::empty(), Vec::new()),
        };
        match (self.reply, result) {
            (Reply::Request(sender), Ok(())) => sender.complete(Response { extents, ..Response::done(buffer) }),
            (Reply::Request(sender), Err(error)) => sender.complete(Response::failed(error, buffer)),
            // The caller may have stopped waiting.
            (Reply::Raw(sender), Err(error)) => drop(sender.send(Err(error))),
            (Reply::Raw(_) | Reply::Replay | Reply::Nobody, _) => {}
        }
    }

    /// Whether a SYNCHRONIZE CACHE must follow a raw command that changed stored data and ended
    /// well. If so, `outcome` is reported after it. `is_cache_doubtful` means that the unit has
    /// just reported a change.
    pub(crate) fn makes_durable(&mut self, unit: &Unit, is_cache_doubtful: bool, outcome: &Outcome) -> bool {
        let is_good = matches!(outcome, Outcome::Status { status: 0, .. });
        let may_be_cached = unit.is_volatile() || is_cache_doubtful;
        let has_fua = unit.has_fua && (unit.is_volatile() || unit.may_get_cache);
        let is_due = is_good && may_be_cached && !has_fua && !self.range().is_empty() && !self.is_synchronizing;
        if is_due {
            self.is_synchronizing = true;
            self.again.push(Step::new(Purpose::Synchronize));
        }
        is_due
    }

    /// Returns a raw command's outcome to its caller unchanged.
    pub(crate) fn finish_raw(self, outcome: &Outcome, buffer: &Buffer) {
        let Reply::Raw(sender) = self.reply else { return };
        if self.is_synchronizing && !matches!(outcome, Outcome::Status { status: 0, .. }) {
            let words = "the command was carried out and could not be made durable; it may or may not last";
            drop(sender.send(Err(Error::new(ErrorKind::OutcomeUnknown, words))));
            return;
        }
        let answer = match outcome {
            Outcome::Status { status, sense, received_bytes, .. } => Ok(RawOutcome {
                status: *status,
                sense: sense.clone(),
                data_in: buffer.get(..*received_bytes).unwrap_or_default().to_vec(),
            }),
            Outcome::Failed(words) => Err(Error::new(ErrorKind::OutcomeUnknown, words.clone())),
            // An abort ends the task; what it had done by then stays done (SAM-5 5.3.1).
            Outcome::Aborted => {
                let words = "the command did not end in time and was aborted; it may or may not have happened";
                Err(Error::new(ErrorKind::OutcomeUnknown, words))
            }
            Outcome::NotSent => Err(Error::new(ErrorKind::TimedOut, "the target's command window stayed closed")),
        };
        drop(sender.send(answer));
    }
}

#[cfg(test)]
mod tests;
