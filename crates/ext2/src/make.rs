//! Makes a new, empty file system, with the layout of `mke2fs` for the same size.
//!
//! ```text
//!   group   copy of superblock and descriptors (groups 0, 1, powers of 3, 5 and 7) | bitmap of blocks | bitmap of inodes | inodes | content
//! ```
//! Once this has begun the old content is not a file system any more. The new one is valid only at
//! the end: until then its superblock is missing or *not clean*.

use std::sync::Arc;

use block::device::DeviceExt;
use block::{Buffer, Geometry, SharedDevice};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

use crate::blocks::{Access, Blocks, Object, Operation};
use crate::descriptor::{DESCRIPTOR_BYTES, DescriptorRaw};
use crate::error::{Error, ErrorKind};
use crate::features::{COMPAT_DIR_INDEX, COMPAT_EXT_ATTR, INCOMPAT_FILETYPE, RO_LARGE_FILE, RO_SPARSE_SUPER};
use crate::inode::{DIRECT_BLOCKS, FileType, Inode, set_extra_bytes};
use crate::layout::Layout;
use crate::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, OPERATION_BLOCKS_MAX, WRITES_IN_FLIGHT};
use crate::numbers::{BlockNumber, GroupNumber, InodeNumber};
use crate::plain::PlainBlocks;
use crate::superblock::{FLAG_SIGNED_HASH, MAGIC, STATE_CLEAN, SUPERBLOCK_BYTES, SuperblockRaw};
use crate::time::Timestamp;
use crate::work::Work;
use crate::{bitmap, directory, entry, inodes, tree};

/// The first inode that is not reserved: `lost+found`.
const FIRST_INODE: u32 = 11;
/// Bytes of `lost+found`, so that `e2fsck` need not allocate blocks for it.
const LOST_FOUND_BYTES: u64 = 16 << 10;
/// Most of its blocks: all are named in its inode.
const LOST_FOUND_BLOCKS_MAX: u64 = DIRECT_BLOCKS as u64;
/// Below this many bytes blocks are of 1 KiB, as with `mke2fs`.
const SMALL_BYTES: u64 = 512 << 20;
/// Below this many bytes there are fewer inodes.
const FLOPPY_BYTES: u64 = 3 << 20;
/// From this many bytes on there are fewer inodes, too.
const BIG_BYTES: u64 = 4 << 40;
/// Least blocks of content of the last group; a smaller one is left out.
const LAST_GROUP_BLOCKS_MIN: u32 = 50;

/// The parameters of a new file system.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// Bytes of a block: 1024, 2048 or 4096; by default 4096, and 1024 on devices of less than 512
    /// MiB.
    pub block_bytes: Option<usize>,
    /// Bytes of the device for each inode; by default 16384, and less on small devices.
    pub bytes_per_inode: Option<u64>,
    /// Bytes of an inode: 128, or 256 with times of nanoseconds.
    pub inode_bytes: usize,
    /// Name of the file system, at most 16 bytes.
    pub label: Vec<u8>,
    /// Identifier of the file system.
    pub uuid: Uuid,
    /// Seed of the hashes of names. To be kept secret: with it an attacker can choose names that
    /// collide, and make directories slow.
    pub hash_seed: Uuid,
    /// Share of the blocks that only the super-user may use.
    pub reserved_percent: u32,
    /// The time of making.
    pub now: Timestamp,
}

impl MakeOptions {
    /// The defaults of `mke2fs`.
    pub fn new(uuid: Uuid, hash_seed: Uuid, now: Timestamp) -> Self {
        Self {
            block_bytes: None,
            bytes_per_inode: None,
            inode_bytes: 256,
            label: Vec::new(),
            uuid,
            hash_seed,
            reserved_percent: 5,
            now,
        }
    }
}

/// The sizes of the new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks.
    pub block_count: u32,
    /// Inodes.
    pub inode_count: u32,
    /// Groups.
    pub group_count: u32,
}

