//! The device contract.
//!
//! - Requests may run in parallel. A layer that could reorder overlapping ones serialises them with the shared
//!   [`RangeLock`](crate::range_lock::RangeLock): changes take effect in the order they were submitted, and a read sees all that were
//!   submitted before it. One that is submitted while the read is under way it may see or not, sector by sector.
//! - The operation is under way when [`Device::submit`] returns, whether or not the completion is awaited.
//! - A completed flush makes durable every write completed before the flush was submitted; a completed write with `fua` is durable.
//! - The atomic unit of a medium is 512 bytes unless it says more: writes in flight at a power loss land, do not land, or land in
//!   part of their units.
//! - Requests outside the device or off its logical blocks fail with [`ErrorKind::InvalidRange`] and change nothing.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;

use crate::completion::Completion;
use crate::error::{Error, ErrorKind};
use crate::event::EventReceiver;
use crate::request::{Extent, Operation, Request};

/// A block device.
pub trait Device: Send + Sync + 'static {
    /// Size, blocks and abilities now. They may change; an [`Event::Resized`](crate::Event::Resized) says so.
    fn geometry(&self) -> Geometry;

    /// Who this device is, for as long as it holds the same data.
    fn identity(&self) -> Identity;

    /// Starts `request`.
    fn submit(&self, request: Request) -> Completion;

    /// Events from now on. A device to which nothing ever happens returns [`EventReceiver::silent`].
    fn subscribe(&self) -> EventReceiver {
        EventReceiver::silent()
    }
}

/// A device as layers hold it.
pub type SharedDevice = Arc<dyn Device>;

/// Size, blocks and abilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, a multiple of the logical block and of nothing larger.
    pub size_bytes: u64,
    /// Unit of addressing in bytes, a power of two from 512.
    pub logical_block_bytes: u32,
    /// Unit the medium writes without reading first, in bytes.
    pub physical_block_bytes: u32,
    /// Whether completed writes may be lost until a flush (WCE).
    pub is_write_cache_volatile: bool,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Granularity of discards in bytes; `None` where discards are not supported.
    pub discard_granularity_bytes: Option<u32>,
    /// Whether discarded bytes read as zeroes.
    pub discard_reads_zeroes: bool,
    /// Largest read or write it takes at once, in bytes.
    pub transfer_bytes_max: u32,
    /// What it likes.
    pub hints: Hints,
}

/// What a device likes: requests that do otherwise are carried out just as well, more slowly. All zero where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Requests are best multiples of this, in bytes; zero where nothing is known.
    pub io_bytes_min: u32,
    /// Best size of one of many requests in sequence, in bytes; zero where nothing is known.
    pub io_bytes_optimal: u32,
    /// Offset of the first physical block that begins on the device, in bytes: not zero on a misaligned partition.
    pub physical_alignment_bytes: u32,
    /// Offset of the first discard granule that begins on the device, in bytes.
    pub discard_alignment_bytes: u32,
    /// Whether places far from each other cost more than near ones: the medium turns.
    pub is_rotational: bool,
}

impl Geometry {
    /// A plain device of `size_bytes`: 512-byte blocks, no volatile cache, discards that read as zeroes.
    pub fn plain(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            is_write_cache_volatile: false,
            is_read_only: false,
            discard_granularity_bytes: Some(4096),
            discard_reads_zeroes: true,
            transfer_bytes_max: 16 << 20,
            hints: Hints::default(),
        }
    }

    /// The request's range, if the device can do it.
    ///
    /// # Errors
    /// `InvalidRange` outside the device, off its blocks or above its largest transfer; `ReadOnly` for a mutation of a read-only device;
    /// `Unsupported` for a discard where there is none.
    pub fn check(&self, request: &Request) -> Result<ByteRange, Error> {
        let range = request.range().ok_or(ErrorKind::InvalidRange)?;
        let block = u64::from(self.logical_block_bytes);
        if !range.offset.is_multiple_of(block) || !range.length.is_multiple_of(block) {
            return Err(Error::new(ErrorKind::InvalidRange, format!("{range} are not whole blocks of {block} bytes")));
        }
        if range.end() > self.size_bytes {
            let context = format!("{range} reach past the end of the device at {}", self.size_bytes);
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        if self.is_read_only && request.is_mutation() {
            return Err(ErrorKind::ReadOnly.into());
        }
        match &request.operation {
            Operation::Read { buffer } | Operation::Write { buffer, .. }
                if buffer.len() as u64 > u64::from(self.transfer_bytes_max) =>
            {
                let context = format!("{range} are more than {} at once", self.transfer_bytes_max);
                Err(Error::new(ErrorKind::InvalidRange, context))
            }
            Operation::Discard { .. } if self.discard_granularity_bytes.is_none() => Err(ErrorKind::Unsupported.into()),
            _ => Ok(range),
        }
    }
}

/// Who a device is: three names that together never name two different contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Where it comes from: the iSCSI target name, or `file` / `memory` for local devices.
    pub target: String,
    /// The logical unit's designator (VPD 83h), or a path.
    pub unit: String,
    /// Its serial number (VPD 80h); a device that comes back with other data has another.
    pub serial: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} unit {} serial {}", self.target, self.unit, self.serial)
    }
}

/// The contract in the words callers use. Every method starts the operation at once and returns what waits for it.
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
}
