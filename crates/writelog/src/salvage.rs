//! A segment that its device does not return as a whole, read as far as it can be.
//!
//! What is unreadable stays zero, so a record of which anything is missing has the wrong checksum and counts for
//! nothing: what nobody can check is not taken for what was written. Of records that are in RAM still, nothing is
//! missing.

use base::buffer::Buffer;
use block::SharedDevice;
use block::device::DeviceExt;

use crate::layout::Layout;
use crate::limits::{READS_BEFORE_GIVING_UP, UNIT_BYTES, VERIFY_READ_BYTES};
use crate::numbers::SegmentNumber;

/// The bytes of a segment; zeroes where the device refuses to read.
pub(crate) async fn segment_image(device: &SharedDevice, layout: &Layout, segment: SegmentNumber) -> Buffer {
    let range = layout.segment(segment);
    if let Ok(image) = device.read(range.offset, Buffer::zeroed(range.length as usize)).await {
        return image;
    }
    let mut image = Buffer::zeroed(range.length as usize);
    read_parts(device, range.offset, &mut image, VERIFY_READ_BYTES).await;
    image
}

/// Reads in parts of so many bytes, and what is refused of them in units.
async fn read_parts(device: &SharedDevice, offset: u64, bytes: &mut [u8], part_bytes: usize) {
    for (index, part) in bytes.chunks_mut(part_bytes).enumerate() {
        let offset = offset + (index * part_bytes) as u64;
        match device.read(offset, Buffer::zeroed(part.len())).await {
            Ok(read) => part.copy_from_slice(&read),
            Err(_) if part_bytes > UNIT_BYTES as usize => {
                Box::pin(read_parts(device, offset, part, UNIT_BYTES as usize)).await;
            }
            Err(_) => {}
        }
    }
}

/// What is refused is asked for once more before it counts as unreadable.
pub(crate) async fn read_after_all(device: &SharedDevice, offset: u64, length: usize) -> Option<Buffer> {
    for _ in 0..READS_BEFORE_GIVING_UP {
        if let Ok(bytes) = device.read(offset, Buffer::zeroed(length)).await {
            return Some(bytes);
        }
    }
    None
}
