//! One SCSI task, and how its data-out is collected (RFC 7143 4.2.5.2).
//!
//! ```text
//! offset 0 ──────────────┬───────────────────────┬─────────────────────────┬──────────► EDTL
//!    immediate data      │ unsolicited Data-Out  │ solicited: bursts by R2T │ not asked for
//!    (in the command)    │ (InitialR2T=No, F=0)  │                          │ (the CDB wants less)
//! ```
//!
//! DataPDUInOrder and DataSequenceInOrder are always Yes, so that every byte arrives once, in order, and one number
//! says how far a task is. Bytes go straight into the task's buffer, which is lent to the receiver meanwhile.

use std::collections::VecDeque;

use base::buffer::Buffer;
use base::clock::Instant;
use base::serial::Serial32;
use scsi::{Cdb, CdbError, Sense, Status};

use super::event::{LinkId, Outcome, TaskId};
use crate::pdu::{DataOut, ScsiCommand, TargetTransferTag};

/// A task from its command PDU to its response.
pub(super) struct Task {
    pub(super) id: TaskId,
    /// The connection of its allegiance, present or past.
    pub(super) link: LinkId,
    pub(super) header: ScsiCommand,
    pub(super) cdb: Result<Cdb, CdbError>,
    pub(super) bidirectional_read_bytes: Option<u32>,
    /// Bytes of data-out that its CDB asks for, where that is known already.
    pub(super) asked_bytes: Option<u64>,
    /// Whether its turn in the command order has come, or it is immediate.
    pub(super) is_delivered: bool,
    /// Its place in that order ([`Knowledge`](super::knowledge::Knowledge)).
    pub(super) place: u64,
    /// Whether the driver has it.
    pub(super) is_started: bool,
    /// The driver's outcome, or that of its failure, which waits for a [fence](super::fences::Fences); with its place
    /// among those that wait.
    pub(super) answer: Option<(u64, Outcome)>,
    /// Whether its response must not be sent any more.
    pub(super) is_aborted: bool,
    /// Whether a task management function covers it that may still be refused: nothing of it begins meanwhile.
    pub(super) is_suspended: bool,
    /// Whether a function that does not cover it was carried out while the driver had it: it is answered even if the
    /// unit has ended it.
    pub(super) outlives_function: bool,
    /// Its failure, with which it ends without being executed.
    pub(super) failure: Option<DataFailure>,
    pub(super) data_out: DataOutCollection,
    /// Its data-out buffer, wherever that is; changed only by
    /// [`TaskSet::hold`](super::task_set::TaskSet::hold).
    pub(super) data_out_held: DataOutHeld,
    /// When some of its data last came, or was requested.
    pub(super) data_moved: Instant,
    /// Whether more of its data may be requested.
    pub(super) hold: DataHold,
}

impl Task {
    /// Bytes of data-in that the initiator is ready to receive.
    pub(super) fn data_in_bytes_max(&self) -> u32 {
        match (self.header.reads, self.header.writes) {
            (true, false) => self.header.expected_data_transfer_length,
            (true, true) => self.bidirectional_read_bytes.unwrap_or(0),
            (false, _) => 0,
        }
    }
}

/// Whether data of a task may be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataHold {
    /// It may.
    Free,
    /// The driver must be notified that the data of this CDB is due.
    Due(Cdb),
    /// The driver was notified.
    Told,
}

/// Bytes of data-out buffers, by their full size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DataOutHeld {
    /// Of the pool that all share.
    pub(super) lent_bytes: usize,
    /// Of the session's reserve.
    pub(super) reserve_bytes: usize,
}

impl DataOutHeld {
    pub(super) fn of(buffer: &Buffer) -> Self {
        let bytes = buffer.capacity();
        if buffer.is_lent() {
            Self { lent_bytes: bytes, reserve_bytes: 0 }
        } else {
            Self { lent_bytes: 0, reserve_bytes: bytes }
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.lent_bytes += other.lent_bytes;
        self.reserve_bytes += other.reserve_bytes;
    }

    pub(super) fn remove(&mut self, other: Self) {
        self.lent_bytes -= other.lent_bytes;
        self.reserve_bytes -= other.reserve_bytes;
    }
}

/// Why a task ends before it is executed (RFC 7143 11.4.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataFailure {
    UnexpectedUnsolicitedData,
    IncorrectAmountOfData,
    ProtocolServiceCrcError,
    /// It was unsolicited, and there was no buffer for it.
    NoBuffer,
}

impl DataFailure {
    /// SCSI status: BUSY, which has the initiator try again, or CHECK CONDITION with [`sense`](Self::sense).
    pub(super) fn status(self) -> u8 {
        let status = if self == Self::NoBuffer { Status::Busy } else { Status::CheckCondition };
        status.code()
    }

