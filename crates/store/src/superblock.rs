//! The superblock: what a store is and where everything else in it lies.
//!
//! What it keeps true:
//! - There are two copies, in the first and in the last 4 KiB of the device. Whatever write the power fails at, at
//!   least one is whole.
//! - A write goes to the copy that is older (or damaged) first, then to the other, each with force unit access. So a
//!   power loss leaves the state before or the state after, and afterwards both copies are the newest: one of them may
//!   rot without harm.
//! - The newest valid copy counts. The place each copy was written to is inside its checksum, so that a write or a read
//!   that the disk misdirected is not taken for the copy.
//! - A device whose size differs from what was formatted is refused: the end would be somewhere else.
//!
//! Everything specific to one kind of store is its *payload*, a zerocopy struct of at most [`PAYLOAD_BYTES_MAX`] bytes.

use std::fmt;

use base::buffer::Buffer;
use base::checksum::crc32c;
use block::device::DeviceExt;
use block::{Device, Error, ErrorKind, SharedDevice};
use serde::Serialize;
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::{SEQUENCE_MAX, SUPERBLOCK_BYTES};

/// The first bytes after the checksum of every store.
pub const MAGIC: [u8; 8] = *b"forebay\0";

/// Version of the envelope: this header and the placing of the copies.
const ENVELOPE_VERSION: u32 = 1;

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
const COVERED_FROM: usize = std::mem::offset_of!(HeaderRaw, envelope_version);

/// The token of a store that no host has given any.
const NO_TOKEN: u64 = 0;

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

/// A superblock in memory. `T` is the kind's payload.
#[derive(Clone, Debug)]
pub struct Superblock<T> {
    kind: StoreKind,
    /// Version of the format on the device.
    version: u32,
    uuid: Uuid,
    sequence: u64,
    device_bytes: u64,
    /// State of both copies when they were read, or after the last write.
    copies: Copies,
    /// Whether the last write may or may not be durable, see [`Superblock::is_undecided`].
    is_undecided: bool,
    /// Durable with the next [`Superblock::write`], like the payload.
    token: u64,
    /// What the store keeps here. Changed freely, durable with the next [`Superblock::write`].
    pub payload: T,
}

/// State of one of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyState {
    /// Whole, and as new as the other one or newer.
    Newest,
    /// Whole. The program stopped before it had written this one, too: no damage.
    Older,
    /// All zero: erased.
    Empty,
    /// Not a copy of a store, of another store, or not what was written.
    Damaged,
    /// Reading it failed.
    Unreadable,
}

impl CopyState {
    fn is_whole(self) -> bool {
        matches!(self, Self::Newest | Self::Older)
    }
}

impl fmt::Display for CopyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Newest => "whole",
            Self::Older => "whole, and older",
            Self::Empty => "all zero",
            Self::Damaged => "damaged",
            Self::Unreadable => "unreadable",
        })
    }
}

/// State of both copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// The one in the first 4 KiB.
    pub first: CopyState,
    /// The one in the last 4 KiB.
    pub last: CopyState,
}

impl Copies {
    /// After a write.
    const ALIKE: Self = Self { first: CopyState::Newest, last: CopyState::Newest };

    /// Whether only one copy is whole. The next write mends that.
    pub fn is_one_damaged(self) -> bool {
        !(self.first.is_whole() && self.last.is_whole())
    }
}

impl fmt::Display for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "first copy {}, last copy {}", self.first, self.last)
    }
}

/// Why a copy is not used.
enum Fault {
    /// It could not be read.
    Unreadable(Error),
    /// All zero: never written, or erased.
    Empty,
    /// Not a copy of a store, or damaged.
    Damaged,
    /// Whole, but of another kind or version, or for a device of another size; with the uuid of
    /// that store.
    Foreign(Error, Uuid),
}

