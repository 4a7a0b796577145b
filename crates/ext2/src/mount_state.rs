//! What the superblock says of whoever has the file system mounted, or had it last.
//!
//! Every program that mounts an ext2 to change it, and `e2fsck`, leaves a time or a count there. So whoever finds its
//! own [`Stamp`] again knows that nobody else has changed the file system since.

use block::SharedDevice;
use uuid::Uuid;

use crate::error::Error;
use crate::features::Features;
use crate::numbers::BlockNumber;
use crate::superblock::{self, STATE_CLEAN, STATE_ERRORS, SuperblockRaw};
use crate::time::Timestamp;

/// What tells one mount from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// When it was mounted last.
    pub mount_time: u32,
    /// When its superblock was written last, as whoever wrote it says.
    pub write_time: u32,
    /// When it was checked last.
    pub check_time: u32,
    /// How often it was mounted since.
    pub mount_count: u16,
}

/// What a superblock says of its file system before anything else is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountState {
    /// Who had it last.
    pub stamp: Stamp,
    /// Whether it was unmounted cleanly, and nobody found errors.
    pub is_clean: bool,
    /// Whether somebody found errors.
    pub has_errors: bool,
    /// Which file system it is.
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

/// What the superblock of a device says.
///
/// # Errors
/// `Corrupt` when there is no ext2, `Unsupported` for one that cannot even be read.
pub async fn read(device: &SharedDevice) -> Result<MountState, Error> {
    let raw = superblock::peek(device).await?;
    Features::check_readable(raw.features())?;
    MountState::of(&raw)
}

/// The block that the superblock is in.
pub fn block(block_bytes: usize) -> BlockNumber {
    superblock::place(block_bytes).block
}

/// Says in the block of the superblock that it is mounted from now on; the stamp by which this mount is known. It
/// differs from all before.
pub fn begin(block: &mut [u8], now: Timestamp) -> Result<Stamp, Error> {
    let raw = SuperblockRaw::in_block_mut(block)?;
    let now = now.to_low();
    raw.mount_time = now.into();
    raw.write_time = now.into();
    raw.mount_count = raw.mount_count.get().wrapping_add(1).into();
    raw.state = (raw.state.get() & !STATE_CLEAN).into();
    Ok(MountState::of(raw)?.stamp)
}

/// Says in the block of the superblock that it was unmounted cleanly.
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