    /// Fixed-format sense data: ABORTED COMMAND with the standard's additional sense code.
    pub(super) fn sense(self) -> Vec<u8> {
        let sense = match self {
            Self::UnexpectedUnsolicitedData => Sense::UNEXPECTED_UNSOLICITED_DATA,
            Self::IncorrectAmountOfData => Sense::NOT_ENOUGH_UNSOLICITED_DATA,
            Self::ProtocolServiceCrcError => Sense::PROTOCOL_SERVICE_CRC_ERROR,
            Self::NoBuffer => return Vec::new(),
        };
        sense.emit_fixed().to_vec()
    }
}

/// The fault of a Data-Out PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataFault {
    /// Unsolicited data that the negotiation does not allow: the task fails, the connection stays.
    Unexpected,
    /// Bytes that are there already.
    Repeated,
    /// Bytes after a PDU that was lost: they are requested again with it.
    Recovering,
    /// Bytes for an R2T that is not outstanding: above error recovery level 0, one that was given
    /// up when the data was requested again.
    Stale,
    /// Bytes with a wrong offset: at error recovery level 0 the connection ends (RFC 7143 7.8,
    /// 7.13).
    Protocol(&'static str),
}

/// An R2T that waits for its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutstandingR2t {
    pub(super) tag: TargetTransferTag,
    pub(super) r2t_sn: Serial32,
    pub(super) offset: u32,
    pub(super) length: u32,
    received: u32,
    data_sn: Serial32,
}

/// The data-out of one task.
#[derive(Default)]
pub(super) struct DataOutCollection {
    /// `None` while the receiver has it.
    pub(super) buffer: Option<Buffer>,
    /// Bytes to be collected: the smaller of the initiator's and the CDB's count.
    pub(super) wanted: u32,
    /// Bytes `0..received` have come.
    received: u32,
    /// Unsolicited Data-Out PDUs are expected: up to which byte, and the next DataSN.
    unsolicited: Option<(u32, Serial32)>,
    r2ts: VecDeque<OutstandingR2t>,
    /// Bytes `0..requested` came unsolicited or were requested.
    requested: u32,
    r2t_sn: Serial32,
    /// Whether a PDU of the sequence under way was lost; the rest of it is dropped.
    is_recovering: bool,
}

impl DataOutCollection {
    /// A collection of `wanted` bytes of which `immediate` came with the command; up to
    /// `unsolicited_limit` more come unsolicited.
    pub(super) fn new(wanted: u32, immediate: u32, unsolicited_limit: Option<u32>) -> Self {
        Self {
            buffer: None,
            wanted,
            received: immediate,
            unsolicited: unsolicited_limit.map(|limit| (limit, Serial32(0))),
            r2ts: VecDeque::new(),
            requested: immediate,
            r2t_sn: Serial32(0),
            is_recovering: false,
        }
    }

    /// Whether no data is under way: no R2T and no unsolicited sequence is open.
    pub(super) fn is_settled(&self) -> bool {
        self.unsolicited.is_none() && self.r2ts.is_empty()
    }

    /// Whether no more data is expected, given whether the task has failed.
    pub(super) fn is_complete(&self, is_failed: bool) -> bool {
        self.unsolicited.is_none() && self.r2ts.is_empty() && (is_failed || self.received >= self.wanted)
    }

    /// The limit of allowed data: wanted, or unsolicited.
    pub(super) fn limit(&self) -> u32 {
        self.unsolicited.map_or(self.wanted, |(limit, _)| limit.max(self.wanted))
    }

    /// Drops what has come: all of it will be requested again.
    pub(super) fn forget(&mut self) {
        self.buffer = None;
        self.ask_again();
    }

    /// Whether bytes must be requested.
    pub(super) fn needs_r2t(&self) -> bool {
        self.unsolicited.is_none() && self.requested < self.wanted
    }

    /// The next R2T, if another one may be outstanding.
    pub(super) fn next_r2t(
        &mut self,
        tag: impl FnOnce() -> TargetTransferTag,
        burst_bytes_max: u32,
        outstanding_max: u16,
    ) -> Option<OutstandingR2t> {
        if !self.needs_r2t() || self.r2ts.len() >= usize::from(outstanding_max) {
            return None;
        }
        let r2t = OutstandingR2t {
            tag: tag(),
            r2t_sn: self.r2t_sn,
            offset: self.requested,
            length: (self.wanted - self.requested).min(burst_bytes_max),
            received: 0,
            data_sn: Serial32(0),
        };
        self.r2t_sn = self.r2t_sn.next();
        self.requested += r2t.length;
        self.r2ts.push_back(r2t);
        Some(r2t)
    }