/// Makes a file system on a device. What was on it is lost.
///
/// # Errors
/// `Invalid` for impossible options, `NoSpace` on devices that are too small, `TooLarge` on those
/// that are too large for their blocks.
pub async fn make(device: &SharedDevice, options: &MakeOptions) -> Result<Made, Error> {
    let raw = plan(&device.geometry(), options)?;
    let mut layout = Layout::new(&raw, u64::from(raw.blocks_count.get()))?;
    let mut descriptors = describe(&layout)?;
    layout.set_groups(&descriptors)?;
    // Removes the old superblock and the marks of other formats.
    device.write_zeroes(0, head_bytes(device), false, false).await?;
    device.flush().await?;
    write_groups(device, &layout).await?;
    let mut raw = raw;
    raw.free_blocks_count =
        descriptors.iter().map(|group| u32::from(group.free_blocks_count.get())).sum::<u32>().into();
    raw.free_inodes_count = (layout.inode_count - (FIRST_INODE - 1)).into();
    descriptors[0].free_inodes_count = ((layout.inodes_per_group - (FIRST_INODE - 1)) as u16).into();
    write_head(device, &layout, &raw, &descriptors, GroupNumber(0)).await?;
    device.flush().await?;
    make_directories(device, &layout, options.now).await?;
    copy_heads(device, &layout).await?;
    Ok(Made {
        block_bytes: layout.block_bytes,
        block_count: layout.block_count,
        inode_count: layout.inode_count,
        group_count: layout.group_count(),
    })
}

/// Bytes at the start of the device where other formats have their marks.
fn head_bytes(device: &SharedDevice) -> u64 {
    (64 << 10).min(device.geometry().size_bytes)
}

/// The superblock, without the counts of free blocks and inodes.
fn plan(geometry: &Geometry, options: &MakeOptions) -> Result<SuperblockRaw, Error> {
    let (device_bytes, device_block) = (geometry.size_bytes, geometry.logical_block_bytes as usize);
    let default = if device_bytes < SMALL_BYTES { BLOCK_BYTES_MIN.max(device_block) } else { BLOCK_BYTES_MAX };
    let block_bytes = options.block_bytes.unwrap_or(default);
    let is_possible = block_bytes.is_power_of_two()
        && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes)
        && [128, 256].contains(&options.inode_bytes)
        && options.label.len() <= 16
        && options.reserved_percent <= 50;
    if !is_possible {
        let context =
            "blocks have 1024, 2048 or 4096 bytes, inodes 128 or 256, a label at most 16, and half may be reserved";
        return Err(Error::new(ErrorKind::Invalid, context));
    }
    if block_bytes < device_block {
        let context =
            format!("the device has blocks of {device_block} bytes: those of the file system cannot be smaller");
        return Err(Error::new(ErrorKind::Invalid, context));
    }
    let count = u32::try_from(device_bytes / block_bytes as u64);
    let block_count = count.map_err(|_| Error::new(ErrorKind::TooLarge, "the device has more than 2^32 blocks"))?;
    let mut raw = constants(block_bytes, options);
    size(&mut raw, block_count, block_bytes, options)?;
    let reserved = u64::from(raw.blocks_count.get()) * u64::from(options.reserved_percent) / 100;
    raw.reserved_blocks_count = (reserved as u32).into();
    Ok(raw)
}

fn constants(block_bytes: usize, options: &MakeOptions) -> SuperblockRaw {
    let mut raw = SuperblockRaw::new_zeroed();
    let now = options.now.to_low();
    let per_group = (block_bytes * 8) as u32;
    raw.first_data_block = u32::from(block_bytes == SUPERBLOCK_BYTES).into();
    raw.log_block_size = (block_bytes / SUPERBLOCK_BYTES).trailing_zeros().into();
    raw.log_fragment_size = raw.log_block_size;
    (raw.blocks_per_group, raw.fragments_per_group) = (per_group.into(), per_group.into());
    (raw.write_time, raw.check_time, raw.made_time) = (now.into(), now.into(), now.into());
    raw.mount_count_max = u16::MAX.into();
    raw.magic = MAGIC.into();
    raw.errors = 1.into();
    raw.revision = 1.into();
    raw.first_inode = FIRST_INODE.into();
    raw.inode_size = (options.inode_bytes as u16).into();
    raw.features_compatible = (COMPAT_EXT_ATTR | COMPAT_DIR_INDEX).into();
    raw.features_incompatible = INCOMPAT_FILETYPE.into();
    raw.features_read_only = (RO_SPARSE_SUPER | RO_LARGE_FILE).into();
    raw.uuid = *options.uuid.as_bytes();
    raw.volume_name[..options.label.len()].copy_from_slice(&options.label);
    for (word, bytes) in raw.hash_seed.iter_mut().zip(options.hash_seed.as_bytes().as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes).into();
    }
    raw.default_hash_version = 1;
    // User attributes and access lists, as with mke2fs.
    raw.default_mount_options = 0xc.into();
    raw.flags = FLAG_SIGNED_HASH.into();
    if options.inode_bytes > 128 {
        (raw.extra_inode_bytes_min, raw.extra_inode_bytes_wanted) = (32.into(), 32.into());
    }
    raw
}

