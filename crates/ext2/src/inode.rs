//! An inode: all of a file except its name and its content.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Error;
use crate::numbers::{BlockNumber, InodeNumber};
use crate::time::Timestamp;

/// Bytes that every inode has.
pub const INODE_BYTES_MIN: usize = 128;
/// `flags`: the directory has an index.
pub const FLAG_INDEX: u32 = 0x1000;
/// `flags` under which the block numbers have another meaning, or nothing may be changed.
const FLAGS_OF_EXT4: u32 = 0x0008_0000 | 0x1000_0000;
/// Block numbers in the inode itself.
pub const DIRECT_BLOCKS: usize = 12;
/// Bytes of the block numbers; also the room of a short symbolic link.
pub const POINTER_BYTES: usize = 60;

/// The first 128 bytes of an inode as it is stored.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InodeRaw {
    pub mode: U16,            //    0
    pub uid: U16,             //    2
    pub size: U32,            //    4
    pub accessed: U32,        //    8
    pub changed: U32,         //   12
    pub modified: U32,        //   16
    pub deleted: U32,         //   20  also the next of the list of inodes without names
    pub gid: U16,             //   24
    pub links_count: U16,     //   26
    pub sectors: U32,         //   28  of 512 bytes, its indirect blocks and attributes included
    pub flags: U32,           //   32
    pub version: U32,         //   36
    pub blocks: [U32; 15],    //   40
    pub generation: U32,      //  100
    pub attributes: U32,      //  104  block number
    pub size_high: U32,       //  108  of files
    pub fragment: U32,        //  112
    pub fragment_place: U16,  //  116
    pub attributes_high: U16, // 118
    pub uid_high: U16,        //  120
    pub gid_high: U16,        //  122
    pub checksum: U16,        //  124
    pub reserved: U16,        //  126
}
const _: () = assert!(size_of::<InodeRaw>() == INODE_BYTES_MIN);
const _: () = assert!(std::mem::offset_of!(InodeRaw, blocks) == 40);
const _: () = assert!(std::mem::offset_of!(InodeRaw, attributes) == 104);

/// Additional fields of larger inodes, behind the first 128 bytes.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InodeExtraRaw {
    pub extra_bytes: U16,    //    0  how many of these are there
    pub checksum_high: U16,  //    2
    pub changed_extra: U32,  //    4
    pub modified_extra: U32, //    8
    pub accessed_extra: U32, //   12
    pub created: U32,        //   16
    pub created_extra: U32,  //   20
}
/// Bytes of it that hold all times.
const EXTRA_BYTES: usize = 24;
const _: () = assert!(size_of::<InodeExtraRaw>() == EXTRA_BYTES);

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileType {
    /// A file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    SymbolicLink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Types, with their bits in `mode` and their byte in directory entries.
const FILE_TYPES: [(FileType, u16, u8); 7] = [
    (FileType::Regular, 0o10, 1),
    (FileType::Directory, 0o04, 2),
    (FileType::CharacterDevice, 0o02, 3),
    (FileType::BlockDevice, 0o06, 4),
    (FileType::Fifo, 0o01, 5),
    (FileType::Socket, 0o14, 6),
    (FileType::SymbolicLink, 0o12, 7),
];

impl FileType {
    /// The type in an inode's mode.
    pub fn of_mode(mode: u16) -> Option<Self> {
        FILE_TYPES.iter().find(|(_, bits, _)| *bits == mode >> 12).map(|(file_type, ..)| *file_type)
    }

    /// The type in a directory entry.
    pub fn of_entry(byte: u8) -> Option<Self> {
        FILE_TYPES.iter().find(|(.., entry)| *entry == byte).map(|(file_type, ..)| *file_type)
    }

    /// Its bits in `mode`.
    pub fn mode_bits(self) -> u16 {
        self.row().1 << 12
    }

    /// Its byte in directory entries.
    pub fn entry_byte(self) -> u8 {
        self.row().2
    }

    fn row(self) -> (Self, u16, u8) {
        *FILE_TYPES.iter().find(|(file_type, ..)| *file_type == self).expect("every type has its row")
    }
}

/// An inode in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub number: InodeNumber,
    pub file_type: FileType,
    /// The twelve bits of permissions.
    pub permissions: u16,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub accessed: Timestamp,
    pub changed: Timestamp,
    pub modified: Timestamp,
    /// `None` where inodes have no room for it.
    pub created: Option<Timestamp>,
    /// When it was deleted; in the list of inodes without names the number of the next one.
    pub deleted: u32,
    pub links_count: u16,
    pub sectors: u32,
    pub flags: u32,
    /// Block numbers; for devices and short symbolic links something else.
    pub blocks: [u32; 15],
    pub generation: u32,
    /// Block of its attributes; zero for none.
    pub attributes: u32,
}

