//! Recovery: from the state that a mount or a crash left to a whole file system that is marked as
//! in use.
//!
//! | the superblock is | the area has | then |
//! |---|---|---|
//! | clean | no record that makes the area | nothing is to be done |
//! | clean | the record that made it, with the superblock's stamp | its making was interrupted: the record is applied |
//! | not clean | records with the superblock's stamp | a crash: they are applied, the older first |
//! | not clean | none with this stamp | another program mounted it since, or found errors: `e2fsck` must run |
//!
//! A mount first writes an empty record with its stamp, then stamps the superblock: so for a stamp
//! of ours there always is a record. It is not written over the last record of the stamp before,
//! which stays until the new stamp is durable, however many mounts are interrupted.

use std::sync::Arc;

use block::SharedDevice;
use block::device::DeviceExt;
use ext2::mount_state::{self, MountState};
use ext2::{Error, ErrorKind, FileSystem, OpenOptions, PlainBlocks, ReservedFile};

use crate::area::Area;
use crate::commit::Changes;
use crate::limits::{AREA_BLOCKS_MIN, AREA_BYTES_MAX, AREA_SHARE, FILE_SYSTEM_BLOCKS_MIN};
use crate::record::Record;
use crate::redo::Redo;
use crate::replay::{begin_mount, bring_to_place, last_number, missing};

/// Makes the file system on `device` whole, and marks it as in use unless it is read-only.
pub(crate) async fn recover(device: &SharedDevice, options: &OpenOptions) -> Result<Redo, Error> {
    let state = mount_state::read(device).await?;
    let plain = open_plain(device, options, true).await?;
    if !options.is_read_only {
        plain.check_changeable()?;
    }
    let file = plain.reserved_file().await?;
    let area = file.as_ref().map(|file| area_of(device, &state, file));
    let records = match &area {
        Some(area) => area.records().await?,
        None => Vec::new(),
    };
    let sequence = last_number(&state, &records);
    let missing = missing(&state, records)?;
    if options.is_read_only {
        return Ok(Redo::for_reading(Arc::clone(device), state.block_bytes, missing));
    }
    bring_to_place(device, state.block_bytes, missing).await?;
    let (area, sequence) = match area.zip(file) {
        Some((area, file)) => {
            check_reserved(&open_plain(device, options, true).await?, &file).await?;
            (area, sequence)
        }
        None => (make_area(device, options, &state).await?, 1),
    };
    let begun = begin_mount(device, &area, &state, sequence + 1, (options.wall_clock)()).await?;
    Ok(Redo::new(Arc::clone(device), state.block_bytes, area, begun, Arc::clone(&options.wall_clock)))
}

async fn open_plain(
    device: &SharedDevice,
    options: &OpenOptions,
    is_read_only: bool,
) -> Result<FileSystem<PlainBlocks>, Error> {
    let blocks = PlainBlocks::new(Arc::clone(device)).await?;
    FileSystem::open(blocks, OpenOptions { is_read_only, may_use_reserved: true, ..options.clone() }).await
}

fn area_of(device: &SharedDevice, state: &MountState, file: &ReservedFile) -> Area {
    Area::new(Arc::clone(device), state.block_bytes, file.content.clone())
}

/// # Errors
/// `NotClean` where another program has freed blocks of the area.
async fn check_reserved(plain: &FileSystem<PlainBlocks>, file: &ReservedFile) -> Result<(), Error> {
    if plain.has_all_of(file).await? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NotClean, "blocks of the redo area count as free: run e2fsck first"))
}

/// Makes the area, so that after a crash it exists or does not.
///
/// Its blocks are free until the inode leads to them, and that is one sector. The other changes are
/// in the first record by then.
async fn make_area(device: &SharedDevice, options: &OpenOptions, state: &MountState) -> Result<Area, Error> {
    let plain = open_plain(device, options, false).await?;
    let file = plain.make_reserved_file(area_blocks(state)?).await.map_err(no_room)?;
    let changes = plain.blocks().take_changes();
    let area = area_of(device, state, &file);
    if changes.len() > area.content_blocks_max() {
        // The orphans of another program's crash were freed, in more changes than a record can
        // hold.
        return Err(Error::new(ErrorKind::NotClean, "much is without a name on the file system: run e2fsck first"));
    }
    let (uuid, stamp) = (state.uuid, state.stamp);
    let record = Record { uuid, stamp, sequence: 1, makes_area: true, changes: changes.clone() };
    let only = |wanted: &[ext2::BlockNumber]| -> Changes {
        changes.iter().filter(|(number, _)| wanted.contains(number)).map(|(n, block)| (*n, block.clone())).collect()
    };
    area.write(&record).await?;
    bring_to_place(device, state.block_bytes, only(&file.tables)).await?;
    device.flush().await?;
    bring_to_place(device, state.block_bytes, only(&[file.inode_block])).await?;
    bring_to_place(device, state.block_bytes, changes).await?;
    Ok(area)
}

fn area_blocks(state: &MountState) -> Result<u32, Error> {
    if state.block_count < FILE_SYSTEM_BLOCKS_MIN {
        let context = format!(
            "a file system of {} blocks is too small for a redo area: {FILE_SYSTEM_BLOCKS_MIN} are the least",
            state.block_count
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let most = AREA_BYTES_MAX / state.block_bytes as u64;
    Ok((state.block_count / AREA_SHARE).clamp(AREA_BLOCKS_MIN, most as u32))
}

fn no_room(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoSpace => {
            Error::new(ErrorKind::NoSpace, "there is no room for the redo area: 1/16 of the file system has to be free")
        }
        _ => error,
    }
}
