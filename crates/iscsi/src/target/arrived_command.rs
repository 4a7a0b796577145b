//! A command whose header has come: what its CDB says, and how its data-out will be collected.

use scsi::{Cdb, CdbError};

use super::full_feature::FullFeature;
use crate::limits::DATA_OUT_BYTES_MAX;
use crate::pdu::ScsiCommand;

/// A command whose header has come: its CDB, parsed here and nowhere else, and what follows from that for its data.
pub(super) struct ArrivedCommand {
    pub(super) cdb: Result<Cdb, CdbError>,
    pub(super) plan: DataOutPlan,
}

impl ArrivedCommand {
    pub(super) fn new(full: &FullFeature, command: &ScsiCommand, immediate_bytes: usize) -> Self {
        // What an extended CDB adds to these bytes says nothing: no command that we know is longer.
        let cdb = Cdb::parse(&command.cdb);
        let plan = DataOutPlan::new(full, command, &cdb, immediate_bytes);
        Self { cdb, plan }
    }
}

/// How the data-out of a command will be collected.
pub(super) struct DataOutPlan {
    /// Bytes to collect in all.
    pub(super) wanted: u32,
    /// Whether the immediate data that came is allowed.
    pub(super) takes_immediate: bool,
    /// Unsolicited Data-Out PDUs follow, up to this byte.
    pub(super) unsolicited_limit: Option<u32>,
    /// Whether data to be requested gets neither buffer nor R2T before the driver's consent.
    pub(super) is_held: bool,
    /// Bytes that the CDB asks for; `None` where no data is expected.
    pub(super) asked_bytes: Option<u64>,
}

impl DataOutPlan {
    fn new(full: &FullFeature, command: &ScsiCommand, cdb: &Result<Cdb, CdbError>, immediate_bytes: usize) -> Self {
        let expected = if command.writes { command.expected_data_transfer_length } else { 0 };
        let (wanted, is_held, asked_bytes) = match expected {
            0 => (0, false, None),
            _ => {
                let asked = full.asked_data_out(command.lun, cdb);
                let bytes = if asked.is_exact { u64::MAX } else { asked.bytes };
                let wanted = u32::try_from(bytes).unwrap_or(u32::MAX).min(expected).min(DATA_OUT_BYTES_MAX);
                (wanted, asked.is_held, Some(asked.bytes))
            }
        };
        let first_burst = full.negotiated.first_burst_length.min(expected);
        let immediate = u32::try_from(immediate_bytes).unwrap_or(u32::MAX);
        let takes_immediate = immediate == 0 || (full.negotiated.immediate_data && immediate <= first_burst);
        let has_unsolicited = !command.is_final && !full.negotiated.initial_r2t && immediate < first_burst;
        Self {
            wanted,
            takes_immediate,
            unsolicited_limit: has_unsolicited.then_some(first_burst),
            is_held,
            asked_bytes,
        }
    }
}
