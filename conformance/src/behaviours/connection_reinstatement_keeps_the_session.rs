//! A login with the CID of a connection replaces that and keeps the session.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, same};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.3.4";

/// A login with the CID of a connection replaces that and keeps the session.
pub fn run(bench: &Bench) -> Outcome {
    let mut old = bench.log_in(&[])?;
    let mut new = bench.connect()?;
    new.cmd_sn = old.cmd_sn;
    let response = bench.try_log_in(&mut new, old.isid, old.tsih, old.cid, &[])?;
    ensure(response.status.is_success(), format!("the login is refused: {}", response.status))?;
    same("TSIH", response.tsih, old.tsih)?;
    old.expect_close()?;
    new.settle()
}
