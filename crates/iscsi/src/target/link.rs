//! One connection of a session in the full feature phase: framing, response numbers, pings.
//!
//! Responses are numbered per connection (StatSN). Above error recovery level 0 each is kept until the initiator's
//! ExpStatSN has passed it, so that a status SNACK gets it again.

use std::net::SocketAddr;
use std::sync::Arc;

use base::clock::Instant;
use base::serial::Serial32;

use super::answer::{Answer, Piece};
use super::arrived_command::ArrivedCommand;
use super::data_in::{DataInBuffer, DataInHeaders};
use super::event::{CloseReason, LinkId};
use super::kept_responses::KeptResponses;
use super::pace::Pace;
use super::text_exchange::TextExchange;
use crate::framing::{Bound, DataSegment, Receiver, TransmitQueue};
use crate::limits::DATA_OUT_PROGRESS_BYTES;
use crate::negotiation::Negotiator;
use crate::pdu::{AdditionalHeaders, BHS_BYTES, DataIn, Header, InitiatorTaskTag, RawBhs, TargetTransferTag};

/// A connection of a session.
pub(super) struct Link {
    pub(super) id: LinkId,
    pub(super) cid: u16,
    pub(super) local_address: Option<SocketAddr>,
    pub(super) receiver: Receiver,
    /// The command whose data segment is being received.
    pub(super) arrived: Option<ArrivedCommand>,
    pub(super) transmit: TransmitQueue,
    /// The next response's number.
    pub(super) stat_sn: Serial32,
    /// The first response that is not acknowledged.
    pub(super) exp_stat_sn: Serial32,
    pub(super) sent: KeptResponses,
    pub(super) negotiator: Negotiator,
    /// Bytes of one data segment the initiator receives here.
    pub(super) segment_bytes_max: usize,
    pub(super) text: Option<TextExchange>,
    pub(super) last_moved: Instant,
    /// When data-out last made progress by `DATA_OUT_PROGRESS_BYTES`, and the bytes since.
    pub(super) data_moved: (Instant, usize),
    /// The unanswered ping, and its deadline.
    pub(super) ping: Option<(TargetTransferTag, Instant)>,
    /// Nothing more is received; what is queued is still to be sent.
    pub(super) is_closed: bool,
    pub(super) received_pdus: u64,
    /// Headers and data segments whose digest did not match.
    pub(super) digest_errors: u64,
    /// Set for a pair of split connections: then `receiver` is the request half's, and `transmit` the response half's.
    pub(super) response_half: Option<Box<ResponseHalf>>,
    /// Whether a portion of the received bytes was handled, and there may be more.
    pub(super) is_behind: bool,
    pub(super) pace: Pace,
}

/// The other connection of a pair (`docs/protocol/split-connections.md`).
pub(super) struct ResponseHalf {
    pub(super) id: LinkId,
    pub(super) cid: u16,
    /// Its receiver, on which nothing may come.
    receiver: Receiver,
    /// What was queued on the request half when the pair was made: pings and unsolicited messages.
    pub(super) left_over: TransmitQueue,
    /// One of the two transports of a closed pair, if it is gone.
    pub(super) released: Option<LinkId>,
}

impl ResponseHalf {
    /// The space for the next bytes, of which none may come.
    pub(super) fn receive_space(&mut self) -> &mut [u8] {
        self.receiver.receive_space()
    }
}

/// The report of a connection, for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// CID of the transport.
    pub cid: u16,
    /// PDUs received; for a pair of split connections, on both.
    pub pdus_received: u64,
    /// PDUs queued to be sent; for a pair of split connections, on both.
    pub pdus_sent: u64,
    /// Headers and data segments whose digest did not match.
    pub digest_errors: u64,
    /// Whether nothing more is received on it.
    pub is_closed: bool,
}

impl Link {
    /// The report of a transport of this connection.
    pub(super) fn report(&self, at: LinkId) -> LinkReport {
        LinkReport {
            cid: self.response_half.as_ref().filter(|half| half.id == at).map_or(self.cid, |half| half.cid),
            pdus_received: self.received_pdus,
            pdus_sent: self.sent_pdus(),
            digest_errors: self.digest_errors,
            is_closed: self.is_closed,
        }
    }

    /// PDUs queued so far; for a pair of split connections, on both.
    pub(super) fn sent_pdus(&self) -> u64 {
        self.transmit.pdu_count() + self.response_half.as_ref().map_or(0, |half| half.left_over.pdu_count())
    }

    /// Whether a transport belongs to this connection: its only one, or a half of the pair.
    pub(super) fn has_transport(&self, at: LinkId) -> bool {
        self.id == at || self.response_half.as_ref().is_some_and(|half| half.id == at)
    }

    /// Whether a CID is taken by this connection.
    pub(super) fn has_cid(&self, cid: u16) -> bool {
        self.cid == cid || self.response_half.as_ref().is_some_and(|half| half.cid == cid)
    }

    /// TCP connections it is made of.
    pub(super) fn transport_count(&self) -> usize {
        1 + usize::from(self.response_half.is_some())
    }

    /// The queue of a transport.
    pub(super) fn queue(&self, at: LinkId) -> &TransmitQueue {
        match &self.response_half {
            Some(half) if at == self.id => &half.left_over,
            _ => &self.transmit,
        }
    }

    /// The queue of a transport.
    pub(super) fn queue_mut(&mut self, at: LinkId) -> &mut TransmitQueue {
        match &mut self.response_half {
            Some(half) if at == self.id => &mut half.left_over,
            _ => &mut self.transmit,
        }
    }