impl Fault {
    fn state(&self) -> CopyState {
        match self {
            Self::Unreadable(_) => CopyState::Unreadable,
            Self::Empty => CopyState::Empty,
            Self::Damaged | Self::Foreign(..) => CopyState::Damaged,
        }
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Copy> Superblock<T> {
    const PAYLOAD_BYTES: usize = {
        assert!(size_of::<T>() <= PAYLOAD_BYTES_MAX);
        size_of::<T>()
    };

    /// Writes the first superblock of a new store. What was on the device counts no longer.
    ///
    /// # Errors
    /// `NoSpace` when the device has no room for two copies; the device's own.
    pub async fn create(device: &SharedDevice, kind: StoreKind, uuid: Uuid, payload: T) -> Result<Self, Error> {
        let device_bytes = device.geometry().size_bytes;
        places(device_bytes)?;
        let mut created = Self {
            kind,
            version: kind.version,
            uuid,
            sequence: 0,
            device_bytes,
            copies: Copies { first: CopyState::Empty, last: CopyState::Empty },
            is_undecided: false,
            token: NO_TOKEN,
            payload,
        };
        created.write(device).await?;
        Ok(created)
    }

    /// Reads the newest valid copy.
    ///
    /// # Errors
    /// `Corrupt` when there is none, or when it is of another kind, version or device size, and the message says which;
    /// the device's own when neither copy could be read.
    pub async fn read(device: &SharedDevice, kind: StoreKind) -> Result<Self, Error> {
        let device_bytes = device.geometry().size_bytes;
        let [first, last] = places(device_bytes)?;
        let first = Self::read_copy(device, kind, first, device_bytes).await;
        let last = Self::read_copy(device, kind, last, device_bytes).await;
        let copies = |first, last| Copies { first, last };
        match (first, last) {
            (Ok(first), Ok(last)) if first.uuid != last.uuid => Err(of_two_stores(kind, first.uuid, last.uuid)),
            (Ok(first), Ok(last)) if first.sequence == last.sequence => Ok(first),
            (Ok(first), Ok(last)) if first.sequence > last.sequence => {
                Ok(Self { copies: copies(CopyState::Newest, CopyState::Older), ..first })
            }
            (Ok(_), Ok(last)) => Ok(Self { copies: copies(CopyState::Older, CopyState::Newest), ..last }),
            // The same store: its change to another version stopped between the two copies.
            (Ok(ours), Err(Fault::Foreign(error, uuid))) | (Err(Fault::Foreign(error, uuid)), Ok(ours))
                if uuid != ours.uuid =>
            {
                Err(beside_another(&error))
            }
            (Ok(first), Err(fault)) => Ok(Self { copies: copies(CopyState::Newest, fault.state()), ..first }),
            (Err(fault), Ok(last)) => Ok(Self { copies: copies(fault.state(), CopyState::Newest), ..last }),
            (Err(first), Err(last)) => Err(no_copy(kind, first, last)),
        }
    }

    /// Makes the payload durable: on return both copies hold it, and the store is of the version that this program
    /// writes.
    ///
    /// # Errors
    /// The device's own; the store then holds the state before or the state after.
    pub async fn write(&mut self, device: &SharedDevice) -> Result<(), Error> {
        let [first, last] = places(self.device_bytes)?;
        self.sequence += 1;
        self.is_undecided = true;
        let is_first_newest = self.copies.first == CopyState::Newest;
        let order = if is_first_newest { [last, first] } else { [first, last] };
        for place in order {
            device.write(place, self.emit(place), true).await?;
            self.is_undecided = false;
            self.copies = match place == first {
                true => Copies { first: CopyState::Newest, last: CopyState::Older },
                false => Copies { first: CopyState::Older, last: CopyState::Newest },
            };
        }
        self.copies = Copies::ALIKE;
        self.version = self.kind.version;
        Ok(())
    }

    /// Whether the last [`Superblock::write`] failed before a copy was known to be durable: after a crash it is the
    /// state before that is found, or the one that was to be written. What either of them names must stay what it is
    /// until another write has not failed.
    pub fn is_undecided(&self) -> bool {
        self.is_undecided
    }

    /// Version of the format that the store has on its device.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// How the two copies are.
    pub fn copies(&self) -> Copies {
        self.copies
    }

    /// Identifier made when the store was formatted.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Gives it the token of a store in use, or with `is_closed` of a closed one. `None` keeps the
    /// token it has.
    pub fn set_token(&mut self, tokens: Option<Tokens>, is_closed: bool) {
        if let Some(Tokens { in_use, closed }) = tokens {
            self.token = if is_closed { closed } else { in_use };
        }
    }

    async fn read_copy(device: &SharedDevice, kind: StoreKind, place: u64, device_bytes: u64) -> Result<Self, Fault> {
        let buffer = device.read(place, Buffer::zeroed(SUPERBLOCK_BYTES)).await.map_err(Fault::Unreadable)?;
        Self::parse(&buffer, kind, place, device_bytes)
    }

    fn emit(&self, place: u64) -> Buffer {
        let mut buffer = Buffer::zeroed(SUPERBLOCK_BYTES);
        let mut header = HeaderRaw {
            checksum: U32::ZERO,
            envelope_version: ENVELOPE_VERSION.into(),
            magic: MAGIC,
            kind: self.kind.code,
            version: self.kind.version.into(),
            payload_bytes: (Self::PAYLOAD_BYTES as u32).into(),
            uuid: self.uuid.into_bytes(),
            sequence: self.sequence.into(),
            place: place.into(),
            device_bytes: self.device_bytes.into(),
            token: self.token.into(),
            reserved: [0; 48],
        };
        let payload_at = size_of::<HeaderRaw>();
        buffer[..payload_at].copy_from_slice(header.as_bytes());
        buffer[payload_at..payload_at + Self::PAYLOAD_BYTES].copy_from_slice(self.payload.as_bytes());
        header.checksum = crc32c(&buffer[COVERED_FROM..]).into();
        buffer[..COVERED_FROM].copy_from_slice(header.checksum.as_bytes());
        buffer
    }

    fn parse(bytes: &[u8], kind: StoreKind, place: u64, device_bytes: u64) -> Result<Self, Fault> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(Fault::Empty);
        }
        let (header, rest) = HeaderRaw::read_from_prefix(bytes).map_err(|_| Fault::Damaged)?;
        let covered = bytes.get(COVERED_FROM..).ok_or(Fault::Damaged)?;
        if header.magic != MAGIC || header.checksum.get() != crc32c(covered) || header.place.get() != place {
            return Err(Fault::Damaged);
        }
        if header.sequence.get() > SEQUENCE_MAX {
            return Err(Fault::Damaged);
        }
        let uuid = Uuid::from_bytes(header.uuid);
        let is_ours = check_kind(&header, kind).and_then(|()| check_size(&header, kind, device_bytes));
        is_ours.map_err(|error| Fault::Foreign(error, uuid))?;
        let (payload, _) = T::read_from_prefix(rest).map_err(|_| Fault::Damaged)?;
        let (version, sequence, token) = (header.version.get(), header.sequence.get(), header.token.get());
        let (copies, is_undecided) = (Copies::ALIKE, false);
        Ok(Self { kind, version, uuid, sequence, device_bytes, copies, is_undecided, token, payload })
    }
}

