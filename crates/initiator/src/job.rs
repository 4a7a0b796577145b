//! One request, as a sequence of SCSI commands.
//!
//! A job has at most one command under way; [`Job::next_command`] says which is next, from how far it has come. A
//! request larger than the target's limit is several commands one after the other; a write with `fua` to a unit that
//! knows no FUA bit is a write and a SYNCHRONIZE CACHE of its range. After a lost session a job starts over.

use std::time::Duration;

use base::clock::Instant;
use block::completion::SlotSender;
use block::range_lock::RangeGuard;
use block::{Buffer, ByteRange, Error, ErrorKind, Extent, ExtentKind, Operation, Request, Response};
use iscsi::initiator::{Command, Data, Outcome};
use iscsi::pdu::TaskAttribute;
use scsi::Cdb;
use scsi::cdb::{Blocks, CacheRange, CdbForm, Transfer, WriteSame};
use scsi::lba_status::{self, Provisioning};
use scsi::unmap;
use tokio::sync::oneshot;

use crate::limits::{BUSY_WAIT_MIN, LBA_STATUS_BYTES, ZEROES_BYTES_MAX};
use crate::unit::{Unit, cdb_bytes};

/// A SCSI command as its caller made it, and what came of it.
#[derive(Debug)]
pub(crate) struct RawCommand {
    /// The CDB, at most 16 bytes.
    pub(crate) cdb: Vec<u8>,
    /// Bytes to be sent.
    pub(crate) data_out: Vec<u8>,
    /// Room for bytes to be received; not together with `data_out`.
    pub(crate) data_in_length: usize,
}

/// What came of a [`RawCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawOutcome {
    /// SCSI status code.
    pub status: u8,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Bytes received.
    pub data_in: Vec<u8>,
}

/// What is to be done. What was `found` of extents is empty until the unit has answered.
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

/// Who waits for it.
pub(crate) enum Reply {
    Request(SlotSender),
    Raw(oneshot::Sender<Result<RawOutcome, Error>>),
    /// A retained write that is written again.
    Replay,
    /// Nobody: a flush that makes room.
    Nobody,
}

/// One request under way.
pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) reply: Reply,
    pub(crate) since: Instant,
    pub(crate) attempts: u32,
    pub(crate) busy_wait: Duration,
    /// Whether any command of it was ever sent.
    pub(crate) was_sent: bool,
    /// Its place among overlapping requests, held until it is over.
    pub(crate) place: Option<RangeGuard>,
    /// Room for a copy, for writes that a volatile unit may lose.
    pub(crate) copy: Option<Buffer>,
    /// The epoch in which a flush was sent, and what it covers.
    pub(crate) flush_mark: Option<(u64, u64)>,
    /// Bytes that earlier commands of this job moved.
    done_bytes: u64,
    /// Bytes the command under way moves.
    moving_bytes: u64,
    is_synchronizing: bool,
    is_synchronized: bool,
}

impl Job {
    pub(crate) fn new(kind: Kind, reply: Reply, since: Instant) -> Self {
        Self {
            kind,
            reply,
            since,
            attempts: 0,
            busy_wait: BUSY_WAIT_MIN,
            was_sent: false,
            place: None,
            copy: None,
            flush_mark: None,
            done_bytes: 0,
            moving_bytes: 0,
            is_synchronizing: false,
            is_synchronized: false,
        }
    }

    /// The job of a request that was checked, or the request's answer where that needs no command.
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

    /// The bytes it touches.
    pub(crate) fn range(&self) -> ByteRange {
        match &self.kind {
            Kind::Read { range, .. }
            | Kind::Write { range, .. }
            | Kind::Discard { range }
            | Kind::Zeroes { range, .. }
            | Kind::Extents { range, .. } => *range,
            Kind::Flush | Kind::Raw(_) => ByteRange::default(),
        }
    }

    /// Whether it changes what is stored.
    pub(crate) fn is_mutation(&self) -> bool {
        matches!(self.kind, Kind::Write { .. } | Kind::Discard { .. } | Kind::Zeroes { .. })
    }

