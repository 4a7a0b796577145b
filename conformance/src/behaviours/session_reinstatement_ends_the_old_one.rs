//! A login with the ISID of a session and TSIH 0 replaces it; the new one hears a unit attention.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.3.5";

/// A login with the ISID of a session and TSIH 0 replaces it; the new one hears a unit attention.
pub fn run(bench: &Bench) -> Outcome {
    let mut old = bench.log_in(&[])?;
    let mut new = bench.connect()?;
    let response = bench.try_log_in(&mut new, old.isid, 0, 1, &[])?;
    ensure(response.status.is_success(), "the login is refused")?;
    old.expect_close()?;
    new.settle()
}
