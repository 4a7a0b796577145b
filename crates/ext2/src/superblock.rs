//! The superblock: 1024 bytes, 1024 bytes from the beginning of the device.

use block::device::DeviceExt;
use block::{Buffer, SharedDevice};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Error, ErrorKind};
use crate::features::Features;
use crate::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use crate::numbers::BlockNumber;

/// Bytes of a superblock.
pub const SUPERBLOCK_BYTES: usize = 1024;
/// Offset of the first one, in bytes.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// The magic number of every ext2.
pub const MAGIC: u16 = 0xef53;
/// `state`: unmounted cleanly.
pub const STATE_CLEAN: u16 = 1;
/// `state`: errors were found.
pub const STATE_ERRORS: u16 = 2;
/// `flags`: names are hashed as signed characters.
pub const FLAG_SIGNED_HASH: u32 = 1;
/// `flags`: names are hashed as unsigned characters.
pub const FLAG_UNSIGNED_HASH: u32 = 2;

/// A superblock as it is stored.
#[derive(Clone, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SuperblockRaw {
    pub inodes_count: U32,             //    0
    pub blocks_count: U32,             //    4
    pub reserved_blocks_count: U32,    //    8  for the super-user
    pub free_blocks_count: U32,        //   12
    pub free_inodes_count: U32,        //   16
    pub first_data_block: U32,         //   20  1 with blocks of 1 KiB, else 0
    pub log_block_size: U32,           //   24  1024 << this
    pub log_fragment_size: U32,        //   28
    pub blocks_per_group: U32,         //   32
    pub fragments_per_group: U32,      //   36
    pub inodes_per_group: U32,         //   40
    pub mount_time: U32,               //   44
    pub write_time: U32,               //   48
    pub mount_count: U16,              //   52
    pub mount_count_max: U16,          //   54
    pub magic: U16,                    //   56
    pub state: U16,                    //   58
    pub errors: U16,                   //   60  what to do about errors
    pub minor_revision: U16,           //   62
    pub check_time: U32,               //   64
    pub check_interval: U32,           //   68
    pub creator_os: U32,               //   72
    pub revision: U32,                 //   76
    pub reserved_uid: U16,             //   80
    pub reserved_gid: U16,             //   82
    pub first_inode: U32,              //   84  from here on of revision 1
    pub inode_size: U16,               //   88
    pub group_number: U16,             //   90  of the group that this copy is in
    pub features_compatible: U32,      //   92
    pub features_incompatible: U32,    //   96
    pub features_read_only: U32,       //  100
    pub uuid: [u8; 16],                //  104
    pub volume_name: [u8; 16],         //  120
    pub last_mounted: [u8; 64],        //  136
    pub algorithms: U32,               //  200
    pub preallocate_blocks: u8,        //  204
    pub preallocate_dir_blocks: u8,    //  205
    pub reserved_gdt_blocks: U16,      //  206
    pub journal_uuid: [u8; 16],        //  208
    pub journal_inode: U32,            //  224
    pub journal_device: U32,           //  228
    pub last_orphan: U32,              //  232  head of the list of inodes without names
    pub hash_seed: [U32; 4],           //  236
    pub default_hash_version: u8,      //  252
    pub journal_backup_type: u8,       //  253
    pub descriptor_size: U16,          //  254
    pub default_mount_options: U32,    //  256
    pub first_meta_bg: U32,            //  260
    pub made_time: U32,                //  264
    pub journal_blocks: [U32; 17],     //  268
    pub blocks_count_high: [U32; 3],   //  336
    pub extra_inode_bytes_min: U16,    //  348
    pub extra_inode_bytes_wanted: U16, // 350
    pub flags: U32,                    //  352
    pub raid_stride: U16,              //  356
    pub mmp_interval: U16,             //  358
    pub mmp_block: U64,                //  360
    pub raid_stripe_width: U32,        //  368
    pub log_groups_per_flex: u8,       //  372
    pub checksum_type: u8,             //  373
    pub padding: U16,                  //  374
    pub kib_written: U64,              //  376
    pub later: [u8; 640],              //  384  ext4's
}
const _: () = assert!(size_of::<SuperblockRaw>() == SUPERBLOCK_BYTES);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, magic) == 56);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, uuid) == 104);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, last_orphan) == 232);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, flags) == 352);
const _: () = assert!(std::mem::offset_of!(SuperblockRaw, later) == 384);

