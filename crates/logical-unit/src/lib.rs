//! A SCSI logical unit (device server) over a block device.
