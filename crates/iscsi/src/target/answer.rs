//! The answer of a task, kept until the initiator has acknowledged it (error recovery levels 1 and
//! 2).
//!
//! Data-In PDUs that were sent are pieces of one buffer; a SNACK gets exact replicas of them (RFC
//! 7143 11.16), an R-Data SNACK and a reassignment get the rest of the data with another
//! segmentation. The data is shared with the transmit queue, never copied.

use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;
use base::serial::Serial32;

use super::event::{LinkId, TaskId};
use crate::limits::{RETAINED_ALWAYS_BYTES, RETAINED_ANSWERS_MAX};
use crate::pdu::{InitiatorTaskTag, Residual, TargetTransferTag};

/// Bytes of memory of an answer in a map whose nodes may be half empty.
const ANSWER_BYTES: usize = 2 * size_of::<(InitiatorTaskTag, Answer)>();

/// Most bytes of sense data (SPC-4 4.5.1).
const SENSE_BYTES_MAX: usize = 252;

const _: () = assert!(
    RETAINED_ANSWERS_MAX * (ANSWER_BYTES + SENSE_BYTES_MAX) <= RETAINED_ALWAYS_BYTES / 2,
    "what cannot be forgotten has room"
);

/// One Data-In PDU that was sent.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) range: Range<usize>,
    pub(super) ends_sequence: bool,
    /// The tag under which an acknowledgement was requested (A bit).
    pub(super) acknowledgement: Option<TargetTransferTag>,
}

/// PDUs whose data is not kept. There may be one for each 512 bytes of each unacknowledged answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Forgotten {
    count: u32,
    /// The first and the last tag under which an acknowledgement was requested; tags are assigned
    /// in order.
    asked: Option<(TargetTransferTag, TargetTransferTag)>,
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
    /// PDUs sent, from DataSN `first_data_sn` on; none once the data was too much to keep.
    pub(super) pieces: Vec<Piece>,
    /// A summary of unacknowledged PDUs that are not among `pieces` any more.
    pub(super) forgotten: Forgotten,
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
        self.first_data_sn.wrapping_add(self.unacknowledged_count())
    }

    /// PDUs sent and not acknowledged.
    fn unacknowledged_count(&self) -> u32 {
        self.pieces.len() as u32 + self.forgotten.count
    }

    /// Whether `count` PDUs from a DataSN on were sent and are not acknowledged.
    pub(super) fn has_sent(&self, data_sn: u32, count: u32) -> bool {
        let before = data_sn.wrapping_sub(self.first_data_sn);
        count > 0 && before < self.unacknowledged_count() && count <= self.unacknowledged_count() - before
    }

    /// Whether an acknowledgement was requested under this tag.
    pub(super) fn asks_under(&self, name: TargetTransferTag) -> bool {
        let is_forgotten = self
            .forgotten
            .asked
            .is_some_and(|(first, last)| name.get().wrapping_sub(first.get()) <= last.get().wrapping_sub(first.get()));
        is_forgotten || self.pieces.iter().any(|piece| piece.acknowledgement == Some(name))
    }

    /// Bytes it keeps in memory.
    pub(super) fn kept_bytes(&self) -> usize {
        let data = self.data.as_ref().map_or(0, |data| data.capacity());
        ANSWER_BYTES + self.sense.capacity() + self.pieces.capacity() * size_of::<Piece>() + data
    }

    /// Drops the data and the list of its PDUs. Returns the bytes of memory that are free with them.
    pub(super) fn forget_data(&mut self) -> usize {
        if self.data.is_none() {
            return 0;
        }
        let before = self.kept_bytes();
        self.data = None;
        let pieces = std::mem::take(&mut self.pieces);
        let mut asked = pieces.iter().filter_map(|piece| piece.acknowledgement);
        let first = asked.next();
        let asked = first.map(|first| (first, asked.next_back().unwrap_or(first)));
        self.forgotten = Forgotten { count: pieces.len() as u32, asked };
        before - self.kept_bytes()
    }

    /// Whether all data that may be requested again is still kept.
    pub(super) fn has_data(&self) -> bool {
        self.data.is_some() || self.sent == self.first_offset
    }

    /// `count` pieces, the first of which has a DataSN.
    pub(super) fn pieces_from(&self, data_sn: u32, count: u32) -> Option<&[Piece]> {
        self.pieces.get(data_sn.wrapping_sub(self.first_data_sn) as usize..)?.get(..count as usize)
    }

    /// Notes that the initiator has received everything before `data_sn`. Returns `false` when that
    /// is impossible.
    pub(super) fn acknowledge(&mut self, data_sn: u32) -> bool {
        let count = data_sn.wrapping_sub(self.first_data_sn);
        if count > self.unacknowledged_count() {
            return false;
        }
        if self.forgotten.count > 0 {
            self.forgotten.count -= count;
            if self.forgotten.count == 0 {
                self.first_offset = self.sent;
            }
        } else if let Some(last) = self.pieces.drain(..count as usize).next_back() {
            self.first_offset = last.range.end;
        }
        self.first_data_sn = data_sn;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(number: u32) -> TargetTransferTag {
        TargetTransferTag::new(number).unwrap()
    }

    fn answer() -> Answer {
        let piece = |range: Range<usize>| {
            let acknowledgement = Some(tag(range.start as u32 / 100));
            Piece { range, ends_sequence: false, acknowledgement }
        };
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
            forgotten: Forgotten::default(),
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
        assert!(answer.pieces_from(1, 1).is_none() && answer.pieces_from(2, 2).is_none());
        assert_eq!(answer.pieces_from(2, 1).map(|pieces| pieces[0].range.clone()), Some(200..300));
        assert_eq!((answer.first_offset, answer.next_data_sn()), (200, 3));
        assert!(!answer.acknowledge(1), "nothing is acknowledged back");
        assert!(!answer.acknowledge(4), "nor what was not sent");
    }

    #[test]
    fn an_answer_whose_data_was_too_much_to_keep_keeps_nothing_of_its_pdus_and_is_acknowledged_like_others() {
        let mut answer = answer();
        answer.forget_data();
        assert_eq!(answer.pieces.capacity(), 0, "they may be more than the data was");
        assert_eq!((answer.next_data_sn(), answer.has_data()), (3, false));
        assert!(answer.has_sent(1, 2) && !answer.has_sent(1, 3) && !answer.has_sent(3, 1));
        assert!(answer.asks_under(tag(0)) && answer.asks_under(tag(2)) && !answer.asks_under(tag(3)));
        assert!(answer.acknowledge(1) && !answer.has_data() && !answer.acknowledge(4));
        assert_eq!(answer.next_data_sn(), 3);
        assert!(answer.acknowledge(3) && answer.has_data(), "nothing of it may be asked for any more");
    }
}
