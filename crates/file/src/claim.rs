//! Claims: how other processes are kept from a file or block device, or from a part of one.
//!
//! | | of a file | of a block device |
//! |---|---|---|
//! | all of it | `flock`, exclusive | `O_EXCL`, and a lock on all its bytes |
//! | a part | `flock`, shared; a lock on these bytes | a lock on these bytes; `O_EXCL` by one holder of a part |
//!
//! Locks on bytes are those of the open file description (`F_OFD_SETLK`, fcntl(2)): they belong to
//! a descriptor, not to a process, and end with it, also when the process is killed. `O_EXCL` keeps
//! file systems, RAID and others that claim whole devices away. The kernel grants it to one process
//! only. So of the holders of parts of a device one is its *keeper*, and the others, which are kept
//! apart by the locks on bytes, try to become it once it has gone.

#![expect(unsafe_code, reason = "the kernel is handed the address of a lock")]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use base::range::ByteRange;
use block::{Error, ErrorKind};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tokio::runtime::Handle;

use crate::failure;
use crate::limits::{KEEPER_INTERVAL, LOCK_RETRY_INTERVAL, LOCK_WAIT_MAX};
use crate::options::FileOptions;

/// A claim, until it is released or the file is closed.
pub(crate) struct Claim {
    part: Option<ByteRange>,
    /// The state of a block device's keeper; `None` for a file.
    keeper: Option<Arc<Mutex<Keeper>>>,
}

/// Whether this process keeps a block device from others.
enum Keeper {
    /// Another process does. The device, open under the locks of this claim.
    Waiting(File),
    /// It does, by this descriptor.
    Keeping { _descriptor: OwnedFd },
    /// The claim was released.
    Released,
}

impl Claim {
    /// Claims `file`, or the part of it that `options` name.
    ///
    /// # Errors
    /// `Busy` when another holder has any of it.
    pub(crate) fn take(file: &File, file_type: FileType, path: &str, options: &FileOptions) -> Result<Self, Error> {
        let part = options.part;
        let lock_bytes = || {
            let is_taken = |errno| if errno == Errno::ACCESS { Errno::AGAIN } else { errno };
            let what = part.map_or_else(|| path.to_owned(), |part| format!("{part} of {path}"));
            let lock = || set_lock(file, part, options.read_only).map_err(is_taken);
            wait_for_claim(&what, Errno::AGAIN, lock)
        };
        if file_type != FileType::BlockDevice {
            match part {
                None => lock_exclusively(file, path)?,
                Some(_) => {
                    let lock = || rustix::fs::flock(file, FlockOperation::NonBlockingLockShared);
                    wait_for_claim(path, Errno::AGAIN, lock)?;
                    lock_bytes()?;
                }
            }
            return Ok(Self { part, keeper: None });
        }
        let keeper = match part {
            None => {
                let descriptor = wait_for_claim(path, Errno::BUSY, || keep(file))?;
                lock_bytes()?;
                Keeper::Keeping { _descriptor: descriptor }
            }
            Some(_) => {
                lock_bytes()?;
                wait_for_claim(path, Errno::BUSY, || match keep(file) {
                    Err(Errno::BUSY) if has_other_locks(file)? => {
                        let same = file.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
                        Ok(Keeper::Waiting(same?))
                    }
                    kept => kept.map(|descriptor| Keeper::Keeping { _descriptor: descriptor }),
                })?
            }
        };
        let is_waiting = matches!(keeper, Keeper::Waiting(_));
        let keeper = Arc::new(Mutex::new(keeper));
        if is_waiting {
            keep_when_free(path, &keeper)?;
        }
        Ok(Self { part, keeper: Some(keeper) })
    }

    /// Ends the claim, although requests under way may still keep `file` open.
    pub(crate) fn release(&self, file: &File, path: &str) {
        if let Some(keeper) = &self.keeper {
            *lock(keeper) = Keeper::Released;
        }
        let unlocked = match (&self.keeper, self.part) {
            (None, None) => rustix::fs::flock(file, FlockOperation::Unlock),
            (None, Some(_)) => lock_call(file, libc::F_OFD_SETLK, libc::F_UNLCK, self.part)
                .and_then(|_| rustix::fs::flock(file, FlockOperation::Unlock)),
            (Some(_), part) => lock_call(file, libc::F_OFD_SETLK, libc::F_UNLCK, part).map(|_| ()),
        };
        if let Err(errno) = unlocked {
            tracing::warn!("unlocking {path}: {errno}");
        }
    }
}

pub(crate) fn lock_exclusively(file: &File, path: &str) -> Result<(), Error> {
    wait_for_claim(path, Errno::AGAIN, || rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive))
}

/// Claims, and waits a moment for a process that was just killed: the kernel keeps the file, and
/// with it the claim, until the writes in its ring have ended. That is right, since until then they
/// may still land.
fn wait_for_claim<T>(what: &str, taken: Errno, claim: impl Fn() -> Result<T, Errno>) -> Result<T, Error> {
    let deadline = Instant::now() + LOCK_WAIT_MAX;
    loop {
        match claim() {
            Ok(claimed) => return Ok(claimed),
            Err(errno) if errno == taken && Instant::now() < deadline => std::thread::sleep(LOCK_RETRY_INTERVAL),
            Err(errno) if errno == taken => {
                return Err(Error::new(ErrorKind::Busy, format!("in use by another process: {what}")));
            }
            Err(errno) => return Err(failure::error(errno, format!("claiming {what}"))),
        }
    }
}

