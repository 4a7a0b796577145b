//! Salvage: a segment that its device does not return as a whole is read as far as possible.
//!
//! Unreadable bytes stay zero, so a record with any has the wrong checksum and is ignored: data
//! that cannot be checked is not taken for what was written. Records that are still in RAM are
//! complete.

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

/// Reads in parts of `part_bytes`, and parts that the device refuses unit by unit.
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

/// Reads, and on an error once more, before the bytes count as unreadable.
pub(crate) async fn read_after_all(device: &SharedDevice, offset: u64, length: usize) -> Option<Buffer> {
    for _ in 0..READS_BEFORE_GIVING_UP {
        if let Ok(bytes) = device.read(offset, Buffer::zeroed(length)).await {
            return Some(bytes);
        }
    }
    None
}
