//! Framing: bytes to PDUs and back, for both ends.
//!
//! | module | holds |
//! |---|---|
//! | [`receive`] | [`Receiver`]: names the space to read into, and returns whole PDUs |
//! | [`sizes`] | [`PduSizes`]: histograms of PDU sizes, over several connections |
//! | [`transmit`] | [`TransmitQueue`]: many PDUs as one list of slices to write |
//!
//! Neither copies a large data segment: it is read into the buffer that the layer above names for
//! it, and written from the buffer that the layer above gives. Digests (RFC 7143 11.2.3) are made
//! and checked here.

mod bound;
pub mod receive;
mod series;
pub mod sizes;
pub mod transmit;

pub use bound::Bound;
pub use receive::{Destination, FramingError, Progress, ReceivedData, ReceivedHeader, ReceivedPdu, Receiver};
pub use sizes::PduSizes;
pub use transmit::{DataSegment, TransmitQueue};

/// Which digests a connection carries in one direction or both. None until the full feature phase (RFC 7143 13.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// CRC32C after the header segments.
    pub header: bool,
    /// CRC32C after the data segment.
    pub data: bool,
}

/// A digest as it is sent: the CRC's least significant byte first (RFC 7143 13.1 and its examples in A.4).
pub(crate) fn digest_bytes(crc: u32) -> [u8; 4] {
    crc.to_le_bytes()
}
