//! Any other PDU before the login ends the connection.

use crate::bench::Bench;
use crate::verdict::Outcome;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.3, 6.3";

/// Any other PDU before the login ends the connection.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.connect()?;
    let ping = wire.nop_out();
    wire.send(&ping, Vec::new())?;
    wire.expect_close()
}
