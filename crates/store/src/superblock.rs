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
//!
//! | part | holds |
//! |---|---|
//! | `header` | the bytes that all kinds of store have in common |
//! | `copies` | where the two copies lie, and how they are |
//! | `fault` | why a copy is not used |

mod copies;
mod fault;
mod header;

use base::buffer::Buffer;
use base::checksum::crc32c;
use block::device::DeviceExt;
use block::{Device, Error, SharedDevice};
use uuid::Uuid;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use self::fault::{Fault, beside_another, no_copy, of_two_stores};
use self::header::{COVERED_FROM, ENVELOPE_VERSION, check_kind, check_size, header_for};
use crate::limits::{SEQUENCE_MAX, SUPERBLOCK_BYTES};

pub use self::copies::{Copies, CopyState, places};
pub use self::header::{HeaderRaw, MAGIC, PAYLOAD_BYTES_MAX, StoreIdentity, StoreKind, Tokens, device_bytes, identity};

/// The token of a store that no host has given any.
const NO_TOKEN: u64 = 0;

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

#[cfg(test)]
mod tests;
