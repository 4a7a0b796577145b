//! EXTENDED COPY(LID1) and RECEIVE COPY RESULTS (SPC-4 6.3, 6.20 to 6.22): blocks go from one logical unit of this
//! target to the same or another one without leaving it.
//!
//! The whole list is checked first; then segment after segment is copied, piece by piece: the
//! source's range is held shared while it is read, the destination's exclusively while it is
//! written, never both. So a copy does not deadlock with one in the other direction, and other
//! commands may run between two pieces. Reservations and write protection of each unit count as for
//! READ and WRITE by the same nexus.

use std::sync::Arc;

use block::pieces::Pieces;
use block::{Buffer, BufferPool, ByteRange};
use scsi::cdb::{Blocks, Transfer};
use scsi::extended_copy::{CopyList, CopyStatus, ExtendedCopyState, Segment, action};
use scsi::{Cdb, Sense, Status, TaskAttribute};

use super::read_write::{read_to, write_range};
use super::task::{Task, between_pieces, nothing, refuse};
use crate::admission::Admission;
use crate::change_marks::Held;
use crate::data_in::cut;
use crate::execution::Execution;
use crate::failure::Failure;
use crate::identity;
use crate::limits::{COPY_LIMITS, COPY_PIECE_BYTES, COPY_SMALL_PIECE_BYTES};
use crate::nexus::NexusId;
use crate::sanitize_state::SanitizesBegun;
use crate::sharing::Direction;
use crate::task_set::Ticket;
use crate::unit::{LogicalUnit, range_in};

pub(super) fn results(
    unit: &LogicalUnit,
    nexus: &NexusId,
    (service_action, identifier): (u8, u8),
    allocation_length: u32,
) -> Result<Buffer, Failure> {
    if service_action == action::OPERATING_PARAMETERS {
        return Ok(cut(&COPY_LIMITS.emit_operating_parameters(), allocation_length));
    }
    let status = unit.copies.get(nexus, identifier).ok_or(Sense::INVALID_FIELD_IN_CDB.at_byte(2))?;
    Ok(cut(&status.emit(), allocation_length))
}

pub(super) fn extended_copy(mut task: Task<'_>, parameter_list_length: u32) -> Execution {
    if parameter_list_length == 0 {
        return nothing();
    }
    let list = match parse(&mut task, parameter_list_length) {
        Ok(list) => list,
        Err(failure) => return refuse(failure),
    };
    let (unit, nexus, admission) = (Arc::clone(task.unit), task.nexus.clone(), task.admission);
    let parties = parties(&unit, (&nexus, admission.arrivals), &list);
    let visits = match visits(&unit, &nexus, &parties) {
        Ok(visits) => visits,
        Err(failure) => return refuse(failure),
    };
    task.run_long(|ticket| async move {
        let mut status = CopyStatus { state: ExtendedCopyState::InProgress, segment_count: 0, written_bytes: 0 };
        let note = |status| list.identifier.iter().for_each(|&number| unit.copies.note(&nexus, number, status));
        note(status);
        let copy = Copy { unit: Arc::clone(&unit), nexus: nexus.clone(), admission, ticket, parties, _visits: visits };
        let mut tasks_begun = copy.tasks_begun();
        let mut result = Ok(());
        for segment in &list.segments {
            result = copy.segment(segment, &mut tasks_begun).await.map(|written_bytes| {
                status.segment_count += 1;
                status.written_bytes += written_bytes;
            });
            if result.is_err() {
                break;
            }
            note(status);
        }
        status.state = if result.is_ok() { ExtendedCopyState::Completed } else { ExtendedCopyState::Failed };
        note(status);
        result.map(|()| Buffer::empty())
    })
}

fn parse(task: &mut Task<'_>, parameter_list_length: u32) -> Result<CopyList, Failure> {
    let list_bytes_max = COPY_LIMITS.list_bytes_max as usize + scsi::extended_copy::HEADER_BYTES;
    if parameter_list_length as usize > list_bytes_max {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    }
    let list = task.take_data_out(u64::from(parameter_list_length))?;
    Ok(CopyList::parse(&list, &COPY_LIMITS)?)
}

