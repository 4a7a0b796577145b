//! Persistent memory: a file or a device whose bytes the processor reads and writes in place.
//!
//! On a file system in DAX mode over persistent memory, a mapping *is* the medium. What is stored there survives a
//! power loss once the processor has written back the cache lines (`persist`), and nothing else is needed: that is what
//! `MAP_SYNC` promises, which the kernel grants only there, and only together with `MAP_SHARED_VALIDATE`. Anywhere else
//! a mapping is the page cache, plain RAM, and the file is refused.
//!
//! Device DAX, a character device, is mapped as a whole, and its mapping is the medium in any case
//! ([`crate::dax_device`]).
//!
//! The mapping is as long as the file is at opening; the file is locked, and other processes must
//! not cut it while it is open.

#![expect(unsafe_code, reason = "a mapping is an address, and cache lines are written back by instructions")]

use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::{Error, ErrorKind};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::dax_device::{self, character_device_at};
use crate::failure;
use crate::open::OpenFile;
use crate::options::FileOptions;

/// Bytes of a cache line of x86-64.
const LINE_BYTES: usize = 64;

/// A file in persistent memory or a device that is such memory, mapped.
pub struct PersistentMemory {
    mapping: Mutex<Mapping>,
    length: usize,
    /// Keeps the lock.
    _file: Locked,
}

/// The locked file or device of the mapping.
enum Locked {
    File { _file: OpenFile },
    Device { _file: File },
}

struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone and is no thread's own.
unsafe impl Send for Mapping {}

impl PersistentMemory {
    /// Maps the file at `path`, made with `size` bytes when it does not exist, or the whole of the device there.
    ///
    /// # Errors
    /// `Unsupported` when it is not in persistent memory (or the processor's cache lines cannot be
    /// written back); those of opening a file.
    pub fn open(path: &Path, size: Option<u64>) -> Result<Self, Error> {
        if let Some(folder) = character_device_at(path) {
            let (file, size_bytes) = dax_device::open(path, &folder)?;
            let mapping = map(&file, size_bytes, MapFlags::SHARED).map_err(|errno| refusal(errno, path))?;
            return Ok(Self::of(mapping, Locked::Device { _file: file }));
        }
        let is_new = !path.exists();
        let options =
            FileOptions { size: size.filter(|_| is_new), exclusive: true, preallocate: true, ..FileOptions::default() };
        let file = OpenFile::open(path, &options)?;
        let mapped = map(&file.file, file.geometry.size_bytes, MapFlags::SHARED_VALIDATE | MapFlags::SYNC);
        if mapped.is_err() && is_new {
            // The new file is empty, and of no use.
            let _ = std::fs::remove_file(path);
        }
        let mapping = mapped.map_err(|errno| refusal(errno, path))?;
        Ok(Self::of(mapping, Locked::File { _file: file }))
    }

    fn of(mapping: Mapping, file: Locked) -> Self {
        Self { length: mapping.length, mapping: Mutex::new(mapping), _file: file }
    }

    /// Count of bytes.
    pub fn size_bytes(&self) -> usize {
        self.length
    }

    /// Copies from `offset` on into `bytes`.
    ///
    /// # Panics
    /// Outside the file.
    pub fn load(&self, offset: usize, bytes: &mut [u8]) {
        self.lock().load(offset, bytes);
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// Outside the file.
    pub fn store(&self, offset: usize, bytes: &[u8]) {
        self.lock().store(offset, bytes);
    }

    /// Makes the stored bytes of the range durable; returns when they are.
    ///
    /// # Panics
    /// Outside the file.
    pub fn persist(&self, offset: usize, length: usize) {
        self.lock().write_back(offset, length);
    }

    fn lock(&self) -> MutexGuard<'_, Mapping> {
        self.mapping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn map(file: &File, size_bytes: u64, flags: MapFlags) -> Result<Mapping, Errno> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Errno::OPNOTSUPP);
    }
    let length = usize::try_from(size_bytes).map_err(|_| Errno::FBIG)?;
    // SAFETY: the kernel chooses an address where nothing is; the mapping is unmapped once, when its owner is dropped.
    let address = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) }?;
    Ok(Mapping { address: NonNull::new(address.cast()).ok_or(Errno::FAULT)?, length })
}

fn refusal(errno: Errno, path: &Path) -> Error {
    if errno != Errno::OPNOTSUPP {
        return failure::error(errno, format!("mapping {}", path.display()));
    }
    let context = format!(
        "{} is not in persistent memory: the kernel maps it through its page cache, which a power loss empties. Give a \
         file on a file system mounted with -o dax over persistent memory, or a device /dev/daxN.M",
        path.display()
    );
    Error::new(ErrorKind::Unsupported, context)
}

impl Mapping {
    /// The address of `offset`, from which `length` bytes are inside.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "bytes {offset}+{length} of a mapping of {}", self.length);
        // SAFETY: inside the mapping, as was just seen.
        unsafe { self.address.as_ptr().add(offset) }
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: both are as long as `bytes`; the mapping is only used under its mutex, and no reference into it is
        // ever given away.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: as for `load`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    fn write_back(&self, offset: usize, length: usize) {
        let start = self.at(offset, length);
        if length == 0 {
            return;
        }
        let first = offset - start.addr() % LINE_BYTES;
        for line in (first..offset + length).step_by(LINE_BYTES) {
            write_back_line(self.at(line, 0));
        }
        fence();
    }
}

/// Writes the cache line at `address` back to memory, once all stores to it before have happened.
#[cfg(target_arch = "x86_64")]
fn write_back_line(address: *mut u8) {
    // SAFETY: every x86-64 has CLFLUSH; it changes no memory, and the line is in a mapping.
    unsafe { std::arch::x86_64::_mm_clflush(address) }
}

/// Waits until lines are written back.
#[cfg(target_arch = "x86_64")]
fn fence() {
    // SAFETY: every x86-64 has SFENCE.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(not(target_arch = "x86_64"))]
fn write_back_line(_address: *mut u8) {
    unreachable!("nothing is mapped on this processor");
}

#[cfg(not(target_arch = "x86_64"))]
fn fence() {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this very mapping, of which nobody has an address any more.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "a mapping is unmapped once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of this machine are not in persistent memory: the mapping is tried without that
    /// promise.
    #[test]
    fn what_is_stored_is_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nvram");
        let options = FileOptions { size: Some(8192), exclusive: true, ..FileOptions::default() };
        let file = OpenFile::open(&path, &options).unwrap();
        let mut mapping = map(&file.file, 8192, MapFlags::SHARED).unwrap();
        mapping.store(4090, &[7; 100]);
        mapping.write_back(4090, 100);
        let mut bytes = [0; 102];
        mapping.load(4089, &mut bytes);
        assert_eq!((bytes[0], bytes[1], bytes[100], bytes[101]), (0, 7, 7, 0));
        mapping.write_back(8192, 0);
        drop(mapping);
        assert_eq!(std::fs::read(&path).unwrap()[4090..4190], [7; 100]);
    }

    #[test]
    #[should_panic(expected = "of a mapping of 4096")]
    fn nothing_outside_is_touched() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        map(&file, 4096, MapFlags::SHARED).unwrap().store(4090, &[1; 7]);
    }

    #[test]
    fn plain_ram_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nvram");
        let error =
            PersistentMemory::open(&path, Some(1 << 20)).err().expect("a temporary folder is in no persistent memory");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("not in persistent memory"), "{error}");
        assert!(!path.exists());
        std::fs::write(&path, [7; 4096]).unwrap();
        assert!(PersistentMemory::open(&path, None).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), [7; 4096], "what was there stays");
    }
}
