//! REPORT LUNS data (SPC-4 6.33): a length, four reserved bytes, eight bytes per LUN.

use crate::error::Malformed;
use crate::field::u32_at;
use crate::limits::{LUN_MAX, REPORTED_LUNS_MAX};
use crate::lun;

/// The bytes that list `luns`; numbers above [`LUN_MAX`] cannot be listed and are left out.
pub fn emit(luns: &[u64]) -> Vec<u8> {
    let encoded: Vec<[u8; 8]> =
        luns.iter().filter(|&&number| number <= LUN_MAX).filter_map(|&number| lun::encode(number).ok()).collect();
    let length = (encoded.len() * 8) as u32;
    let mut bytes = Vec::with_capacity(8 + encoded.len() * 8);
    bytes.extend(length.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(encoded.as_flattened());
    bytes
}

/// The LUNs in data from a target that are single-level; others are passed over. Data cut at the allocation length ends
/// early.
///
/// # Errors
/// [`Malformed`] when not even the header is there.
pub fn parse(bytes: &[u8]) -> Result<Vec<u64>, Malformed> {
    let malformed = Malformed("REPORT LUNS data");
    let length = u32_at(bytes, 0).ok_or(malformed)? as usize;
    let list = bytes.get(8..).ok_or(malformed)?;
    let list = list.get(..length).unwrap_or(list);
    let luns = list.as_chunks::<8>().0.iter().take(REPORTED_LUNS_MAX);
    Ok(luns.filter_map(|&entry| lun::decode(entry).ok()).collect())
}

/// Whether the list goes on past what was received: its whole length in bytes with the header.
pub fn whole_bytes(bytes: &[u8]) -> Option<u64> {
    Some(u64::from(u32_at(bytes, 0)?) + 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let bytes = emit(&[0, 1, 300]);
        assert_eq!(bytes[..8], [0, 0, 0, 24, 0, 0, 0, 0]);
        assert_eq!(bytes[8..16], [0; 8]);
        assert_eq!(bytes[16..18], [0, 1]);
        assert_eq!(bytes[24..26], [0x41, 0x2c]);
        assert_eq!(bytes.len(), 32);
    }

    #[test]
    fn of_a_list_of_more_luns_than_there_are_numbers_the_first_are_read() {
        let mut bytes = emit(&vec![7; REPORTED_LUNS_MAX]);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes.extend([0; 8]);
        assert_eq!(parse(&bytes), Ok(vec![7; REPORTED_LUNS_MAX]));
    }

    #[test]
    fn lists_are_read_back_even_when_cut() {
        let luns: Vec<u64> = (0..300).collect();
        let bytes = emit(&luns);
        assert_eq!(parse(&bytes), Ok(luns));
        assert_eq!(parse(&bytes[..27]), Ok(vec![0, 1]));
        assert_eq!(whole_bytes(&bytes[..27]), Some(2408));
        assert!(parse(&bytes[..7]).is_err());
    }
}
