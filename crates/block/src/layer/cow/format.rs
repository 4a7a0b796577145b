//! The bytes of a difference, format version 1. The page `docs/formats/difference.md` says why they are so.
//!
//! ```text
//! | header 4 KiB | map: one sector of 512 bytes for 126 chunks of the base | slots, one chunk each |
//! ```

use base::checksum::Crc32c;
use sha2::{Digest, Sha256};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, ErrorKind};
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::limits::{COW_CHUNK_BYTES_MAX, COW_CHUNK_BYTES_MIN, COW_CHUNKS_MAX};

/// First bytes of a difference, after the checksum.
const MAGIC: [u8; 8] = *b"fb-diff\0";

/// The version of this page.
const VERSION: u32 = 1;

/// Bytes of the header, and of each sector of the map: the atomic unit of the medium, so that neither is ever half new.
pub(super) const SECTOR_BYTES: usize = 512;

/// Where the map begins.
const MAP_OFFSET: u64 = 4096;

/// Slots begin at multiples of this.
const SLOT_ALIGNMENT: u64 = 4096;

/// Chunks that one sector of the map tells of.
pub(super) const ENTRIES_PER_SECTOR: usize = (SECTOR_BYTES - 8) / 4;
const _: () = assert!(ENTRIES_PER_SECTOR == 126);

/// Sector 0. Written once.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct HeaderRaw {
    /// crc32c of bytes 4..512.
    checksum: U32,
    /// [`MAGIC`].
    magic: [u8; 8],
    /// [`VERSION`].
    version: U32,
    /// Made when it was formatted.
    uuid: [u8; 16],
    /// SHA-256 of the base's target, unit and serial number, each behind its length.
    base_digest: [u8; 32],
    /// Size of the base, and of the device that both make.
    base_bytes: U64,
    /// Bytes of a chunk, a power of two.
    chunk_bytes: U32,
    /// Logical block of the base.
    logical_block_bytes: U32,
    /// Chunks that there is room for.
    slot_count: U64,
    /// Where the first of them is.
    slots_offset: U64,
    /// Zero.
    reserved: [u8; 160],
    /// The base in words, cut; only for messages.
    base_name: [u8; 256],
}
const _: () = assert!(size_of::<HeaderRaw>() == SECTOR_BYTES);
const _: () = assert!(std::mem::offset_of!(HeaderRaw, base_bytes) == 64);
const _: () = assert!(std::mem::offset_of!(HeaderRaw, base_name) == 256);

/// A sector of the map. All zero: never written, all of its chunks are the base's.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct MapSectorRaw {
    /// crc32c of the uuid and bytes 4..512.
    checksum: U32,
    /// Which sector of the map.
    index: U32,
    /// 0: the base's; ffffffff: zeroes; else the number of its slot, from 1 on.
    entries: [U32; ENTRIES_PER_SECTOR],
}
const _: () = assert!(size_of::<MapSectorRaw>() == SECTOR_BYTES);

/// Entries of one sector of the map, as numbers.
pub(super) type Entries = [u32; ENTRIES_PER_SECTOR];

/// Where everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) uuid: [u8; 16],
    pub(super) base_bytes: u64,
    pub(super) chunk_bytes: u64,
    pub(super) chunk_count: u64,
    pub(super) slot_count: u64,
    pub(super) slots_offset: u64,
}

