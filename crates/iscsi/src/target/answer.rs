//! What a task was answered with, kept until the initiator has acknowledged it (error recovery levels 1 and 2).
//!
//! Data-In PDUs that were sent are pieces of one buffer; a SNACK gets exact replicas of them (RFC 7143 11.16), an R-Data SNACK and
//! a reassignment get the rest of the data cut anew. The data is shared with the transmit queue, never copied.

use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;
use base::serial::Serial32;

use super::event::{LinkId, TaskId};
use crate::framing::DataSegment;
use crate::pdu::{Residual, TargetTransferTag};

/// One Data-In PDU that was sent.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) range: Range<usize>,
    pub(super) ends_sequence: bool,
    /// An acknowledgement was asked for under this name (A bit).
    pub(super) acknowledgement: Option<TargetTransferTag>,
}

/// An answer.
pub(super) struct Answer {
    pub(super) id: TaskId,
    pub(super) link: LinkId,
    pub(super) lun: u64,
    pub(super) status: u8,
    pub(super) sense: Vec<u8>,
    pub(super) residual: Residual,
    pub(super) bidirectional_read_residual: Residual,
    /// `None` once it was too much to keep.
    pub(super) data: Option<Arc<Buffer>>,
    /// Bytes of it that go to the initiator.
    pub(super) sent: usize,
    /// PDUs sent, from DataSN `first_data_sn` on.
    pub(super) pieces: Vec<Piece>,
    /// DataSN of the first piece: those before it are acknowledged.
    pub(super) first_data_sn: u32,
    /// Byte at which unacknowledged data begins.
    pub(super) first_offset: usize,
    pub(super) snack_tag: u32,
    /// `None` until the response was sent.
    pub(super) stat_sn: Option<Serial32>,
}

impl Answer {
    /// The DataSN after the last one sent.
    pub(super) fn next_data_sn(&self) -> u32 {
        self.first_data_sn.wrapping_add(self.pieces.len() as u32)
    }

    /// Bytes it keeps in memory.
    pub(super) fn kept_bytes(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.capacity())
    }

    pub(super) fn forget_data(&mut self) {
        self.data = None;
    }

    /// Whether all the data that may be asked for is still here.
    pub(super) fn has_data(&self) -> bool {
        self.data.is_some() || self.sent == self.first_offset
    }

    /// The piece with a DataSN.
    pub(super) fn piece(&self, data_sn: u32) -> Option<&Piece> {
        self.pieces.get(data_sn.wrapping_sub(self.first_data_sn) as usize)
    }

    /// The initiator has everything before `data_sn`. False when that cannot be.
    pub(super) fn acknowledge(&mut self, data_sn: u32) -> bool {
        let count = data_sn.wrapping_sub(self.first_data_sn) as usize;
        if count > self.pieces.len() {
            return false;
        }
        if let Some(last) = self.pieces.drain(..count).next_back() {
            self.first_offset = last.range.end;
        }
        self.first_data_sn = data_sn;
        true
    }

    /// The bytes of a piece.
    pub(super) fn segment(&self, range: &Range<usize>) -> Option<DataSegment> {
        self.data.as_ref().map(|data| DataSegment::Shared(Arc::clone(data), range.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::InitiatorTaskTag;

    fn answer() -> Answer {
        let piece = |range: Range<usize>| Piece { range, ends_sequence: false, acknowledgement: None };
        Answer {
            id: TaskId { initiator_task_tag: InitiatorTaskTag::new(1).unwrap(), generation: 1 },
            link: LinkId(1),
            lun: 0,
            status: 0,
            sense: Vec::new(),
            residual: Residual::None,
            bidirectional_read_residual: Residual::None,
            data: Some(Arc::new(Buffer::zeroed(300))),
            sent: 300,
            pieces: vec![piece(0..100), piece(100..200), piece(200..300)],
            first_data_sn: 0,
            first_offset: 0,
            snack_tag: 0,
            stat_sn: None,
        }
    }

    #[test]
    fn acknowledged_pieces_cannot_be_asked_for_again() {
        let mut answer = answer();
        assert!(answer.acknowledge(2));
        assert!(answer.piece(1).is_none());
        assert_eq!(answer.piece(2).map(|piece| piece.range.clone()), Some(200..300));
        assert_eq!((answer.first_offset, answer.next_data_sn()), (200, 3));
        assert!(!answer.acknowledge(1), "nothing is acknowledged back");
        assert!(!answer.acknowledge(4), "nor what was not sent");
    }
}
