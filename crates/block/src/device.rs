//! The device contract.
//!
//! - Requests may run in parallel. A layer that could reorder overlapping ones serialises them with
//!   the shared [`RangeLock`](crate::range_lock::RangeLock): changes take effect in the order they
//!   were submitted, and a read sees all that were submitted before it. A change that is submitted
//!   while the read is under way may be seen or not, sector by sector.
//! - The operation is under way when [`Device::submit`] returns, whether or not the completion is awaited.
//! - A completed flush makes durable every write completed before the flush was submitted; a completed write with `fua`
//!   is durable.
//! - The atomic unit of a medium is 512 bytes unless it says more: writes in flight at a power loss land, do not land,
//!   or land in part of their units.
//! - Requests outside the device or off its logical blocks fail with [`ErrorKind::InvalidRange`] and change nothing.

use std::future::Future;
use std::sync::Arc;

use base::buffer::Buffer;

use crate::completion::Completion;
use crate::copies::Copies;
use crate::error::Error;
use crate::event::EventReceiver;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::request::{Extent, Request};

/// A block device.
pub trait Device: Send + Sync + 'static {
    /// Size, blocks and abilities now. They may change; then
    /// [`Event::Resized`](crate::Event::Resized) is published.
    fn geometry(&self) -> Geometry;

    /// The identity of this device, for as long as it holds the same data.
    fn identity(&self) -> Identity;

    /// Starts `request`.
    fn submit(&self, request: Request) -> Completion;

    /// Subscribes to events from now on. A device without events returns [`EventReceiver::silent`].
    fn subscribe(&self) -> EventReceiver {
        EventReceiver::silent()
    }

    /// The copies of its data, which it revokes before another host changes it; `None` where no
    /// other host does, or the device does not support it.
    fn copies(&self) -> Option<Copies> {
        None
    }
}

/// A device as layers share it.
pub type SharedDevice = Arc<dyn Device>;

/// The contract as methods for callers. Every method starts the operation at once and returns its
/// future.
pub trait DeviceExt: Device {
    /// Reads `buffer.len()` bytes at `offset`.
    fn read(&self, offset: u64, buffer: Buffer) -> impl Future<Output = Result<Buffer, Error>> + Send + use<Self> {
        let completion = self.submit(Request::read(offset, buffer));
        async move { completion.await.into_buffer() }
    }

    /// Writes `buffer` at `offset`.
    fn write(
        &self,
        offset: u64,
        buffer: Buffer,
        fua: bool,
    ) -> impl Future<Output = Result<Buffer, Error>> + Send + use<Self> {
        let completion = self.submit(Request::write(offset, buffer, fua));
        async move { completion.await.into_buffer() }
    }

    /// Makes completed writes durable.
    fn flush(&self) -> impl Future<Output = Result<(), Error>> + Send + use<Self> {
        let completion = self.submit(Request::flush());
        async move { completion.await.result }
    }

    /// Discards a range.
    fn discard(&self, offset: u64, length: u64) -> impl Future<Output = Result<(), Error>> + Send + use<Self> {
        let completion = self.submit(Request::discard(offset, length));
        async move { completion.await.result }
    }

    /// Makes a range read as zeroes.
    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        fua: bool,
        may_discard: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<Self> {
        let completion = self.submit(Request::write_zeroes(offset, length, fua, may_discard));
        async move { completion.await.result }
    }

    /// The extents of a range.
    fn extents(&self, offset: u64, length: u64) -> impl Future<Output = Result<Vec<Extent>, Error>> + Send + use<Self> {
        let completion = self.submit(Request::extents(offset, length));
        async move {
            let response = completion.await;
            response.result.map(|()| response.extents)
        }
    }
}

impl<D: Device + ?Sized> DeviceExt for D {}

impl<D: Device + ?Sized> Device for Arc<D> {
    fn geometry(&self) -> Geometry {
        (**self).geometry()
    }

    fn identity(&self) -> Identity {
        (**self).identity()
    }

    fn submit(&self, request: Request) -> Completion {
        (**self).submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        (**self).subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        (**self).copies()
    }
}
