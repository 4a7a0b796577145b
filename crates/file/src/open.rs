//! Opening: size, lock, preallocation and geometry, and every way in which they can fail, in words.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use block::{Error, ErrorKind, Geometry};
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::failure;
use crate::limits::{LOCK_RETRY_INTERVAL, LOCK_WAIT_MAX, TRANSFER_BYTES_MAX, ZERO_CHUNK_BYTES};
use crate::options::FileOptions;

/// The smallest logical block there is.
const SECTOR_BYTES: u32 = 512;

/// A file that was opened and found fit.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) path: String,
    pub(crate) geometry: Geometry,
    pub(crate) is_block_device: bool,
    pub(crate) is_direct: bool,
    is_locked: bool,
}

impl OpenFile {
    /// Opens `path`. A file it created and then found unfit (no space) is removed again.
    pub(crate) fn open(path: &Path, options: &FileOptions) -> Result<Self, Error> {
        let name = path.display().to_string();
        if options.size.is_some_and(|size| size == 0 || !size.is_multiple_of(u64::from(SECTOR_BYTES))) {
            let context = format!("the size asked for {name} is not a positive multiple of {SECTOR_BYTES} bytes");
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        let (descriptor, created) = open_or_create(path, &name, options)?;
        let opened = Self::prepare(File::from(descriptor), name, options, created.is_some());
        match (&opened, created) {
            (Ok(_), Some(created)) => created.keep(),
            (Err(_), Some(created)) => created.remove(),
            (_, None) => {}
        }
        opened
    }

    fn prepare(file: File, path: String, options: &FileOptions, is_new: bool) -> Result<Self, Error> {
        if options.exclusive {
            lock_exclusively(&file, &path)?;
        }
        let status =
            rustix::fs::fstat(&file).map_err(|errno| failure::error(errno, format!("reading the status of {path}")))?;
        let file_type = FileType::from_raw_mode(status.st_mode);
        let geometry = match file_type {
            FileType::RegularFile => {
                let size = fit_size(&file, &path, u64::try_from(status.st_size).unwrap_or(0), options)?;
                if !options.read_only {
                    reserve(&file, &path, size, options, is_new)?;
                }
                let physical = u32::try_from(status.st_blksize).unwrap_or(4096);
                file_geometry(&file, size, physical, options)
            }
            FileType::BlockDevice => device_geometry(&file, &path, status.st_rdev, options)?,
            _ => {
                let context = format!("{path} is neither a file nor a block device");
                return Err(Error::new(ErrorKind::Unsupported, context));
            }
        };
        if geometry.size_bytes == 0 {
            let context = format!("{path} is empty: give it a size, as in file:{path},size=1GiB");
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        if is_new {
            file.sync_all().map_err(|error| io_error(&error, format!("making {path} durable")))?;
        }
        let is_block_device = file_type == FileType::BlockDevice;
        Ok(Self { file, path, geometry, is_block_device, is_direct: options.direct, is_locked: options.exclusive })
    }

    /// Lets others lock the file from now on.
    pub(crate) fn unlock(&self) {
        if self.is_locked
            && let Err(errno) = rustix::fs::flock(&self.file, FlockOperation::Unlock)
        {
            tracing::warn!("unlocking {}: {errno}", self.path);
        }
    }
}

/// A file that this opening created.
struct Created(PathBuf);

impl Created {
    /// The name is durable, too.
    fn keep(self) {
        let parent = self.0.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if let Err(error) = File::open(parent).and_then(|folder| folder.sync_all()) {
            tracing::warn!("making the name of {} durable: {error}", self.0.display());
        }
    }

    fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!("removing {}, which was just created and is of no use: {error}", self.0.display());
        }
    }
}

fn open_or_create(path: &Path, name: &str, options: &FileOptions) -> Result<(OwnedFd, Option<Created>), Error> {
    let mut flags = OFlags::CLOEXEC | if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if options.direct {
        flags |= OFlags::DIRECT;
    }
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let may_create = options.size.is_some() && !options.read_only;
    let (result, is_created) = match opened {
        Err(Errno::NOENT) if may_create => {
            (rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR), true)
        }
        other => (other, false),
    };
    match result {
        Ok(descriptor) => Ok((descriptor, is_created.then(|| Created(path.to_owned())))),
        Err(Errno::INVAL) if options.direct => {
            // Some file systems create the name before they refuse O_DIRECT.
            if is_created && path.exists() {
                Created(path.to_owned()).remove();
            }
            let context = format!("{name} cannot be opened past the page cache (O_DIRECT): open it without direct");
            Err(Error::new(ErrorKind::Unsupported, context))
        }
        Err(Errno::NOENT) if !may_create => {
            let context = format!("{name} does not exist: give a size to have it created");
            Err(Error::new(ErrorKind::NotFound, context))
        }
        Err(errno) => Err(failure::error(errno, format!("opening {name}"))),
    }
}

/// Takes the lock, giving a process that was just killed the time to let go of it: the kernel keeps the file, and with it the lock, until
/// the writes that were in its ring have ended. That is as it should be, since until then they may still land.
fn lock_exclusively(file: &File, path: &str) -> Result<(), Error> {
    let deadline = Instant::now() + LOCK_WAIT_MAX;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY_INTERVAL),
            Err(Errno::AGAIN) => {
                return Err(Error::new(ErrorKind::Busy, format!("in use by another process: {path}")));
            }
            Err(errno) => return Err(failure::error(errno, format!("locking {path}"))),
        }
    }
}

