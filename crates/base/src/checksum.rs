//! CRC32C (Castagnoli), as RFC 7143 13.1 and every forebay structure on disk use it.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    truncate(checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// A CRC32C over bytes that come in pieces.
pub struct Crc32c(Digest);

impl Crc32c {
    /// A checksum over no bytes yet.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    /// The checksum of all pieces so far.
    pub fn finish(&self) -> u32 {
        truncate(self.0.finalize())
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

fn truncate(value: u64) -> u32 {
    u32::try_from(value).expect("a 32-bit CRC has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 7143 appendix A.4 (value here in host order; the RFC prints it as sent, little-endian).
    #[test]
    fn vectors_of_the_standard() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
    }

    #[test]
    fn pieces_equal_the_whole() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        for cut in [0, 1, 47, 4096, 9_999] {
            let mut running = Crc32c::new();
            running.update(&bytes[..cut]).update(&bytes[cut..]);
            assert_eq!(running.finish(), crc32c(&bytes));
        }
    }
}