/// Whether a copy names itself one of this kind, in whatever version and however damaged: asked
/// before a store is given up.
pub async fn is_named(device: &SharedDevice, kind: StoreKind) -> bool {
    let Ok(places) = places(device.geometry().size_bytes) else { return false };
    for place in places {
        let Ok(bytes) = device.read(place, Buffer::zeroed(SUPERBLOCK_BYTES)).await else { continue };
        let header = HeaderRaw::read_from_prefix(&bytes).map(|(header, _)| header);
        if header.is_ok_and(|header| header.magic == MAGIC && header.kind == kind.code) {
            return true;
        }
    }
    false
}

/// Size in bytes of the device on which the store was made whose first copy is `head`; `None` when
/// that is no copy or damaged. For callers that need the end of the store to open it.
pub fn device_bytes(head: &[u8; SUPERBLOCK_BYTES]) -> Option<u64> {
    header_for(head, 0).map(|header| header.device_bytes.get())
}

/// Names one copy of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Made when it was formatted.
    pub uuid: Uuid,
    /// Tells it from other copies of the store, see [`Tokens`]; 0 when no host has given it one.
    pub token: u64,
}

/// The identity of the store of which `copy`, at `place`, is one of the two; `None` when it is
/// none, or damaged.
pub fn identity(copy: &[u8; SUPERBLOCK_BYTES], place: u64) -> Option<StoreIdentity> {
    let header = header_for(copy, place)?;
    Some(StoreIdentity { uuid: Uuid::from_bytes(header.uuid), token: header.token.get() })
}