impl Inode {
    /// A new inode without content, owned by uid 0, with its initial count of links.
    pub fn new(number: InodeNumber, file_type: FileType, now: Timestamp, has_extra: bool) -> Self {
        Self {
            number,
            file_type,
            permissions: 0,
            uid: 0,
            gid: 0,
            size: 0,
            accessed: now,
            changed: now,
            modified: now,
            created: has_extra.then_some(now),
            deleted: 0,
            links_count: if file_type == FileType::Directory { 2 } else { 1 },
            sectors: 0,
            flags: 0,
            blocks: [0; 15],
            generation: 0,
            attributes: 0,
        }
    }

    /// The inode in these bytes; `None` when none was ever stored, or it was deleted.
    ///
    /// # Errors
    /// `Corrupt` when its type is unknown.
    pub fn parse(number: InodeNumber, bytes: &[u8]) -> Result<Option<Self>, Error> {
        let damaged = |what: &str| Error::corrupt(format!("{number} is damaged: {what}"));
        let (raw, rest) = InodeRaw::ref_from_prefix(bytes).map_err(|_| damaged("it is too short"))?;
        if raw.mode.get() == 0 {
            return Ok(None);
        }
        let file_type = FileType::of_mode(raw.mode.get()).ok_or_else(|| damaged("it is of no known type"))?;
        if raw.flags.get() & FLAGS_OF_EXT4 != 0 {
            return Err(damaged("its content is kept as only ext4 does"));
        }
        let extra = extra_of(rest);
        let has_high_size = file_type == FileType::Regular;
        let size_high = if has_high_size { u64::from(raw.size_high.get()) } else { 0 };
        let time = |low: U32, extra: Option<U32>| Timestamp::from_raw(low.get(), extra.map(U32::get));
        Ok(Some(Self {
            number,
            file_type,
            permissions: raw.mode.get() & 0o7777,
            uid: u32::from(raw.uid.get()) | u32::from(raw.uid_high.get()) << 16,
            gid: u32::from(raw.gid.get()) | u32::from(raw.gid_high.get()) << 16,
            size: u64::from(raw.size.get()) | size_high << 32,
            accessed: time(raw.accessed, extra.map(|extra| extra.accessed_extra)),
            changed: time(raw.changed, extra.map(|extra| extra.changed_extra)),
            modified: time(raw.modified, extra.map(|extra| extra.modified_extra)),
            created: extra.map(|extra| time(extra.created, Some(extra.created_extra))),
            deleted: raw.deleted.get(),
            links_count: raw.links_count.get(),
            sectors: raw.sectors.get(),
            flags: raw.flags.get(),
            blocks: raw.blocks.map(U32::get),
            generation: raw.generation.get(),
            attributes: raw.attributes.get(),
        }))
    }

    /// Writes it into its bytes. Fields that this type does not have stay as they are.
    pub fn emit(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let too_short = || Error::corrupt(format!("{} has too few bytes", self.number));
        let (raw, rest) = InodeRaw::mut_from_prefix(bytes).map_err(|_| too_short())?;
        raw.mode = (self.file_type.mode_bits() | self.permissions & 0o7777).into();
        (raw.uid, raw.uid_high) = ((self.uid as u16).into(), ((self.uid >> 16) as u16).into());
        (raw.gid, raw.gid_high) = ((self.gid as u16).into(), ((self.gid >> 16) as u16).into());
        raw.size = (self.size as u32).into();
        if self.file_type == FileType::Regular {
            raw.size_high = ((self.size >> 32) as u32).into();
        }
        raw.deleted = self.deleted.into();
        raw.links_count = self.links_count.into();
        raw.sectors = self.sectors.into();
        raw.flags = self.flags.into();
        raw.blocks = self.blocks.map(U32::new);
        raw.generation = self.generation.into();
        raw.attributes = self.attributes.into();
        self.emit_times(raw, rest);
        Ok(())
    }

    fn emit_times(&self, raw: &mut InodeRaw, rest: &mut [u8]) {
        if extra_of(rest).is_none() {
            raw.accessed = self.accessed.to_low().into();
            raw.changed = self.changed.to_low().into();
            raw.modified = self.modified.to_low().into();
            return;
        }
        let Ok((extra, _)) = InodeExtraRaw::mut_from_prefix(rest) else { return };
        let place = |time: Timestamp, low: &mut U32, high: &mut U32| {
            let (seconds, more) = time.to_raw();
            (*low, *high) = (seconds.into(), more.into());
        };
        place(self.accessed, &mut raw.accessed, &mut extra.accessed_extra);
        place(self.changed, &mut raw.changed, &mut extra.changed_extra);
        place(self.modified, &mut raw.modified, &mut extra.modified_extra);
        if let Some(created) = self.created {
            place(created, &mut extra.created, &mut extra.created_extra);
        }
    }