/// Sets the counts of blocks, groups and inodes.
fn size(raw: &mut SuperblockRaw, block_count: u32, block_bytes: usize, options: &MakeOptions) -> Result<(), Error> {
    let too_small = || Error::new(ErrorKind::NoSpace, "the device is too small for a file system");
    let first = raw.first_data_block.get();
    let mut block_count = block_count;
    let bytes = u64::from(block_count) * block_bytes as u64;
    let default = match bytes {
        0..FLOPPY_BYTES => 8192,
        FLOPPY_BYTES..SMALL_BYTES => 4096,
        SMALL_BYTES..BIG_BYTES => 16384,
        _ => 32768,
    };
    let ratio = options.bytes_per_inode.unwrap_or(default).max(block_bytes as u64);
    let wanted = (bytes / ratio).clamp(u64::from(FIRST_INODE) + 5, u64::from(u32::MAX));
    // A last group without room for content is left out; the others then have more inodes.
    loop {
        if block_count <= first + LAST_GROUP_BLOCKS_MIN {
            return Err(too_small());
        }
        let per_group = raw.blocks_per_group.get();
        let groups = (block_count - first).div_ceil(per_group);
        raw.blocks_count = block_count.into();
        let inodes = inodes_per_group(wanted, groups, block_bytes, options.inode_bytes);
        raw.inodes_per_group = inodes.into();
        let all = u64::from(inodes) * u64::from(groups);
        raw.inodes_count = u32::try_from(all).map_err(|_| Error::from(ErrorKind::TooLarge))?.into();
        let layout = Layout::new(raw, u64::from(block_count))?;
        let last = GroupNumber(groups - 1);
        let overhead = layout.head_blocks(last) + 2 + layout.inode_table_blocks();
        if layout.blocks_of_group(last) >= overhead + LAST_GROUP_BLOCKS_MIN {
            return Ok(());
        }
        if groups == 1 {
            return Err(too_small());
        }
        block_count = first + (groups - 1) * per_group;
    }
}

/// Inodes of a group: as many as fill their blocks, and a multiple of eight, so that the bitmap has
/// whole bytes.
fn inodes_per_group(wanted: u64, groups: u32, block_bytes: usize, inode_bytes: usize) -> u32 {
    let per_block = (block_bytes / inode_bytes) as u64;
    let per_group = wanted.div_ceil(u64::from(groups)).next_multiple_of(per_block) & !7;
    per_group.clamp(8, (block_bytes * 8) as u64) as u32
}

/// The descriptors of groups without files.
fn describe(layout: &Layout) -> Result<Vec<DescriptorRaw>, Error> {
    let mut descriptors = Vec::with_capacity(layout.group_count() as usize);
    for group in (0..layout.group_count()).map(GroupNumber) {
        let first = layout.first_block(group).0 + layout.head_blocks(group);
        let used = layout.head_blocks(group) + 2 + layout.inode_table_blocks();
        let free = layout.blocks_of_group(group).checked_sub(used);
        let free = free.ok_or_else(|| Error::new(ErrorKind::NoSpace, "so many inodes leave no room for content"))?;
        descriptors.push(DescriptorRaw {
            block_bitmap: first.into(),
            inode_bitmap: (first + 1).into(),
            inode_table: (first + 2).into(),
            free_blocks_count: (free as u16).into(),
            free_inodes_count: (layout.inodes_per_group as u16).into(),
            // The root directory.
            directories_count: u16::from(group.0 == 0).into(),
            ..DescriptorRaw::default()
        });
    }
    Ok(descriptors)
}

async fn write_groups(device: &SharedDevice, layout: &Layout) -> Result<(), Error> {
    let groups = (0..layout.group_count()).map(|group| write_group(device, layout, GroupNumber(group)));
    stream::iter(groups).buffer_unordered(WRITES_IN_FLIGHT).try_for_each(|()| async { Ok(()) }).await
}

/// Bitmaps and empty inodes of a group.
async fn write_group(device: &SharedDevice, layout: &Layout, group: GroupNumber) -> Result<(), Error> {
    let places = layout.group(group)?;
    let block_bytes = layout.block_bytes;
    let mut bitmaps = Buffer::zeroed(2 * block_bytes);
    let (blocks, inodes) = bitmaps.split_at_mut(block_bytes);
    let used = layout.head_blocks(group) + 2 + layout.inode_table_blocks();
    // Blocks beyond the end of the group count as used.
    let all = (block_bytes * 8) as u32;
    (0..used).chain(layout.blocks_of_group(group)..all).for_each(|index| bitmap::set(blocks, index));
    let reserved = if group.0 == 0 { FIRST_INODE - 1 } else { 0 };
    (0..reserved).chain(layout.inodes_per_group..all).for_each(|index| bitmap::set(inodes, index));
    let offset = |block: BlockNumber| u64::from(block.0) * block_bytes as u64;
    device.write(offset(places.block_bitmap), bitmaps, false).await?;
    let table_bytes = u64::from(layout.inode_table_blocks()) * block_bytes as u64;
    device.write_zeroes(offset(places.inode_table), table_bytes, false, true).await?;
    Ok(())
}