/// The header of a whole copy that was written to `place`.
fn header_for(copy: &[u8], place: u64) -> Option<HeaderRaw> {
    let (header, _) = HeaderRaw::read_from_prefix(copy).ok()?;
    let is_whole = header.magic == MAGIC && header.checksum.get() == crc32c(copy.get(COVERED_FROM..)?);
    (is_whole && header.place.get() == place).then_some(header)
}

/// Whether a whole last copy is at the end of `device`. It still is one where the first bytes of
/// the device have become zeroes.
///
/// # Errors
/// `NoSpace` for a device that is too small for a store, and the device's own.
pub async fn has_last_copy(device: &SharedDevice) -> Result<bool, Error> {
    let device_bytes = device.geometry().size_bytes;
    let [_, last] = places(device_bytes)?;
    let copy = device.read(last, Buffer::zeroed(SUPERBLOCK_BYTES)).await?;
    Ok(header_for(&copy, last).is_some_and(|header| header.device_bytes.get() == device_bytes))
}

/// Makes both copies zero, so that nothing on the device counts as a store any more.
///
/// # Errors
/// The device's own.
pub async fn erase(device: &SharedDevice) -> Result<(), Error> {
    for place in places(device.geometry().size_bytes)? {
        device.write(place, Buffer::zeroed(SUPERBLOCK_BYTES), true).await?;
    }
    Ok(())
}

/// Offsets of the first and the last copy.
///
/// # Errors
/// `NoSpace` when they would overlap.
pub fn places(device_bytes: u64) -> Result<[u64; 2], Error> {
    let unit = SUPERBLOCK_BYTES as u64;
    let last = (device_bytes / unit).checked_sub(1).filter(|&index| index > 0).map(|index| index * unit);
    last.map(|last| [0, last]).ok_or_else(|| {
        Error::new(ErrorKind::NoSpace, format!("a device of {device_bytes} bytes has no room for two superblocks"))
    })
}

/// The two copies are of two stores: what lies between them belongs to one of these, or to both.
fn of_two_stores(kind: StoreKind, first: Uuid, last: Uuid) -> Error {
    let context = format!(
        "the two copies of the superblock are of two {}s, {first} and {last}: one lies over the other",
        kind.name
    );
    Error::new(ErrorKind::Corrupt, context)
}

/// Likewise, where one copy is of a store that this program does not open.
fn beside_another(error: &Error) -> Error {
    let context =
        format!("the two copies of the superblock are of two stores, one of which lies over the other: {error}");
    Error::new(ErrorKind::Corrupt, context)
}