impl SuperblockRaw {
    /// A view of the superblock in its block.
    pub fn in_block(block: &[u8]) -> Result<&Self, Error> {
        let bytes = block.get(place(block.len()).range()).ok_or_else(too_short)?;
        Self::ref_from_bytes(bytes).map_err(|_| too_short())
    }

    /// As [`in_block`](Self::in_block), to be changed.
    pub fn in_block_mut(block: &mut [u8]) -> Result<&mut Self, Error> {
        let range = place(block.len()).range();
        let bytes = block.get_mut(range).ok_or_else(too_short)?;
        Self::mut_from_bytes(bytes).map_err(|_| too_short())
    }

    /// # Errors
    /// `Corrupt` when there is no ext2.
    pub fn check_magic(&self) -> Result<(), Error> {
        let is_ext2 = self.magic.get() == MAGIC;
        is_ext2.then_some(()).ok_or_else(|| Error::corrupt("there is no ext2 file system on this device"))
    }

    /// # Errors
    /// `Unsupported` for a size that is not supported.
    pub fn block_bytes(&self) -> Result<usize, Error> {
        let log = self.log_block_size.get();
        let bytes = if log <= 6 { BLOCK_BYTES_MIN << log } else { 0 };
        if (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes) {
            return Ok(bytes);
        }
        let context = format!("blocks of 1024 << {log} bytes: supported are {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}");
        Err(Error::new(ErrorKind::Unsupported, context))
    }

    /// Features; revision 0 has none.
    pub fn features(&self) -> Features {
        if self.revision.get() == 0 {
            return Features::default();
        }
        Features {
            compatible: self.features_compatible.get(),
            incompatible: self.features_incompatible.get(),
            read_only: self.features_read_only.get(),
        }
    }

    /// Whether it was unmounted cleanly and no errors were noted.
    pub fn is_clean(&self) -> bool {
        self.state.get() & (STATE_CLEAN | STATE_ERRORS) == STATE_CLEAN
    }
}

fn too_short() -> Error {
    Error::corrupt("a block is too short for a superblock")
}

/// The place of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuperblockPlace {
    /// Its block.
    pub block: BlockNumber,
    /// Offset of its first byte in the block.
    pub offset: usize,
}

impl SuperblockPlace {
    fn range(self) -> std::ops::Range<usize> {
        self.offset..self.offset + SUPERBLOCK_BYTES
    }
}

/// The place of the superblock among blocks of `block_bytes`.
pub fn place(block_bytes: usize) -> SuperblockPlace {
    if block_bytes > SUPERBLOCK_BYTES {
        SuperblockPlace { block: BlockNumber(0), offset: SUPERBLOCK_OFFSET as usize }
    } else {
        SuperblockPlace { block: BlockNumber(1), offset: 0 }
    }
}

/// Marks the superblock in its block as not unmounted cleanly.
pub fn clear_clean(block: &mut [u8]) {
    if let Ok(raw) = SuperblockRaw::in_block_mut(block) {
        raw.state = (raw.state.get() & !STATE_CLEAN).into();
    }
}

/// Reads the superblock of a device, before anything else is known.
///
/// # Errors
/// `Corrupt` when there is none.
pub async fn peek(device: &SharedDevice) -> Result<SuperblockRaw, Error> {
    let geometry = device.geometry();
    let whole = u64::from(geometry.logical_block_bytes).max(SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64);
    let no_ext2 = || Error::corrupt("the device is too small for an ext2 file system");
    if geometry.size_bytes < whole || whole > BLOCK_BYTES_MAX as u64 {
        return Err(no_ext2());
    }
    let bytes = device.read(0, Buffer::zeroed(whole as usize)).await?;
    let bytes = bytes.get(SUPERBLOCK_OFFSET as usize..).and_then(|bytes| bytes.get(..SUPERBLOCK_BYTES));
    let raw = bytes.and_then(|bytes| SuperblockRaw::read_from_bytes(bytes).ok()).ok_or_else(no_ext2)?;
    raw.check_magic()?;
    Ok(raw)
}
