//! Opening: size, lock, preallocation and geometry, with a message for each way in which it fails.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use base::range::ByteRange;
use block::{Error, ErrorKind, Geometry, Hints};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::claim::Claim;
use crate::failure;
use crate::limits::{TRANSFER_BYTES_MAX, ZERO_CHUNK_BYTES};
use crate::name::{check_named, has_name};
use crate::options::FileOptions;
use crate::topology::{Discard, Topology};
use crate::wholeness::Wholeness;

/// The smallest logical block.
const SECTOR_BYTES: u32 = 512;

/// A file that was opened and checked.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) path: String,
    pub(crate) geometry: Geometry,
    pub(crate) is_block_device: bool,
    pub(crate) is_direct: bool,
    /// How it discards, if it can.
    pub(crate) discard: Option<Discard>,
    /// Whether its disk is flushed for each durable write.
    pub(crate) flushes_for_each: bool,
    /// Its state at opening, where the options ask to notice cuts.
    wholeness: Option<Wholeness>,
    /// The claim that keeps other processes away, if there is one.
    claim: Option<Claim>,
    /// Whether it has to keep a name, where the options ask to notice that it lost its last one.
    must_keep_name: bool,
}

impl OpenFile {
    /// Opens `path`. A file that this created and then cannot use (no space) is removed again.
    pub(crate) fn open(path: &Path, options: &FileOptions) -> Result<Self, Error> {
        let name = options.name.clone().unwrap_or_else(|| path.display().to_string());
        if options.size.is_some_and(|size| size == 0 || !size.is_multiple_of(u64::from(SECTOR_BYTES))) {
            let context = format!("the size asked for {name} is not a positive multiple of {SECTOR_BYTES} bytes");
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        let block_device = block_device_at(path);
        if let Some(number) = block_device
            && !options.read_only
            && Topology::of(number).is_write_protected
        {
            let context = format!("{name} is write protected: serve it read-only");
            return Err(Error::new(ErrorKind::ReadOnly, context));
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
        let status_of = |file: &File| {
            rustix::fs::fstat(file).map_err(|errno| failure::error(errno, format!("reading the status of {path}")))
        };
        let file_type = FileType::from_raw_mode(status_of(&file)?.st_mode);
        let claim = options.exclusive.then(|| Claim::take(&file, file_type, &path, options)).transpose()?;
        // A former holder of the lock may have changed the size.
        let status = status_of(&file)?;
        // A file is on the disk of its file system, if the file system names one.
        let disk = if file_type == FileType::BlockDevice { status.st_rdev } else { status.st_dev };
        let topology = Topology::of(disk);
        let (geometry, discard) = match file_type {
            FileType::RegularFile => {
                let found = u64::try_from(status.st_size).unwrap_or(0);
                if let Some(wanted) = options.size.filter(|_| found == 0 && !options.read_only) {
                    check_room(&file, &path, wanted, options)?;
                }
                let size = fit_size(&file, &path, found, options)?;
                if !options.read_only {
                    reserve(&file, &path, size, options, is_new)?;
                }
                let physical = u32::try_from(status.st_blksize).unwrap_or(4096);
                let (geometry, discard) = file_geometry(&file, size, physical, options);
                if geometry.size_bytes < size {
                    let (rest, block) = (size - geometry.size_bytes, geometry.logical_block_bytes);
                    tracing::warn!(
                        "{path} has {size} bytes, and the last {rest} are no whole block of {block}: nobody sees them"
                    );
                }
                (geometry, discard)
            }
            FileType::BlockDevice => device_geometry(&file, &path, &topology, options)?,
            _ => {
                let context = format!("{path} is neither a file nor a block device");
                return Err(Error::new(ErrorKind::Unsupported, context));
            }
        };
        if geometry.size_bytes == 0 {
            let advice = match file_type {
                FileType::BlockDevice => "is an empty block device: is there a medium in it?".to_owned(),
                _ => format!("is empty: give it a size, as in file:{path},size=1GiB"),
            };
            let context = format!("{path} {advice}");
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        if is_new {
            file.sync_all().map_err(|error| io_error(&error, format!("making {path} durable")))?;
        }
        let is_block_device = file_type == FileType::BlockDevice;
        let wholeness = (options.notices_cuts && !is_block_device)
            .then(|| Wholeness::of(&file, options.cut_note.clone()))
            .flatten();
        let (is_direct, flushes_for_each) = (options.direct, topology.flushes_for_each);
        // Some file systems count no names.
        let must_keep_name = options.notices_removal && !is_block_device && has_name(&file) == Some(true);
        Ok(Self {
            file,
            path,
            geometry,
            is_block_device,
            is_direct,
            discard,
            flushes_for_each,
            wholeness,
            claim,
            must_keep_name,
        })
    }

    /// # Errors
    /// `Media` once the file was cut, where that is noticed.
    pub(crate) fn check_whole(&self) -> Result<(), Error> {
        self.wholeness.as_ref().map_or(Ok(()), |wholeness| wholeness.check(&self.file, &self.path))
    }

    /// Whether what is made durable now lasts.
    ///
    /// # Errors
    /// `Media` once the file was cut, or has no name any more, where that is noticed.
    pub(crate) fn check_lasts(&self) -> Result<(), Error> {
        self.check_whole()?;
        if self.must_keep_name { check_named(&self.file, &self.path) } else { Ok(()) }
    }

    /// Notes that the owner discards: missing blocks are no sign of a cut any more.
    pub(crate) fn note_discard(&self) {
        if let Some(wholeness) = &self.wholeness {
            wholeness.note_discard();
        }
    }

    /// Ends the claim.
    pub(crate) fn unlock(&self) {
        if let Some(claim) = &self.claim {
            claim.release(&self.file, &self.path);
        }
    }
}

/// The number of the block device at `path`, if there is one.
fn block_device_at(path: &Path) -> Option<u64> {
    let status = rustix::fs::stat(path).ok()?;
    (FileType::from_raw_mode(status.st_mode) == FileType::BlockDevice).then_some(status.st_rdev)
}

/// A file that this opening created; removed on drop unless kept.
struct Created(PathBuf);

impl Created {
    /// Keeps the file, and makes its name durable.
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
            let advice = match options.read_only {
                true => ", and what is read-only is not created",
                false => ": give a size to have it created",
            };
            let context = format!("{name} does not exist{advice}");
            Err(Error::new(ErrorKind::NotFound, context))
        }
        Err(errno) => Err(failure::error(errno, format!("opening {name}"))),
    }
}

/// Refuses at once to reserve more than the file system has free: `fallocate` would take all free
/// space from other users before it fails.
fn check_room(file: &File, path: &str, wanted: u64, options: &FileOptions) -> Result<(), Error> {
    if !(options.preallocate || options.zero_written) {
        return Ok(());
    }
    // Without this information the reservation itself finds out.
    let Ok(system) = rustix::fs::fstatvfs(file) else { return Ok(()) };
    // Blocks that only the administrator may use do not count for other users.
    let blocks = if rustix::process::geteuid().is_root() { system.f_bfree } else { system.f_bavail };
    let free = blocks.saturating_mul(system.f_frsize);
    if system.f_blocks == 0 || wanted <= free {
        return Ok(());
    }
    let action = format!("reserving {wanted} bytes for {path}, whose file system has {free} free");
    Err(failure::error(Errno::NOSPC, action))
}

/// Checks the size of a regular file; a new (or empty) one gets it here.
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
    let part = options.part.unwrap_or(ByteRange { offset: 0, length: size });
    let fail = |errno| failure::error(errno, format!("reserving {} bytes for {path}", part.length));
    if part.end() > size {
        let context = format!("{path} has {size} bytes, and {part} of it do not exist");
        return Err(Error::new(ErrorKind::InvalidRange, context));
    }
    if options.preallocate {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), part.offset, part.length) {
            Ok(()) => {}
            // Such file systems reserve by writing, or not at all.
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

fn file_geometry(file: &File, size: u64, physical: u32, options: &FileOptions) -> (Geometry, Option<Discard>) {
    let logical = if options.direct { direct_alignment(file) } else { SECTOR_BYTES };
    let can_punch = !options.read_only && can_punch(file, size);
    let geometry = Geometry {
        // Bytes past the last whole block cannot be addressed.
        size_bytes: size - size % u64::from(logical),
        discard_granularity_bytes: can_punch.then_some(4096),
        ..geometry(logical, physical, options)
    };
    (geometry, can_punch.then_some(Discard::Punch))
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
        discard_reads_zeroes: true,
        transfer_bytes_max: TRANSFER_BYTES_MAX,
        hints: Hints::default(),
    }
}