fn check_kind(header: &HeaderRaw, kind: StoreKind) -> Result<(), Error> {
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

fn check_size(header: &HeaderRaw, kind: StoreKind, device_bytes: u64) -> Result<(), Error> {
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

/// The one message for a device without a valid copy. The most telling fault comes first.
fn no_copy(kind: StoreKind, first: Fault, last: Fault) -> Error {
    match (first, last) {
        (Fault::Foreign(error, _), _) | (_, Fault::Foreign(error, _)) => error,
        (Fault::Unreadable(error), Fault::Unreadable(_)) => error,
        (Fault::Empty, Fault::Empty) => {
            Error::new(ErrorKind::Corrupt, format!("not a forebay {}: there is no superblock", kind.name))
        }
        _ => {
            let context = format!(
                "no valid superblock: not a forebay {}, or both copies (first and last 4 KiB) are damaged",
                kind.name
            );
            Error::new(ErrorKind::Corrupt, context)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::executor::block_on;
    use block::Identity;
    use block::layer::crash::{CrashLayer, Loss, Power};
    use block::memory::MemoryDevice;
    use std::sync::Arc;

    const KIND: StoreKind = StoreKind { code: *b"test\0\0\0\0", version: 3, version_min: 3, name: "test store" };
    const DEVICE_BYTES: u64 = 64 << 10;
    const LAST: u64 = DEVICE_BYTES - SUPERBLOCK_BYTES as u64;

    fn device(size_bytes: u64) -> SharedDevice {
        Arc::new(MemoryDevice::new(size_bytes, Identity::default()))
    }

    fn create(device: &SharedDevice, payload: u64) -> Superblock<U64> {
        let device = Arc::clone(device);
        block_on(async move {
            Superblock::create(&device, KIND, Uuid::from_bytes([7; 16]), U64::new(payload)).await.unwrap()
        })
    }

    fn read(device: &SharedDevice, kind: StoreKind) -> Result<Superblock<U64>, Error> {
        let device = Arc::clone(device);
        block_on(async move { Superblock::read(&device, kind).await })
    }

    #[test]
    fn the_first_copy_says_how_long_the_store_is_and_a_damaged_one_nothing() {
        let device = device(DEVICE_BYTES);
        create(&device, 1);
        let copy = |place| -> [u8; SUPERBLOCK_BYTES] {
            let bytes = block_on(device.read(place, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
            bytes[..].try_into().unwrap()
        };
        assert_eq!(device_bytes(&copy(0)), Some(DEVICE_BYTES));
        assert_eq!(device_bytes(&copy(LAST)), None, "it is the last one");
        let mut damaged = copy(0);
        damaged[SUPERBLOCK_BYTES - 1] ^= 1;
        assert_eq!(device_bytes(&damaged), None);
        assert_eq!(device_bytes(&[0; SUPERBLOCK_BYTES]), None);
    }

    #[test]
    fn a_damaged_store_still_says_what_it_is() {
        let device = device(DEVICE_BYTES);
        let is_named = |kind: StoreKind| {
            let device = Arc::clone(&device);
            block_on(async move { is_named(&device, kind).await })
        };
        assert!(!is_named(KIND), "there is nothing");
        create(&device, 1);
        block_on(device.write(512, Buffer::copy_of(&[0xa5; 512]), true)).unwrap();
        damage(&device, LAST);
        assert_eq!(read(&device, KIND).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(is_named(KIND) && is_named(StoreKind { version: 4, ..KIND }));
        assert!(!is_named(StoreKind { code: *b"other\0\0\0", ..KIND }));
        damage(&device, 0);
        assert!(!is_named(KIND));
    }

    fn damage(device: &SharedDevice, offset: u64) {
        block_on(device.write(offset, Buffer::copy_of(&[0xa5; 512]), true)).unwrap();
    }

    #[test]
    fn the_bytes_are_what_the_format_page_says() {
        let device = device(DEVICE_BYTES);
        create(&device, 0x1122_3344_5566_7788);
        let bytes = block_on(device.read(LAST, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
        let golden = [
            "01000000666f726562617900746573740000000003000000080000000707070707070707",
            "0707070707070707010000000000000000f00000000000000000010000000000",
        ]
        .concat();
        assert_eq!(hex(&bytes[4..72]), golden);
        assert_eq!(bytes[..4], crc32c(&bytes[4..]).to_le_bytes());
        assert!(bytes[72..128].iter().all(|&byte| byte == 0));
        assert_eq!(bytes[128..136], 0x1122_3344_5566_7788u64.to_le_bytes());
        assert!(bytes[136..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn both_copies_have_the_token_that_was_set_last() {
        let device = device(DEVICE_BYTES);
        let mut superblock = create(&device, 1);
        let tokens = Some(Tokens { in_use: 0x0102_0304_0506_0708, closed: 9 });
        for (tokens, is_closed, token) in
            [(None, false, 0), (tokens, false, 0x0102_0304_0506_0708), (tokens, true, 9), (None, false, 9)]
        {
            superblock.set_token(tokens, is_closed);
            let on = Arc::clone(&device);
            superblock = block_on(async move { superblock.write(&on).await.map(|()| superblock) }).unwrap();
            for place in [0, LAST] {
                let bytes = block_on(device.read(place, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
                let copy: &[u8; SUPERBLOCK_BYTES] = bytes[..].try_into().unwrap();
                assert_eq!(copy[72..80], u64::to_le_bytes(token));
                assert_eq!(identity(copy, place), Some(StoreIdentity { uuid: Uuid::from_bytes([7; 16]), token }));
                assert_eq!(identity(copy, place + 512), None);
            }
            assert_eq!(read(&device, KIND).unwrap().token, token);
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn either_copy_alone_is_enough() {
        for place in [0, LAST] {
            let device = device(DEVICE_BYTES);
            create(&device, 42);
            damage(&device, place);
            assert_eq!(read(&device, KIND).unwrap().payload.get(), 42);
        }
    }

    #[test]
    fn the_newer_copy_counts_whichever_it_is() {
        let device = device(DEVICE_BYTES);
        let mut superblock = create(&device, 1);
        for place in [0, LAST] {
            let older = block_on(device.read(place, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
            let newest = superblock.payload.get() + 1;
            superblock.payload = U64::new(newest);
            let (on, mut written) = (Arc::clone(&device), superblock.clone());
            superblock = block_on(async move {
                written.write(&on).await.unwrap();
                written
            });
            // The power failed before this one was written.
            block_on(device.write(place, older, true)).unwrap();
            assert_eq!(read(&device, KIND).unwrap().payload.get(), newest, "the copy at {place} is older");
        }
    }

    #[test]
    fn what_is_wrong_with_a_copy_is_told_until_a_write_mends_it() {
        let zeroes: fn(&SharedDevice, u64) = |device, place| {
            block_on(device.write(place, Buffer::zeroed(SUPERBLOCK_BYTES), true)).unwrap();
        };
        let other_bytes: fn(&SharedDevice, u64) = damage;
        for (wound, state) in [(zeroes, CopyState::Empty), (other_bytes, CopyState::Damaged)] {
            for place in [0, LAST] {
                let device = device(DEVICE_BYTES);
                create(&device, 42);
                assert_eq!(read(&device, KIND).unwrap().copies(), Copies::ALIKE);
                wound(&device, place);
                let mut found = read(&device, KIND).unwrap();
                let copies = found.copies();
                assert_eq!(if place == 0 { copies.first } else { copies.last }, state);
                assert!(copies.is_one_damaged(), "{copies}");
                let on = Arc::clone(&device);
                block_on(async move { found.write(&on).await.unwrap() });
                assert_eq!(read(&device, KIND).unwrap().copies(), Copies::ALIKE);
            }
        }
    }

    #[test]
    fn a_write_mends_the_damaged_copy() {
        let device = device(DEVICE_BYTES);
        create(&device, 1);
        damage(&device, LAST);
        let mut superblock = read(&device, KIND).unwrap();
        superblock.payload = U64::new(2);
        let on = Arc::clone(&device);
        block_on(async move { superblock.write(&on).await.unwrap() });
        damage(&device, 0);
        assert_eq!(read(&device, KIND).unwrap().payload.get(), 2);
    }

    #[test]
    fn without_a_copy_the_message_says_so() {
        let device = device(DEVICE_BYTES);
        let error = read(&device, KIND).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Corrupt, "not a forebay test store: there is no superblock")
        );
        create(&device, 1);
        damage(&device, 0);
        damage(&device, LAST);
        let error = read(&device, KIND).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("both copies"), "{error}");
    }

    #[test]
    fn a_sequence_that_none_reaches_is_damage() {
        let device = device(DEVICE_BYTES);
        create(&device, 1);
        let mut first = block_on(device.read(0, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
        first[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
        let checksum = crc32c(&first[4..]);
        first[..4].copy_from_slice(&checksum.to_le_bytes());
        block_on(device.write(0, first, true)).unwrap();
        assert_eq!(read(&device, KIND).unwrap().sequence, 1);
    }

    #[test]
    fn an_older_version_that_is_read_is_the_newer_one_once_it_is_written() {
        let device = device(DEVICE_BYTES);
        create(&device, 1);
        let newer = StoreKind { version: KIND.version + 1, ..KIND };
        let mut superblock = read(&device, newer).unwrap();
        assert_eq!(superblock.version(), KIND.version);
        let writing = Arc::clone(&device);
        let written = block_on(async move { superblock.write(&writing).await.map(|()| superblock.version()) });
        assert_eq!((written.unwrap(), read(&device, newer).unwrap().version()), (newer.version, newer.version));
        assert!(read(&device, KIND).unwrap_err().to_string().contains("format version 4"));
    }

    #[test]
    fn another_kind_version_or_size_is_named() {
        let small = device(DEVICE_BYTES);
        create(&small, 1);
        let other_kind = StoreKind { code: *b"other\0\0\0", ..KIND };
        let error = read(&small, other_kind).unwrap_err().to_string();
        assert!(error.contains("kind \"test\""), "{error}");
        let error = read(&small, StoreKind { version: 4, version_min: 4, ..KIND }).unwrap_err().to_string();
        assert!(error.contains("version 3") && error.contains("version 4"), "{error}");
        let error = read(&small, StoreKind { version: 5, version_min: 4, ..KIND }).unwrap_err().to_string();
        assert!(error.contains("version 3") && error.contains("versions 4 to 5"), "{error}");

        let cut = device(DEVICE_BYTES / 2);
        let first = block_on(small.read(0, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
        block_on(cut.write(0, first, true)).unwrap();
        let error = read(&cut, KIND).unwrap_err().to_string();
        assert!(error.contains("was cut") && error.contains("65536") && error.contains("32768"), "{error}");
        assert!(error.contains("bring back what was cut off, or discard"), "{error}");
    }

    /// A part of one disk was copied over another: the newer copy names a table and a log that are not there.
    #[test]
    fn a_copy_of_another_store_beside_ours_is_damage_however_new_either_is() {
        for writes in [1, 5] {
            let (ours, theirs) = (device(DEVICE_BYTES), device(DEVICE_BYTES));
            create(&ours, 1);
            let on = Arc::clone(&theirs);
            block_on(async move {
                let mut other = Superblock::create(&on, KIND, Uuid::from_bytes([8; 16]), U64::new(2)).await.unwrap();
                for _ in 1..writes {
                    other.write(&on).await.unwrap();
                }
            });
            let first = block_on(theirs.read(0, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
            block_on(ours.write(0, first, true)).unwrap();
            let error = read(&ours, KIND).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("two test stores"), "{error}");
        }
    }

    /// The same, with a store of another kind, version or size: what stands beside either copy may be the other's.
    #[test]
    fn a_copy_of_another_kind_version_or_size_beside_ours_is_damage_and_says_what_it_is() {
        let other_kind = StoreKind { code: *b"other\0\0\0", ..KIND };
        for (kind, bytes, words) in [
            (other_kind, DEVICE_BYTES, "kind \"other\""),
            (StoreKind { version: 4, version_min: 4, ..KIND }, DEVICE_BYTES, "version 4"),
            (KIND, 2 * DEVICE_BYTES, "was cut"),
        ] {
            for is_first_theirs in [true, false] {
                let (ours, theirs) = (device(DEVICE_BYTES), device(2 * DEVICE_BYTES));
                create(&ours, 1);
                let place = if is_first_theirs { 0 } else { LAST };
                let uuid = Uuid::from_bytes([8; 16]);
                let other = Superblock { kind, uuid, device_bytes: bytes, ..create(&theirs, 2) };
                block_on(ours.write(place, other.emit(place), true)).unwrap();
                let error = read(&ours, KIND).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.to_string().contains(words), "{error}");
            }
        }
    }

    /// The power failed between the two copies: either is the state of a moment, and each program reads its own.
    #[test]
    fn a_store_that_was_to_get_another_version_is_still_what_it_was_where_one_copy_says_so() {
        let ours = device(DEVICE_BYTES);
        let newer = Superblock { kind: StoreKind { version: 4, ..KIND }, sequence: 2, ..create(&ours, 1) };
        block_on(ours.write(LAST, newer.emit(LAST), true)).unwrap();
        assert_eq!(read(&ours, KIND).unwrap().sequence, 1);
        assert_eq!(read(&ours, newer.kind).unwrap().sequence, 2);
    }

    #[test]
    fn a_copy_in_the_wrong_place_does_not_count() {
        let from = device(DEVICE_BYTES);
        create(&from, 1);
        let first = block_on(from.read(0, Buffer::zeroed(SUPERBLOCK_BYTES))).unwrap();
        let to = device(DEVICE_BYTES);
        block_on(to.write(LAST, first, true)).unwrap();
        assert!(read(&to, KIND).is_err());
    }

    #[test]
    fn an_erased_store_is_none() {
        let device = device(DEVICE_BYTES);
        create(&device, 1);
        let on = Arc::clone(&device);
        block_on(async move { erase(&on).await.unwrap() });
        assert!(read(&device, KIND).unwrap_err().to_string().contains("no superblock"));
    }

    /// Of a write that failed one copy landed, so that it counts. The next one of the same program is cut off: it was
    /// to the other copy.
    #[test]
    fn a_write_behind_one_that_reached_one_copy_leaves_that_one_whole() {
        let test = block::crash_test!();
        for seed in test.seeds(0, 16, 1) {
            let _printed = test.on_panic(seed, None);
            let medium = CrashLayer::new(DEVICE_BYTES, seed);
            let (device, uuid): (SharedDevice, _) = (Arc::new(medium.clone()), Uuid::from_bytes([7; 16]));
            let writing = medium.clone();
            block_on(async move {
                let mut superblock = Superblock::create(&device, KIND, uuid, [U64::new(1); 128]).await.unwrap();
                for nth in [0, 1] {
                    writing.fail_write_once(writing.writes_seen() + nth, ErrorKind::Media);
                    superblock.payload = [U64::new(2); 128];
                    superblock.write(&device).await.unwrap_err();
                    assert_eq!(superblock.is_undecided(), nth == 0);
                }
                writing.power().fail_write(writing.power().writes_seen());
                superblock.payload = [U64::new(3); 128];
                superblock.write(&device).await.unwrap_err();
            });
            let device: SharedDevice = Arc::new(medium.after_power_loss_as(Loss::Seeded(seed), &Power::new()));
            let found = block_on(async move { Superblock::<[U64; 128]>::read(&device, KIND).await.unwrap() });
            assert!([2, 3].contains(&found.payload[0].get()), "seed {seed}: {}", found.payload[0]);
        }
    }

    /// The older copy is written first: whatever becomes of it, the newer one is whole.
    #[test]
    fn a_write_cut_short_after_another_that_was_leaves_a_whole_copy() {
        // Of several units of 512 bytes, so that it can tear.
        type Payload = [U64; 128];
        let test = block::crash_test!();
        for seed in test.seeds(0, 16, 1) {
            let _printed = test.on_panic(seed, None);
            for nths in [[0, 0], [0, 1], [1, 0], [1, 1]] {
                let mut medium = CrashLayer::new(DEVICE_BYTES, seed);
                let (device, uuid): (SharedDevice, _) = (Arc::new(medium.clone()), Uuid::from_bytes([7; 16]));
                let created = async move { Superblock::create(&device, KIND, uuid, [U64::new(1); 128]).await };
                block_on(created).unwrap();
                let mut kept = 1;
                for (number, nth) in (2..).zip(nths) {
                    let device: SharedDevice = Arc::new(medium.clone());
                    medium.power().fail_write(medium.power().writes_seen() + nth);
                    let written = async move {
                        let mut superblock = Superblock::<Payload>::read(&device, KIND).await?;
                        superblock.payload = [U64::new(number); 128];
                        superblock.write(&device).await
                    };
                    assert_eq!(block_on(written).map_err(|error| error.kind()), Err(ErrorKind::Gone));
                    medium = medium.after_power_loss_as(Loss::Seeded(seed), &Power::new());
                    let device: SharedDevice = Arc::new(medium.clone());
                    let found = block_on(async move { Superblock::<Payload>::read(&device, KIND).await });
                    let payload = found.unwrap_or_else(|error| panic!("seed {seed}, {nths:?}: {error}")).payload;
                    assert!(
                        [kept, number].contains(&payload[0].get()) && payload.iter().all(|word| *word == payload[0])
                    );
                    kept = payload[0].get();
                }
            }
        }
    }
}
