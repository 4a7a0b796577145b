//! The bytes of a difference, format version 2. `docs/formats/difference.md` gives the reasons.
//!
//! ```text
//! | superblock 4 KiB | map: one sector of 512 bytes for 126 chunks of the base | slots, one chunk each | superblock 4 KiB |
//! ```

use base::checksum::Crc32c;
use block::device::DeviceExt;
use block::{Buffer, Error, ErrorKind, SharedDevice};
use store::limits::SUPERBLOCK_BYTES;
use store::{Binding, BindingRaw, StoreKind, superblock};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, CHUNKS_MAX, CONTENTS_MAX};

/// The kind of store in the superblock.
pub const KIND: StoreKind = StoreKind { code: *b"diff\0\0\0\0", version: 2, version_min: 2, name: "difference" };

/// Bytes 4 to 12 of a difference of version 1, which had one header in 512 bytes and no superblock.
const MAGIC_OF_VERSION_1: &[u8; 8] = b"fb-diff\0";

/// Bytes of a sector of the map: the atomic unit of the medium, so that a power loss never leaves
/// one half written.
pub(crate) const SECTOR_BYTES: usize = 512;

/// Offset of the map.
const MAP_OFFSET: u64 = SUPERBLOCK_BYTES as u64;

/// Slots begin at multiples of this.
const SLOT_ALIGNMENT: u64 = 4096;

/// Chunks with an entry in one sector of the map.
pub(crate) const ENTRIES_PER_SECTOR: usize = (SECTOR_BYTES - 8) / 4;
const _: () = assert!(ENTRIES_PER_SECTOR == 126);

/// Names what a base has, as its target says.
pub type ContentId = [u8; 16];

/// Payload of the superblock.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct ParametersRaw {
    /// The base. Its size is that of the combined device.
    pub(crate) binding: BindingRaw,
    /// Generation of the base's content; 0 where the user set none.
    pub(crate) generation: U64,
    /// Count of slots.
    pub(crate) slot_count: U64,
    /// Offset of the first slot.
    pub(crate) slots_offset: U64,
    /// Bytes of a chunk, a power of two.
    pub(crate) chunk_bytes: U32,
    /// Zero.
    pub(crate) reserved: U32,
    /// Ids of what the base had when the difference was last opened; zero behind the last one. None in
    /// a difference of an earlier program, or over a base whose target keeps none.
    pub(crate) contents: [ContentId; CONTENTS_MAX],
}
const _: () = assert!(size_of::<ParametersRaw>() == 2560 + 32 + 16 * CONTENTS_MAX);

/// No id.
const NO_CONTENT: ContentId = [0; 16];

impl ParametersRaw {
    /// # Errors
    /// `Unsupported` when a name of the base is too long.
    pub(crate) fn new(layout: &Layout, binding: &Binding, generation: u64) -> Result<Self, Error> {
        Ok(Self {
            binding: binding.to_raw()?,
            generation: generation.into(),
            slot_count: layout.slot_count.into(),
            slots_offset: layout.slots_offset.into(),
            chunk_bytes: (layout.chunk_bytes as u32).into(),
            reserved: U32::ZERO,
            contents: [NO_CONTENT; CONTENTS_MAX],
        })
    }

    /// The ids of the base's content.
    pub(crate) fn contents(&self) -> Vec<ContentId> {
        self.contents.into_iter().filter(|id| *id != NO_CONTENT).collect()
    }

    /// Sets the ids of the base's content.
    ///
    /// # Errors
    /// `Unsupported` when there are too many.
    pub(crate) fn set_contents(&mut self, ids: &[ContentId]) -> Result<(), Error> {
        if ids.len() > CONTENTS_MAX {
            let context = format!(
                "a difference notes what at most {CONTENTS_MAX} paths to its base have, not {}: nobody would notice a \
                 change of the others",
                ids.len()
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        self.contents = [NO_CONTENT; CONTENTS_MAX];
        self.contents.iter_mut().zip(ids).for_each(|(place, id)| *place = *id);
        Ok(())
    }
}

/// A sector of the map. All zero: never written; its chunks are all the base's.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct MapSectorRaw {
    /// crc32c of the uuid and bytes 4..512.
    checksum: U32,
    /// Index of the sector in the map.
    index: U32,
    /// 0: the base's; ffffffff: zeroes; else the number of its slot, from 1 on.
    entries: [U32; ENTRIES_PER_SECTOR],
}
const _: () = assert!(size_of::<MapSectorRaw>() == SECTOR_BYTES);

/// Entries of one sector of the map, as numbers.
pub(crate) type Entries = [u32; ENTRIES_PER_SECTOR];

/// The offsets and sizes of all structures of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) uuid: Uuid,
    pub(crate) base_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) chunk_count: u64,
    pub(crate) slot_count: u64,
    pub(crate) slots_offset: u64,
}

