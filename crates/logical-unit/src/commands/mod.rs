//! One file per family of commands, and the table that sends each command to its family.

mod cache;
mod capacity;
mod change_mark;
mod compare_and_write;
pub(crate) mod extended_copy;
pub(crate) mod inquiry;
mod log;
pub(crate) mod medium;
pub(crate) mod mode;
mod or_write;
mod pieces;
mod read_write;
mod report;
mod reserve;
pub(crate) mod sanitize;
mod unmap;
mod verify;
mod write_atomic;
mod write_same;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use block::{Buffer, ByteRange};
use scsi::{Cdb, Status};

use crate::admission::Admission;
use crate::command::{Command, Outcome};
use crate::execution::Execution;
use crate::failure::Failure;
use crate::nexus::NexusId;
use crate::task_set::Ticket;
use crate::unit::LogicalUnit;

/// Starts a command that nothing stands in the way of.
pub(crate) fn start(
    unit: &Arc<LogicalUnit>,
    nexus: &NexusId,
    cdb: Cdb,
    command: Command,
    admission: Admission,
) -> Execution {
    let task = Task { unit, nexus, command, admission };
    match cdb {
        Cdb::Read(transfer) => read_write::read(task, transfer),
        Cdb::Write(transfer) => read_write::write(task, transfer),
        Cdb::Verify(verification) => verify::verify(task, verification),
        Cdb::WriteAndVerify(verification) => verify::write_and_verify(task, verification),
        Cdb::WriteSame(same) => write_same::write_same(task, same),
        Cdb::CompareAndWrite { lba, block_count, is_fua, .. } => {
            compare_and_write::compare_and_write(task, lba, block_count, is_fua)
        }
        Cdb::OrWrite(transfer) => or_write::or_write(task, transfer),
        Cdb::WriteAtomic(write) => write_atomic::write_atomic(task, write),
        Cdb::Sanitize(sanitize) => sanitize::sanitize(task, sanitize),
        Cdb::ExtendedCopy { parameter_list_length } => extended_copy::extended_copy(task, parameter_list_length),
        Cdb::Unmap { is_anchor, parameter_list_length } => unmap::unmap(task, is_anchor, parameter_list_length),
        Cdb::SynchronizeCache(range) => cache::synchronize(task, range),
        Cdb::ModeSelect(select) => mode::select(task, select),
        Cdb::StartStopUnit(start_stop) => medium::start_stop(task, start_stop),
        Cdb::GetLbaStatus { lba, allocation_length } => capacity::lba_status(task, lba, allocation_length),
        Cdb::ChangeMarkOut { service_action, parameter_list_length } => {
            change_mark::change(task, service_action, parameter_list_length)
        }
        Cdb::PersistentReserveOut { service_action, scope, kind, parameter_list_length } => {
            reserve::persistent_out(task, (service_action, scope, kind), parameter_list_length)
        }
        cdb => Execution::ready(Outcome::from(control(&task, cdb))),
    }
}

/// Commands that need no device: they are over when this returns.
fn control(task: &Task<'_>, cdb: Cdb) -> Result<Buffer, Failure> {
    let Task { unit, nexus, .. } = task;
    match cdb {
        Cdb::TestUnitReady => medium::test_unit_ready(unit),
        Cdb::RequestSense { is_descriptor, allocation_length } => {
            inquiry::request_sense(unit, nexus, is_descriptor, allocation_length)
        }
        Cdb::Inquiry { is_vpd, page, allocation_length } => {
            inquiry::inquiry(unit, nexus, is_vpd, page, allocation_length)
        }
        Cdb::LogSense(sense) => log::sense(sense),
        Cdb::ReadDefectData(asked) => capacity::read_defect_data(unit, &asked),
        Cdb::ReceiveCopyResults { service_action, list_identifier, allocation_length } => {
            extended_copy::results(unit, nexus, (service_action, list_identifier), allocation_length)
        }
        Cdb::ReportTargetPortGroups { is_extended, allocation_length } => {
            Ok(report::target_port_groups(nexus, is_extended, allocation_length))
        }
        Cdb::ReadCapacity10 => capacity::read_capacity_10(unit),
        Cdb::ReadCapacity16 { allocation_length } => capacity::read_capacity_16(unit, allocation_length),
        Cdb::Prefetch(range) => cache::prefetch(unit, range),
        Cdb::ModeSense(sense) => mode::sense(unit, nexus, sense),
        Cdb::PreventAllowMediumRemoval { prevent } => medium::prevent_allow(unit, nexus, prevent),
        Cdb::Reserve6 => reserve::reserve_6(unit, nexus),
        Cdb::Release6 => reserve::release_6(unit, nexus),
        Cdb::PersistentReserveIn { service_action, allocation_length } => {
            reserve::persistent_in(unit, service_action, allocation_length)
        }
        Cdb::ReportSupportedOperationCodes {
            has_timeouts,
            reporting_options,
            operation_code,
            service_action,
            allocation_length,
        } => {
            let asked = report::Asked { reporting_options, operation_code, service_action };
            report::operation_codes(unit, asked, has_timeouts, allocation_length)
        }
        Cdb::ReportSupportedTaskManagementFunctions { is_extended, allocation_length } => {
            report::task_management_functions(is_extended, allocation_length)
        }
        Cdb::ChangeMarkIn { service_action, slot, first_range, allocation_length } => {
            change_mark::report(unit, nexus, (service_action, slot, first_range), allocation_length)
        }
        // REPORT LUNS never comes here: the LUN map answers it. The others are not control commands.
        Cdb::ReportLuns { .. }
        | Cdb::Read(_)
        | Cdb::Write(_)
        | Cdb::Verify(_)
        | Cdb::WriteAndVerify(_)
        | Cdb::WriteSame(_)
        | Cdb::CompareAndWrite { .. }
        | Cdb::OrWrite(_)
        | Cdb::WriteAtomic(_)
        | Cdb::Sanitize(_)
        | Cdb::ExtendedCopy { .. }
        | Cdb::Unmap { .. }
        | Cdb::SynchronizeCache(_)
        | Cdb::ChangeMarkOut { .. }
        | Cdb::PersistentReserveOut { .. }
        | Cdb::ModeSelect(_)
        | Cdb::StartStopUnit(_)
        | Cdb::GetLbaStatus { .. } => Err(scsi::Sense::INVALID_OPERATION_CODE.into()),
    }
}

