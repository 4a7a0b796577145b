//! After a recovery logout a read whose answer was not acknowledged is completed on another connection.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, same};
use crate::wire::SILENCE;
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.2.2, 11.5.1";

/// After a recovery logout a read whose answer was not acknowledged is completed on another connection.
pub fn run(bench: &Bench) -> Outcome {
    let mut first = bench.log_in_at_level("2", &[])?;
    first.acknowledges = false;
    let command = first.read10(2);
    first.send(&command, Vec::new())?;
    let (pieces, _) = first.read_all(command.initiator_task_tag)?;
    let expected: Vec<u8> = pieces.into_iter().flat_map(|(_, data)| data).collect();
    let (isid, tsih, cid, cmd_sn) = (first.isid, first.tsih, first.cid, first.cmd_sn);
    drop(first);
    std::thread::sleep(SILENCE);
    let mut second = bench.connect()?;
    second.cmd_sn = cmd_sn;
    let response = bench.try_log_in(&mut second, isid, tsih, cid, &[])?;
    ensure(response.status.is_success(), format!("the connection is not reinstated: {}", response.status))?;
    same(
        "outcome",
        second.manage(TaskManagementFunction::TaskReassign, Some(&command))?,
        TaskManagementOutcome::FunctionComplete,
    )?;
    let (pieces, status) = second.read_all(command.initiator_task_tag)?;
    same("status", status, 0)?;
    let data: Vec<u8> = pieces.into_iter().flat_map(|(_, data)| data).collect();
    ensure(data == expected, "the data is another")
}