    /// Whether a Data-Out PDU of `length` bytes has the offset expected next. Its DataSN is checked
    /// when it is counted.
    pub(super) fn check(&self, header: &DataOut, length: usize) -> Result<(), DataFault> {
        let (expected_offset, limit) = match (header.target_transfer_tag, self.unsolicited) {
            (None, Some((limit, _))) => (self.received, limit),
            (None, None) => return Err(DataFault::Unexpected),
            (Some(tag), _) => {
                if !self.r2ts.iter().any(|r2t| r2t.tag == tag) {
                    return Err(DataFault::Stale);
                }
                let front = self.r2ts.front().filter(|r2t| r2t.tag == tag);
                let r2t = front.ok_or(DataFault::Protocol("Data-Out for another R2T than the oldest"))?;
                (r2t.offset + r2t.received, r2t.offset + r2t.length)
            }
        };
        if self.is_recovering {
            return Err(DataFault::Recovering);
        }
        let end = u64::from(header.buffer_offset) + length as u64;
        if end <= u64::from(expected_offset) && header.buffer_offset < expected_offset {
            return Err(DataFault::Repeated);
        }
        if header.buffer_offset != expected_offset {
            return Err(DataFault::Protocol("Data-Out with a wrong buffer offset"));
        }
        if end > u64::from(limit) {
            return Err(DataFault::Protocol("Data-Out with more data than was asked for"));
        }
        Ok(())
    }

    /// Whether a PDU that passed [`DataOutCollection::check`] has the DataSN that comes next.
    pub(super) fn is_next(&self, header: &DataOut) -> bool {
        let expected = match (header.target_transfer_tag, self.unsolicited) {
            (None, Some((_, data_sn))) => Some(data_sn),
            (None, None) => None,
            (Some(_), _) => self.r2ts.front().map(|r2t| r2t.data_sn),
        };
        expected == Some(header.data_sn)
    }

    /// Notes a lost PDU: the rest of its sequence is dropped, and then everything from it on is
    /// requested again.
    pub(super) fn lose(&mut self, header: &DataOut) {
        self.is_recovering = true;
        self.skip(header);
    }

    /// Skips a PDU of a sequence with a lost one.
    pub(super) fn skip(&mut self, header: &DataOut) {
        if header.is_final {
            self.ask_again();
        }
    }

    /// Requests everything again that has not arrived, with new R2Ts.
    pub(super) fn ask_again(&mut self) {
        self.is_recovering = false;
        self.unsolicited = None;
        self.r2ts.clear();
        if self.buffer.is_none() {
            // The buffer was lost with the connection that was filling it.
            self.received = 0;
        }
        self.requested = self.received;
    }

