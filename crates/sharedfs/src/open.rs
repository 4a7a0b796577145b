//! Mounting and unmounting of a device's file system.

use block::SharedDevice;
use ext2::{Access, Blocks, Error, FileSystem, Object, OpenOptions, Operation, mount_state};

use crate::blocks::SharedBlocks;
use crate::commit::Commit;
use crate::pins::SingleHost;
use crate::recovery::recover;
use crate::redo::Redo;

/// A file system of one mount.
pub type Mounted = FileSystem<SharedBlocks<Redo>>;

/// Mounts the file system of a device. The state that a crash of an earlier mount left is
/// recovered; with `is_read_only` in memory only. At most `cache_bytes` of unchanged blocks stay in
/// memory.
///
/// # Errors
/// `Corrupt` and `Unsupported` when there is no ext2, or an unsupported one; `ReadOnly`; `NotClean`
/// where `e2fsck` must run first; `NoSpace` where there is no room for the redo area.
pub async fn open(device: SharedDevice, options: OpenOptions, cache_bytes: u64) -> Result<Mounted, Error> {
    let redo = recover(&device, &options).await?;
    let block_bytes = mount_state::read(&device).await?.block_bytes;
    FileSystem::open(SharedBlocks::new(device, block_bytes, redo, SingleHost::default(), cache_bytes), options).await
}

/// Makes everything durable in its place, and marks the file system cleanly unmounted. Operations
/// that begin from then on fail.
///
/// # Errors
/// When the device fails: then the next mount recovers the file system, as after a crash.
pub async fn close(file_system: &Mounted) -> Result<(), Error> {
    let blocks = file_system.blocks();
    if blocks.is_read_only() {
        blocks.shared.refuse_operations();
        return Ok(());
    }
    let mut last = blocks.begin(Access::Change).await?;
    blocks.shared.refuse_operations();
    blocks.commit().await?;
    blocks.shared.commit.settle().await?;
    // The superblock may say *clean* only after everything else is durable in its place.
    let number = mount_state::block(blocks.block_bytes());
    mount_state::end(last.change(number, Object::Superblock).await?)?;
    last.end().await?;
    blocks.commit().await?;
    blocks.shared.commit.settle().await
}
