//! Data-In PDUs have ascending DataSN and gapless offsets, and no segment is longer than declared.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, same};
use base::serial::Serial32;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.2.3, 11.7";

/// Data-In PDUs have ascending DataSN and gapless offsets, and no segment is longer than declared.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[("MaxRecvDataSegmentLength", "1024"), ("MaxBurstLength", "4096")])?;
    let command = wire.read10(17);
    wire.send(&command, Vec::new())?;
    let (pieces, status) = wire.read_all(command.initiator_task_tag)?;
    same("status", status, 0)?;
    let mut offset = 0;
    for (index, (header, data)) in pieces.iter().enumerate() {
        same("DataSN", header.data_sn, Serial32(index as u32))?;
        same("buffer offset", header.buffer_offset, offset)?;
        ensure(data.len() <= 1024, "a segment is longer than MaxRecvDataSegmentLength")?;
        offset += data.len() as u32;
        ensure(header.is_final || !offset.is_multiple_of(4096), "a sequence is longer than MaxBurstLength")?;
    }
    same("bytes", offset, 17 * 512)
}
