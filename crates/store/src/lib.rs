//! A/B superblock, identity and checksummed record log on a block device.
