//! One record of the log.
//!
//! ```text
//! | header 64 bytes | payload | zeroes up to a multiple of 512 bytes |
//! ```
//! A record says everything needed to know whether it belongs where it stands: whose log it is in, in which epoch (one
//! opening of the store) it was written, its number, and the checksum of the record before it. What an earlier lap or
//! an earlier epoch left in the region fails one of these, however whole it is.

use base::buffer::Buffer;
use base::checksum::crc32c;
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::{RECORD_BYTES_MAX, RECORD_UNIT_BYTES};
use crate::sequence::Sequence;

/// First bytes after the checksum of every record.
pub const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"frec");

/// The header of a record.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct RecordHeaderRaw {
    /// crc32c of the header behind this field and the payload.
    pub checksum: U32,
    /// [`RECORD_MAGIC`].
    pub magic: U32,
    /// The store's identifier.
    pub log_id: [u8; 16],
    /// Number of the opening that wrote it.
    pub epoch: U64,
    /// Grows by one from record to record, across epochs.
    pub sequence: U64,
    /// Checksum of the record before; for the first of an epoch what its [`LogPosition`] says.
    pub link: U32,
    /// Bytes of payload.
    pub payload_bytes: U32,
    /// Everything that records up to this sequence announce was on stable storage when this one was written.
    pub settled: U64,
    /// How many records before it may not have landed when it was made; all others before it were durable.
    pub in_flight: U64,
}
const _: () = assert!(size_of::<RecordHeaderRaw>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(RecordHeaderRaw, epoch) == 24);
const _: () = assert!(std::mem::offset_of!(RecordHeaderRaw, settled) == 48);
const _: () = assert!(std::mem::offset_of!(RecordHeaderRaw, in_flight) == 56);

impl RecordHeaderRaw {
    /// First sequence whose record this one does not prove to have been durable: that of the oldest one on its way when
    /// this was made.
    pub fn proves_before(&self) -> Sequence {
        Sequence(self.sequence.get().saturating_sub(self.in_flight.get()))
    }
}

const HEADER_BYTES: usize = 64;

/// The checksum covers the header from here, and the payload: everything but itself.
const COVERED_FROM: usize = std::mem::offset_of!(RecordHeaderRaw, magic);

/// Largest payload of one record in bytes.
pub const RECORD_PAYLOAD_BYTES_MAX: usize = RECORD_BYTES_MAX - HEADER_BYTES;

/// A place in a log, between two records, with what the next one must carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Bytes from the start of the region to where the next record is looked for (and if it is not there, at the
    /// start).
    pub offset: u64,
    /// Epoch of the next record.
    pub epoch: u64,
    /// Sequence of the next record.
    pub sequence: Sequence,
    /// Checksum of the record before.
    pub link: u32,
}

/// A [`LogPosition`] on disk.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct LogPositionRaw {
    /// Bytes from the start of the region.
    pub offset: U64,
    /// Epoch of the next record.
    pub epoch: U64,
    /// Sequence of the next record.
    pub sequence: U64,
    /// Checksum of the record before.
    pub link: U32,
    /// Zero.
    pub reserved: U32,
}
const _: () = assert!(size_of::<LogPositionRaw>() == 32);

impl From<LogPosition> for LogPositionRaw {
    fn from(position: LogPosition) -> Self {
        Self {
            offset: position.offset.into(),
            epoch: position.epoch.into(),
            sequence: position.sequence.into(),
            link: position.link.into(),
            reserved: U32::ZERO,
        }
    }
}

impl From<LogPositionRaw> for LogPosition {
    fn from(raw: LogPositionRaw) -> Self {
        Self { offset: raw.offset.get(), epoch: raw.epoch.get(), sequence: raw.sequence.into(), link: raw.link.get() }
    }
}

/// Bytes that a record with this much payload takes in the region.
pub fn record_bytes(payload_bytes: usize) -> u64 {
    (HEADER_BYTES + payload_bytes).next_multiple_of(RECORD_UNIT_BYTES) as u64
}

/// Bytes before the payload.
pub const RECORD_HEADER_BYTES: usize = HEADER_BYTES;

/// What a record says of those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Everything that records up to this sequence announce was on stable storage when this one was made.
    pub settled: Sequence,
    /// How many records right before it may not have landed when it was made. All before those were durable.
    pub in_flight: u64,
}

