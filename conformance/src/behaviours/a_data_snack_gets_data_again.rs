//! A Data-In PDU is sent again as it was.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, fail, same};
use base::serial::Serial32;
use iscsi::pdu::{Bhs, SnackType};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.16";

/// A Data-In PDU is sent again as it was.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_at_level("1", &[("MaxRecvDataSegmentLength", "512")])?;
    wire.acknowledges = false;
    let command = wire.read10(4);
    wire.send(&command, Vec::new())?;
    let (pieces, status) = wire.read_all(command.initiator_task_tag)?;
    same("status", status, 0)?;
    let task = command.initiator_task_tag;
    wire.snack(SnackType::DataOrR2t { initiator_task_tag: task, begin: Serial32(1), run_length: 2 })?;
    for (header, data) in &pieces[1..3] {
        let pdu = wire.receive()?;
        let Ok(Bhs::DataIn(again)) = pdu.header.bhs else { return fail("no data comes again") };
        same("DataSN", again.data_sn, header.data_sn)?;
        same("offset", again.buffer_offset, header.buffer_offset)?;
        ensure(pdu.data.bytes() == &data[..], "the data is another")?;
    }
    Ok(())
}
