//! Additional header segments (RFC 7143 11.2.2): the rest of a CDB above 16 bytes, and how much a bidirectional command
//! expects to read. Only SCSI Command PDUs carry them.

use super::padding_bytes;

const TYPE_EXTENDED_CDB: u8 = 1;
const TYPE_BIDIRECTIONAL_READ: u8 = 2;
const TYPE_MASK: u8 = 0x3f;
/// AHSLength (2), AHSType (1).
const PREFIX_BYTES: usize = 3;
/// AHSLength of a bidirectional read length: one reserved byte and four of length.
const BIDIRECTIONAL_READ_AHS_LENGTH: u16 = 5;
/// Longest CDB of SPC-4 (variable length, 4.2.3), less the 16 bytes in the BHS.
const EXTENDED_CDB_BYTES_MAX: usize = 260 - 16;

/// The content of the additional header segments of a PDU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdditionalHeaders {
    /// Bytes of the CDB after its first 16; empty without an extended CDB.
    pub extended_cdb: Vec<u8>,
    /// Bytes a bidirectional command expects to read.
    pub bidirectional_read_bytes: Option<u32>,
}

/// The error of malformed additional header segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AhsError {
    /// A segment ends after the bytes that TotalAHSLength announced, or its length does not fit its type.
    #[error("an additional header segment has a wrong length")]
    WrongLength,
    /// The type is reserved.
    #[error("additional header segment type {0} is reserved")]
    UnknownType(u8),
    /// A type appears twice.
    #[error("additional header segment type {0} appears twice")]
    Duplicate(u8),
}

impl AdditionalHeaders {
    /// Reads all segments of one PDU.
    ///
    /// # Errors
    /// [`AhsError`].
    pub fn parse(mut bytes: &[u8]) -> Result<Self, AhsError> {
        let mut headers = Self::default();
        while let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() {
            let length = usize::from(u16::from_be_bytes([prefix[0], prefix[1]]));
            let body = rest.get(..length).ok_or(AhsError::WrongLength)?;
            headers.take_segment(prefix[2] & TYPE_MASK, body)?;
            bytes = rest.get(length + padding_bytes(PREFIX_BYTES + length)..).ok_or(AhsError::WrongLength)?;
        }
        if bytes.is_empty() { Ok(headers) } else { Err(AhsError::WrongLength) }
    }

    fn take_segment(&mut self, kind: u8, body: &[u8]) -> Result<(), AhsError> {
        let (_reserved, body) = body.split_first().ok_or(AhsError::WrongLength)?;
        match kind {
            TYPE_EXTENDED_CDB if !self.extended_cdb.is_empty() => Err(AhsError::Duplicate(kind)),
            TYPE_EXTENDED_CDB if body.is_empty() || body.len() > EXTENDED_CDB_BYTES_MAX => Err(AhsError::WrongLength),
            TYPE_EXTENDED_CDB => {
                self.extended_cdb = body.to_vec();
                Ok(())
            }
            TYPE_BIDIRECTIONAL_READ if self.bidirectional_read_bytes.is_some() => Err(AhsError::Duplicate(kind)),
            TYPE_BIDIRECTIONAL_READ => {
                let length = body.try_into().map_err(|_| AhsError::WrongLength)?;
                self.bidirectional_read_bytes = Some(u32::from_be_bytes(length));
                Ok(())
            }
            other => Err(AhsError::UnknownType(other)),
        }
    }

    /// Appends all segments, padded to whole words.
    ///
    /// # Panics
    /// When the extended CDB is longer than a CDB can be.
    pub fn emit(&self, out: &mut Vec<u8>) {
        assert!(self.extended_cdb.len() <= EXTENDED_CDB_BYTES_MAX, "no CDB is that long");
        if !self.extended_cdb.is_empty() {
            let length = self.extended_cdb.len() as u16 + 1;
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&[TYPE_EXTENDED_CDB, 0]);
            out.extend_from_slice(&self.extended_cdb);
            out.resize(out.len() + padding_bytes(self.extended_cdb.len()), 0);
        }
        if let Some(read_bytes) = self.bidirectional_read_bytes {
            out.extend_from_slice(&BIDIRECTIONAL_READ_AHS_LENGTH.to_be_bytes());
            out.extend_from_slice(&[TYPE_BIDIRECTIONAL_READ, 0]);
            out.extend_from_slice(&read_bytes.to_be_bytes());
        }
    }

    /// Whether there is no segment.
    pub fn is_empty(&self) -> bool {
        self.extended_cdb.is_empty() && self.bidirectional_read_bytes.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::hex;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let headers = AdditionalHeaders { extended_cdb: (1..=6).collect(), bidirectional_read_bytes: Some(0x1000) };
        let mut bytes = Vec::new();
        headers.emit(&mut bytes);
        assert_eq!(bytes, hex("0007 01 00 010203040506 0000  0005 02 00 00001000"));
        assert_eq!(AdditionalHeaders::parse(&bytes), Ok(headers));
    }

    #[test]
    fn lying_lengths_are_refused() {
        for bytes in
            ["0000 01 00", "00ff 01 00 00000000", "0004 02 00 000000 00", "0006 02 00 00000000 00 000000", "00"]
        {
            assert_eq!(AdditionalHeaders::parse(&hex(bytes)), Err(AhsError::WrongLength), "{bytes}");
        }
        assert_eq!(AdditionalHeaders::parse(&hex("0001 03 00")), Err(AhsError::UnknownType(3)));
        let twice = "0005 02 00 00000001 0005 02 00 00000001";
        assert_eq!(AdditionalHeaders::parse(&hex(twice)), Err(AhsError::Duplicate(2)));
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_read_back(
            extended_cdb in proptest::collection::vec(any::<u8>(), 0..=EXTENDED_CDB_BYTES_MAX),
            bidirectional_read_bytes in any::<Option<u32>>(),
        ) {
            let headers = AdditionalHeaders { extended_cdb, bidirectional_read_bytes };
            let mut bytes = Vec::new();
            headers.emit(&mut bytes);
            prop_assert_eq!(bytes.len() % 4, 0);
            prop_assert_eq!(AdditionalHeaders::parse(&bytes), Ok(headers));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = AdditionalHeaders::parse(&bytes);
        }
    }
}