    /// R2Ts that wait for their data, oldest first.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = &OutstandingR2t> {
        self.r2ts.iter()
    }

    /// The number of the next R2T.
    pub(super) fn next_r2t_sn(&self) -> Serial32 {
        self.r2t_sn
    }

    /// Counts a PDU that passed [`DataOutCollection::check`]. A sequence that ends early is an error; so is a DataSN
    /// out of order, which implies that a PDU was lost (RFC 7143 7.9).
    pub(super) fn advance(&mut self, header: &DataOut, length: usize) -> Result<(), DataFailure> {
        let length = u32::try_from(length).expect("a checked PDU is within the transfer");
        self.received += length;
        let (expected_sn, is_short) = match self.r2ts.front_mut().filter(|_| header.target_transfer_tag.is_some()) {
            Some(r2t) => {
                r2t.received += length;
                let expected_sn = std::mem::replace(&mut r2t.data_sn, header.data_sn.next());
                let is_short = r2t.received < r2t.length;
                if header.is_final || !is_short {
                    self.r2ts.pop_front();
                }
                (expected_sn, is_short && header.is_final)
            }
            None => self.advance_unsolicited(header),
        };
        match (header.data_sn == expected_sn, is_short) {
            (false, _) => Err(DataFailure::ProtocolServiceCrcError),
            (true, true) => Err(DataFailure::IncorrectAmountOfData),
            (true, false) => Ok(()),
        }
    }

    /// Counts unsolicited data. Returns the DataSN that was expected, and whether the sequence
    /// ended early: of more than FirstBurstLength, exactly that much comes unsolicited, if anything
    /// does besides immediate data (RFC 7143 4.2.5.2, 11.4.7.2).
    fn advance_unsolicited(&mut self, header: &DataOut) -> (Serial32, bool) {
        self.requested = self.received;
        let Some((limit, data_sn)) = &mut self.unsolicited else { return (header.data_sn, false) };
        let expected_sn = std::mem::replace(data_sn, header.data_sn.next());
        let is_short = header.is_final && self.received < *limit && *limit < self.wanted;
        if header.is_final || self.received >= *limit {
            self.unsolicited = None;
        }
        (expected_sn, is_short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::InitiatorTaskTag;

    fn data(tag: Option<u32>, offset: u32, data_sn: u32, is_final: bool) -> DataOut {
        DataOut {
            is_final,
            lun: 0,
            initiator_task_tag: InitiatorTaskTag::new(1).unwrap(),
            target_transfer_tag: tag.and_then(TargetTransferTag::new),
            exp_stat_sn: Serial32(0),
            data_sn: Serial32(data_sn),
            buffer_offset: offset,
        }
    }

    fn tag(value: u32) -> impl FnOnce() -> TargetTransferTag {
        move || TargetTransferTag::new(value).unwrap()
    }

    #[test]
    fn immediate_then_unsolicited_then_bursts() {
        let mut collection = DataOutCollection::new(10_000, 1000, Some(4096));
        assert!(collection.next_r2t(tag(1), 4096, 2).is_none(), "unsolicited data first");
        let first = data(None, 1000, 0, true);
        assert_eq!(collection.check(&first, 3096), Ok(()));
        assert_eq!(
            collection.check(&first, 3097).unwrap_err(),
            DataFault::Protocol("Data-Out with more data than was asked for")
        );
        collection.advance(&first, 3096).unwrap();
        let (one, two) = (collection.next_r2t(tag(1), 4096, 2).unwrap(), collection.next_r2t(tag(2), 4096, 2).unwrap());
        assert_eq!((one.offset, one.length, two.offset, two.length), (4096, 4096, 8192, 1808));
        assert!(collection.next_r2t(tag(3), 4096, 3).is_none(), "all is asked for");
        assert!(collection.check(&data(Some(2), 8192, 0, true), 1808).is_err(), "in their order");
        for (answer, length) in [
            (data(Some(1), 4096, 0, false), 2048),
            (data(Some(1), 6144, 1, true), 2048),
            (data(Some(2), 8192, 0, true), 1808),
        ] {
            assert!(!collection.is_complete(false));
            assert_eq!(collection.check(&answer, length), Ok(()));
            collection.advance(&answer, length).unwrap();
        }
        assert!(collection.is_complete(false));
    }

    #[test]
    fn a_short_burst_fails_the_task_once_all_expected_data_is_there() {
        let mut collection = DataOutCollection::new(8192, 0, None);
        collection.next_r2t(tag(1), 4096, 1).unwrap();
        let short = data(Some(1), 0, 0, true);
        assert_eq!(collection.advance(&short, 512), Err(DataFailure::IncorrectAmountOfData));
        assert!(collection.is_complete(true) && !collection.is_complete(false));
    }

    #[test]
    fn a_data_sn_out_of_order_fails_the_task() {
        let mut collection = DataOutCollection::new(1024, 0, None);
        collection.next_r2t(tag(1), 4096, 1).unwrap();
        collection.advance(&data(Some(1), 0, 0, false), 512).unwrap();
        let repeated = data(Some(1), 512, 0, true);
        assert_eq!(collection.check(&repeated, 512), Ok(()));
        assert_eq!(collection.advance(&repeated, 512), Err(DataFailure::ProtocolServiceCrcError));
        assert!(collection.is_complete(true));
    }

    /// Found by the fuzzer: if data under way for old R2Ts caused another request for the data, it
    /// would never end.
    #[test]
    fn data_for_an_r2t_that_was_given_up_is_stale() {
        let mut collection = DataOutCollection::new(8192, 0, None);
        collection.buffer = Some(Buffer::zeroed(8192));
        collection.next_r2t(tag(1), 4096, 2).unwrap();
        collection.next_r2t(tag(2), 4096, 2).unwrap();
        collection.lose(&data(Some(1), 2048, 1, true));
        let again = collection.next_r2t(tag(3), 4096, 2).unwrap();
        assert_eq!((again.offset, again.length), (0, 4096));
        assert_eq!(collection.check(&data(Some(2), 4096, 0, true), 4096), Err(DataFault::Stale));
        assert_eq!(collection.check(&data(Some(3), 0, 0, true), 4096), Ok(()));
    }

    #[test]
    fn data_nobody_asked_for_is_unexpected() {
        let collection = DataOutCollection::new(8192, 0, None);
        assert_eq!(collection.check(&data(None, 0, 0, true), 512), Err(DataFault::Unexpected));
    }
}
