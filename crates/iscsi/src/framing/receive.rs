//! The receiving half of framing.
//!
//! The driver reads into [`Receiver::receive_space`] and reports with
//! [`Receiver::handle_received`]; then the layer above calls [`Receiver::poll`] until it returns
//! [`Progress::NeedBytes`].
//!
//! ```text
//!            BHS (+ AHS + digest)          place()             data (+ padding + digest)
//! Header ──────────────────────────► Placing ──────► Data ──────────────────────────────► a PDU, then Header
//!    └─── no data segment: a PDU at once
//! ```
//!
//! Small PDUs come through a staging buffer, many per read. While most of a large data segment is
//! missing, `receive_space` is the rest of its destination, so those bytes are never copied; if the
//! memory of the destination is not allocated yet it is only a piece of it, since allocating takes
//! longer than receiving. While a header waits for its place, `receive_space` is empty: a layer
//! above that has no buffer to give simply does not read, and TCP stops the peer.
//!
//! A malformed header is returned with its data discarded, so that it can be rejected. A wrong
//! header digest or an overlong data segment is an error, after which the following bytes cannot be
//! parsed: the connection must be dropped.

use std::sync::Arc;

use base::buffer::Buffer;
use base::checksum::{Crc32c, crc32c};

use super::{Digests, PduSizes, digest_bytes};
use crate::limits::{
    DIRECT_READ_BYTES_MIN, LARGE_SEGMENT_BYTES, MAKING_BYTES, STAGING_BYTES, STAGING_BYTES_AFTER_LARGE,
};
use crate::pdu::{
    AdditionalHeaders, BHS_BYTES, Bhs, DIGEST_BYTES, HeaderError, Lengths, Opcode, RawBhs, padding_bytes,
};

/// Why framing is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// The header digest does not match (RFC 7143 7.8).
    #[error("the header digest does not match")]
    HeaderDigest,
    /// The peer sends more than the limit that this end declared.
    #[error("a data segment of {bytes} bytes, and at most {bytes_max} were agreed")]
    DataSegmentTooLong {
        /// DataSegmentLength.
        bytes: u32,
        /// Our MaxRecvDataSegmentLength.
        bytes_max: u32,
    },
}

/// A header, before its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedHeader {
    /// The received bytes; a Reject returns them.
    pub raw: RawBhs,
    /// The parsed header.
    pub bhs: Result<Bhs, HeaderError>,
    /// Additional header segments.
    pub ahs: AdditionalHeaders,
    /// DataSegmentLength in bytes.
    pub data_segment_bytes: usize,
}

/// The destination of a data segment.
#[derive(Debug)]
pub enum Destination {
    /// Into this buffer from this offset on. It comes back with the PDU.
    Buffer {
        /// With room for `offset` and the data segment. Its length is set while the data comes.
        buffer: Buffer,
        /// First byte.
        offset: usize,
    },
    /// Nowhere: the bytes are read and dropped.
    Discard,
}

/// The data segment of a PDU.
#[derive(Debug, Default)]
pub struct ReceivedData {
    /// The destination's buffer; empty where there was no data or it was discarded.
    pub buffer: Buffer,
    /// First byte of the segment in the buffer.
    pub offset: usize,
    /// Bytes of the segment in the buffer.
    pub length: usize,
    /// The data digest did not match.
    pub is_corrupt: bool,
}

impl ReceivedData {
    /// The segment's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.offset..self.offset + self.length]
    }
}

/// A whole PDU.
#[derive(Debug)]
pub struct ReceivedPdu {
    /// Its header segments.
    pub header: ReceivedHeader,
    /// Its data segment.
    pub data: ReceivedData,
}

/// The result of [`Receiver::poll`].
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // A box would be an allocation per PDU.
pub enum Progress {
    /// More bytes must be received.
    NeedBytes,
    /// [`Receiver::pending_header`] has a data segment, for which [`Receiver::place`] must name the
    /// destination.
    NeedPlace,
    /// A PDU.
    Pdu(ReceivedPdu),
}

/// Bytes to PDUs.
pub struct Receiver {
    staging: Box<[u8]>,
    /// `staging[start..end]` is received and not consumed.
    start: usize,
    end: usize,
    digests: Digests,
    data_segment_bytes_max: u32,
    /// The header of the PDU under way, while [`State::Placing`] and [`State::Data`]. It is large: here it is not moved
    /// with the state.
    header: Option<ReceivedHeader>,
    state: State,
    is_after_large: bool,
    sizes: Option<Arc<PduSizes>>,
}

