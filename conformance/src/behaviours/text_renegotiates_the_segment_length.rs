//! MaxRecvDataSegmentLength declared in the full feature phase holds for the data that follows.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, fail, same};
use iscsi::pdu::Bhs;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.4, 13.12";

/// MaxRecvDataSegmentLength declared in the full feature phase holds for the data that follows.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[("MaxRecvDataSegmentLength", "65536")])?;
    let request = wire.text_request(None);
    wire.send(&request, b"MaxRecvDataSegmentLength=512\0".to_vec())?;
    let Bhs::TextResponse(_) = wire.receive_bhs()? else { return fail("no text response comes") };
    let command = wire.read10(4);
    wire.send(&command, Vec::new())?;
    let (pieces, status) = wire.read_all(command.initiator_task_tag)?;
    same("status", status, 0)?;
    ensure(pieces.iter().all(|(_, data)| data.len() <= 512), "a data segment is longer than 512 bytes")
}
