//! Data-in in the form that the initiator asked for.

use block::Buffer;
use scsi::Sense;
use scsi::sense::FIXED_BYTES;

/// Data-in, cut at an allocation length.
pub(crate) fn cut(bytes: &[u8], allocation_length: u32) -> Buffer {
    Buffer::copy_of(bytes.get(..allocation_length as usize).unwrap_or(bytes))
}

/// Sense data in the requested format.
pub(crate) fn sense_bytes(sense: &Sense, is_descriptor: bool) -> Vec<u8> {
    if is_descriptor {
        return sense.emit_descriptors();
    }
    let bytes: [u8; FIXED_BYTES] = sense.emit_fixed();
    bytes.to_vec()
}
