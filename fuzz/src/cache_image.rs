//! Cache devices to be damaged.
//!
//! Random damage hardly gets past a checksum, so after each change the checksum that covers it is made right again,
//! and in the log every link that follows from it, too. What the damaged structure then says is the fuzzer's choice.

use std::sync::{Arc, OnceLock};

use base::buffer::Buffer;
use base::checksum::crc32c;
use base::executor::Executor;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Identity, SharedDevice};
use cache::format::{PAGE_BYTES, ParametersRaw};
use cache::layout::Layout;
use cache::{Associativity, Cache, FormatOptions, Mode, OpenOptions};
use store::limits::{LOG_BYTES_MIN, SUPERBLOCK_BYTES};
use store::record::{RECORD_MAGIC, RecordHeaderRaw};
use store::superblock::HeaderRaw;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;

/// Bytes of the cache device.
pub const CACHE_BYTES: u64 = 192 << 10;
/// Bytes of the origin.
pub const ORIGIN_BYTES: u64 = 256 << 10;

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

/// A valid cache, its origin, and what reading through it gives.
#[derive(Clone)]
pub struct Image {
    /// Content of the cache device.
    pub cache: Vec<u8>,
    /// Content of the origin.
    pub origin: Vec<u8>,
    /// Content seen through the cache.
    pub expected: Vec<u8>,
}

/// Two valid caches: one whose program stopped without closing it, and one that was closed.
pub fn images() -> &'static [Image; 2] {
    static IMAGES: OnceLock<[Image; 2]> = OnceLock::new();
    IMAGES.get_or_init(make_images)
}

fn make_images() -> [Image; 2] {
    let mut executor = Executor::in_order();
    let origin: Vec<u8> = (0..ORIGIN_BYTES).map(|at| (at / 512) as u8 ^ 0x5a).collect();
    let (cache_device, origin_device) = (device(&vec![0; CACHE_BYTES as usize], "C"), device(&origin, "S1"));
    let (for_format, for_origin) = (Arc::clone(&cache_device), Arc::clone(&origin_device));
    let cache = executor.block_on(async move {
        let format = FormatOptions {
            associativity: Associativity::Ways(8),
            log_bytes: Some(LOG_BYTES_MIN),
            uuid: Some(Uuid::from_bytes([7; 16])),
            ..FormatOptions::default()
        };
        Cache::format(&for_format, &for_origin, format).await
    });
    cache.expect("an empty device can be formatted");
    let options = OpenOptions::new(Mode::WriteBack, Arc::new(executor.clock()));
    let opening = Cache::open(Arc::clone(&cache_device), Arc::clone(&origin_device), options);
    let cache = executor.block_on(opening).expect("it was just formatted");
    executor.spawn(cache.run());
    let mut expected = origin.clone();
    for (index, offset) in [0, 4096, 8192 + 512, 64 << 10, 4096, (252 << 10) + 3584].into_iter().enumerate() {
        let bytes = vec![0xc0 + index as u8; 512 * (1 + index % 3).min((ORIGIN_BYTES as usize - offset) / 512)];
        expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
        executor.block_on(cache.write(offset as u64, Buffer::copy_of(&bytes), false)).expect("memory takes writes");
    }
    executor.block_on(cache.read(32 << 10, Buffer::zeroed(16 << 10))).expect("memory gives reads");
    executor.run_until_stalled();
    let stopped = Image { cache: content(&cache_device), origin: content(&origin_device), expected: expected.clone() };
    executor.block_on(async move { cache.close(true).await }).expect("memory takes writes");
    let closed = Image { cache: content(&cache_device), origin: content(&origin_device), expected };
    [stopped, closed]
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
    /// A slot of the table.
    Slot(u8),
    /// A record of the log.
    Record(u8),
}

impl Damage {
    /// The next change of an input.
    pub fn parse(input: &mut Input<'_>) -> Self {
        let place = match input.byte() % 4 {
            0 => Place::Anything(input.u16()),
            1 => Place::Superblock,
            2 => Place::Slot(input.byte()),
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
            Place::Slot(index) => out.extend_from_slice(&[2, index]),
            Place::Record(index) => out.extend_from_slice(&[3, index]),
        }
        out.extend_from_slice(&self.at.to_be_bytes());
        out.push(u8::try_from(self.bytes.len()).expect("seeds are small"));
        out.extend_from_slice(&self.bytes);
    }

    /// Changes the content of a cache device. `layout` is that of the image before any damage.
    pub fn apply(&self, cache: &mut [u8], layout: &Layout) {
        match self.place {
            Place::Anything(unit) => overwrite(cache, usize::from(unit) * 512 + usize::from(self.at), &self.bytes),
            Place::Superblock => {
                for start in [0, cache.len() - SUPERBLOCK_BYTES] {
                    let copy = &mut cache[start..start + SUPERBLOCK_BYTES];
                    overwrite(copy, usize::from(self.at) % SUPERBLOCK_BYTES, &self.bytes);
                    seal(copy, SUPERBLOCK_BYTES);
                }
            }
            Place::Slot(index) => {
                let slot = u64::from(index) % (2 * layout.page_count);
                let start = layout.slot_offset(slot / 2, (slot % 2) as usize) as usize;
                let page = &mut cache[start..start + PAGE_BYTES];
                overwrite(page, usize::from(self.at) % PAGE_BYTES, &self.bytes);
                seal(page, PAGE_BYTES);
            }
            Place::Record(index) => {
                let (start, end) = (layout.log.offset as usize, layout.log.end() as usize);
                damage_record(&mut cache[start..end], usize::from(index), usize::from(self.at), &self.bytes);
            }
        }
    }
}

/// The layout of an undamaged image.
pub fn layout(cache: &[u8]) -> Layout {
    let (raw, _) = ParametersRaw::read_from_prefix(&cache[size_of::<HeaderRaw>()..]).expect("a superblock is longer");
    Layout::from_parameters(&raw, cache.len() as u64).expect("the image is valid")
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

pub(crate) fn damage_record(log: &mut [u8], index: usize, at: usize, bytes: &[u8]) {
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
