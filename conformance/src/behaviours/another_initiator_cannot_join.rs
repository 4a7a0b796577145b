//! A session is joined only by the initiator port it belongs to.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.3.1";

/// A session is joined only by the initiator port it belongs to.
pub fn run(bench: &Bench) -> Outcome {
    let first = bench.log_in_with(&[("MaxConnections", "2")], "MaxConnections", "2")?;
    let mut wire = bench.connect()?;
    wire.cmd_sn = first.cmd_sn;
    let response = bench.try_log_in(&mut wire, bench.fresh_isid(), first.tsih, 2, &[])?;
    ensure(!response.status.is_success(), "a login with another ISID joins the session")
}
