//! Mounting and unmounting of a device's file system.

use std::sync::Arc;

use block::SharedDevice;
use ext2::{Access, Blocks, Error, FileSystem, Object, OpenOptions, Operation, mount_state};

use crate::blocks::SharedBlocks;
use crate::hosts::{HostLock, Hosts};
use crate::pins::SingleHost;
use crate::recovery::recover;
use crate::redo::Redo;
use crate::shared::Shared;

/// A file system of one mount.
pub type Mounted = FileSystem<SharedBlocks<Redo>>;

/// Mounts the file system of a device. The state that a crash of an earlier mount left is
/// recovered; with `is_read_only` in memory only. At most `cache_bytes` of unchanged blocks stay in
/// memory. With `hosts` it is shared with mounts of other hosts: the lock is waited for.
///
/// # Errors
/// `Corrupt` and `Unsupported` when there is no ext2, or an unsupported one, or a device that cannot
/// be shared; `ReadOnly`; `NotClean` where `e2fsck` must run first; `NoSpace` where there is no room
/// for the redo area.
pub async fn open(
    device: SharedDevice,
    options: OpenOptions,
    cache_bytes: u64,
    hosts: Option<Hosts>,
) -> Result<Mounted, Error> {
    let lock = hosts.map(|hosts| HostLock::of(&device, hosts)).transpose()?.map(Arc::new);
    let _hold = match &lock {
        Some(lock) => {
            let hold = lock.hold(Access::Change).await?;
            lock.set_taken(hold.tenure().unwrap_or_default());
            Some(hold)
        }
        None => None,
    };
    let redo = recover(&device, &options).await?;
    let block_bytes = mount_state::read(&device).await?.block_bytes;
    let shared = Shared::new(device, block_bytes, redo, SingleHost::default(), cache_bytes, lock);
    FileSystem::open(SharedBlocks::new(shared), options).await
}

/// Makes everything durable in its place, and marks the file system cleanly unmounted, unless other
/// hosts have files open that have no name. Operations that begin from then on fail.
///
/// # Errors
/// When the device fails: then the next mount recovers the file system, as after a crash.
pub async fn close(file_system: &Mounted) -> Result<(), Error> {
    let blocks = file_system.blocks();
    if blocks.is_read_only() {
        blocks.shared.refuse_operations();
        return Ok(());
    }
    let _hold = blocks.hold(Access::Change).await?;
    let is_all_named = file_system.reclaim_unused().await?;
    let mut last = blocks.begin(Access::Change).await?;
    blocks.shared.refuse_operations();
    blocks.commit().await?;
    if !is_all_named {
        return blocks.shared.bring_out().await;
    }
    blocks.shared.settle().await?;
    // The superblock may say *clean* only after everything else is durable in its place.
    let number = mount_state::block(blocks.block_bytes());
    mount_state::end(last.change(number, Object::Superblock).await?)?;
    last.end().await?;
    blocks.commit().await?;
    blocks.shared.settle().await
}