impl Layout {
    /// The layout of a difference on a device of `device_bytes`.
    ///
    /// # Errors
    /// `InvalidRange` for a chunk size that makes no sense or a base of too many chunks, `NoSpace` when there is no room for a chunk.
    pub(super) fn new(uuid: [u8; 16], base: &Geometry, device_bytes: u64, chunk_bytes: u32) -> Result<Self, Error> {
        let is_sensible = chunk_bytes.is_power_of_two()
            && (COW_CHUNK_BYTES_MIN..=COW_CHUNK_BYTES_MAX).contains(&chunk_bytes)
            && chunk_bytes >= base.logical_block_bytes;
        if !is_sensible {
            let context = format!(
                "a chunk has {COW_CHUNK_BYTES_MIN} to {COW_CHUNK_BYTES_MAX} bytes, a power of two, not {chunk_bytes}"
            );
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        let chunk_bytes = u64::from(chunk_bytes);
        let chunk_count = base.size_bytes.div_ceil(chunk_bytes);
        if chunk_count > COW_CHUNKS_MAX {
            let context = format!("{} bytes are too many chunks of {chunk_bytes}", base.size_bytes);
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        let map_bytes = chunk_count.div_ceil(ENTRIES_PER_SECTOR as u64) * SECTOR_BYTES as u64;
        let slots_offset = (MAP_OFFSET + map_bytes).next_multiple_of(SLOT_ALIGNMENT);
        let slot_count = (device_bytes.saturating_sub(slots_offset) / chunk_bytes).min(chunk_count);
        if slot_count == 0 && chunk_count > 0 {
            let context =
                format!("{device_bytes} bytes are too few for the differences from a disk of {}", base.size_bytes);
            return Err(Error::new(ErrorKind::NoSpace, context));
        }
        Ok(Self { uuid, base_bytes: base.size_bytes, chunk_bytes, chunk_count, slot_count, slots_offset })
    }

    /// Sectors of the map.
    pub(super) fn sector_count(&self) -> usize {
        self.chunk_count.div_ceil(ENTRIES_PER_SECTOR as u64) as usize
    }

    /// Where a sector of the map is.
    pub(super) fn sector_offset(&self, sector: usize) -> u64 {
        MAP_OFFSET + (sector * SECTOR_BYTES) as u64
    }

    /// Where a slot is.
    pub(super) fn slot_offset(&self, slot: u32) -> u64 {
        self.slots_offset + u64::from(slot) * self.chunk_bytes
    }
}

/// The header's sector.
pub(super) fn emit_header(layout: &Layout, base: &Geometry, identity: &Identity) -> [u8; SECTOR_BYTES] {
    let mut base_name = [0; 256];
    let name = identity.to_string();
    let length = name.floor_char_boundary(base_name.len());
    base_name[..length].copy_from_slice(&name.as_bytes()[..length]);
    let mut header = HeaderRaw {
        checksum: U32::ZERO,
        magic: MAGIC,
        version: VERSION.into(),
        uuid: layout.uuid,
        base_digest: digest(identity),
        base_bytes: layout.base_bytes.into(),
        chunk_bytes: (layout.chunk_bytes as u32).into(),
        logical_block_bytes: base.logical_block_bytes.into(),
        slot_count: layout.slot_count.into(),
        slots_offset: layout.slots_offset.into(),
        reserved: [0; 160],
        base_name,
    };
    header.checksum = base::checksum::crc32c(&header.as_bytes()[4..]).into();
    zerocopy::transmute!(header)
}

/// What a header says, of a difference on a device of `device_bytes` over this base.
///
/// # Errors
/// `Corrupt` when it is none, damaged, or of another base; `Unsupported` for a later version.
pub(super) fn parse_header(
    bytes: &[u8],
    device_bytes: u64,
    base: &Geometry,
    identity: &Identity,
) -> Result<Layout, Error> {
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, what.to_owned());
    let (header, _) = HeaderRaw::read_from_prefix(bytes).map_err(|_| corrupt("a header has 512 bytes"))?;
    if header.magic != MAGIC {
        return Err(corrupt("this is no difference from a base volume"));
    }
    if base::checksum::crc32c(&header.as_bytes()[4..]) != header.checksum.get() {
        return Err(corrupt("the header of the difference is damaged"));
    }
    if header.version.get() != VERSION {
        let context = format!("this difference has version {}; this program reads {VERSION}", header.version);
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let is_same =
        header.base_digest == digest(identity) && header.logical_block_bytes.get() == base.logical_block_bytes;
    if !is_same || header.base_bytes.get() > base.size_bytes {
        let name = String::from_utf8_lossy(&header.base_name);
        let context = format!(
            "this difference belongs to another disk: it was made for \"{}\" of {} bytes, and this is \"{identity}\" of {}",
            name.trim_end_matches('\0'),
            header.base_bytes,
            base.size_bytes
        );
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    let base = Geometry { size_bytes: header.base_bytes.get(), ..*base };
    let layout = Layout::new(header.uuid, &base, device_bytes, header.chunk_bytes.get())?;
    let is_possible = layout.slots_offset == header.slots_offset.get() && layout.slot_count >= header.slot_count.get();
    // A device that has grown since has room for more than was said.
    is_possible
        .then_some(Layout { slot_count: header.slot_count.get(), ..layout })
        .ok_or_else(|| corrupt("the header of the difference describes an impossible layout, or its device was cut"))
}

fn digest(identity: &Identity) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in [&identity.target, &identity.unit, &identity.serial] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    digest.finalize().into()
}

/// A sector of the map.
pub(super) fn emit_sector(uuid: &[u8; 16], index: usize, entries: &Entries) -> [u8; SECTOR_BYTES] {
    let mut sector = MapSectorRaw { checksum: U32::ZERO, index: (index as u32).into(), entries: entries.map(U32::new) };
    sector.checksum = sector_checksum(uuid, sector.as_bytes()).into();
    zerocopy::transmute!(sector)
}

/// The entries of a sector of the map; `None` when it was never written.
///
/// # Errors
/// `Corrupt` when it is damaged or another one.
pub(super) fn parse_sector(uuid: &[u8; 16], index: usize, bytes: &[u8]) -> Result<Option<Entries>, Error> {
    if bytes.len() == SECTOR_BYTES && bytes.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let corrupt = || Error::new(ErrorKind::Corrupt, format!("sector {index} of the map of the difference is damaged"));
    let sector = MapSectorRaw::read_from_bytes(bytes).map_err(|_| corrupt())?;
    let is_whole = sector.checksum.get() == sector_checksum(uuid, bytes) && sector.index.get() as usize == index;
    is_whole.then(|| Some(sector.entries.map(U32::get))).ok_or_else(corrupt)
}

fn sector_checksum(uuid: &[u8; 16], bytes: &[u8]) -> u32 {
    Crc32c::new().update(uuid).update(&bytes[4..]).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: [u8; 16] = [7; 16];

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn identity() -> Identity {
        Identity { target: "iqn.t".into(), unit: "u".into(), serial: "s".into() }
    }

    #[test]
    fn a_header_is_what_the_format_page_says() {
        let base = Geometry::plain(1 << 20);
        let layout = Layout::new(ID, &base, 1 << 19, 65536).unwrap();
        let header = emit_header(&layout, &base, &identity());
        assert_eq!(hex(&header[4..32]), "66622d64696666000100000007070707070707070707070707070707");
        assert_eq!(hex(&header[64..96]), "0000100000000000000001000002000007000000000000000020000000000000");
        assert!(header[96..256].iter().all(|&byte| byte == 0));
        assert_eq!(&header[256..281], b"iqn.t unit u serial s\0\0\0\0");
        assert_eq!(parse_header(&header, 1 << 19, &base, &identity()).unwrap(), layout);
        let other = Identity { serial: "t".into(), ..identity() };
        let error = parse_header(&header, 1 << 19, &base, &other).unwrap_err();
        assert!(error.to_string().contains("serial s") && error.to_string().contains("serial t"), "{error}");
        let smaller = Geometry::plain(1 << 19);
        assert_eq!(parse_header(&header, 1 << 19, &smaller, &identity()).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(parse_header(&header, 1 << 18, &base, &identity()).unwrap_err().kind(), ErrorKind::Corrupt);
        for at in 0..SECTOR_BYTES {
            let mut damaged = header;
            damaged[at] ^= 1;
            assert!(parse_header(&damaged, 1 << 19, &base, &identity()).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_sector_of_the_map_is_what_the_format_page_says() {
        let mut entries = [0; ENTRIES_PER_SECTOR];
        (entries[0], entries[125]) = (0x0403_0201, u32::MAX);
        let sector = emit_sector(&ID, 9, &entries);
        assert_eq!((hex(&sector[4..12]), hex(&sector[504..])), ("0900000001020304".into(), "00000000ffffffff".into()));
        assert_eq!(parse_sector(&ID, 9, &sector).unwrap(), Some(entries));
        assert_eq!(parse_sector(&ID, 9, &[0; SECTOR_BYTES]).unwrap(), None);
        assert!(parse_sector(&ID, 8, &sector).is_err(), "another sector's");
        assert!(parse_sector(&[8; 16], 9, &sector).is_err(), "another difference's");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse_header(&bytes, 1 << 20, &Geometry::plain(1 << 20), &identity());
            let _ = parse_sector(&ID, 0, &bytes);
        }
    }
}
