//! The header of one copy: which store it is of, and where it was written.

use base::checksum::crc32c;
use block::{Error, ErrorKind};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::SUPERBLOCK_BYTES;

/// The first bytes after the checksum of every store.
pub const MAGIC: [u8; 8] = *b"forebay\0";

/// Version of the envelope: this header and the placing of the copies.
pub(super) const ENVELOPE_VERSION: u32 = 1;

/// What all kinds of store have in common.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct HeaderRaw {
    /// crc32c of bytes 4..4096.
    pub checksum: U32,
    /// Version of this envelope.
    pub envelope_version: U32,
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Which kind of store, see [`StoreKind`].
    pub kind: [u8; 8],
    /// Version of that kind's format.
    pub version: U32,
    /// Bytes of payload behind this header; the rest is zero.
    pub payload_bytes: U32,
    /// Made when the store was formatted; every other structure of the store repeats it.
    pub uuid: [u8; 16],
    /// Grows by one with each write.
    pub sequence: U64,
    /// Byte offset this copy was written to.
    pub place: U64,
    /// Size of the device when it was formatted.
    pub device_bytes: U64,
    /// One of the host's [`Tokens`]; 0 in a store that no host has given any.
    pub token: U64,
    /// Zero.
    pub reserved: [u8; 48],
}
const _: () = assert!(size_of::<HeaderRaw>() == 128);
const _: () = assert!(std::mem::offset_of!(HeaderRaw, magic) == 8);
const _: () = assert!(std::mem::offset_of!(HeaderRaw, uuid) == 32);
const _: () = assert!(std::mem::offset_of!(HeaderRaw, place) == 56);
const _: () = assert!(std::mem::offset_of!(HeaderRaw, token) == 72);

/// The checksum covers all of a copy from here: everything but itself.
pub(super) const COVERED_FROM: usize = std::mem::offset_of!(HeaderRaw, envelope_version);

/// Largest payload in bytes.
pub const PAYLOAD_BYTES_MAX: usize = SUPERBLOCK_BYTES - size_of::<HeaderRaw>();

/// A kind of store, as its superblock names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreKind {
    /// The kind on the device.
    pub code: [u8; 8],
    /// Version of the format that this program writes.
    pub version: u32,
    /// The oldest version that it reads.
    pub version_min: u32,
    /// The kind in messages, as in "a forebay cache".
    pub name: &'static str,
}

/// Random numbers by which a host tells a store from other copies of it. They are drawn for each
/// opening, and the host remembers them. A copy from before that opening has another token, and so
/// has one that another host used since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Token from the opening on.
    pub in_use: u64,
    /// Token from the close on.
    pub closed: u64,
}

/// Names one copy of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Made when it was formatted.
    pub uuid: Uuid,
    /// Tells it from other copies of the store, see [`Tokens`]; 0 when no host has given it one.
    pub token: u64,
}

/// Size in bytes of the device on which the store was made whose first copy is `head`; `None` when
/// that is no copy or damaged. For callers that need the end of the store to open it.
pub fn device_bytes(head: &[u8; SUPERBLOCK_BYTES]) -> Option<u64> {
    header_for(head, 0).map(|header| header.device_bytes.get())
}

/// The identity of the store of which `copy`, at `place`, is one of the two; `None` when it is
/// none, or damaged.
pub fn identity(copy: &[u8; SUPERBLOCK_BYTES], place: u64) -> Option<StoreIdentity> {
    let header = header_for(copy, place)?;
    Some(StoreIdentity { uuid: Uuid::from_bytes(header.uuid), token: header.token.get() })
}

/// The header of a whole copy that was written to `place`.
pub(super) fn header_for(copy: &[u8], place: u64) -> Option<HeaderRaw> {
    let (header, _) = HeaderRaw::read_from_prefix(copy).ok()?;
    let is_whole = header.magic == MAGIC && header.checksum.get() == crc32c(copy.get(COVERED_FROM..)?);
    (is_whole && header.place.get() == place).then_some(header)
}

/// Refuses a store of another kind, or of a version that this program does not read.
///
/// # Errors
/// `Corrupt`, naming it.
pub(super) fn check_kind(header: &HeaderRaw, kind: StoreKind) -> Result<(), Error> {
    if header.envelope_version.get() != ENVELOPE_VERSION {
        let context = format!(
            "this store was written by another version of forebay: envelope version {}, this program reads \
             {ENVELOPE_VERSION}",
            header.envelope_version
        );
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    if header.kind != kind.code {
        let found = String::from_utf8_lossy(&header.kind).trim_end_matches('\0').to_owned();
        let context = format!("not a forebay {}: this device holds a forebay store of kind \"{found}\"", kind.name);
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    if !(kind.version_min..=kind.version).contains(&header.version.get()) {
        let versions = match kind.version_min == kind.version {
            true => format!("version {}", kind.version),
            false => format!("versions {} to {}", kind.version_min, kind.version),
        };
        let context =
            format!("this forebay {} has format version {}, this program reads {versions}", kind.name, header.version);
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    Ok(())
}

/// Refuses a device of another size than the store was made on.
///
/// # Errors
/// `Corrupt`, with both sizes in bytes.
pub(super) fn check_size(header: &HeaderRaw, kind: StoreKind, device_bytes: u64) -> Result<(), Error> {
    let formatted = header.device_bytes.get();
    if formatted == device_bytes {
        return Ok(());
    }
    let (what, advice) = match formatted > device_bytes {
        true => ("was cut", "bring back what was cut off"),
        false => ("grew", "bring the device back to that size"),
    };
    let context = format!(
        "the forebay {} {what}: it was made on {formatted} bytes and the device now has {device_bytes}: {advice}, or \
         discard what is left",
        kind.name
    );
    Err(Error::new(ErrorKind::Corrupt, context))
}
