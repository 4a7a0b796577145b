//! The data of a command that reads, as Data-In PDUs.
//!
//! They are made when their turn to be sent comes: 16 MiB for an initiator that takes 512 bytes a
//! PDU are 32768 of them.

use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;
use base::serial::Serial32;

use crate::pdu::{DataIn, DataInStatus, Header, InitiatorTaskTag, RawBhs, TargetTransferTag};

/// The buffer of the data.
pub(super) enum DataInBuffer {
    /// A buffer that is freed with the last byte sent.
    Own(Buffer),
    /// A buffer that is kept to be sent again.
    Kept(Arc<Buffer>),
}

/// The segmentation of the data: by the initiator's segment length, and by bursts.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) segment_max: usize,
    pub(super) burst_max: usize,
    /// Offset of the next piece.
    pub(super) offset: usize,
    /// End of the data to send.
    pub(super) end: usize,
}

impl Cut {
    /// Whether a piece that ends at `end` ends a burst that is not the last one.
    pub(super) fn ends_burst(&self, end: usize) -> bool {
        end.is_multiple_of(self.burst_max) && end < self.end
    }

    /// Whether a piece that ends at `end` ends a sequence.
    pub(super) fn ends_sequence(&self, end: usize) -> bool {
        end == self.end || self.ends_burst(end)
    }
}

impl Iterator for Cut {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if self.offset >= self.end {
            return None;
        }
        let burst_end = (self.offset / self.burst_max + 1) * self.burst_max;
        let end = (self.offset + self.segment_max).min(burst_end).min(self.end);
        Some(std::mem::replace(&mut self.offset, end)..end)
    }
}

/// The headers of a command's Data-In PDUs, one after the other.
pub(super) struct DataInHeaders {
    pub(super) cut: Cut,
    pub(super) initiator_task_tag: InitiatorTaskTag,
    /// ExpCmdSN and MaxCmdSN.
    pub(super) numbers: (Serial32, Serial32),
    /// DataSN of the next one.
    pub(super) data_sn: Serial32,
    /// The status, sent with the last one.
    pub(super) status: Option<DataInStatus>,
    /// For acknowledgements: the LUN, and the last tag that was assigned.
    pub(super) acknowledged_as: Option<(u64, TargetTransferTag)>,
}

impl DataInHeaders {
    /// The header of the next piece.
    pub(super) fn next(&mut self, piece: &Range<usize>) -> RawBhs {
        let asked = self.acknowledged_as.as_mut().filter(|_| self.cut.ends_burst(piece.end)).map(|(lun, name)| {
            *name = name.next();
            (*lun, *name)
        });
        let header = DataIn {
            is_final: self.cut.ends_sequence(piece.end),
            wants_acknowledgement: asked.is_some(),
            status: self.status.filter(|_| piece.end == self.cut.end),
            lun: asked.map_or(0, |(lun, _)| lun),
            initiator_task_tag: self.initiator_task_tag,
            target_transfer_tag: asked.map(|(_, name)| name),
            exp_cmd_sn: self.numbers.0,
            max_cmd_sn: self.numbers.1,
            data_sn: self.data_sn,
            buffer_offset: piece.start as u32,
        };
        self.data_sn = self.data_sn.next();
        header.to_bytes()
    }
}