enum State {
    Header,
    Placing,
    Data(Assembly),
}

/// A data segment under assembly.
struct Assembly {
    /// `None` discards.
    buffer: Option<Buffer>,
    offset: usize,
    filled: usize,
    /// DataSegmentLength.
    length: usize,
}

impl Assembly {
    fn remaining(&self) -> usize {
        self.length - self.filled
    }
}

impl Receiver {
    /// A receiver without digests that takes data segments up to `data_segment_bytes_max` bytes.
    pub fn new(data_segment_bytes_max: u32) -> Self {
        Self {
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            digests: Digests::default(),
            data_segment_bytes_max,
            header: None,
            state: State::Header,
            is_after_large: false,
            sizes: None,
        }
    }

    /// Counts the sizes of PDUs in `sizes`, each when its header is complete.
    pub fn count_sizes(&mut self, sizes: Arc<PduSizes>) {
        self.sizes = Some(sizes);
    }

    /// Sets the negotiated parameters from the next PDU on. Between PDUs only.
    pub fn set_parameters(&mut self, digests: Digests, data_segment_bytes_max: u32) {
        self.digests = digests;
        self.data_segment_bytes_max = data_segment_bytes_max;
    }

    /// The space for the next bytes. Empty while a header waits for its place.
    pub fn receive_space(&mut self) -> &mut [u8] {
        if matches!(self.state, State::Placing) {
            return &mut [];
        }
        if self.is_direct() {
            let State::Data(assembly) = &mut self.state else { unreachable!("only data is read directly") };
            let from = assembly.offset + assembly.filled;
            let to = assembly.offset + assembly.length;
            let buffer = assembly.buffer.as_mut().expect("discarded data is not read directly");
            let to = to.min(buffer.made().max(from + MAKING_BYTES));
            buffer.extend_to(to);
            return &mut buffer[from..to];
        }
        self.compact();
        let limit = if self.is_after_large { self.end + STAGING_BYTES_AFTER_LARGE } else { STAGING_BYTES };
        let limit = limit.min(STAGING_BYTES);
        &mut self.staging[self.end..limit]
    }

    /// `length` bytes were read into the space last given.
    ///
    /// # Panics
    /// When `length` is more than that space.
    pub fn handle_received(&mut self, length: usize) {
        if self.is_direct() {
            let State::Data(assembly) = &mut self.state else { unreachable!("only data is read directly") };
            assert!(length <= assembly.remaining(), "more was received than there was space");
            assembly.filled += length;
        } else {
            assert!(length <= STAGING_BYTES - self.end, "more was received than there was space");
            self.end += length;
        }
    }

    /// The header that waits for its place.
    pub fn pending_header(&self) -> Option<&ReceivedHeader> {
        self.header.as_ref().filter(|_| matches!(self.state, State::Placing))
    }

    /// Names the destination for the data segment of the pending header.
    ///
    /// # Panics
    /// When no header waits, or the destination is too short.
    pub fn place(&mut self, destination: Destination) {
        let length = self.pending_header().expect("a place was given and no header waits for one").data_segment_bytes;
        let (buffer, offset) = match destination {
            Destination::Buffer { buffer, offset } => {
                let end = offset.checked_add(length);
                assert!(end.is_some_and(|end| end <= buffer.room()), "the destination is too short");
                (Some(buffer), offset)
            }
            Destination::Discard => (None, 0),
        };
        self.is_after_large = length >= LARGE_SEGMENT_BYTES;
        self.state = State::Data(Assembly { buffer, offset, filled: 0, length });
    }

    /// Processes the received bytes.
    ///
    /// # Errors
    /// [`FramingError`], after which the receiver must not be used any more.
    pub fn poll(&mut self) -> Result<Progress, FramingError> {
        if matches!(self.state, State::Header) {
            self.take_header()?;
            let Some(header) = &self.header else { return Ok(Progress::NeedBytes) };
            let (has_data, is_to_discard) = (header.data_segment_bytes > 0, header.bhs.is_err());
            if !has_data {
                self.is_after_large = false;
                return Ok(self.whole_pdu(ReceivedData::default()));
            }
            self.state = State::Placing;
            if is_to_discard {
                self.place(Destination::Discard);
            }
        }
        match &self.state {
            State::Placing => Ok(Progress::NeedPlace),
            _ => Ok(self.take_data().map_or(Progress::NeedBytes, |data| self.whole_pdu(data))),
        }
    }