/// A logical unit that is copied from or to.
#[derive(Clone)]
struct Party {
    unit: Arc<LogicalUnit>,
    /// The count of sanitizes begun when the copy arrived.
    sanitizes_begun: SanitizesBegun,
}

impl Party {
    /// Whether no sanitize runs now, and none has begun since the copy arrived.
    fn check(&self) -> Result<(), Sense> {
        self.unit.sanitize.check()?;
        self.unit.sanitize.check_none_since(self.sanitizes_begun)
    }
}

/// The logical units of this target that the list names; `None` for one that is not here, or was not when the copy
/// arrived: what its initiator named was another one.
fn parties(own: &Arc<LogicalUnit>, (nexus, arrivals): (&NexusId, u64), list: &CopyList) -> Vec<Option<Party>> {
    let mut known = vec![Arc::clone(own)];
    // A nexus cannot copy from or to a unit that it does not see.
    known.extend(own.maps.seen_by(nexus, arrivals));
    let named: Vec<_> = known.iter().map(|unit| (identity::designators_of(unit), unit)).collect();
    let find = |name: &scsi::vpd::Designator| {
        let (_, unit) = named.iter().find(|(names, _)| names.contains(name))?;
        Some(Party { unit: Arc::clone(unit), sanitizes_begun: unit.sanitize.begun() })
    };
    list.targets.iter().map(|name| name.as_ref().and_then(find)).collect()
}

/// Its places among the copies of the other units, each counted once.
///
/// # Errors
/// TASK SET FULL when one of these has no more for its initiator.
fn visits(own: &Arc<LogicalUnit>, nexus: &NexusId, parties: &[Option<Party>]) -> Result<Vec<Ticket>, Failure> {
    let mut others: Vec<&Arc<LogicalUnit>> = Vec::new();
    for Party { unit, .. } in parties.iter().flatten() {
        if !Arc::ptr_eq(unit, own) && !others.iter().any(|other| Arc::ptr_eq(unit, other)) {
            others.push(unit);
        }
    }
    if others.iter().any(|unit| unit.visiting_copies.is_full_for(nexus)) {
        return Err(Failure::Status(Status::TaskSetFull));
    }
    Ok(others.iter().map(|unit| unit.visiting_copies.enter(nexus, 0, TaskAttribute::Simple)).collect())
}

/// What is copied at a time.
struct Piece {
    read: ByteRange,
    written: ByteRange,
    /// The change marks of the destination that its nexus holds still.
    held: Held,
}

/// A copy under way.
struct Copy {
    /// The unit that received the command.
    unit: Arc<LogicalUnit>,
    nexus: NexusId,
    admission: Admission,
    ticket: Arc<Ticket>,
    parties: Vec<Option<Party>>,
    _visits: Vec<Ticket>,
}

impl Copy {
    fn party(&self, index: u16) -> Result<&Party, Sense> {
        let party = self.parties.get(usize::from(index)).and_then(Option::as_ref);
        party.ok_or(Sense::UNREACHABLE_COPY_TARGET)
    }

    /// Whether the copy may go on with blocks of these two units.
    fn check(&self, source: &Party, destination: &Party) -> Result<(), Failure> {
        self.admission.check(&self.unit, &self.ticket)?;
        source.check().and_then(|()| destination.check()).map_err(|_| Sense::COPY_ABORTED.into())
    }

    /// Tasks so far of the units that it has to do with.
    fn tasks_begun(&self) -> u64 {
        self.parties.iter().flatten().map(|party| party.unit.tasks.begun()).sum()
    }

