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

/// Whether the record is of the mount that the superblock names.
fn is_ours(state: &MountState, record: &Record) -> bool {
    (record.uuid, record.stamp) == (state.uuid, state.stamp)
}

/// The number after which the records go on: that of the last one of the mount that the superblock
/// names. So the next record is written over any other, as one of a mount that was interrupted
/// before its stamp was there, and that one stays whole until another stamp is durable. Where the
/// superblock needs none, the last of all.
pub(crate) fn last_number(state: &MountState, records: &[Record]) -> u64 {
    let last = records.iter().rfind(|record| is_ours(state, record)).or(records.last());
    last.map_or(0, |record| record.sequence)
}

/// Blocks of records that may not be in their places.
pub(crate) fn missing(state: &MountState, records: Vec<Record>) -> Result<Changes, Error> {
    let ours = records.into_iter().filter(|record| is_ours(state, record));
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

/// Writes an empty record behind that of the mount which the superblock names, then marks the
/// superblock as in use.
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
    // What was found may not be durable yet, as after a kill: the stamp, and the record that goes
    // with it. This one is written over that of the stamp before.
    device.flush().await?;
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
    let empty = area.last_if_empty().await?.filter(|record| is_ours(&state, record));
    if let Some(last) = empty {
        let begun = Begun { author, sequence: last.sequence, is_empty: true };
        return Ok(Found { state, begun, missing: Changes::new() });
    }
    let records = area.records().await?;
    let begun = Begun { author, sequence: last_number(&state, &records), is_empty: false };
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
    let Found { mut state, begun, missing } = found(device, area, uuid, block_bytes).await?;
    if !missing.is_empty() {
        bring_to_place(device, block_bytes, missing).await?;
        // The superblock may be among them: the end of a mount that died between its commit and this says *clean*.
        state = mount_state::read(device).await?;
    }
    match state.is_clean {
        true => begin_mount(device, area, &state, begun.sequence + 1, now).await,
        false => Ok(begun),
    }
}