/// The alignment that `O_DIRECT` requires: from `statx` since Linux 6.1, else a page, which every
/// file system accepts.
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

/// Tries to punch a hole past the end of the file, where there is no data.
fn can_punch(file: &File, size: u64) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, size.next_multiple_of(4096), 4096).is_ok()
}

fn device_geometry(
    file: &File,
    path: &str,
    topology: &Topology,
    options: &FileOptions,
) -> Result<(Geometry, Option<Discard>), Error> {
    let fail = |errno| failure::error(errno, format!("asking for the size of {path}"));
    // The same number that BLKGETSIZE64 gives.
    let size = rustix::fs::seek(file, SeekFrom::End(0)).map_err(fail)?;
    let logical = rustix::fs::ioctl_blksszget(file).map_err(fail)?;
    let physical = rustix::fs::ioctl_blkpbszget(file).unwrap_or(logical);
    if !logical.is_power_of_two() || logical < SECTOR_BYTES {
        let context = format!("{path} says that its logical blocks have {logical} bytes");
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    if let Some(wanted) = options.size.filter(|wanted| *wanted != size) {
        let context = format!("block device {path} has {size} bytes, not the {wanted} asked for: leave the size out");
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    let discard = topology.discard.filter(|_| !options.read_only);
    let geometry = Geometry {
        size_bytes: size - size % u64::from(logical),
        discard_granularity_bytes: discard.map(|_| topology.discard_granularity_bytes.max(logical)),
        discard_reads_zeroes: discard != Some(Discard::Ioctl),
        hints: topology.hints,
        ..geometry(logical, physical, options)
    };
    Ok((geometry, discard))
}

fn io_error(error: &std::io::Error, action: String) -> Error {
    failure::error(Errno::from_io_error(error).unwrap_or(Errno::IO), action)
}
