//! Behind a header that came wrong nothing can be found: the connection ends.

use crate::bench::Bench;
use crate::verdict::Outcome;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.8";

/// Behind a header that came wrong nothing can be found: the connection ends.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_with(&[("HeaderDigest", "CRC32C")], "HeaderDigest", "CRC32C")?;
    let command = wire.test_unit_ready();
    let mut bytes = wire.bytes(&command, Vec::new());
    bytes[40] ^= 1;
    wire.send_bytes(&bytes)?;
    wire.expect_close()
}