    /// Takes the buffer of an incomplete data segment, with its header: no more bytes will come.
    /// The receiver is of no use after that.
    pub fn take_destination(&mut self) -> Option<(ReceivedHeader, Buffer)> {
        match std::mem::replace(&mut self.state, State::Header) {
            State::Data(Assembly { buffer: Some(buffer), .. }) => Some((self.header.take()?, buffer)),
            State::Data(_) | State::Placing | State::Header => None,
        }
    }

    fn is_direct(&self) -> bool {
        match &self.state {
            State::Data(assembly) => {
                self.start == self.end && assembly.buffer.is_some() && assembly.remaining() >= DIRECT_READ_BYTES_MIN
            }
            _ => false,
        }
    }

    /// Moves the remaining bytes to the front, so that there is room for at least a whole header.
    /// They are few: part of a header, or of padding and a digest.
    fn compact(&mut self) {
        if self.start > 0 {
            self.staging.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    fn whole_pdu(&mut self, data: ReceivedData) -> Progress {
        self.header.take().map_or(Progress::NeedBytes, |header| Progress::Pdu(ReceivedPdu { header, data }))
    }

    /// Consumes a whole header from the staging buffer, if it is there.
    fn take_header(&mut self) -> Result<(), FramingError> {
        let staged = &self.staging[self.start..self.end];
        let Some(raw) = staged.first_chunk::<BHS_BYTES>() else { return Ok(()) };
        let lengths = Lengths::parse(raw);
        let segments_bytes = BHS_BYTES + lengths.ahs_bytes();
        let digest_length = if self.digests.header { DIGEST_BYTES } else { 0 };
        let Some(whole) = staged.get(..segments_bytes + digest_length) else { return Ok(()) };
        let (segments, digest) = whole.split_at(segments_bytes);
        if self.digests.header && digest != digest_bytes(crc32c(segments)) {
            return Err(FramingError::HeaderDigest);
        }
        if lengths.data_segment_bytes > self.data_segment_bytes_max {
            let bytes = lengths.data_segment_bytes;
            return Err(FramingError::DataSegmentTooLong { bytes, bytes_max: self.data_segment_bytes_max });
        }
        let header = self.header.insert(parse_header(raw, &segments[BHS_BYTES..], lengths));
        let data_segment_bytes = header.data_segment_bytes;
        self.start += segments_bytes + digest_length;
        if let Some(sizes) = &self.sizes {
            sizes.count_received(segments_bytes + digest_length + self.payload_bytes(data_segment_bytes));
        }
        Ok(())
    }

    /// The bytes on the wire of a data segment of this length.
    fn payload_bytes(&self, data_segment_bytes: usize) -> usize {
        let has_digest = self.digests.data && data_segment_bytes > 0;
        data_segment_bytes + padding_bytes(data_segment_bytes) + if has_digest { DIGEST_BYTES } else { 0 }
    }

    /// Moves staged bytes to their destination and consumes padding and digest, if all of it is there.
    fn take_data(&mut self) -> Option<ReceivedData> {
        let State::Data(assembly) = &mut self.state else { return None };
        let staged = &self.staging[self.start..self.end];
        let moved = staged.len().min(assembly.remaining());
        if let Some(buffer) = &mut assembly.buffer {
            let at = assembly.offset + assembly.filled;
            buffer.extend_to(at + moved);
            buffer[at..at + moved].copy_from_slice(&staged[..moved]);
        }
        assembly.filled += moved;
        self.start += moved;
        if assembly.remaining() > 0 {
            return None;
        }
        let padding = padding_bytes(assembly.length);
        let trailer_bytes = padding + if self.digests.data { DIGEST_BYTES } else { 0 };
        let trailer = staged.get(moved..moved + trailer_bytes)?;
        self.start += trailer_bytes;
        let State::Data(assembly) = std::mem::replace(&mut self.state, State::Header) else { return None };
        let is_discarded = assembly.buffer.is_none();
        let mut data = ReceivedData {
            length: if is_discarded { 0 } else { assembly.length },
            buffer: assembly.buffer.unwrap_or_default(),
            offset: assembly.offset,
            is_corrupt: false,
        };
        if self.digests.data && !is_discarded {
            let (padding, digest) = trailer.split_at(padding);
            data.is_corrupt = digest != digest_bytes(Crc32c::new().update(data.bytes()).update(padding).finish());
        }
        Some(data)
    }
}

fn parse_header(raw: &RawBhs, ahs: &[u8], lengths: Lengths) -> ReceivedHeader {
    let mut bhs = Bhs::parse(raw);
    let ahs = AdditionalHeaders::parse(ahs).unwrap_or_else(|_| {
        if let Some(opcode) = Opcode::of(raw) {
            bhs = bhs.and(Err(HeaderError::InvalidField { opcode, field: "AHS" }));
        }
        AdditionalHeaders::default()
    });
    ReceivedHeader { raw: *raw, bhs, ahs, data_segment_bytes: lengths.data_segment_bytes as usize }
}

#[cfg(test)]
mod tests {
    use super::super::{DataSegment, TransmitQueue};
    use super::*;
    use crate::pdu::{DataOut, Header, InitiatorTaskTag, NopOut, TargetTransferTag};
    use base::serial::Serial32;
    use proptest::prelude::*;

    const BYTES_MAX: u32 = 1 << 20;

    fn data_out(buffer_offset: u32) -> DataOut {
        DataOut {
            is_final: true,
            lun: 0,
            initiator_task_tag: InitiatorTaskTag::new(1).unwrap(),
            target_transfer_tag: TargetTransferTag::new(2),
            exp_stat_sn: Serial32(0),
            data_sn: Serial32(0),
            buffer_offset,
        }
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
    }

    /// All bytes that `queue` would write.
    fn drain(queue: &mut TransmitQueue) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !queue.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); 3];
            let count = queue.io_slices(&mut slices);
            let written: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
            queue.handle_transmitted(written);
        }
        bytes
    }

    /// Feeds `bytes` in reads of at most the given sizes, placing data at its offset in a buffer of its own.
    fn receive(receiver: &mut Receiver, bytes: &[u8], read_sizes: &[usize]) -> Result<Vec<ReceivedPdu>, FramingError> {
        let mut pdus = Vec::new();
        let mut rest = bytes;
        let mut sizes = read_sizes.iter().cycle();
        loop {
            match receiver.poll()? {
                Progress::Pdu(pdu) => pdus.push(pdu),
                Progress::NeedPlace => {
                    let header = receiver.pending_header().expect("a header waits");
                    let offset = match header.bhs {
                        Ok(Bhs::DataOut(data)) => data.buffer_offset as usize,
                        _ => 0,
                    };
                    let buffer = Buffer::zeroed(offset + header.data_segment_bytes);
                    assert!(receiver.receive_space().is_empty());
                    receiver.place(Destination::Buffer { buffer, offset });
                }
                Progress::NeedBytes if rest.is_empty() => return Ok(pdus),
                Progress::NeedBytes => {
                    let space = receiver.receive_space();
                    let length = space.len().min(rest.len()).min(*sizes.next().expect("it cycles"));
                    assert!(length > 0);
                    space[..length].copy_from_slice(&rest[..length]);
                    receiver.handle_received(length);
                    rest = &rest[length..];
                }
            }
        }
    }

    /// Header, additional segments, data, padding and digests, the same at both ends; also for PDUs
    /// that wait already.
    #[test]
    fn sizes_are_those_on_the_wire() {
        let (near, far) = (Arc::new(PduSizes::default()), Arc::new(PduSizes::default()));
        let mut queue = TransmitQueue::new(Digests { header: true, data: true });
        let ahs = AdditionalHeaders { bidirectional_read_bytes: Some(7), ..Default::default() };
        queue.push(&data_out(0), &AdditionalHeaders::default(), DataSegment::Empty);
        queue.count_sizes(Arc::clone(&near));
        queue.push(&data_out(0), &AdditionalHeaders::default(), DataSegment::from(pattern(61)));
        queue.push(&data_out(0), &ahs, DataSegment::from(pattern(4096)));
        let bytes = drain(&mut queue);
        let mut receiver = Receiver::new(BYTES_MAX);
        receiver.set_parameters(Digests { header: true, data: true }, BYTES_MAX);
        receiver.count_sizes(Arc::clone(&far));
        assert_eq!(receive(&mut receiver, &bytes, &[1000]).unwrap().len(), 3);
        let classes = [(63, 1), (127, 2), (255, 2), (511, 2), (1023, 2), (2047, 2), (4095, 2), (8191, 3)];
        assert_eq!((near.sent().classes(), far.received().classes()), (classes.to_vec(), classes.to_vec()));
        assert_eq!((near.received().count(), far.sent().count()), (0, 0));
    }

    #[test]
    fn large_segments_are_read_straight_into_their_destination() {
        let mut queue = TransmitQueue::new(Digests::default());
        let data = pattern(256 << 10);
        queue.push(&data_out(512), &AdditionalHeaders::default(), DataSegment::from(data.clone()));
        let bytes = drain(&mut queue);
        let mut receiver = Receiver::new(BYTES_MAX);
        let mut first = receiver.receive_space();
        assert_eq!(first.len(), STAGING_BYTES);
        first[..1048].copy_from_slice(&bytes[..1048]);
        receiver.handle_received(1048);
        assert!(matches!(receiver.poll(), Ok(Progress::NeedPlace)));
        let buffer = Buffer::zeroed(512 + data.len());
        let destination = buffer.as_ptr() as usize;
        receiver.place(Destination::Buffer { buffer, offset: 512 });
        assert!(matches!(receiver.poll(), Ok(Progress::NeedBytes)));
        first = receiver.receive_space();
        assert_eq!((first.as_ptr() as usize, first.len()), (destination + 512 + 1000, data.len() - 1000));
        first.copy_from_slice(&bytes[1048..]);
        receiver.handle_received(data.len() - 1000);
        let Ok(Progress::Pdu(pdu)) = receiver.poll() else { panic!("all of it is there") };
        assert_eq!(pdu.data.bytes(), &data[..]);
        assert_eq!(receiver.receive_space().len(), STAGING_BYTES_AFTER_LARGE, "the next one may be large, too");
    }

    /// Allocating takes longer than receiving, and other sessions wait for both.
    #[test]
    fn a_destination_whose_memory_is_not_made_is_made_and_filled_in_pieces() {
        let mut queue = TransmitQueue::new(Digests::default());
        let data = pattern(256 << 10);
        queue.push(&data_out(0), &AdditionalHeaders::default(), DataSegment::from(data.clone()));
        let bytes = drain(&mut queue);
        let pool = base::buffer::BufferPool::new(1 << 20);
        for (is_made, longest) in [(false, MAKING_BYTES), (true, data.len())] {
            let mut receiver = Receiver::new(BYTES_MAX);
            receiver.receive_space()[..48].copy_from_slice(&bytes[..48]);
            receiver.handle_received(48);
            assert!(matches!(receiver.poll(), Ok(Progress::NeedPlace)));
            let buffer = pool.try_acquire_beside_others(data.len(), 0).expect("nothing is out");
            assert_eq!(buffer.made() >= data.len(), is_made, "it is the same memory the second time");
            receiver.place(Destination::Buffer { buffer, offset: 0 });
            let mut lengths = Vec::new();
            let mut received = 48;
            let pdu = loop {
                match receiver.poll() {
                    Ok(Progress::Pdu(pdu)) => break pdu,
                    other => assert!(matches!(other, Ok(Progress::NeedBytes)), "{other:?}"),
                }
                let space = receiver.receive_space();
                space.copy_from_slice(&bytes[received..][..space.len()]);
                lengths.push(space.len());
                received += lengths[lengths.len() - 1];
                receiver.handle_received(lengths[lengths.len() - 1]);
            };
            assert_eq!(pdu.data.bytes(), &data[..]);
            assert_eq!(lengths, vec![longest; data.len() / longest]);
        }
    }

    #[test]
    fn a_flipped_bit_in_the_header_ends_it_and_in_the_data_marks_it() {
        let digests = Digests { header: true, data: true };
        let mut queue = TransmitQueue::new(digests);
        queue.push(&data_out(0), &AdditionalHeaders::default(), DataSegment::from(pattern(5)));
        let good = drain(&mut queue);
        assert_eq!(good.len(), 48 + 4 + 5 + 3 + 4);
        for (flipped, is_header) in [(20, true), (50, true), (54, false), (58, false), (62, false)] {
            let mut bytes = good.clone();
            bytes[flipped] ^= 0x10;
            let mut receiver = Receiver::new(BYTES_MAX);
            receiver.set_parameters(digests, BYTES_MAX);
            match receive(&mut receiver, &bytes, &[7]) {
                Err(error) => assert!(is_header && error == FramingError::HeaderDigest, "byte {flipped}"),
                Ok(pdus) => assert!(!is_header && pdus.len() == 1 && pdus[0].data.is_corrupt, "byte {flipped}"),
            }
        }
    }

    #[test]
    fn an_overlong_segment_is_an_error_before_it_is_read() {
        let mut raw = data_out(0).to_bytes();
        Lengths { ahs_words: 0, data_segment_bytes: 8193 }.emit(&mut raw);
        let error = receive(&mut Receiver::new(8192), &raw, &[48]).unwrap_err();
        assert_eq!(error, FramingError::DataSegmentTooLong { bytes: 8193, bytes_max: 8192 });
    }

    #[test]
    fn a_header_that_is_no_pdu_is_handed_up_and_its_data_dropped() {
        let mut bytes = vec![0; 48 + 12];
        bytes[0] = 0x1c;
        bytes[7] = 9;
        bytes.extend_from_slice(&data_out(0).to_bytes());
        let pdus = receive(&mut Receiver::new(BYTES_MAX), &bytes, &[5]).unwrap();
        assert_eq!(pdus.len(), 2);
        assert_eq!(pdus[0].header.bhs, Err(HeaderError::UnknownOpcode(0x1c)));
        assert_eq!(pdus[0].data.length, 0);
        assert!(pdus[1].header.bhs.is_ok());
    }

    proptest! {
        #[test]
        fn what_is_queued_is_received(
            lengths in proptest::collection::vec((0usize..40_000, 0u32..10_000, any::<bool>()), 1..8),
            read_sizes in proptest::collection::vec(1usize..70_000, 1..5),
            header_digest in any::<bool>(),
            data_digest in any::<bool>(),
        ) {
            let digests = Digests { header: header_digest, data: data_digest };
            let mut queue = TransmitQueue::new(digests);
            for &(length, offset, has_ahs) in &lengths {
                let ahs = AdditionalHeaders { bidirectional_read_bytes: has_ahs.then_some(7), ..Default::default() };
                queue.push(&data_out(offset), &ahs, DataSegment::from(pattern(length)));
            }
            let bytes = drain(&mut queue);
            let mut receiver = Receiver::new(BYTES_MAX);
            receiver.set_parameters(digests, BYTES_MAX);
            let pdus = receive(&mut receiver, &bytes, &read_sizes).unwrap();
            prop_assert_eq!(pdus.len(), lengths.len());
            for (pdu, &(length, offset, has_ahs)) in pdus.iter().zip(&lengths) {
                prop_assert_eq!(&pdu.header.bhs, &Ok(Bhs::DataOut(data_out(offset))));
                prop_assert_eq!(pdu.header.ahs.bidirectional_read_bytes, has_ahs.then_some(7));
                prop_assert_eq!(pdu.data.bytes(), &pattern(length)[..]);
                prop_assert!(!pdu.data.is_corrupt);
            }
        }

        #[test]
        fn any_bytes_are_framed_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..4096),
            size in 1usize..500,
        ) {
            let _ = receive(&mut Receiver::new(8192), &bytes, &[size]);
        }
    }

    #[test]
    fn pdus_without_data_need_no_place() {
        let ping = NopOut {
            is_immediate: true,
            lun: 0,
            initiator_task_tag: None,
            target_transfer_tag: None,
            cmd_sn: Serial32(1),
            exp_stat_sn: Serial32(1),
        };
        let bytes = [ping.to_bytes(), ping.to_bytes()].concat();
        let pdus = receive(&mut Receiver::new(8192), &bytes, &[96]).unwrap();
        assert_eq!(pdus.len(), 2);
        assert!(pdus.iter().all(|pdu| pdu.header.bhs == Ok(Bhs::NopOut(ping)) && pdu.data.bytes().is_empty()));
    }
}
