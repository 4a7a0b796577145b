//! The device on which a store is made: whether it can have one, and zeroes where the store begins.

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Device, Error, ErrorKind, SharedDevice};

use crate::limits::{LOGICAL_BLOCK_BYTES_MAX, RECORD_UNIT_BYTES, ZEROES_IO_BYTES};

/// The words of a kind of store in errors.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Its device: `the cache device`.
    pub device: &'static str,
    /// Itself: `a cache`.
    pub store: &'static str,
    /// What cannot be done with an origin: `cached`.
    pub done: &'static str,
}

/// Refuses devices of which, and origins over which, no store can be made.
///
/// # Errors
/// `ReadOnly` or `Unsupported`, in `words`.
pub fn check(device: &SharedDevice, origin: &SharedDevice, words: Words) -> Result<(), Error> {
    let (device, origin) = (device.geometry(), origin.geometry());
    if device.is_read_only {
        return Err(Error::new(ErrorKind::ReadOnly, format!("{} is read-only", words.device)));
    }
    if device.logical_block_bytes as usize != RECORD_UNIT_BYTES {
        let context = format!(
            "{} needs a device with logical blocks of {RECORD_UNIT_BYTES} bytes, and this one has {}",
            words.store, device.logical_block_bytes
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    if origin.logical_block_bytes > LOGICAL_BLOCK_BYTES_MAX {
        let (bytes, done) = (origin.logical_block_bytes, words.done);
        let context = format!("a LUN with logical blocks of {bytes} bytes cannot be {done}");
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    Ok(())
}

/// Makes a range zero by data: a hole could not be filled on a disk that became full since.
///
/// # Errors
/// The device's.
pub async fn write_zeroes(device: &SharedDevice, range: ByteRange) -> Result<(), Error> {
    let mut offset = range.offset;
    while offset < range.end() {
        let length = (range.end() - offset).min(ZEROES_IO_BYTES);
        device.write(offset, Buffer::zeroed(length as usize), false).await?;
        offset += length;
    }
    Ok(())
}
