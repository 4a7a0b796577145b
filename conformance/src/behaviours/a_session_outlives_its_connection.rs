//! At level 2 a lost connection leaves the session until Time2Retain is over.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure};
use crate::wire::SILENCE;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.1.4.3, 11.15.4";

/// At level 2 a lost connection leaves the session until Time2Retain is over.
pub fn run(bench: &Bench) -> Outcome {
    let first = bench.log_in_at_level("2", &[])?;
    let (isid, tsih, cid, cmd_sn) = (first.isid, first.tsih, first.cid, first.cmd_sn);
    drop(first);
    std::thread::sleep(SILENCE);
    let mut again = bench.connect()?;
    again.cmd_sn = cmd_sn;
    let response = bench.try_log_in(&mut again, isid, tsih, cid, &[])?;
    ensure(response.status.is_success(), format!("the session is gone: {}", response.status))?;
    again.check_alive()
}
