//! A discovery session lists the target under test with an address.

use super::support::discovery;
use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, fail};
use iscsi::pdu::Bhs;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.3, C";

/// A discovery session lists the target under test with an address.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.connect()?;
    discovery(bench, &mut wire)?;
    let request = wire.text_request(None);
    wire.send(&request, b"SendTargets=All\0".to_vec())?;
    let pdu = wire.receive()?;
    let Ok(Bhs::TextResponse(_)) = pdu.header.bhs else { return fail("SendTargets gets no text response") };
    let text = String::from_utf8_lossy(pdu.data.bytes()).into_owned();
    ensure(
        text.split('\0').any(|line| line == format!("TargetName={}", bench.target)),
        format!("the list is {text:?}"),
    )?;
    ensure(text.contains("TargetAddress="), "no address is told")
}