/// Opens the block device exclusively. By the descriptor, since the path may lead elsewhere by now.
fn keep(file: &File) -> Result<OwnedFd, Errno> {
    // Without O_CREAT, and for block devices alone, O_EXCL means this (open(2)).
    let flags = OFlags::CLOEXEC | OFlags::RDONLY | OFlags::EXCL;
    rustix::fs::open(format!("/proc/self/fd/{}", file.as_raw_fd()), flags, Mode::empty())
}

/// Becomes the keeper of the block device once it has none.
fn keep_when_free(path: &str, keeper: &Arc<Mutex<Keeper>>) -> Result<(), Error> {
    let runtime = Handle::try_current().map_err(|error| {
        let context = format!("parts of {path} can be opened inside a tokio runtime only");
        Error::with_source(ErrorKind::Unsupported, context, error)
    })?;
    let keeper = Arc::downgrade(keeper);
    let keeping = async move {
        loop {
            tokio::time::sleep(KEEPER_INTERVAL).await;
            let Some(keeper) = keeper.upgrade() else { return };
            let mut keeper = lock(&keeper);
            let Keeper::Waiting(file) = &*keeper else { return };
            if let Ok(descriptor) = keep(file) {
                *keeper = Keeper::Keeping { _descriptor: descriptor };
                return;
            }
        }
    };
    runtime.spawn(base::background::named("file-keeper", keeping));
    Ok(())
}

fn lock(keeper: &Mutex<Keeper>) -> MutexGuard<'_, Keeper> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the bytes: a shared lock for a reader, which keeps writers away, else an exclusive one.
fn set_lock(file: &File, range: Option<ByteRange>, is_read_only: bool) -> Result<(), Errno> {
    let kind = if is_read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    lock_call(file, libc::F_OFD_SETLK, kind, range).map(|_| ())
}

/// Whether any bytes are locked by another file description.
fn has_other_locks(file: &File) -> Result<bool, Errno> {
    lock_call(file, libc::F_OFD_GETLK, libc::F_WRLCK, None).map(|kind| kind != libc::F_UNLCK)
}

/// Makes a lock call of `kind` on these bytes, or on all, those of later growth included. Returns
/// the kind that the kernel answers.
fn lock_call(
    file: &File,
    command: libc::c_int,
    kind: libc::c_int,
    range: Option<ByteRange>,
) -> Result<libc::c_int, Errno> {
    // A length of zero is to the end, wherever that is.
    let range = range.unwrap_or_default();
    let number = |value: u64| libc::off_t::try_from(value).map_err(|_| Errno::OVERFLOW);
    let short = |value: libc::c_int| libc::c_short::try_from(value).map_err(|_| Errno::INVAL);
    let mut lock = libc::flock {
        l_type: short(kind)?,
        l_whence: short(libc::SEEK_SET)?,
        l_start: number(range.offset)?,
        l_len: number(range.length)?,
        // Required by locks of the open file description.
        l_pid: 0,
    };
    // SAFETY: both commands take a pointer to a `flock`, which the kernel reads, may write, and does not keep.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(lock.l_type.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loop_device::{LoopDevice, may_make_devices};
    use crate::open::OpenFile;
    use std::path::Path;

    fn open(path: &Path, part: Option<(u64, u64)>) -> Result<OpenFile, Error> {
        let part = part.map(|(offset, length)| ByteRange { offset, length });
        OpenFile::open(path, &FileOptions { exclusive: true, part, ..FileOptions::default() })
    }

    fn assert_busy(path: &Path, part: Option<(u64, u64)>, words: &str) {
        let error = open(path, part).err().expect("somebody has it");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }

    /// Checks that hold for files and block devices.
    fn parts_are_apart(path: &Path) {
        let first = open(path, Some((0, 1 << 20))).unwrap();
        assert_busy(path, Some((4096, 4096)), "bytes 4096..8192");
        assert_busy(path, Some(((1 << 20) - 512, 4096)), "in use by another process");
        assert_busy(path, None, "in use by another process");
        let second = open(path, Some((1 << 20, 1 << 20))).unwrap();
        first.unlock();
        let again = open(path, Some((0, 4096))).unwrap();
        drop(again);
        drop(first);
        assert_busy(path, None, "in use by another process");
        drop(second);
        let whole = open(path, None).unwrap();
        assert_busy(path, Some((0, 4096)), "in use by another process");
        whole.unlock();
        assert!(open(path, Some((0, 4096))).is_ok());
    }

    #[tokio::test]
    async fn parts_of_a_file_are_claimed_apart_and_not_beside_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        File::create(&path).and_then(|file| file.set_len(8 << 20)).unwrap();
        parts_are_apart(&path);
        let error = open(&path, Some((4 << 20, 8 << 20))).err().expect("it is not as long");
        assert_eq!(error.kind(), ErrorKind::InvalidRange);
    }

    /// Also after its first keeper has gone, as long as any part of it is claimed.
    #[tokio::test]
    async fn a_block_device_with_parts_is_kept_from_others() {
        if !may_make_devices() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let disk = LoopDevice::new(&folder.path().join("disk"), 8 << 20, 512);
        parts_are_apart(&disk.path);
        // Opens as `mount` and RAID do.
        let ask = || rustix::fs::open(&disk.path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty());
        let first = open(&disk.path, Some((0, 4096))).unwrap();
        let second = open(&disk.path, Some((4096, 4096))).unwrap();
        assert_eq!(ask().err(), Some(Errno::BUSY));
        drop(first);
        while ask().is_ok() {
            tokio::time::sleep(KEEPER_INTERVAL / 10).await;
        }
        drop(second);
        let other = ask().expect("nobody has it");
        // The other holder is no forebay, so the device is not shared by parts.
        assert_busy(&disk.path, Some((0, 4096)), "in use by another process");
        drop(other);
    }
}
