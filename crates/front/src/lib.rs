//! Front ends: the NBD server over a block device.