/// Writes a copy of the superblock and of all descriptors at the beginning of a group.
async fn write_head(
    device: &SharedDevice,
    layout: &Layout,
    raw: &SuperblockRaw,
    descriptors: &[DescriptorRaw],
    group: GroupNumber,
) -> Result<(), Error> {
    let block_bytes = layout.block_bytes;
    let place = layout.superblock_place();
    let in_block = if group.0 == 0 { place.offset } else { 0 };
    let mut raw = raw.clone();
    raw.group_number = (group.0 as u16).into();
    let mut first = Buffer::zeroed(block_bytes);
    first[in_block..in_block + SUPERBLOCK_BYTES].copy_from_slice(raw.as_bytes());
    let offset = u64::from(layout.first_block(group).0) * block_bytes as u64;
    device.write(offset, first, false).await?;
    let per_block = layout.descriptors_per_block() as usize;
    for (index, part) in descriptors.chunks(per_block).enumerate() {
        let mut block = Buffer::zeroed(block_bytes);
        for (place, descriptor) in block.chunks_exact_mut(DESCRIPTOR_BYTES).zip(part) {
            place.copy_from_slice(descriptor.as_bytes());
        }
        device.write(offset + (index as u64 + 1) * block_bytes as u64, block, false).await?;
    }
    Ok(())
}

/// Makes the root directory and `lost+found`, then marks the superblock clean.
async fn make_directories(device: &SharedDevice, layout: &Layout, now: Timestamp) -> Result<(), Error> {
    let blocks = PlainBlocks::with_block_bytes(Arc::clone(device), layout.block_bytes);
    let operation = blocks.begin(Access::Change).await?;
    let mut work = Work {
        operation,
        layout: Arc::new(layout.clone()),
        now,
        blocks_max: OPERATION_BLOCKS_MAX,
        may_use_reserved: true,
    };
    let mut root = new_directory(&mut work, InodeNumber::ROOT, 0o755).await?;
    root.links_count = 3;
    directory::begin(&mut work, &mut root, InodeNumber::ROOT).await?;
    let number = inodes::take(&mut work, GroupNumber(0), true).await?;
    let mut found = new_directory(&mut work, number, 0o700).await?;
    directory::begin(&mut work, &mut found, InodeNumber::ROOT).await?;
    let found_bytes = LOST_FOUND_BYTES.min(LOST_FOUND_BLOCKS_MAX * layout.block_bytes as u64);
    while found.size < found_bytes {
        let (_, block) = tree::append_block(&mut work, &mut found).await?;
        entry::fill(work.operation.change(block, Object::Directory(number)).await?, &[]);
    }
    work.store(&found).await?;
    directory::insert(&mut work, &mut root, b"lost+found", number, FileType::Directory).await?;
    work.store(&root).await?;
    work.superblock_mut().await?.state = STATE_CLEAN.into();
    work.operation.end().await?;
    blocks.commit().await
}

async fn new_directory<O: Operation>(
    work: &mut Work<O>,
    number: InodeNumber,
    permissions: u16,
) -> Result<Inode, Error> {
    let (now, extra_bytes) = (work.now, work.layout.extra_inode_bytes);
    let has_extra = set_extra_bytes(work.inode_bytes_mut(number).await?, extra_bytes);
    Ok(Inode { permissions, ..Inode::new(number, FileType::Directory, now, has_extra) })
}

/// Writes copies of the present superblock and descriptors, in the groups that have them.
async fn copy_heads(device: &SharedDevice, layout: &Layout) -> Result<(), Error> {
    let blocks = PlainBlocks::with_block_bytes(Arc::clone(device), layout.block_bytes);
    let operation = blocks.begin(Access::Read).await?;
    let layout = Arc::new(layout.clone());
    let now = Timestamp::default();
    let blocks_max = OPERATION_BLOCKS_MAX;
    let mut work = Work { operation, layout: Arc::clone(&layout), now, blocks_max, may_use_reserved: false };
    let raw = work.superblock().await?;
    let mut descriptors = Vec::new();
    for group in (0..layout.group_count()).map(GroupNumber) {
        descriptors.push(work.descriptor(group).await?);
    }
    for group in (1..layout.group_count()).map(GroupNumber).filter(|group| layout.has_superblock(*group)) {
        write_head(device, &layout, &raw, &descriptors, group).await?;
    }
    device.flush().await?;
    Ok(())
}
