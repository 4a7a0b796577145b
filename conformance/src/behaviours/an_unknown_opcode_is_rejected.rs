//! An opcode nobody knows is rejected as not supported, with its header, and the session goes on.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, fail, same};
use iscsi::pdu::{BHS_BYTES, Bhs, RejectReason};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.17.1";

/// An opcode nobody knows is rejected as not supported, with its header, and the session goes on.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let mut raw = [0; BHS_BYTES];
    (raw[0], raw[1]) = (0x5c, 0x80);
    wire.send_bytes(&raw)?;
    let pdu = wire.receive()?;
    match pdu.header.bhs {
        Ok(Bhs::Reject(reject)) => same("reason", reject.reason, RejectReason::CommandNotSupported)?,
        other => return fail(format!("it is answered with {other:?}")),
    }
    ensure(pdu.data.bytes() == raw, "the reject does not have the header that is rejected")?;
    wire.check_alive()
}
