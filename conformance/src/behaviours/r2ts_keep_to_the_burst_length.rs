//! No R2T asks for more than MaxBurstLength, and R2TSNs ascend.

use super::support::read_back;
use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, same};
use crate::wire::pattern;
use base::serial::Serial32;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.8, 13.13";

/// No R2T asks for more than MaxBurstLength, and R2TSNs ascend.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let keys = [
        ("ImmediateData", "No"),
        ("InitialR2T", "Yes"),
        ("MaxBurstLength", "1024"),
        ("FirstBurstLength", "1024"),
        ("MaxOutstandingR2T", "1"),
    ];
    let mut wire = bench.log_in_with(&keys, "InitialR2T", "Yes")?;
    let burst = wire.number("MaxBurstLength", 262_144);
    let all = pattern(4096);
    let command = wire.write10(8);
    wire.send(&command, Vec::new())?;
    let (mut offset, mut r2t_sn) = (0, Serial32(0));
    while offset < 4096 {
        let r2t = wire.r2t(command.initiator_task_tag)?;
        same("R2TSN", r2t.r2t_sn, r2t_sn)?;
        same("R2T offset", r2t.buffer_offset, offset)?;
        ensure(r2t.desired_data_transfer_length <= burst, "an R2T asks for more than a burst")?;
        wire.answer_r2t(&r2t, &all, 512)?;
        offset += r2t.desired_data_transfer_length;
        r2t_sn = r2t_sn.next();
    }
    wire.expect_good(command.initiator_task_tag)?;
    read_back(&mut wire, &all)
}