/// A command on its way, with whom it is for and from.
pub(crate) struct Task<'a> {
    pub(crate) unit: &'a Arc<LogicalUnit>,
    pub(crate) nexus: &'a NexusId,
    pub(crate) command: Command,
    pub(crate) admission: Admission,
}

impl Task<'_> {
    /// Carries out a command that takes several steps.
    fn run(&self, steps: impl Future<Output = Result<Buffer, Failure>> + Send + 'static) -> Execution {
        self.run_to(async move { Outcome::from(steps.await) })
    }

    /// As [`run`](Self::run), for what takes many steps: between two of them it asks its ticket whether anybody still wants the rest.
    fn run_long<Steps>(&self, steps: impl FnOnce(Arc<Ticket>) -> Steps) -> Execution
    where
        Steps: Future<Output = Result<Buffer, Failure>> + Send + 'static,
    {
        let ticket = Arc::new(self.unit.enter(self.nexus, &self.command));
        let steps = steps(Arc::clone(&ticket));
        Execution::task(async move { Outcome::from(steps.await) }, ticket, self.unit.workers())
    }

    /// Carries out a command that changes a range, once it has that alone. Its place in the range's line is taken at once; if it was aborted or a
    /// sanitize began while it waited, nothing of it is carried out.
    fn run_alone<Steps>(&self, range: ByteRange, steps: impl FnOnce(Arc<Ticket>) -> Steps) -> Execution
    where
        Steps: Future<Output = Result<Buffer, Failure>> + Send + 'static,
    {
        let place = self.unit.ranges.exclusive(range);
        let (unit, admission) = (Arc::clone(self.unit), self.admission);
        self.run_long(|ticket| {
            let steps = steps(Arc::clone(&ticket));
            async move {
                let _guard = place.await;
                admission.check(&unit, &ticket)?;
                steps.await
            }
        })
    }

    /// As [`run`](Self::run), with an outcome of its own making.
    fn run_to(&self, steps: impl Future<Output = Outcome> + Send + 'static) -> Execution {
        let ticket = self.unit.enter(self.nexus, &self.command);
        Execution::task(steps, Arc::new(ticket), self.unit.workers())
    }

    /// The data-out, exactly as long as the CDB asks; what is beyond is cut, less is refused.
    fn take_data_out(&mut self, bytes: u64) -> Result<Buffer, Failure> {
        let data_out = self.take_data_out_up_to(bytes);
        if data_out.len() as u64 == bytes {
            Ok(data_out)
        } else {
            Err(scsi::Sense::INVALID_FIELD_IN_INFORMATION_UNIT.into())
        }
    }

    /// The data-out, at most as long as the CDB asks.
    fn take_data_out_up_to(&mut self, bytes: u64) -> Buffer {
        let mut data_out = std::mem::take(&mut self.command.data_out);
        let length = usize::try_from(bytes).map_or(data_out.len(), |bytes| bytes.min(data_out.len()));
        data_out.set_length(length);
        data_out
    }
}

/// Lets others have their turn, which a device that answers at once would not.
async fn give_way() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Between two pieces of a long command: lets others have their turn, and ends a command that was aborted meanwhile.
async fn between_pieces(ticket: &Ticket) -> Result<(), Failure> {
    give_way().await;
    // What the initiator is told, if anything, is the abort's to say.
    if ticket.abort().is_some() { Err(Failure::Status(Status::TaskAborted)) } else { Ok(()) }
}

/// A command that ends here.
fn refuse(failure: impl Into<Failure>) -> Execution {
    Execution::ready(Outcome::from(Err(failure.into())))
}

/// A command with nothing to do.
fn nothing() -> Execution {
    Execution::ready(Outcome::good(Buffer::empty()))
}
