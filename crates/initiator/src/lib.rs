//! The iSCSI initiator: a remote LUN as a block device.
