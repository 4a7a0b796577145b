//! What several behaviours do.

use iscsi::pdu::{Bhs, InitiatorTaskTag, Residual, ServiceResponse};
use iscsi::text::Keys;

use crate::bench::{Bench, INITIATOR, name};
use crate::verdict::{Outcome, ensure, fail, same};
use crate::wire::Wire;

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