    /// Whether the target of this symbolic link is in the inode.
    pub fn is_short_link(&self, block_bytes: usize) -> bool {
        let sectors_of_attributes = if self.attributes == 0 { 0 } else { (block_bytes / 512) as u32 };
        self.file_type == FileType::SymbolicLink
            && self.sectors == sectors_of_attributes
            && self.size < POINTER_BYTES as u64
    }

    /// Whether it has block numbers.
    pub fn has_blocks(&self, block_bytes: usize) -> bool {
        match self.file_type {
            FileType::Regular | FileType::Directory => true,
            FileType::SymbolicLink => !self.is_short_link(block_bytes),
            _ => false,
        }
    }

    /// The bytes in place of the block numbers.
    pub fn pointer_bytes(&self) -> [u8; POINTER_BYTES] {
        let mut bytes = [0; POINTER_BYTES];
        for (place, number) in bytes.chunks_exact_mut(4).zip(self.blocks) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Sets the bytes in place of the block numbers: at most 60.
    pub fn set_pointer_bytes(&mut self, bytes: &[u8]) {
        let mut all = [0; POINTER_BYTES];
        all[..bytes.len()].copy_from_slice(bytes);
        for (number, place) in self.blocks.iter_mut().zip(all.as_chunks::<4>().0) {
            *number = u32::from_le_bytes(*place);
        }
    }

    /// The block of its attributes.
    pub fn attributes_block(&self) -> Option<BlockNumber> {
        (self.attributes != 0).then_some(BlockNumber(self.attributes))
    }

    /// Whether it is a directory with an index.
    pub fn has_index(&self) -> bool {
        self.file_type == FileType::Directory && self.flags & FLAG_INDEX != 0
    }
}

/// The generation of the last inode in these bytes.
pub fn generation_in(bytes: &[u8]) -> u32 {
    InodeRaw::ref_from_prefix(bytes).map_or(0, |(raw, _)| raw.generation.get())
}

/// Sets the count of extra bytes in the bytes of a new inode. Returns whether times are among them.
pub fn set_extra_bytes(bytes: &mut [u8], extra_bytes: u16) -> bool {
    let room = bytes.len().saturating_sub(INODE_BYTES_MIN);
    let extra_bytes = usize::from(extra_bytes).max(EXTRA_BYTES + 8).min(room) & !3;
    if extra_bytes >= EXTRA_BYTES {
        bytes[INODE_BYTES_MIN..INODE_BYTES_MIN + 2].copy_from_slice(&(extra_bytes as u16).to_le_bytes());
    }
    extra_bytes >= EXTRA_BYTES
}

/// The extra fields, if the inode has all of those that hold times.
fn extra_of(rest: &[u8]) -> Option<&InodeExtraRaw> {
    let (extra, _) = InodeExtraRaw::ref_from_prefix(rest).ok()?;
    (usize::from(extra.extra_bytes.get()) >= EXTRA_BYTES).then_some(extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn an_inode_is_stored_as_the_format_says_and_what_is_not_known_stays() {
        let mut bytes = [0xa5; 256];
        bytes[128..130].copy_from_slice(&32u16.to_le_bytes());
        let time = Timestamp { seconds: 0x0102_0304, nanoseconds: 1 };
        let inode = Inode {
            number: InodeNumber(12),
            file_type: FileType::Regular,
            permissions: 0o644,
            uid: 0x0001_0002,
            gid: 0x0003_0004,
            size: 0x5_0000_0006,
            accessed: time,
            changed: time,
            modified: time,
            created: Some(time),
            deleted: 0,
            links_count: 7,
            sectors: 8,
            flags: 0,
            blocks: std::array::from_fn(|index| index as u32),
            generation: 9,
            attributes: 10,
        };
        inode.emit(&mut bytes).unwrap();
        assert_eq!(
            hex(&bytes[..40]),
            "a4810200060000000403020104030201040302010000000004000700080000000000".to_owned() + "0000a5a5a5a5"
        );
        assert_eq!(hex(&bytes[40..48]), "0000000001000000");
        assert_eq!(hex(&bytes[100..128]), "090000000a00000005000000a5a5a5a5a5a5a5a501000300a5a5a5a5");
        assert_eq!(hex(&bytes[128..156]), "2000a5a504000000040000000400000004030201".to_owned() + "04000000a5a5a5a5");
        assert_eq!(Inode::parse(InodeNumber(12), &bytes).unwrap(), Some(inode));
        bytes[0] = 0;
        bytes[1] = 0;
        assert_eq!(Inode::parse(InodeNumber(12), &bytes).unwrap(), None);
    }

    #[test]
    fn types_are_told_by_modes_and_entries() {
        for (file_type, bits, byte) in FILE_TYPES {
            assert_eq!(FileType::of_mode(bits << 12 | 0o777), Some(file_type));
            assert_eq!(FileType::of_entry(byte), Some(file_type));
        }
        assert_eq!((FileType::of_mode(0), FileType::of_entry(0)), (None, None));
    }
}
