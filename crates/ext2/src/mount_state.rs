//! The last mount of a file system, from its superblock.
//!
//! Every program that mounts an ext2 for changes, and `e2fsck`, changes a time or a count there. So
//! a mount that finds its own [`Stamp`] again knows that no other program has changed the file
//! system since.

use block::SharedDevice;
use uuid::Uuid;

use crate::error::Error;
use crate::features::Features;
use crate::numbers::BlockNumber;
use crate::superblock::{self, STATE_CLEAN, STATE_ERRORS, SuperblockRaw};
use crate::time::Timestamp;

/// Identifies a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// When it was mounted last.
    pub mount_time: u32,
    /// When its superblock was written last, according to the writer's clock.
    pub write_time: u32,
    /// When it was checked last.
    pub check_time: u32,
    /// How often it was mounted since.
    pub mount_count: u16,
}

/// State of the file system in the superblock, before anything else is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountState {
    /// The stamp of the last mount.
    pub stamp: Stamp,
    /// Whether it was unmounted cleanly, and no errors were noted.
    pub is_clean: bool,
    /// Whether errors were noted.
    pub has_errors: bool,
    /// Identifier of the file system.
    pub uuid: Uuid,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks.
    pub block_count: u32,
}

impl MountState {
    fn of(raw: &SuperblockRaw) -> Result<Self, Error> {
        Ok(Self {
            stamp: Stamp {
                mount_time: raw.mount_time.get(),
                write_time: raw.write_time.get(),
                check_time: raw.check_time.get(),
                mount_count: raw.mount_count.get(),
            },
            is_clean: raw.is_clean(),
            has_errors: raw.state.get() & STATE_ERRORS != 0,
            uuid: Uuid::from_bytes(raw.uuid),
            block_bytes: raw.block_bytes()?,
            block_count: raw.blocks_count.get(),
        })
    }
}

/// Reads the state of a device's file system.
///
/// # Errors
/// `Corrupt` when there is no ext2, `Unsupported` for one that cannot even be read.
pub async fn read(device: &SharedDevice) -> Result<MountState, Error> {
    let raw = superblock::peek(device).await?;
    Features::check_readable(raw.features())?;
    MountState::of(&raw)
}

/// The block of the superblock.
pub fn block(block_bytes: usize) -> BlockNumber {
    superblock::place(block_bytes).block
}

/// Marks the file system mounted, in the block of the superblock. Returns the stamp of this mount,
/// which differs from all before.
pub fn begin(block: &mut [u8], now: Timestamp) -> Result<Stamp, Error> {
    let raw = SuperblockRaw::in_block_mut(block)?;
    let now = now.to_low();
    raw.mount_time = now.into();
    raw.write_time = now.into();
    raw.mount_count = raw.mount_count.get().wrapping_add(1).into();
    raw.state = (raw.state.get() & !STATE_CLEAN).into();
    Ok(MountState::of(raw)?.stamp)
}

/// Marks the file system unmounted cleanly, in the block of the superblock.
pub fn end(block: &mut [u8]) -> Result<(), Error> {
    let raw = SuperblockRaw::in_block_mut(block)?;
    raw.state = (raw.state.get() | STATE_CLEAN).into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn each_mount_has_a_stamp_of_its_own_and_the_state_says_whether_it_ended() {
        let mut block = [0; 4096];
        let raw = SuperblockRaw::in_block_mut(&mut block).unwrap();
        raw.zero();
        (raw.log_block_size, raw.state) = (2.into(), STATE_CLEAN.into());
        let before = MountState::of(raw).unwrap();
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
        let (first, second) = (begin(&mut block, now).unwrap(), begin(&mut block, now).unwrap());
        assert!(before.is_clean && first != before.stamp && first != second);
        let during = MountState::of(SuperblockRaw::in_block(&block).unwrap()).unwrap();
        assert!(!during.is_clean && during.stamp == second);
        end(&mut block).unwrap();
        let after = MountState::of(SuperblockRaw::in_block(&block).unwrap()).unwrap();
        assert!(after.is_clean && after.stamp == second, "the end leaves the stamp");
    }
}
