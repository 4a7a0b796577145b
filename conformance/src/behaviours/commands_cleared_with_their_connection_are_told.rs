//! Tasks end with the connection they came on; the next command on any connection of the session is told so by a unit
//! attention, 47h/7Fh (SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT), once.

use crate::bench::{Bench, name};
use crate::verdict::{Outcome, ensure, fail, same};
use iscsi::pdu::{Bhs, LogoutOutcome, LogoutReason, ServiceResponse};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.14.5";

/// Sense key, ASC and ASCQ in fixed format, and where the sense data begins in a response's data segment.
const EXPECTED: (u8, u8, u8) = (0x06, 0x47, 0x7f);
const SENSE_AT: usize = 2;

/// A write waits for its data on the second connection; the first one closes that.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let (mut first, mut second) = bench.log_in_twice(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    // Both connections share one sequence of command numbers.
    second.cmd_sn = first.cmd_sn;
    let write = second.write10(1);
    second.send(&write, Vec::new())?;
    second.r2t(write.initiator_task_tag)?;
    first.cmd_sn = second.cmd_sn;
    let closed = first.log_out(LogoutReason::CloseConnection, second.cid)?;
    same("outcome", closed.outcome, LogoutOutcome::Closed)?;
    let command = first.test_unit_ready();
    first.send(&command, Vec::new())?;
    let pdu = first.receive()?;
    let is_check = matches!(&pdu.header.bhs, Ok(Bhs::ScsiResponse(response))
        if response.response == ServiceResponse::CommandCompleted { status: 2 });
    if !is_check {
        return fail(match &pdu.header.bhs {
            Ok(bhs) => format!("the next command is answered with {}, not CHECK CONDITION", name(bhs)),
            Err(_) => "the answer is malformed".to_owned(),
        });
    }
    let sense = pdu.data.bytes().get(SENSE_AT..).unwrap_or_default();
    ensure(sense.len() >= 14, "the sense data is short")?;
    same("sense", (sense[2] & 0x0f, sense[12], sense[13]), EXPECTED)?;
    first.check_alive()
}
