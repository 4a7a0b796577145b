//! A layer that offers a part of a device as a device of its own.
//!
//! Requests are moved by its offset; none reaches a byte outside.

use base::buffer::Buffer;
use base::range::ByteRange;

use crate::completion::Completion;
use crate::device::{Device, SharedDevice};
use crate::error::{Error, ErrorKind};
use crate::geometry::{Geometry, Hints};
use crate::identity::Identity;
use crate::request::{Extent, ExtentKind, Operation, Request, Response};

/// The bytes of `range` of a device. It keeps its size, and passes on no events of the device.
pub struct WindowLayer {
    inner: SharedDevice,
    range: ByteRange,
}

impl WindowLayer {
    /// `range` of `inner`.
    ///
    /// # Errors
    /// `InvalidRange` when it is empty, not whole logical blocks, or past the end.
    pub fn new(inner: SharedDevice, range: ByteRange) -> Result<Self, Error> {
        let geometry = inner.geometry();
        let block = u64::from(geometry.logical_block_bytes);
        if range.is_empty() || !range.offset.is_multiple_of(block) || !range.length.is_multiple_of(block) {
            let context = format!("{range} of a device are not whole blocks of {block} bytes");
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        if range.end() > geometry.size_bytes {
            let context = format!("{range} reach past the end of the device at {}", geometry.size_bytes);
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        Ok(Self { inner, range })
    }
}

impl Device for WindowLayer {
    fn geometry(&self) -> Geometry {
        let outer = self.inner.geometry();
        let moved = |first: u32, unit: u32| first_within(self.range.offset, first, unit);
        let hints = Hints {
            physical_alignment_bytes: moved(outer.hints.physical_alignment_bytes, outer.physical_block_bytes),
            discard_alignment_bytes: outer
                .discard_granularity_bytes
                .map_or(0, |granularity| moved(outer.hints.discard_alignment_bytes, granularity)),
            ..outer.hints
        };
        Geometry { size_bytes: self.range.length, hints, ..outer }
    }

    fn identity(&self) -> Identity {
        let outer = self.inner.identity();
        Identity { unit: format!("{} of {}", self.range, outer.unit), ..outer }
    }

    fn submit(&self, mut request: Request) -> Completion {
        let range = match self.geometry().check(&request) {
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        match request.operation {
            // All bytes count as data: the device's answer would have to be moved back.
            Operation::Extents { .. } => {
                let extents = vec![Extent { range, kind: ExtentKind::Data }];
                Completion::ready(Response { extents, ..Response::done(Buffer::empty()) })
            }
            Operation::Flush => self.inner.submit(request),
            _ => {
                // It ends within the window, so within 64 bits.
                request.offset += self.range.offset;
                self.inner.submit(request)
            }
        }
    }
}

/// Offset, counted from `offset`, of the first unit there, on a device whose units begin at
/// `first`, `first + unit`, and so on.
fn first_within(offset: u64, first: u32, unit: u32) -> u32 {
    let unit = u64::from(unit.max(1));
    let behind = (offset % unit + unit - u64::from(first) % unit) % unit;
    u32::try_from((unit - behind) % unit).expect("less than a unit")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::executor::block_on;

    use super::*;
    use crate::device::DeviceExt;
    use crate::memory::MemoryDevice;

    #[test]
    fn nothing_outside_is_reached_and_what_is_inside_is_moved() {
        let memory: SharedDevice = Arc::new(MemoryDevice::new(64 << 10, Identity::default()));
        block_on(memory.write(0, Buffer::copy_of(&[9; 64 << 10]), false)).unwrap();
        let range = ByteRange { offset: 16 << 10, length: 32 << 10 };
        let window = WindowLayer::new(Arc::clone(&memory), range).unwrap();
        assert_eq!(window.geometry().size_bytes, 32 << 10);
        block_on(window.write(0, Buffer::copy_of(&[1; 512]), false)).unwrap();
        block_on(window.write((32 << 10) - 512, Buffer::copy_of(&[2; 512]), true)).unwrap();
        block_on(window.write_zeroes(512, 512, false, false)).unwrap();
        block_on(window.discard(4096, 4096)).unwrap();
        block_on(window.flush()).unwrap();
        for (offset, length) in [(32 << 10, 512), ((32 << 10) - 512, 1024), (u64::MAX - 511, 512), (1, 512)] {
            for request in [
                Request::read(offset, Buffer::zeroed(length)),
                Request::write(offset, Buffer::zeroed(length), false),
                Request::discard(offset, length as u64),
                Request::write_zeroes(offset, length as u64, false, true),
                Request::extents(offset, length as u64),
            ] {
                let result = block_on(window.submit(request)).result;
                assert_eq!(result.map_err(|error| error.kind()), Err(ErrorKind::InvalidRange), "{offset}");
            }
        }
        let mut expected = vec![9; 64 << 10];
        expected[16 << 10..][..512].fill(1);
        expected[(16 << 10) + 512..][..512].fill(0);
        expected[20 << 10..][..4096].fill(0);
        expected[(48 << 10) - 512..][..512].fill(2);
        let bytes = block_on(memory.read(0, Buffer::zeroed(64 << 10))).unwrap();
        assert!(bytes[..] == expected);
        assert_eq!(block_on(window.read(0, Buffer::zeroed(512))).unwrap()[..], [1; 512]);
        let extents = block_on(window.extents(512, 1024)).unwrap();
        assert_eq!(extents[0].range, ByteRange { offset: 512, length: 1024 });
    }

    #[test]
    fn a_window_that_is_none_is_refused() {
        let memory: SharedDevice = Arc::new(MemoryDevice::new(64 << 10, Identity::default()));
        for (offset, length) in [(0, 0), (1, 512), (0, 513), (512, 64 << 10), (64 << 10, 512)] {
            let window = WindowLayer::new(Arc::clone(&memory), ByteRange { offset, length });
            assert_eq!(window.err().map(|error| error.kind()), Some(ErrorKind::InvalidRange), "{offset} {length}");
        }
    }

    #[test]
    fn alignments_are_counted_from_its_beginning() {
        assert_eq!(first_within(0, 0, 4096), 0);
        assert_eq!(first_within(8192, 0, 4096), 0);
        assert_eq!(first_within(512, 0, 4096), 3584);
        assert_eq!(first_within(512, 3584, 4096), 3072);
        assert_eq!(first_within(4096, 3584, 4096), 3584);
        assert_eq!(first_within(7, 0, 0), 0);
    }
}
