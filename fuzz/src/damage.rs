//! Stores on a device (a cache, a write log) to be damaged.
//!
//! Random damage hardly gets past a checksum, so after each change the checksum that covers it is made right again,
//! and in the log every link that follows from it, too. What the damaged structure then says is the fuzzer's choice.

use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;
use base::checksum::crc32c;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Identity, SharedDevice};
use store::limits::SUPERBLOCK_BYTES;
use store::record::{RECORD_MAGIC, RecordHeaderRaw};
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;

/// A device of this content.
pub fn device(content: &[u8], serial: &str) -> SharedDevice {
    let identity = Identity { target: "memory".into(), unit: "naa.1".into(), serial: serial.into() };
    let device: SharedDevice = Arc::new(MemoryDevice::new(content.len() as u64, identity));
    base::executor::block_on(device.write(0, Buffer::copy_of(content), false)).expect("memory takes writes");
    device
}

/// All bytes of a device.
pub fn content(device: &SharedDevice) -> Vec<u8> {
    let length = device.geometry().size_bytes as usize;
    base::executor::block_on(device.read(0, Buffer::zeroed(length))).expect("memory gives reads").to_vec()
}

/// A valid store, its origin, and what reading through it gives.
#[derive(Clone)]
pub struct Image {
    /// Content of the store's device.
    pub store: Vec<u8>,
    /// Content of the origin.
    pub origin: Vec<u8>,
    /// Content seen through the store.
    pub expected: Vec<u8>,
}

/// One change.
#[derive(Clone, Debug)]
pub struct Damage {
    /// What is changed.
    pub place: Place,
    /// First byte there.
    pub at: u16,
    /// What is written.
    pub bytes: Vec<u8>,
}

/// What is changed.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Anything, in units of 512 bytes from the start; no checksum follows.
    Anything(u16),
    /// Both copies of the superblock.
    Superblock,
    /// A slot of the table, a checkpoint: what the store keeps besides its log.
    Table(u8),
    /// A record of the log.
    Record(u8),
}

impl Damage {
    /// The next change of an input.
    pub fn parse(input: &mut Input<'_>) -> Self {
        let place = match input.byte() % 4 {
            0 => Place::Anything(input.u16()),
            1 => Place::Superblock,
            2 => Place::Table(input.byte()),
            _ => Place::Record(input.byte()),
        };
        Self { place, at: input.u16(), bytes: input.counted_short().to_vec() }
    }

    /// Appends it to a seed.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self.place {
            Place::Anything(unit) => {
                out.push(0);
                out.extend_from_slice(&unit.to_be_bytes());
            }
            Place::Superblock => out.push(1),
            Place::Table(index) => out.extend_from_slice(&[2, index]),
            Place::Record(index) => out.extend_from_slice(&[3, index]),
        }
        out.extend_from_slice(&self.at.to_be_bytes());
        out.push(u8::try_from(self.bytes.len()).expect("seeds are small"));
        out.extend_from_slice(&self.bytes);
    }

    /// Changes the content of a store's device whose records are in `log`. Its table is for the store to change:
    /// `damage_table` gets the device, the index, the first byte and the bytes.
    pub fn apply(&self, store: &mut [u8], log: Range<usize>, damage_table: impl FnOnce(&mut [u8], u8, usize, &[u8])) {
        let at = usize::from(self.at);
        match self.place {
            Place::Anything(unit) => overwrite(store, usize::from(unit) * 512 + at, &self.bytes),
            Place::Superblock => {
                for start in [0, store.len() - SUPERBLOCK_BYTES] {
                    let copy = &mut store[start..start + SUPERBLOCK_BYTES];
                    overwrite(copy, at % SUPERBLOCK_BYTES, &self.bytes);
                    seal(copy, SUPERBLOCK_BYTES);
                }
            }
            Place::Table(index) => damage_table(store, index, at, &self.bytes),
            Place::Record(index) => damage_record(&mut store[log], usize::from(index), at, &self.bytes),
        }
    }
}

pub(crate) fn overwrite(place: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(target) = place.get_mut(at..) {
        let length = target.len().min(bytes.len());
        target[..length].copy_from_slice(&bytes[..length]);
    }
}

/// Every structure of a store begins with the checksum of what follows.
pub(crate) fn seal(bytes: &mut [u8], length: usize) -> u32 {
    let checksum = crc32c(&bytes[4..length]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// Offsets of all records in the region, in the order of their sequence.
fn records(log: &[u8]) -> Vec<(u64, usize)> {
    let mut found = Vec::new();
    for at in (0..log.len()).step_by(512) {
        let Ok((header, _)) = RecordHeaderRaw::read_from_prefix(&log[at..]) else { continue };
        if header.magic.get() == RECORD_MAGIC {
            found.push((header.sequence.get(), at));
        }
    }
    found.sort_unstable();
    found
}

fn damage_record(log: &mut [u8], index: usize, at: usize, bytes: &[u8]) {
    let records = records(log);
    if records.is_empty() {
        return;
    }
    let index = index % records.len();
    overwrite(log, records[index].1 + at % 512, bytes);
    let mut link = None;
    for &(_, start) in &records[index..] {
        let record = &mut log[start..];
        let Ok((mut header, _)) = RecordHeaderRaw::read_from_prefix(record) else { continue };
        if let Some(link) = link {
            header.link = u32::into(link);
            record[..size_of::<RecordHeaderRaw>()].copy_from_slice(header.as_bytes());
        }
        let length = size_of::<RecordHeaderRaw>().saturating_add(header.payload_bytes.get() as usize);
        link = Some(seal(record, length.min(record.len())));
    }
}