impl Layout {
    /// The layout of a difference on a device of `device_bytes`.
    ///
    /// # Errors
    /// `InvalidRange` for an impossible chunk size, a base of too many chunks, or no room for a
    /// chunk.
    pub(crate) fn new(uuid: Uuid, base: &Binding, device_bytes: u64, chunk_bytes: u32) -> Result<Self, Error> {
        let is_sensible = chunk_bytes.is_power_of_two()
            && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes)
            && chunk_bytes >= base.logical_block_bytes;
        if !is_sensible {
            let context =
                format!("a chunk has {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} bytes, a power of two, not {chunk_bytes}");
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        let chunk_bytes = u64::from(chunk_bytes);
        let chunk_count = base.size_bytes.div_ceil(chunk_bytes);
        if chunk_count > CHUNKS_MAX {
            let context = format!("{} bytes are too many chunks of {chunk_bytes}", base.size_bytes);
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        let slots_end = superblock::places(device_bytes).map_or(0, |[_, last]| last);
        let map_bytes = chunk_count.div_ceil(ENTRIES_PER_SECTOR as u64) * SECTOR_BYTES as u64;
        let slots_offset = (MAP_OFFSET + map_bytes).next_multiple_of(SLOT_ALIGNMENT);
        let slot_count = (slots_end.saturating_sub(slots_offset) / chunk_bytes).min(chunk_count);
        if slot_count == 0 && chunk_count > 0 {
            let context = format!(
                "{device_bytes} bytes are too few for the differences from a disk of {}: they need at least {}",
                base.size_bytes,
                slots_offset + chunk_bytes + SUPERBLOCK_BYTES as u64
            );
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        Ok(Self { uuid, base_bytes: base.size_bytes, chunk_bytes, chunk_count, slot_count, slots_offset })
    }

    /// The layout that a superblock describes.
    ///
    /// # Errors
    /// `Corrupt` when it is impossible.
    pub(crate) fn of(uuid: Uuid, parameters: &ParametersRaw, base: &Binding, device_bytes: u64) -> Result<Self, Error> {
        let impossible =
            || Error::new(ErrorKind::Corrupt, "the superblock of the difference tells an impossible layout");
        let layout = Self::new(uuid, base, device_bytes, parameters.chunk_bytes.get()).map_err(|_| impossible())?;
        let is_told =
            layout.slots_offset == parameters.slots_offset.get() && layout.slot_count == parameters.slot_count.get();
        is_told.then_some(layout).ok_or_else(impossible)
    }

    /// Sectors of the map.
    pub(crate) fn sector_count(&self) -> usize {
        self.chunk_count.div_ceil(ENTRIES_PER_SECTOR as u64) as usize
    }

    /// Offset of a sector of the map.
    pub(crate) fn sector_offset(&self, sector: usize) -> u64 {
        MAP_OFFSET + (sector * SECTOR_BYTES) as u64
    }

    /// Offset of a slot.
    pub(crate) fn slot_offset(&self, slot: u32) -> u64 {
        self.slots_offset + u64::from(slot) * self.chunk_bytes
    }
}

/// Whether a device has a difference of version 1.
pub(crate) async fn is_version_1(device: &SharedDevice) -> bool {
    let head = device.read(0, Buffer::zeroed(SUPERBLOCK_BYTES)).await;
    head.is_ok_and(|head| head.get(4..12) == Some(MAGIC_OF_VERSION_1))
}

/// The bytes of a sector of the map.
pub(crate) fn emit_sector(uuid: Uuid, index: usize, entries: &Entries) -> [u8; SECTOR_BYTES] {
    let mut sector = MapSectorRaw { checksum: U32::ZERO, index: (index as u32).into(), entries: entries.map(U32::new) };
    sector.checksum = sector_checksum(uuid, sector.as_bytes()).into();
    zerocopy::transmute!(sector)
}

/// The entries of a sector of the map; `None` when it was never written.
///
/// # Errors
/// `Corrupt` when it is damaged, or is another sector.
pub(crate) fn parse_sector(uuid: Uuid, index: usize, bytes: &[u8]) -> Result<Option<Entries>, Error> {
    if bytes.len() == SECTOR_BYTES && bytes.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let corrupt = || Error::new(ErrorKind::Corrupt, format!("sector {index} of the map of the difference is damaged"));
    let sector = MapSectorRaw::read_from_bytes(bytes).map_err(|_| corrupt())?;
    let is_whole = sector.checksum.get() == sector_checksum(uuid, bytes) && sector.index.get() as usize == index;
    is_whole.then(|| Some(sector.entries.map(U32::get))).ok_or_else(corrupt)
}

fn sector_checksum(uuid: Uuid, bytes: &[u8]) -> u32 {
    Crc32c::new().update(uuid.as_bytes()).update(&bytes[4..]).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Identity;
    use proptest::prelude::*;

    const ID: Uuid = Uuid::from_bytes([7; 16]);

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn binding(size_bytes: u64) -> Binding {
        let identity = Identity { target: "iqn.t".into(), unit: "u".into(), serial: "s".into() };
        Binding { identity, size_bytes, logical_block_bytes: 512 }
    }

    #[test]
    fn the_parameters_are_what_the_format_page_says() {
        let base = binding(1 << 20);
        let layout = Layout::new(ID, &base, 1 << 19, 65536).unwrap();
        let parameters = ParametersRaw::new(&layout, &base, 3).unwrap();
        let bytes = parameters.as_bytes();
        assert_eq!(bytes[..2560], *base.to_raw().unwrap().as_bytes());
        let (numbers, contents) = bytes[2560..].split_at(32);
        assert_eq!(hex(numbers), "0300000000000000070000000000000000200000000000000000010000000000");
        assert!(contents.len() == 1024 && contents.iter().all(|&byte| byte == 0));
        assert_eq!(Layout::of(ID, &parameters, &base, 1 << 19).unwrap(), layout);
        let impossible = ParametersRaw { slot_count: 8.into(), ..parameters };
        assert_eq!(Layout::of(ID, &impossible, &base, 1 << 19).unwrap_err().kind(), ErrorKind::Corrupt);
        let impossible = ParametersRaw { chunk_bytes: 1000.into(), ..parameters };
        assert_eq!(Layout::of(ID, &impossible, &base, 1 << 19).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn the_contents_of_the_base_are_what_the_format_page_says() {
        let base = binding(1 << 20);
        let layout = Layout::new(ID, &base, 1 << 19, 65536).unwrap();
        let mut parameters = ParametersRaw::new(&layout, &base, 3).unwrap();
        assert_eq!(parameters.contents(), [] as [ContentId; 0]);
        parameters.set_contents(&[[1; 16], [2; 16]]).unwrap();
        assert_eq!(parameters.as_bytes()[2592..2640], [[1; 16], [2; 16], [0; 16]].concat());
        let all: Vec<ContentId> = (1..=64).map(|byte| [byte; 16]).collect();
        parameters.set_contents(&all).unwrap();
        assert_eq!((&parameters.as_bytes()[2592..3616], parameters.contents()), (&*all.concat(), all));
        parameters.set_contents(&[[3; 16]]).unwrap();
        assert_eq!(parameters.contents(), [[3; 16]]);
        let error = parameters.set_contents(&[[4; 16]; CONTENTS_MAX + 1]).unwrap_err();
        assert_eq!((error.kind(), parameters.contents()), (ErrorKind::Unsupported, vec![[3; 16]]));
    }

    #[test]
    fn a_sector_of_the_map_is_what_the_format_page_says() {
        let mut entries = [0; ENTRIES_PER_SECTOR];
        (entries[0], entries[125]) = (0x0403_0201, u32::MAX);
        let sector = emit_sector(ID, 9, &entries);
        assert_eq!((hex(&sector[4..12]), hex(&sector[504..])), ("0900000001020304".into(), "00000000ffffffff".into()));
        assert_eq!(parse_sector(ID, 9, &sector).unwrap(), Some(entries));
        assert_eq!(parse_sector(ID, 9, &[0; SECTOR_BYTES]).unwrap(), None);
        assert!(parse_sector(ID, 8, &sector).is_err(), "another sector's");
        assert!(parse_sector(Uuid::from_bytes([8; 16]), 9, &sector).is_err(), "another difference's");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse_sector(ID, 0, &bytes);
        }
    }
}