/// The bytes of a record, and its checksum.
pub fn emit(log_id: Uuid, position: LogPosition, claims: Claims, payload: &[u8]) -> (Buffer, u32) {
    assert!(payload.len() <= RECORD_PAYLOAD_BYTES_MAX, "appends bound their payload");
    let mut buffer = Buffer::zeroed(record_bytes(payload.len()) as usize);
    buffer[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
    let checksum = seal(&mut buffer, log_id, position, claims, payload.len());
    (buffer, checksum)
}

/// Makes a record of bytes that hold its payload already, and returns the checksum. The caller
/// clears the bytes behind the payload.
pub fn seal(bytes: &mut [u8], log_id: Uuid, position: LogPosition, claims: Claims, payload_bytes: usize) -> u32 {
    let header = RecordHeaderRaw {
        checksum: U32::ZERO,
        magic: RECORD_MAGIC.into(),
        log_id: log_id.into_bytes(),
        epoch: position.epoch.into(),
        sequence: position.sequence.into(),
        link: position.link.into(),
        payload_bytes: (payload_bytes as u32).into(),
        settled: claims.settled.into(),
        in_flight: claims.in_flight.into(),
    };
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    let checksum = crc32c(&bytes[COVERED_FROM..HEADER_BYTES + payload_bytes]);
    bytes[..COVERED_FROM].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// The header of the record that starts at `bytes`, if it is one of this log, and the length of its
/// payload. The checksum is not verified here, since the payload may not be in memory yet.
pub fn parse_header(bytes: &[u8], log_id: Uuid) -> Option<(RecordHeaderRaw, usize)> {
    let (header, _) = RecordHeaderRaw::read_from_prefix(bytes).ok()?;
    let payload_bytes = header.payload_bytes.get() as usize;
    let is_ours = header.magic.get() == RECORD_MAGIC && header.log_id == *log_id.as_bytes();
    (is_ours && payload_bytes <= RECORD_PAYLOAD_BYTES_MAX).then_some((header, payload_bytes))
}

/// The payload of the record that starts at `bytes`, if it is whole.
pub fn parse_payload<'a>(bytes: &'a [u8], header: &RecordHeaderRaw) -> Option<&'a [u8]> {
    let end = HEADER_BYTES.checked_add(header.payload_bytes.get() as usize)?;
    let covered = bytes.get(COVERED_FROM..end)?;
    (crc32c(covered) == header.checksum.get()).then_some(())?;
    bytes.get(HEADER_BYTES..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: Uuid = Uuid::from_bytes([9; 16]);
    const POSITION: LogPosition = LogPosition { offset: 512, epoch: 2, sequence: Sequence(3), link: 0x0403_0201 };
    const CLAIMS: Claims = Claims { settled: Sequence(1), in_flight: 2 };

    #[test]
    fn the_bytes_are_what_the_format_page_says() {
        let (buffer, checksum) = emit(ID, POSITION, CLAIMS, b"payload");
        assert_eq!(buffer.len(), 512);
        assert_eq!(buffer[..4], checksum.to_le_bytes());
        assert_eq!(checksum, crc32c(&buffer[4..71]));
        assert_eq!(&buffer[4..8], b"frec");
        assert_eq!(buffer[8..24], [9; 16]);
        assert_eq!(buffer[24..40], [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(buffer[40..48], [1, 2, 3, 4, 7, 0, 0, 0]);
        assert_eq!(buffer[48..64], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&buffer[64..72], b"payload\0");
        assert_eq!(LogPositionRaw::from(POSITION).as_bytes()[24..], [1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(LogPosition::from(LogPositionRaw::from(POSITION)), POSITION);
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(payload in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let (buffer, checksum) = emit(ID, POSITION, CLAIMS, &payload);
            let (header, payload_bytes) = parse_header(&buffer, ID).unwrap();
            prop_assert_eq!((header.checksum.get(), payload_bytes), (checksum, payload.len()));
            prop_assert_eq!(parse_payload(&buffer, &header), Some(&payload[..]));
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 0usize..71, flip in 1u8..) {
            let (mut buffer, _) = emit(ID, POSITION, CLAIMS, b"payload");
            buffer[at] ^= flip;
            let parsed = parse_header(&buffer, ID)
                .and_then(|(header, _)| parse_payload(&buffer, &header).map(<[u8]>::len));
            prop_assert_eq!(parsed, None);
        }

        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some((header, _)) = parse_header(&bytes, ID) {
                parse_payload(&bytes, &header);
            }
        }
    }
}
