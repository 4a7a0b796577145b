//! A sparse device in RAM.
//!
//! Memory is taken a chunk at a time when it is first written, and given back when the last byte of
//! a chunk that is not zero was discarded. A chunk is a mapping of its own, because an allocator
//! keeps memory freed in the middle of its heap. The table of chunks grows as well, so that a
//! device of many TiB costs nothing until it is written. Every request completes at once. Requests
//! inside one chunk are atomic; across chunks, overlapping requests in flight at the same time are
//! only as ordered as their callers made them.

use std::ops::{Deref, DerefMut};
use std::sync::{OnceLock, PoisonError, RwLock};

use base::buffer::Buffer;
use base::range::ByteRange;
use memmap2::MmapMut;

use crate::completion::Completion;
use crate::device::Device;
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::limits::{EXTENTS_PER_RESPONSE_MAX, MEMORY_CHUNK_BYTES, MEMORY_CHUNKS_PER_GROUP};
use crate::request::{Extent, ExtentKind, Operation, Request, Response};

/// A device in RAM. Its content is gone with it.
pub struct MemoryDevice {
    geometry: Geometry,
    identity: Identity,
    groups: Vec<OnceLock<Group>>,
}

/// A part of the table, made when the first of its chunks is written.
type Group = Box<[RwLock<Chunk>]>;

/// A chunk; `None` reads as zeroes.
type Chunk = Option<Memory>;

/// The bytes of a chunk.
enum Memory {
    /// A mapping, which the system gets back as soon as it is dropped.
    Mapped(MmapMut),
    /// From the allocator, when the process has its most mappings (`vm.max_map_count`). Neighbours
    /// count as one, so that is rare.
    Allocated(Box<[u8]>),
}

impl Memory {
    /// Zeroes.
    fn new() -> Self {
        MmapMut::map_anon(MEMORY_CHUNK_BYTES)
            .map_or_else(|_| Self::Allocated(vec![0; MEMORY_CHUNK_BYTES].into_boxed_slice()), Self::Mapped)
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Allocated(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Allocated(bytes) => bytes,
        }
    }
}

impl MemoryDevice {
    /// A device of `size_bytes` zeroes with plain geometry.
    pub fn new(size_bytes: u64, identity: Identity) -> Self {
        Self::with_geometry(Geometry::plain(size_bytes), identity)
    }

    /// A device of zeroes with the geometry given.
    pub fn with_geometry(geometry: Geometry, identity: Identity) -> Self {
        let group_count = geometry.size_bytes.div_ceil((MEMORY_CHUNK_BYTES * MEMORY_CHUNKS_PER_GROUP) as u64);
        let groups = (0..group_count).map(|_| OnceLock::new()).collect();
        Self { geometry, identity, groups }
    }

    /// The chunk with this number, if any of its group was ever written.
    fn chunk(&self, index: usize) -> Option<&RwLock<Chunk>> {
        Some(&self.groups[index / MEMORY_CHUNKS_PER_GROUP].get()?[index % MEMORY_CHUNKS_PER_GROUP])
    }

    /// The chunk with this number, for a write; its group is made if it is missing.
    fn chunk_for_writing(&self, index: usize) -> &RwLock<Chunk> {
        let group = &self.groups[index / MEMORY_CHUNKS_PER_GROUP];
        let chunks = group.get_or_init(|| (0..MEMORY_CHUNKS_PER_GROUP).map(|_| RwLock::new(None)).collect());
        &chunks[index % MEMORY_CHUNKS_PER_GROUP]
    }

    fn load(&self, offset: u64, buffer: &mut [u8]) {
        for (index, at, piece) in pieces(ByteRange { offset, length: buffer.len() as u64 }) {
            let target = &mut buffer[piece];
            let chunk = self.chunk(index).map(|chunk| chunk.read().unwrap_or_else(PoisonError::into_inner));
            match chunk.as_deref() {
                Some(Some(chunk)) => target.copy_from_slice(&chunk[at..at + target.len()]),
                Some(None) | None => target.fill(0),
            }
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        for (index, at, piece) in pieces(ByteRange { offset, length: bytes.len() as u64 }) {
            let source = &bytes[piece];
            let mut chunk = self.chunk_for_writing(index).write().unwrap_or_else(PoisonError::into_inner);
            let chunk = chunk.get_or_insert_with(Memory::new);
            chunk[at..at + source.len()].copy_from_slice(source);
        }
    }

    /// Makes a range zero. `gives_back`: also looks whether whole chunks are zero now, and frees
    /// them; worth its time only where the caller wants space back.
    fn clear(&self, range: ByteRange, gives_back: bool) {
        for (index, at, piece) in pieces(range) {
            let Some(chunk) = self.chunk(index) else { continue };
            let mut chunk = chunk.write().unwrap_or_else(PoisonError::into_inner);
            if piece.len() == MEMORY_CHUNK_BYTES {
                *chunk = None;
            } else if let Some(bytes) = chunk.as_mut() {
                bytes[at..at + piece.len()].fill(0);
                if gives_back && is_zero(bytes) {
                    *chunk = None;
                }
            }
        }
    }

    fn stored_extents(&self, range: ByteRange) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (index, at, piece) in pieces(range) {
            let is_stored =
                self.chunk(index).is_some_and(|chunk| chunk.read().unwrap_or_else(PoisonError::into_inner).is_some());
            let kind = if is_stored { ExtentKind::Data } else { ExtentKind::Hole };
            let offset = (index * MEMORY_CHUNK_BYTES + at) as u64;
            let length = piece.len() as u64;
            let count = extents.len();
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.range.length += length,
                _ if count == EXTENTS_PER_RESPONSE_MAX => break,
                _ => extents.push(Extent { range: ByteRange { offset, length }, kind }),
            }
        }
        extents
    }
}

