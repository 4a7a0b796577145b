//! A NOP-Out with a task tag comes back with its data.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, fail};
use crate::wire::pattern;
use iscsi::pdu::Bhs;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.18, 11.19";

/// A NOP-Out with a task tag comes back with its data.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let ping = wire.nop_out();
    wire.send(&ping, pattern(100))?;
    let pdu = wire.receive()?;
    match pdu.header.bhs {
        Ok(Bhs::NopIn(echo)) if echo.initiator_task_tag == ping.initiator_task_tag => {
            ensure(pdu.data.bytes() == pattern(100), "the data is another")
        }
        other => fail(format!("it is answered with {other:?}")),
    }
}
