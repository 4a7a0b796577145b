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
use block::{Buffer, ByteRange};
use scsi::cdb::{Blocks, Transfer};
use scsi::extended_copy::{CopyList, CopyState, CopyStatus, Segment, action};
use scsi::{Cdb, Sense};

use super::read_write::{read_to, write_range};
use super::task::{Task, between_pieces, nothing, refuse};
use crate::admission::Admission;
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
    task.run_long(|ticket| async move {
        let mut status = CopyStatus { state: CopyState::InProgress, segment_count: 0, written_bytes: 0 };
        let note = |status| list.identifier.iter().for_each(|&number| unit.copies.note(&nexus, number, status));
        note(status);
        let parties = parties(&unit, &nexus, &list);
        let copy = Copy { unit: Arc::clone(&unit), nexus: nexus.clone(), admission, ticket, parties };
        let mut result = Ok(());
        for segment in &list.segments {
            result = copy.segment(segment).await.map(|written_bytes| {
                status.segment_count += 1;
                status.written_bytes += written_bytes;
            });
            if result.is_err() {
                break;
            }
            note(status);
        }
        status.state = if result.is_ok() { CopyState::Completed } else { CopyState::Failed };
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

/// The logical units of this target that the list names; `None` for one that is not here.
fn parties(own: &Arc<LogicalUnit>, nexus: &NexusId, list: &CopyList) -> Vec<Option<Party>> {
    let mut known = vec![Arc::clone(own)];
    // A nexus cannot copy from or to a unit that it does not see.
    known.extend(own.maps.seen_by(nexus));
    let named: Vec<_> = known.iter().map(|unit| (identity::designators_of(unit), unit)).collect();
    let find = |name: &scsi::vpd::Designator| {
        let (_, unit) = named.iter().find(|(names, _)| names.contains(name))?;
        Some(Party { unit: Arc::clone(unit), sanitizes_begun: unit.sanitize.begun() })
    };
    list.targets.iter().map(|name| name.as_ref().and_then(find)).collect()
}

/// A copy under way.
struct Copy {
    /// The unit that received the command.
    unit: Arc<LogicalUnit>,
    nexus: NexusId,
    admission: Admission,
    ticket: Arc<Ticket>,
    parties: Vec<Option<Party>>,
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

    /// Copies one segment. Returns the bytes written.
    async fn segment(&self, segment: &Segment) -> Result<u64, Failure> {
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
        let mut tasks_begun = source.tasks.begun();
        let mut done = 0;
        while done < bytes {
            // While a slow device works, other commands show by their tasks. Beside them all copies
            // together have one piece.
            let begun = source.tasks.begun();
            let is_beside_others = std::mem::replace(&mut tasks_begun, begun) != begun;
            let (length, pool) = if is_beside_others {
                (pieces.next_small(bytes - done), &source.copy_turn)
            } else {
                (pieces.next(bytes - done), &source.options.copy_buffers)
            };
            // Before it has a range: the holder of a buffer may wait for this one's range.
            let buffer = pool.acquire(length as usize).await;
            let piece = ByteRange { offset: read.offset + done, length };
            let buffer = {
                let place = source.access.enter(&self.nexus, piece, Direction::Look);
                let _entry = place.take(Some(&self.ticket)).await?;
                let lba = piece.offset / u64::from(from.logical_block_bytes);
                pieces.wait_for(read_to(source, buffer, piece.offset, lba)).await?
            };
            let piece = ByteRange { offset: written.offset + done, length };
            let place = destination.access.enter(&self.nexus, piece, Direction::Change);
            let entry = place.take(Some(&self.ticket)).await?;
            self.check(source_party, destination_party)?;
            destination.record_change(held, piece).await?;
            let lba = piece.offset / u64::from(to.logical_block_bytes);
            pieces.wait_for(write_range(destination, piece.offset, buffer, false, lba)).await?;
            done += length;
            drop(entry);
            between_pieces(&self.ticket).await?;
        }
        Ok(bytes)
    }
}
