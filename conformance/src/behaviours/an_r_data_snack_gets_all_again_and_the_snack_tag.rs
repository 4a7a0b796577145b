//! All unacknowledged data comes again, then a response with the SNACK tag and the StatSN it had.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, fail, same};
use base::serial::Serial32;
use iscsi::pdu::{Bhs, SnackType};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.16.3";

/// All unacknowledged data comes again, then a response with the SNACK tag and the StatSN it had.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_at_level("1", &[("MaxRecvDataSegmentLength", "1024")])?;
    wire.acknowledges = false;
    let command = wire.read10(4);
    wire.send(&command, Vec::new())?;
    wire.read_all(command.initiator_task_tag)?;
    let request = wire.text_request(None);
    wire.send(&request, b"MaxRecvDataSegmentLength=512\0".to_vec())?;
    let Bhs::TextResponse(_) = wire.receive_bhs()? else { return fail("no text response comes") };
    let task = command.initiator_task_tag;
    wire.snack(SnackType::ResegmentedData { initiator_task_tag: task, snack_tag: 0x55 })?;
    let mut count = 0;
    loop {
        let pdu = wire.receive()?;
        match pdu.header.bhs {
            Ok(Bhs::DataIn(data)) if data.status.is_none() => {
                same("DataSN", data.data_sn, Serial32(count))?;
                ensure(pdu.data.bytes().len() <= 512, "the data is not cut anew")?;
                count += 1;
            }
            Ok(Bhs::ScsiResponse(response)) => {
                same("PDUs", count, 4)?;
                return same("SNACK tag", response.snack_tag, 0x55);
            }
            other => return fail(format!("there is {other:?}")),
        }
    }
}
