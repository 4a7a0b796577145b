//! Replay: blocks of whole records are written to their places, and the next mount begins behind
//! them.

use block::SharedDevice;
use block::device::DeviceExt;
use ext2::mount_state::{self, MountState};
use ext2::{Block, Error, ErrorKind, Timestamp, transfer};
use uuid::Uuid;

use crate::area::Area;
use crate::author::{Author, Begun};
use crate::commit::Changes;
use crate::record::Record;

/// Blocks of records that may not be in their places.
pub(crate) fn missing(state: &MountState, records: Vec<Record>) -> Result<Changes, Error> {
    let is_ours = |record: &Record| record.uuid == state.uuid && record.stamp == state.stamp;
    let ours = records.into_iter().filter(is_ours);
    let ours: Vec<Record> = ours.filter(|record| !state.is_clean || record.makes_area).collect();
    if !state.is_clean && (ours.is_empty() || state.has_errors) {
        let context = "the file system was not unmounted cleanly, or has errors: run e2fsck first";
        return Err(Error::new(ErrorKind::NotClean, context));
    }
    Ok(ours.into_iter().flat_map(|record| record.changes).collect())
}

/// Writes blocks to their places, durably.
pub(crate) async fn bring_to_place(device: &SharedDevice, block_bytes: usize, blocks: Changes) -> Result<(), Error> {
    if blocks.is_empty() {
        return Ok(());
    }
    transfer::write_all(device, block_bytes, blocks).await?;
    Ok(device.flush().await?)
}

/// Writes an empty record, then marks the superblock as in use.
pub(crate) async fn begin_mount(
    device: &SharedDevice,
    area: &Area,
    state: &MountState,
    sequence: u64,
    now: Timestamp,
) -> Result<Begun, Error> {
    let number = mount_state::block(state.block_bytes);
    let bytes = transfer::read_run(device, state.block_bytes, number, 1).await?;
    let mut block = Block::copy_of(&bytes);
    let author = Author { uuid: state.uuid, stamp: mount_state::begin(block.to_mut(), now)? };
    area.write(&author.empty_record(sequence)).await?;
    device.flush().await?;
    bring_to_place(device, state.block_bytes, Changes::from([(number, block)])).await?;
    Ok(Begun { author, sequence, is_empty: true })
}

/// What other hosts left.
pub(crate) struct Found {
    state: MountState,
    pub(crate) begun: Begun,
    /// Blocks that may not be in their places.
    pub(crate) missing: Changes,
}

/// Looks at a file system that other hosts may have changed since this host had it. `area`, `uuid`
/// and `block_bytes` are what this host mounted: they never change.
///
/// # Errors
/// `NotClean` when it is another file system, or a program mounted it that shares with nobody.
pub(crate) async fn found(device: &SharedDevice, area: &Area, uuid: Uuid, block_bytes: usize) -> Result<Found, Error> {
    let state = mount_state::read(device).await?;
    if (state.uuid, state.block_bytes) != (uuid, block_bytes) {
        return Err(Error::new(ErrorKind::NotClean, "it is not the file system any more that was mounted"));
    }
    let author = Author { uuid, stamp: state.stamp };
    let is_of_this = |record: &Record| (record.uuid, record.stamp) == (uuid, state.stamp);
    let empty = area.last_if_empty().await?.filter(is_of_this);
    if let Some(last) = empty {
        let begun = Begun { author, sequence: last.sequence, is_empty: true };
        return Ok(Found { state, begun, missing: Changes::new() });
    }
    let records = area.records().await?;
    let begun = Begun { author, sequence: records.last().map_or(0, |record| record.sequence), is_empty: false };
    let missing = missing(&state, records)?;
    Ok(Found { state, begun, missing })
}

/// Goes on with it: what the last of them committed is written to its place, and one that was marked
/// as clean is marked as in use.
///
/// # Errors
/// As [`found`].
pub(crate) async fn take_over(
    device: &SharedDevice,
    area: &Area,
    uuid: Uuid,
    block_bytes: usize,
    now: Timestamp,
) -> Result<Begun, Error> {
    let Found { state, begun, missing } = found(device, area, uuid, block_bytes).await?;
    bring_to_place(device, block_bytes, missing).await?;
    match state.is_clean {
        true => begin_mount(device, area, &state, begun.sequence + 1, now).await,
        false => Ok(begun),
    }
}
