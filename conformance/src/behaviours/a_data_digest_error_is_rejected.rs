//! A command whose data came wrong is rejected; sent again with the same CmdSN it is executed.

use super::support::read_back;
use crate::bench::Bench;
use crate::verdict::Outcome;
use crate::wire::pattern;
use iscsi::pdu::RejectReason;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.8, 11.17.1";

/// A command whose data came wrong is rejected; sent again with the same CmdSN it is executed.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in_with(&[("DataDigest", "CRC32C"), ("ImmediateData", "Yes")], "DataDigest", "CRC32C")?;
    let command = wire.write10(1);
    let good = wire.bytes(&command, pattern(512));
    let mut bytes = good.clone();
    bytes[100] ^= 1;
    wire.send_bytes(&bytes)?;
    wire.expect_reject(RejectReason::DataDigestError)?;
    wire.send_bytes(&good)?;
    wire.expect_good(command.initiator_task_tag)?;
    read_back(&mut wire, &pattern(512))
}