/// The size of a regular file, which a new (or empty) one is given here.
fn fit_size(file: &File, path: &str, size: u64, options: &FileOptions) -> Result<u64, Error> {
    match options.size {
        Some(wanted) if size == 0 && !options.read_only => {
            rustix::fs::ftruncate(file, wanted)
                .map_err(|errno| failure::error(errno, format!("giving {path} its size of {wanted} bytes")))?;
            Ok(wanted)
        }
        Some(wanted) if size != wanted => {
            let context = format!(
                "{path} has {size} bytes, not the {wanted} asked for: leave the size out, or take another file"
            );
            Err(Error::new(ErrorKind::Corrupt, context))
        }
        _ => Ok(size),
    }
}

/// Takes the space of the file from the file system, as the options say.
fn reserve(file: &File, path: &str, size: u64, options: &FileOptions, is_new: bool) -> Result<(), Error> {
    let fail = |errno| failure::error(errno, format!("reserving {size} bytes for {path}"));
    if options.preallocate {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
            Ok(()) => {}
            // Such file systems reserve by writing or not at all.
            Err(Errno::OPNOTSUPP) if is_new => return write_zeroes_over(file, size).map_err(fail),
            Err(errno) => return Err(fail(errno)),
        }
    }
    if options.zero_written && is_new { write_zeroes_over(file, size).map_err(fail) } else { Ok(()) }
}

fn write_zeroes_over(file: &File, size: u64) -> Result<(), Errno> {
    let zeroes = block::Buffer::zeroed(ZERO_CHUNK_BYTES);
    let mut offset = 0;
    while offset < size {
        let length = (size - offset).min(ZERO_CHUNK_BYTES as u64) as usize;
        match rustix::io::pwrite(file, &zeroes[..length], offset) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(count) => offset += count as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn file_geometry(file: &File, size: u64, physical: u32, options: &FileOptions) -> Geometry {
    let logical = if options.direct { direct_alignment(file) } else { SECTOR_BYTES };
    let can_punch = !options.read_only && can_punch(file, size);
    Geometry {
        // Bytes past the last whole block cannot be addressed.
        size_bytes: size - size % u64::from(logical),
        discard_granularity_bytes: can_punch.then_some(4096),
        ..geometry(logical, physical, options)
    }
}

fn geometry(logical: u32, physical: u32, options: &FileOptions) -> Geometry {
    let physical = if physical.is_power_of_two() { physical.clamp(logical, 1 << 16) } else { logical };
    Geometry {
        size_bytes: 0,
        logical_block_bytes: logical,
        physical_block_bytes: physical,
        is_write_cache_volatile: options.is_write_cache_volatile,
        is_read_only: options.read_only,
        discard_granularity_bytes: None,
        // Holes read as zeroes, and on block devices the same call zeroes.
        discard_reads_zeroes: true,
        transfer_bytes_max: TRANSFER_BYTES_MAX,
    }
}

/// What `O_DIRECT` asks of offsets: by `statx` since Linux 6.1, else a page, which every file system accepts.
fn direct_alignment(file: &File) -> u32 {
    let status = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::from_bits_retain(STATX_DIOALIGN));
    let alignment = match status {
        Ok(status) if status.stx_mask & STATX_DIOALIGN != 0 => status.stx_dio_offset_align,
        _ => 0,
    };
    if alignment.is_power_of_two() { alignment.max(SECTOR_BYTES) } else { 4096 }
}

/// `STATX_DIOALIGN` of `linux/stat.h`.
const STATX_DIOALIGN: u32 = 0x2000;

/// Tries it past the end of the file, where there is nothing to lose.
fn can_punch(file: &File, size: u64) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, size.next_multiple_of(4096), 4096).is_ok()
}

fn device_geometry(file: &File, path: &str, number: u64, options: &FileOptions) -> Result<Geometry, Error> {
    let fail = |errno| failure::error(errno, format!("asking for the size of {path}"));
    let size = rustix::fs::seek(file, SeekFrom::End(0)).map_err(fail)?;
    let logical = rustix::fs::ioctl_blksszget(file).map_err(fail)?;
    let physical = rustix::fs::ioctl_blkpbszget(file).unwrap_or(logical);
    if let Some(wanted) = options.size.filter(|wanted| *wanted != size) {
        let context = format!("block device {path} has {size} bytes, not the {wanted} asked for: leave the size out");
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    let can_discard = !options.read_only && write_zeroes_bytes_max(number) > 0;
    Ok(Geometry {
        size_bytes: size - size % u64::from(logical.max(1)),
        discard_granularity_bytes: can_discard.then_some(physical),
        ..geometry(logical, physical, options)
    })
}

/// Whether the disk zeroes ranges by itself; where it does not, a discard would end as a slow write.
fn write_zeroes_bytes_max(number: u64) -> u64 {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let attribute = format!("/sys/dev/block/{major}:{minor}/queue/write_zeroes_max_bytes");
    std::fs::read_to_string(attribute).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn io_error(error: &std::io::Error, action: String) -> Error {
    failure::error(Errno::from_io_error(error).unwrap_or(Errno::IO), action)
}