    /// Whether it is durable on `unit` when it is complete.
    pub(crate) fn is_durable(&self, unit: &Unit) -> bool {
        !unit.is_volatile() || matches!(self.kind, Kind::Write { fua: true, .. } | Kind::Zeroes { fua: true, .. })
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

    /// The next command, or `None` when all are done.
    pub(crate) fn next_command(&mut self, unit: &Unit, token: u64, timeout: Duration) -> Option<Command> {
        let (cdb, data) = match &mut self.kind {
            Kind::Raw(raw) if self.done_bytes == 0 => {
                self.done_bytes = 1;
                raw_parts(raw)
            }
            Kind::Raw(_) => return None,
            Kind::Flush if unit.is_volatile() && self.done_bytes == 0 => {
                self.moving_bytes = 1;
                (cdb_bytes(&synchronize(unit, None)), Data::None)
            }
            Kind::Flush => return None,
            _ => self.next_part(unit)?,
        };
        self.was_sent = true;
        Some(Command { token, lun: unit.lun, cdb, attribute: TaskAttribute::Simple, data, timeout })
    }

    fn next_part(&mut self, unit: &Unit) -> Option<([u8; 16], Data)> {
        let whole = self.range();
        let rest = ByteRange { offset: whole.offset + self.done_bytes, length: whole.length - self.done_bytes };
        if rest.is_empty() {
            if !self.needs_synchronizing(unit) {
                return None;
            }
            self.moving_bytes = 0;
            self.is_synchronizing = true;
            return Some((cdb_bytes(&synchronize(unit, Some(whole))), Data::None));
        }
        let done = self.done_bytes as usize;
        let (length, cdb, data) = match &mut self.kind {
            Kind::Read { buffer, .. } => {
                let length = rest.length.min(unit.command_bytes_max.into());
                let transfer = Transfer { blocks: blocks(unit, rest, length), is_dpo: false, is_fua: false };
                let buffer = std::mem::take(buffer);
                (length, Cdb::Read(transfer), Data::Read(buffer, done..done + length as usize))
            }
            Kind::Write { buffer, fua, .. } => {
                let length = rest.length.min(unit.command_bytes_max.into());
                let is_fua = *fua && unit.has_fua && unit.is_volatile();
                let transfer = Transfer { blocks: blocks(unit, rest, length), is_dpo: false, is_fua };
                let buffer = std::mem::take(buffer);
                (length, Cdb::Write(transfer), Data::Write(buffer, done..done + length as usize))
            }
            Kind::Discard { .. } => discard_part(unit, rest)?,
            Kind::Zeroes { may_discard, .. } => zeroes_part(unit, rest, *may_discard),
            Kind::Extents { .. } => extents_part(unit, rest)?,
            Kind::Flush | Kind::Raw(_) => return None,
        };
        self.moving_bytes = length;
        Some((cdb_bytes(&cdb), data))
    }

    /// Whether no further command would follow: [`Job::next_command`] is `None`.
    pub(crate) fn is_finished(&self, unit: &Unit) -> bool {
        let whole = self.range();
        match &self.kind {
            Kind::Raw(_) => self.done_bytes > 0,
            Kind::Flush => !unit.is_volatile() || self.done_bytes > 0,
            _ => self.done_bytes >= whole.length && !self.needs_synchronizing(unit),
        }
    }

    /// Where the FUA bit is not known, or the command has none, a SYNCHRONIZE CACHE follows.
    fn needs_synchronizing(&self, unit: &Unit) -> bool {
        let is_asked = match &self.kind {
            Kind::Write { fua, .. } => *fua && !unit.has_fua,
            Kind::Zeroes { fua, .. } => *fua,
            _ => false,
        };
        is_asked && unit.is_volatile() && !self.is_synchronized && !self.range().is_empty()
    }

    /// The command under way has ended: takes the buffer back.
    pub(crate) fn restore_buffer(&mut self, returned: Buffer) {
        if let Kind::Read { buffer, .. } | Kind::Write { buffer, .. } = &mut self.kind
            && buffer.is_empty()
        {
            *buffer = returned;
        }
    }

    /// Takes what the unit said of its extents, and whether this was such an answer. One that makes no sense says
    /// nothing.
    pub(crate) fn take_extents(&mut self, unit: &Unit, outcome: &Outcome, data: &[u8]) -> bool {
        let Kind::Extents { range, found } = &mut self.kind else { return false };
        let Outcome::Status { status: 0, received_bytes, .. } = outcome else { return false };
        let descriptors = data.get(..*received_bytes).and_then(|data| lba_status::parse(data).ok());
        *found = extents_of(&descriptors.unwrap_or_default(), unit.block_bytes(), *range);
        true
    }

    /// The command under way was carried out.
    pub(crate) fn advance(&mut self) {
        self.done_bytes += self.moving_bytes;
        self.is_synchronized |= self.is_synchronizing;
        self.moving_bytes = 0;
        self.attempts = 0;
        self.busy_wait = BUSY_WAIT_MIN;
    }

    /// The command under way was not: it is issued again.
    pub(crate) fn retreat(&mut self) {
        self.moving_bytes = 0;
        self.is_synchronizing = false;
    }

    /// The session is lost: everything is issued again.
    pub(crate) fn start_over(&mut self) {
        self.retreat();
        self.done_bytes = 0;
        self.is_synchronized = false;
        self.flush_mark = None;
        if let Kind::Extents { found, .. } = &mut self.kind {
            found.clear();
        }
    }

    /// Answers whoever waits.
    pub(crate) fn finish(self, result: Result<(), Error>) {
        let (buffer, extents) = match self.kind {
            Kind::Read { buffer, .. } | Kind::Write { buffer, .. } => (buffer, Vec::new()),
            // The one answer that is never wrong.
            Kind::Extents { range, found } if found.is_empty() && !range.is_empty() => {
                (Buffer::empty(), vec![Extent { range, kind: ExtentKind::Data }])
            }
            Kind::Extents { found, .. } => (Buffer::empty(), found),
            _ => (Buffer::empty(), Vec::new()),
        };
        match (self.reply, result) {
            (Reply::Request(sender), Ok(())) => sender.complete(Response { extents, ..Response::done(buffer) }),
            (Reply::Request(sender), Err(error)) => sender.complete(Response::failed(error, buffer)),
            // Whoever asked may have gone away.
            (Reply::Raw(sender), Err(error)) => drop(sender.send(Err(error))),
            (Reply::Raw(_) | Reply::Replay | Reply::Nobody, _) => {}
        }
    }

    /// Answers a raw command as it is.
    pub(crate) fn finish_raw(self, outcome: &Outcome, buffer: &Buffer) {
        let Reply::Raw(sender) = self.reply else { return };
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

fn raw_parts(raw: &RawCommand) -> ([u8; 16], Data) {
    let mut cdb = [0; 16];
    let length = raw.cdb.len().min(cdb.len());
    cdb[..length].copy_from_slice(&raw.cdb[..length]);
    let data = match (raw.data_out.len(), raw.data_in_length) {
        (0, 0) => Data::None,
        (0, length) => Data::Read(Buffer::zeroed(length), 0..length),
        (length, _) => Data::Write(Buffer::copy_of(&raw.data_out), 0..length),
    };
    (cdb, data)
}

/// `length` bytes from the start of `range`, as blocks in the form the unit understands.
fn blocks(unit: &Unit, range: ByteRange, length: u64) -> Blocks {
    let (lba, count) = (range.offset / unit.block_bytes(), (length / unit.block_bytes()) as u32);
    if unit.has_sixteen { Blocks::sixteen(lba, count) } else { Blocks::new(lba, count) }
}

/// SYNCHRONIZE CACHE of a range or of everything.
fn synchronize(unit: &Unit, range: Option<ByteRange>) -> Cdb {
    let whole = Blocks { form: if unit.has_sixteen { CdbForm::Sixteen } else { CdbForm::Ten }, lba: 0, count: 0 };
    let blocks = range.map_or(whole, |range| {
        // More blocks than a CDB can say are all of them.
        let count = range.length / unit.block_bytes();
        if count <= whole.form.count_max().into() { blocks(unit, range, range.length) } else { whole }
    });
    Cdb::SynchronizeCache(CacheRange { blocks, is_immediate: false })
}

/// One UNMAP of the whole granules at the start of `rest`; a tail that fills no granule is left alone, which a discard
/// allows.
fn discard_part(unit: &Unit, rest: ByteRange) -> Option<(u64, Cdb, Data)> {
    let limits = unit.unmap?;
    let first = rest.offset / unit.block_bytes();
    let end = rest.end() / unit.block_bytes();
    // Cut at a granule's border, so that all but the first and the last piece are whole granules (SBC-3 6.6.4).
    let longest = first.saturating_add(limits.blocks_max.min(u32::MAX.into()));
    let cut = if longest >= end {
        end
    } else {
        let past = longest.saturating_sub(limits.alignment_blocks) % limits.granularity_blocks;
        Some(longest - past).filter(|&cut| cut > first).unwrap_or(longest)
    };
    let descriptor = unmap::Descriptor { lba: first, block_count: (cut - first) as u32 };
    let list = unmap::emit(&[descriptor]);
    let length = list.len();
    let cdb = Cdb::Unmap { is_anchor: false, parameter_list_length: length as u16 };
    Some(((cut - first) * unit.block_bytes(), cdb, Data::Write(Buffer::copy_of(&list), 0..length)))
}

/// GET LBA STATUS from the start of `rest`; nothing where the answer would tell nothing. It covers what it covers: the
/// caller asks again from there.
fn extents_part(unit: &Unit, rest: ByteRange) -> Option<(u64, Cdb, Data)> {
    let lba = rest.offset / unit.block_bytes();
    let cdb = Cdb::GetLbaStatus { lba, allocation_length: LBA_STATUS_BYTES as u32 };
    let data = Data::Read(Buffer::zeroed(LBA_STATUS_BYTES), 0..LBA_STATUS_BYTES);
    unit.has_lba_status.then_some((rest.length, cdb, data))
}

/// The extents of `range` from its start as far as descriptors follow each other without a gap.
fn extents_of(descriptors: &[lba_status::Descriptor], block_bytes: u64, range: ByteRange) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut front = range.offset;
    for descriptor in descriptors {
        let start = descriptor.lba.saturating_mul(block_bytes);
        let end = start.saturating_add(u64::from(descriptor.block_count) * block_bytes).min(range.end());
        if start > front || end <= front {
            break;
        }
        // Anchored blocks take space, and are rare: called data, they are read where they need not be, never missed.
        let kind = match descriptor.provisioning {
            Provisioning::Deallocated => ExtentKind::Hole,
            Provisioning::Mapped | Provisioning::Anchored => ExtentKind::Data,
        };
        match extents.last_mut().filter(|last| last.kind == kind) {
            Some(last) => last.range.length += end - front,
            None => extents.push(Extent { range: ByteRange { offset: front, length: end - front }, kind }),
        }
        front = end;
    }
    extents
}

/// WRITE SAME(16) of one block of zeroes, or plain zeroes where the unit does not do that.
fn zeroes_part(unit: &Unit, rest: ByteRange, may_discard: bool) -> (u64, Cdb, Data) {
    if let Some(blocks_max) = unit.write_same_blocks_max {
        let length = rest.length.min(blocks_max.min(u32::MAX.into()).saturating_mul(unit.block_bytes()));
        let write_same = WriteSame {
            blocks: blocks(unit, rest, length),
            is_anchor: false,
            is_unmap: may_discard && unit.write_same_unmaps,
            has_no_data_out: false,
        };
        let block = unit.block_bytes() as usize;
        return (length, Cdb::WriteSame(write_same), Data::Write(Buffer::zeroed(block), 0..block));
    }
    let length = rest.length.min(unit.command_bytes_max.min(ZEROES_BYTES_MAX).into());
    let transfer = Transfer { blocks: blocks(unit, rest, length), is_dpo: false, is_fua: false };
    let bytes = length as usize;
    (length, Cdb::Write(transfer), Data::Write(Buffer::zeroed(bytes), 0..bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use scsi::lba_status::Descriptor;

    /// What is found in bytes 4096 to 16384, told in blocks of 512, as (offset, length, is a hole).
    fn found(descriptors: &[(u64, u32, Provisioning)]) -> Vec<(u64, u64, bool)> {
        let descriptor = |&(lba, block_count, provisioning)| Descriptor { lba, block_count, provisioning };
        let descriptors: Vec<_> = descriptors.iter().map(descriptor).collect();
        let extents = extents_of(&descriptors, 512, ByteRange { offset: 4096, length: 12288 });
        let triple = |extent: &Extent| (extent.range.offset, extent.range.length, extent.kind == ExtentKind::Hole);
        extents.iter().map(triple).collect()
    }

    #[test]
    fn runs_become_extents_of_the_range_asked_for() {
        use Provisioning::{Anchored, Deallocated, Mapped};
        assert_eq!(found(&[(8, 8, Mapped), (16, 100, Deallocated)]), [(4096, 4096, false), (8192, 8192, true)]);
        assert_eq!(found(&[(0, u32::MAX, Deallocated)]), [(4096, 12288, true)], "it may begin before and end after");
        assert_eq!(found(&[(8, 1, Mapped), (9, 1, Anchored), (10, 1, Mapped)]), [(4096, 1536, false)]);
    }

    #[test]
    fn what_makes_no_sense_is_not_believed() {
        use Provisioning::{Deallocated, Mapped};
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[(9, 8, Deallocated)]), [], "nobody said what is in block 8");
        assert_eq!(found(&[(8, 0, Deallocated)]), []);
        assert_eq!(found(&[(u64::MAX, u32::MAX, Deallocated)]), []);
        assert_eq!(found(&[(8, 1, Mapped), (10, 1, Deallocated)]), [(4096, 512, false)], "up to the gap");
        assert_eq!(found(&[(8, 2, Mapped), (8, 2, Deallocated)]), [(4096, 1024, false)], "nothing goes back");
    }
}
