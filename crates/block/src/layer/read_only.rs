//! A layer that refuses all changes of the device below.

use crate::completion::Completion;
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::error::ErrorKind;
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::request::Request;

/// A device that cannot be written.
///
/// Its geometry is read-only. [`Event::Resized`](crate::event::Event::Resized) of the device below
/// carries that device's geometry and is passed on as it is; layers that need the abilities ask
/// [`Device::geometry`].
pub struct ReadOnlyLayer {
    inner: SharedDevice,
}

impl ReadOnlyLayer {
    /// A read-only view of `inner`.
    pub fn new(inner: SharedDevice) -> Self {
        Self { inner }
    }
}

impl Device for ReadOnlyLayer {
    fn geometry(&self) -> Geometry {
        Geometry { is_read_only: true, discard_granularity_bytes: None, ..self.inner.geometry() }
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if request.is_mutation() {
            return Completion::ready(request.fail(ErrorKind::ReadOnly));
        }
        self.inner.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.inner.copies()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceExt;
    use crate::memory::MemoryDevice;
    use base::buffer::Buffer;
    use base::executor::block_on;
    use std::sync::Arc;

    #[test]
    fn reads_pass_and_changes_do_not() {
        let memory: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, Identity::default()));
        block_on(memory.write(0, Buffer::copy_of(&[7; 512]), false)).expect("RAM does not fail");
        let device = ReadOnlyLayer::new(memory);
        assert!(device.geometry().is_read_only);
        for request in [
            Request::write(0, Buffer::zeroed(512), false),
            Request::discard(0, 4096),
            Request::write_zeroes(0, 512, false, true),
        ] {
            let response = block_on(device.submit(request));
            assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::ReadOnly));
        }
        block_on(device.flush()).expect("a flush changes nothing");
        assert_eq!(block_on(device.read(0, Buffer::zeroed(512))).expect("RAM does not fail")[..], [7; 512]);
    }
}
