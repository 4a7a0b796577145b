//! The origin in the view of its log: the device and its reports.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Error, ErrorKind, EventReceiver, Identity, SharedDevice};
use store::{OriginLosses, OriginReports};

use crate::limits::DESTAGE_WRITE_BYTES_MAX;
use crate::place::Zeroed;

/// The device of the origin, and its reports.
pub(crate) struct Origin {
    device: SharedDevice,
    pub(crate) reports: OriginReports,
}

impl Origin {
    /// `device` had this `identity` when the log was opened; `events` has received from it since
    /// before.
    pub(crate) fn new(device: SharedDevice, identity: Identity, events: EventReceiver) -> Self {
        // Copies of unflushed data need not be given up: the log has that data as dirty.
        let reports = OriginReports::new(device.clone(), identity, events, Arc::new(OriginLosses::new(|| {})));
        Self { device, reports }
    }

    /// The device for requests. The caller that sends any [checks](Self::check) the origin first.
    pub(crate) fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Refuses to send anything to an origin that became another disk.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.reports.is_refused() {
            true => Err(Error::new(ErrorKind::Gone, "the LUN behind the write log is another disk now")),
            false => Ok(()),
        }
    }

    /// Makes a range zero, or discards it.
    pub(crate) async fn zero(&self, range: ByteRange, zeroed: Zeroed) -> Result<(), Error> {
        let result = match zeroed {
            Zeroed::Discarded => self.device.discard(range.offset, range.length).await,
            _ => {
                let may_discard = zeroed == Zeroed::MayDiscard;
                self.device.write_zeroes(range.offset, range.length, false, may_discard).await
            }
        };
        match result {
            // An origin that no longer supports discards keeps its content.
            Err(error) if error.kind() == ErrorKind::Unsupported && zeroed == Zeroed::Discarded => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            result => return result,
        }
        let mut offset = range.offset;
        while offset < range.end() {
            let length = (range.end() - offset).min(DESTAGE_WRITE_BYTES_MAX);
            self.device.write(offset, Buffer::zeroed(length as usize), false).await?;
            offset += length;
        }
        Ok(())
    }
}