    /// Takes a connection that just logged in as this one's response half: its login acknowledges
    /// everything sent here.
    pub(super) fn take_response_half(&mut self, half: Self) -> Vec<(InitiatorTaskTag, Serial32)> {
        let acknowledged = self.acknowledge(self.stat_sn);
        self.sent.clear();
        let left_over = std::mem::replace(&mut self.transmit, half.transmit);
        self.response_half = Some(Box::new(ResponseHalf {
            id: half.id,
            cid: half.cid,
            receiver: half.receiver,
            left_over,
            released: None,
        }));
        (self.stat_sn, self.exp_stat_sn) = (half.stat_sn, half.exp_stat_sn);
        self.segment_bytes_max = half.segment_bytes_max;
        self.received_pdus += half.received_pdus;
        acknowledged
    }

    /// The number of the next response; the following one gets the next.
    pub(super) fn take_stat_sn(&mut self) -> Serial32 {
        let taken = self.stat_sn;
        self.stat_sn = taken.next();
        taken
    }

    /// Counts data-out that came.
    pub(super) fn note_data_out(&mut self, now: Instant, bytes: usize) {
        self.data_moved.1 += bytes;
        if self.data_moved.1 >= DATA_OUT_PROGRESS_BYTES {
            self.data_moved = (now, 0);
        }
    }

    /// Sends a PDU without a number of its own, or one that its answer keeps.
    pub(super) fn push<H: Header>(&mut self, header: &H, data: DataSegment) {
        self.transmit.push(header, &AdditionalHeaders::default(), data);
    }

    /// Sends what a command read, for the first time or again.
    pub(super) fn push_data_in(&mut self, mut headers: DataInHeaders, data: DataInBuffer, bound: Bound) {
        let cut = headers.cut.clone();
        let data = match (data, cut.clone().next()) {
            (_, None) => return,
            (DataInBuffer::Own(buffer), Some(piece)) if piece.end == cut.end => {
                let raw = headers.next(&piece);
                return self.transmit.push_data_in(&raw, DataSegment::Buffer(buffer, piece));
            }
            (DataInBuffer::Own(buffer), _) => Arc::new(buffer),
            (DataInBuffer::Kept(buffer), _) => buffer,
        };
        self.transmit.push_series((data, bound), cut, move |piece| headers.next(piece));
    }

    /// Sends Data-In PDUs of an answer again, each when its turn comes: there may be one for each 512 bytes.
    pub(super) fn push_pieces_again(
        &mut self,
        answer: &Answer,
        (first_data_sn, count): (u32, u32),
        (exp_cmd_sn, max_cmd_sn): (Serial32, Serial32),
    ) {
        let (Some(data), Some(pieces)) = (&answer.data, answer.pieces_from(first_data_sn, count)) else { return };
        let pieces: Arc<[Piece]> = pieces.into();
        let headed = Arc::clone(&pieces);
        let (answer_lun, initiator_task_tag) = (answer.lun, answer.id.initiator_task_tag);
        let mut index = 0;
        let ranges = (0..pieces.len()).map(move |index| pieces[index].range.clone());
        self.transmit.push_series((Arc::clone(data), Bound::Answers), ranges, move |range| {
            let Piece { ends_sequence, acknowledgement, .. } = headed[index];
            let data_sn = Serial32(first_data_sn.wrapping_add(index as u32));
            index += 1;
            let header = DataIn {
                is_final: ends_sequence,
                wants_acknowledgement: acknowledgement.is_some(),
                status: None,
                lun: if acknowledgement.is_some() { answer_lun } else { 0 },
                initiator_task_tag,
                target_transfer_tag: acknowledgement,
                exp_cmd_sn,
                max_cmd_sn,
                data_sn,
                buffer_offset: range.start as u32,
            };
            header.to_bytes()
        });
    }

    /// Sends a response with the number it just took, and keeps it if the error recovery level
    /// requires that. The time when something last moved here is near enough to when it was sent.
    pub(super) fn push_response<H: Header>(&mut self, stat_sn: Serial32, header: &H, data: DataSegment) {
        let raw = header.to_bytes();
        self.sent.push(self.last_moved, stat_sn, &raw, data.bytes());
        self.transmit.push_raw(&raw, &AdditionalHeaders::default(), data);
    }

    /// Sends a kept response again: a replica except for ExpCmdSN and MaxCmdSN (RFC 7143 11.16).
    pub(super) fn push_again(&mut self, raw: &RawBhs, data: Vec<u8>, (exp_cmd_sn, max_cmd_sn): (Serial32, Serial32)) {
        let mut raw: [u8; BHS_BYTES] = *raw;
        raw[28..32].copy_from_slice(&exp_cmd_sn.0.to_be_bytes());
        raw[32..36].copy_from_slice(&max_cmd_sn.0.to_be_bytes());
        self.transmit.push_raw(&raw, &AdditionalHeaders::default(), DataSegment::from(data));
    }

    /// Notes that the initiator has received everything before `exp_stat_sn`. Returns the tasks of
    /// these responses.
    pub(super) fn acknowledge(&mut self, exp_stat_sn: Serial32) -> Vec<(InitiatorTaskTag, Serial32)> {
        if !exp_stat_sn.is_after(self.exp_stat_sn) || exp_stat_sn.is_after(self.stat_sn) {
            return Vec::new();
        }
        self.exp_stat_sn = exp_stat_sn;
        self.sent.acknowledge(exp_stat_sn)
    }

    /// Checks that the initiator acknowledges enough of its responses.
    ///
    /// # Errors
    /// When it must be cut off.
    pub(super) fn check_kept(&self) -> Result<(), CloseReason> {
        if self.sent.are_too_many() { Err(CloseReason::Unacknowledged) } else { Ok(()) }
    }
}

/// A connection that is not closed.
pub(super) fn live(links: &mut [Link], at: LinkId) -> Option<&mut Link> {
    links.iter_mut().find(|link| link.id == at && !link.is_closed)
}