    /// Copies one segment, and gives the bytes written. `tasks_begun` are those that there were at the last piece.
    async fn segment(&self, segment: &Segment, tasks_begun: &mut u64) -> Result<u64, Failure> {
        let (source_party, destination_party) = (self.party(segment.source)?, self.party(segment.destination)?);
        let (source, destination) = (&source_party.unit, &destination_party.unit);
        let (from, to) = (source.geometry(), destination.geometry());
        let transfer =
            |lba| Transfer { blocks: Blocks::sixteen(lba, segment.block_count.into()), is_dpo: false, is_fua: false };
        let aborted = |_: Sense| Sense::COPY_ABORTED;
        source.reservations.check(&self.nexus, &Cdb::Read(transfer(segment.source_lba)))?;
        destination.reservations.check(&self.nexus, &Cdb::Write(transfer(segment.destination_lba)))?;
        source.check_medium().map_err(aborted)?;
        destination.check_medium().map_err(aborted)?;
        destination.check_writable(&to)?;
        if destination.protection.covers(&self.nexus) {
            return Err(Sense::WRITE_PROTECTED.into());
        }
        self.check(source_party, destination_party)?;
        // DC is clear: the count is in blocks of the source.
        let bytes = u64::from(segment.block_count) * u64::from(from.logical_block_bytes);
        if !bytes.is_multiple_of(u64::from(to.logical_block_bytes)) {
            return Err(Sense::COPY_ABORTED.into());
        }
        let read = range_in(&from, segment.source_lba, u64::from(segment.block_count)).map_err(aborted)?;
        let count = bytes / u64::from(to.logical_block_bytes);
        let written = range_in(&to, segment.destination_lba, count).map_err(aborted)?;
        let held = destination.held_still_by(&self.nexus);
        destination.record_change(held, written).await?;
        let block_bytes = u64::from(from.logical_block_bytes.max(to.logical_block_bytes));
        let bytes_max = COPY_PIECE_BYTES.min(u64::from(from.transfer_bytes_max.min(to.transfer_bytes_max)));
        let mut pieces = Pieces::new(block_bytes, COPY_SMALL_PIECE_BYTES, bytes_max);
        let mut done = 0;
        while done < bytes {
            // Where the device takes its time others are seen by their tasks. Beside them all copies have one piece.
            let begun = self.tasks_begun();
            let is_beside_others = std::mem::replace(tasks_begun, begun) != begun;
            let (length, pool) = if is_beside_others {
                (pieces.next_small(bytes - done), &source.copy_turn)
            } else {
                (pieces.next(bytes - done), &source.options.copy_buffers)
            };
            let part = |range: ByteRange| ByteRange { offset: range.offset + done, length };
            let piece = Piece { read: part(read), written: part(written), held };
            while !self.piece((source_party, destination_party), &piece, (&mut pieces, pool)).await? {}
            done += length;
            between_pieces(&self.ticket).await?;
        }
        Ok(bytes)
    }

    /// Copies a piece with a buffer from `pool`; false when it has to begin anew, since somebody shares one of the
    /// units from now on.
    ///
    /// At the gates of both units first, which may take as long as another host keeps these blocks, then the buffer,
    /// which other copies wait for, then the blocks: no step waits for who is at an earlier one. The source's gate
    /// before the destination's: who has passed to read holds up nobody, and who has passed to write holds up who comes
    /// to read. So two copies in opposite directions do not wait for each other.
    async fn piece(
        &self,
        (source_party, destination_party): (&Party, &Party),
        piece: &Piece,
        (pieces, pool): (&mut Pieces, &BufferPool),
    ) -> Result<bool, Failure> {
        let (source, destination) = (&source_party.unit, &destination_party.unit);
        let look = source.access.pass(&self.nexus, (piece.read, Direction::Look), &self.ticket).await?;
        let change = destination.access.pass(&self.nexus, (piece.written, Direction::Change), &self.ticket).await?;
        let buffer = pool.acquire(piece.read.length as usize).await;
        let buffer = {
            let Some(_entry) = look.take().await? else { return Ok(false) };
            let lba = piece.read.offset / u64::from(source.geometry().logical_block_bytes);
            pieces.wait_for(read_to((source, self.nexus.submitter()), buffer, piece.read.offset, lba)).await?
        };
        let Some(_entry) = change.take().await? else { return Ok(false) };
        self.check(source_party, destination_party)?;
        destination.record_change(piece.held, piece.written).await?;
        let lba = piece.written.offset / u64::from(destination.geometry().logical_block_bytes);
        let whose = (&**destination, self.nexus.submitter());
        pieces.wait_for(write_range(whose, piece.written.offset, buffer, false, lba)).await?;
        Ok(true)
    }
}