/// In pieces without an early end, so that the compiler handles many bytes at a time.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|words| words.iter().fold(0, |any, byte| any | byte) == 0)
}

/// Cuts `range` at chunk borders: (chunk index, offset inside the chunk, place inside the range).
fn pieces(range: ByteRange) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let remaining = range.length.checked_sub(done).filter(|&remaining| remaining > 0)?;
        let offset = range.offset + done;
        let at = (offset % MEMORY_CHUNK_BYTES as u64) as usize;
        let length = remaining.min((MEMORY_CHUNK_BYTES - at) as u64);
        let piece = done as usize..(done + length) as usize;
        done += length;
        Some(((offset / MEMORY_CHUNK_BYTES as u64) as usize, at, piece))
    })
}

impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn submit(&self, request: Request) -> Completion {
        let range = match self.geometry.check(&request) {
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        let response = match request.operation {
            Operation::Read { mut buffer } => {
                self.load(range.offset, &mut buffer);
                Response::done(buffer)
            }
            Operation::Write { buffer, .. } => {
                self.store(range.offset, &buffer);
                Response::done(buffer)
            }
            Operation::Discard { .. } => {
                self.clear(range, true);
                Response::done(Buffer::empty())
            }
            Operation::WriteZeroes { may_discard, .. } => {
                self.clear(range, may_discard);
                Response::done(Buffer::empty())
            }
            Operation::Extents { .. } => {
                Response { extents: self.stored_extents(range), ..Response::done(Buffer::empty()) }
            }
            Operation::Flush => Response::done(Buffer::empty()),
        };
        Completion::ready(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceExt;
    use crate::error::ErrorKind;
    use base::executor::block_on;

    fn device(size_bytes: u64) -> MemoryDevice {
        MemoryDevice::new(size_bytes, Identity::default())
    }

    #[test]
    fn what_is_written_is_read_across_chunks() {
        let device = device(1 << 20);
        let offset = MEMORY_CHUNK_BYTES as u64 - 512;
        let bytes: Vec<u8> = (0..1024u32).map(|index| index as u8).collect();
        block_on(device.write(offset, Buffer::copy_of(&bytes), false)).unwrap();
        let read = block_on(device.read(offset, Buffer::zeroed(1024))).unwrap();
        assert_eq!(&read[..], &bytes[..]);
    }

    #[test]
    fn a_discarded_chunk_is_a_hole_again() {
        let device = device(1 << 20);
        block_on(device.write(0, Buffer::copy_of(&[7; 512]), false)).unwrap();
        let kinds = |extents: Vec<Extent>| extents.iter().map(|extent| extent.kind).collect::<Vec<_>>();
        assert_eq!(kinds(block_on(device.extents(0, 1 << 20)).unwrap()), [ExtentKind::Data, ExtentKind::Hole]);
        block_on(device.discard(0, MEMORY_CHUNK_BYTES as u64)).unwrap();
        assert_eq!(kinds(block_on(device.extents(0, 1 << 20)).unwrap()), [ExtentKind::Hole]);
        assert!(block_on(device.read(0, Buffer::zeroed(512))).unwrap().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_chunk_discarded_in_pieces_is_given_back_with_the_last() {
        let device = device(1 << 20);
        block_on(device.write(0, Buffer::copy_of(&vec![7; MEMORY_CHUNK_BYTES]), false)).unwrap();
        let is_hole = || block_on(device.extents(0, 1 << 20)).unwrap()[0].kind == ExtentKind::Hole;
        for offset in (0..MEMORY_CHUNK_BYTES as u64).step_by(64 << 10) {
            assert!(!is_hole(), "{offset}");
            block_on(device.discard(offset, 64 << 10)).unwrap();
        }
        assert!(is_hole());
    }

    /// Memory from both sources behaves the same.
    #[test]
    fn both_kinds_of_memory_are_zeroes_that_can_be_written() {
        for mut memory in [Memory::new(), Memory::Allocated(vec![0; MEMORY_CHUNK_BYTES].into_boxed_slice())] {
            assert_eq!(memory.len(), MEMORY_CHUNK_BYTES);
            assert!(is_zero(&memory));
            memory[MEMORY_CHUNK_BYTES - 1] = 1;
            assert!(!is_zero(&memory));
        }
    }

    /// Its table alone would be hundreds of MiB if it were made at once.
    #[test]
    fn a_device_of_many_tebibytes_costs_nothing_until_it_is_written() {
        const SIZE: u64 = 64 << 40;
        let device = device(SIZE);
        assert!(device.groups.iter().all(|group| group.get().is_none()));
        block_on(device.write(SIZE - 512, Buffer::copy_of(&[7; 512]), false)).unwrap();
        block_on(device.discard(0, 1 << 40)).unwrap();
        assert_eq!(block_on(device.read(SIZE - 512, Buffer::zeroed(512))).unwrap()[..], [7; 512]);
        assert_eq!(device.groups.iter().filter(|group| group.get().is_some()).count(), 1);
    }

    #[test]
    fn requests_off_the_device_fail_and_change_nothing() {
        let device = device(1 << 20);
        for (offset, length) in [(1 << 20, 512), (256, 512), (0, 100), (u64::MAX - 511, 512)] {
            let error = block_on(device.write(offset, Buffer::copy_of(&vec![1; length]), false)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRange);
        }
        let everything = block_on(device.read(0, Buffer::zeroed(1 << 20))).unwrap();
        assert!(everything.iter().all(|&byte| byte == 0));
    }
}
