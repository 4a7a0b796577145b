//! The buffers for data segments, chosen before the PDU is complete: whether a command becomes a
//! task, and the buffer of its data-out.

use base::buffer::{Buffer, BufferPool};

use super::arrived_command::{ArrivedCommand, DataOutPlan};
use super::event::LinkId;
use super::full_feature::FullFeature;
use super::parameters::TargetParameters;
use super::task::{DataFailure, DataOutHeld};
use super::task_set::TaskSet;
use crate::framing::{Destination, ReceivedHeader};
use crate::limits::{DATA_OUT_RESERVE_BYTES, IMMEDIATE_DATA_BYTES};
use crate::negotiation::SessionType;
use crate::pdu::{DataOut, RejectReason, ScsiCommand};

/// Whether a command PDU becomes a task.
pub(super) enum Admission {
    Take,
    /// Outside the window or a duplicate: silently ignored (RFC 7143 4.2.2.1).
    Ignore,
    Reject(RejectReason),
}

pub(super) fn admit(full: &FullFeature, set: &TaskSet, command: &ScsiCommand) -> Admission {
    if full.negotiated.session_type == SessionType::Discovery {
        return Admission::Reject(RejectReason::ProtocolError);
    }
    if !command.is_immediate && !set.window.admits(command.cmd_sn) {
        return Admission::Ignore;
    }
    if set.tasks.contains_key(&command.initiator_task_tag) {
        return Admission::Reject(RejectReason::TaskInProgress);
    }
    if full.is_draining {
        return Admission::Reject(RejectReason::WaitingForLogout);
    }
    if command.is_immediate && !set.has_room_for_immediate() {
        return Admission::Reject(RejectReason::TooManyImmediateCommands);
    }
    Admission::Take
}

impl DataOutPlan {
    /// A buffer for all data if it is to be requested; for unsolicited data, a buffer that grows as
    /// it arrives. `None` when there is no buffer for data that comes with the command: it is not
    /// kept then.
    pub(super) fn buffer(
        &self,
        parameters: &TargetParameters,
        own: DataOutHeld,
        immediate_bytes: usize,
    ) -> Option<Buffer> {
        let is_later = self.unsolicited_limit.is_some() || self.is_held;
        let all = if is_later { immediate_bytes } else { self.wanted as usize };
        match all.max(immediate_bytes) {
            0 => Some(Buffer::empty()),
            all => lend(parameters, own, all, all > immediate_bytes).or_else(|| match immediate_bytes {
                0 => Some(Buffer::empty()),
                immediate_bytes => lend(parameters, own, immediate_bytes, false),
            }),
        }
    }
}

/// A buffer with room for data-out of a session that has `own`: within its share and what others
/// leave, or within its reserve. Its memory is allocated when data comes, which takes longer than
/// all other work on a command. Data to be requested (`is_asked`) uses the reserve only when the
/// session has nothing else: it can wait.
pub(super) fn lend(parameters: &TargetParameters, own: DataOutHeld, bytes: usize, is_asked: bool) -> Option<Buffer> {
    let capacity = BufferPool::capacity_of(bytes)?;
    let is_within_share = own.lent_bytes == 0 || own.lent_bytes + capacity <= parameters.session_data_out_bytes;
    let lent = is_within_share.then(|| parameters.pool.try_acquire_beside_others(bytes, own.lent_bytes)).flatten();
    let has_reserve = own.reserve_bytes + capacity <= DATA_OUT_RESERVE_BYTES && (own.lent_bytes == 0 || !is_asked);
    lent.or_else(|| has_reserve.then(|| Buffer::zeroed(bytes)))
}

/// The destination of a command PDU's data segment. The command itself comes along where it is to become a task, to be
/// handled when that data is there.
pub(super) fn place_immediate_data(
    full: &FullFeature,
    set: &TaskSet,
    parameters: &TargetParameters,
    command: &ScsiCommand,
    header: &ReceivedHeader,
) -> (Destination, Option<ArrivedCommand>) {
    if !matches!(admit(full, set, command), Admission::Take) {
        return (Destination::Discard, None);
    }
    let bytes = header.data_segment_bytes;
    let arrived = ArrivedCommand::new(full, command, bytes);
    let plan = &arrived.plan;
    if !plan.takes_immediate {
        return (Destination::Discard, Some(arrived));
    }
    // An answer for which others wait must not be refused because waiting writes have all the
    // buffers.
    let is_small = command.is_immediate && bytes <= IMMEDIATE_DATA_BYTES && plan.wanted as usize <= bytes;
    let small = || (is_small && set.has_room_for_immediate_data()).then(|| Buffer::zeroed(bytes));
    let buffer = plan.buffer(parameters, set.data_out(), bytes).or_else(small);
    let destination = buffer.map_or(Destination::Discard, |buffer| Destination::Buffer { buffer, offset: 0 });
    (destination, Some(arrived))
}

/// The destination of a Data-Out PDU's data segment: its task's buffer, which the receiver has
/// until the PDU is complete.
pub(super) fn place_data_out(
    set: &mut TaskSet,
    parameters: &TargetParameters,
    at: LinkId,
    data: &DataOut,
    bytes: usize,
) -> Destination {
    let own = set.data_out();
    let Some(task) = set.tasks.get_mut(&data.initiator_task_tag) else { return Destination::Discard };
    if task.link != at || task.data_out.check(data, bytes).is_err() {
        return Destination::Discard;
    }
    let offset = data.buffer_offset as usize;
    let Some(buffer) = task.data_out.buffer.take() else { return Destination::Discard };
    if buffer.room() >= offset + bytes {
        return Destination::Buffer { buffer, offset };
    }
    // Only unsolicited data has a growing buffer, and only while all earlier data was kept.
    let may_grow = data.target_transfer_tag.is_none() && buffer.len() >= offset;
    let grown = may_grow.then(|| {
        let limit = task.data_out.limit() as usize;
        grow(&buffer, offset, offset + bytes, limit, |bytes| lend(parameters, own, bytes, false))
    });
    let Some(buffer) = grown.flatten() else {
        task.data_out.buffer = Some(buffer);
        task.failure.get_or_insert(DataFailure::NoBuffer);
        return Destination::Discard;
    };
    let id = task.id;
    set.hold(id, DataOutHeld::of(&buffer));
    Destination::Buffer { buffer, offset }
}

/// A larger buffer with the first `kept` bytes of a smaller one: twice as large, so that all bytes
/// are copied once or twice, or as large as needed.
pub(super) fn grow(
    buffer: &Buffer,
    kept: usize,
    needed: usize,
    limit: usize,
    lend: impl Fn(usize) -> Option<Buffer>,
) -> Option<Buffer> {
    let ample = needed.max(2 * buffer.capacity()).min(limit.max(needed));
    let mut grown = lend(ample).or_else(|| lend(needed))?;
    grown.extend_to(kept);
    grown[..kept].copy_from_slice(&buffer[..kept]);
    Some(grown)
}
