//! What several behaviours do.

use iscsi::pdu::{Bhs, InitiatorTaskTag, Residual, ServiceResponse, TaskManagementFunction, TaskManagementOutcome};
use iscsi::text::Keys;

use crate::bench::{Bench, INITIATOR, name};
use crate::verdict::{Outcome, ensure, fail, same, skip};
use crate::wire::{Wire, pattern};

/// A discovery session.
pub(super) fn discovery(bench: &Bench, wire: &mut Wire) -> Outcome {
    let request = bench.login_request(wire, bench.fresh_isid(), 0, 1);
    let keys = [("InitiatorName", INITIATOR), ("SessionType", "Discovery")];
    wire.send(&request, keys.into_iter().collect::<Keys>().emit())?;
    loop {
        let (response, _) = wire.login_response()?;
        ensure(response.status.is_success(), format!("discovery is refused: {}", response.status))?;
        if response.transit_to.is_some() {
            wire.enter_full_feature_phase(&response, request.isid, 1);
            return Ok(());
        }
        wire.send(&request, Vec::new())?;
    }
}

/// What is at LBA 0 is `expected`.
pub(super) fn read_back(wire: &mut Wire, expected: &[u8]) -> Outcome {
    let command = wire.read10((expected.len() / 512) as u16);
    wire.send(&command, Vec::new())?;
    let (pieces, status) = wire.read_all(command.initiator_task_tag)?;
    same("status of the read", status, 0)?;
    let data: Vec<u8> = pieces.into_iter().flat_map(|(_, data)| data).collect();
    ensure(data == expected, "what was written is not what is read")
}

/// A write that broke the rules does not end in GOOD.
pub(super) fn refused(wire: &mut Wire, task: InitiatorTaskTag) -> Outcome {
    match wire.receive_bhs() {
        // A Reject is a word on the way: the task may still fail, or the connection end.
        Err(_) | Ok(Bhs::Reject(_) | Bhs::ReadyToTransfer(_)) => Ok(()),
        Ok(Bhs::ScsiResponse(response)) if response.initiator_task_tag == task => {
            let is_good = response.response == ServiceResponse::CommandCompleted { status: 0 };
            ensure(!is_good, "the target takes it as if nothing were wrong")
        }
        Ok(other) => fail(format!("it is answered with {}", name(&other))),
    }
}

/// The residual that a read's end tells.
pub(super) fn residual(wire: &mut Wire, expected: Residual) -> Outcome {
    loop {
        match wire.receive_bhs()? {
            Bhs::DataIn(data) => {
                if let Some(status) = data.status {
                    return same("residual", status.residual, expected);
                }
            }
            Bhs::ScsiResponse(response) => return same("residual", response.residual, expected),
            other => return fail(format!("there is {}", name(&other))),
        }
    }
}

/// `function` ends a write whose data is under way; the data is still taken, and the response follows it.
pub(super) fn ends_a_write(bench: &Bench, function: TaskManagementFunction) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let command = wire.write10(1);
    wire.send(&command, Vec::new())?;
    let r2t = wire.r2t(command.initiator_task_tag)?;
    let request = wire.management(function, None);
    wire.send(&request, Vec::new())?;
    wire.answer_r2t(&r2t, &pattern(512), 512)?;
    loop {
        match wire.receive_bhs()? {
            Bhs::TaskManagementResponse(response)
                if response.outcome == TaskManagementOutcome::FunctionNotSupported =>
            {
                return skip("the target does not support it, as it may");
            }
            Bhs::TaskManagementResponse(response) => {
                same("outcome", response.outcome, TaskManagementOutcome::FunctionComplete)?;
                break;
            }
            // The task may have ended before.
            Bhs::ScsiResponse(response) if response.initiator_task_tag == command.initiator_task_tag => {}
            other => return fail(format!("there is {}", name(&other))),
        }
    }
    wire.expect_silence()?;
    wire.settle()
}
