//! From bytes to a command by the row of the table that knows it.

use super::bytes::CdbBytes;
use super::layout::Raw;
use super::{Cdb, CdbError, table};
use crate::field::u8_at;

impl Cdb {
    /// The command in `bytes`, which may be longer than the CDB: iSCSI pads to 16.
    ///
    /// # Errors
    /// The defect of the CDB; [`CdbError::sense`] is the answer.
    pub fn parse(bytes: &[u8]) -> Result<Self, CdbError> {
        let operation_code = u8_at(bytes, 0).ok_or(CdbError::TooShort)?;
        let service_action = u8_at(bytes, 1).unwrap_or(0) & 0x1f;
        let row = table::find(operation_code, service_action)?;
        let cdb = bytes.get(..usize::from(row.cdb_bytes)).ok_or(CdbError::TooShort)?;
        row.parse(&bytes.first_chunk().map_or_else(|| padded(cdb), |whole| cut(whole, cdb.len())))
    }
}

fn padded(cdb: &[u8]) -> Raw {
    let mut raw: Raw = [0; 16];
    raw[..cdb.len()].copy_from_slice(cdb);
    raw
}

/// The first `length` bytes (1 to 16), and zeroes: in a register, since a copy of a length that the compiler does not
/// know holds up every command.
fn cut(whole: &Raw, length: usize) -> Raw {
    let kept = u128::MAX << (8 * (whole.len() - length));
    (u128::from_be_bytes(*whole) & kept).to_be_bytes()
}

impl TryFrom<&CdbBytes> for Cdb {
    type Error = CdbError;
    fn try_from(bytes: &CdbBytes) -> Result<Self, CdbError> {
        Self::parse(bytes)
    }
}
