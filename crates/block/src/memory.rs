//! A sparse device in RAM.
//!
//! Memory is taken a chunk at a time when it is first written and given back when a whole chunk is discarded. Everything
//! completes at once. Requests inside one chunk are atomic; across chunks, overlapping requests in flight at the same time are only as
//! ordered as their callers made them.

use std::sync::{PoisonError, RwLock};

use base::buffer::Buffer;
use base::range::ByteRange;

use crate::completion::Completion;
use crate::device::{Device, Geometry, Identity};
use crate::limits::{EXTENTS_PER_RESPONSE_MAX, MEMORY_CHUNK_BYTES};
use crate::request::{Extent, ExtentKind, Operation, Request, Response};

/// A device in RAM. Its content is gone with it.
pub struct MemoryDevice {
    geometry: Geometry,
    identity: Identity,
    chunks: Vec<RwLock<Chunk>>,
}

/// `None` reads as zeroes.
type Chunk = Option<Box<[u8]>>;

impl MemoryDevice {
    /// A device of `size_bytes` zeroes with plain geometry.
    pub fn new(size_bytes: u64, identity: Identity) -> Self {
        Self::with_geometry(Geometry::plain(size_bytes), identity)
    }

    /// A device of zeroes with the geometry given.
    pub fn with_geometry(geometry: Geometry, identity: Identity) -> Self {
        let chunk_count = geometry.size_bytes.div_ceil(MEMORY_CHUNK_BYTES as u64);
        let chunks = (0..chunk_count).map(|_| RwLock::new(None)).collect();
        Self { geometry, identity, chunks }
    }

    fn load(&self, offset: u64, buffer: &mut [u8]) {
        for (index, at, piece) in pieces(ByteRange { offset, length: buffer.len() as u64 }) {
            let target = &mut buffer[piece];
            match &*self.chunks[index].read().unwrap_or_else(PoisonError::into_inner) {
                Some(chunk) => target.copy_from_slice(&chunk[at..at + target.len()]),
                None => target.fill(0),
            }
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        for (index, at, piece) in pieces(ByteRange { offset, length: bytes.len() as u64 }) {
            let source = &bytes[piece];
            let mut chunk = self.chunks[index].write().unwrap_or_else(PoisonError::into_inner);
            let chunk = chunk.get_or_insert_with(|| vec![0; MEMORY_CHUNK_BYTES].into_boxed_slice());
            chunk[at..at + source.len()].copy_from_slice(source);
        }
    }

    fn clear(&self, range: ByteRange) {
        for (index, at, piece) in pieces(range) {
            let mut chunk = self.chunks[index].write().unwrap_or_else(PoisonError::into_inner);
            if piece.len() == MEMORY_CHUNK_BYTES {
                *chunk = None;
            } else if let Some(chunk) = chunk.as_mut() {
                chunk[at..at + piece.len()].fill(0);
            }
        }
    }

    fn stored_extents(&self, range: ByteRange) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (index, at, piece) in pieces(range) {
            let is_stored = self.chunks[index].read().unwrap_or_else(PoisonError::into_inner).is_some();
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
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                self.clear(range);
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
