//! The options of opening a file as a device.

use base::range::ByteRange;
use block::Identity;

use crate::wholeness::CutNote;

/// Options of opening. The default opens an existing file or block device for reading and writing,
/// through the page cache.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Size in bytes, a multiple of 512. A missing or empty file gets this size, sparse; an existing one must have it.
    /// `None`: the file exists and its size counts.
    pub size: Option<u64>,
    /// Reserves the space of the whole file, so that no write ends in *no space*.
    pub preallocate: bool,
    /// Writes a new file out with zeroes, so that no write allocates or converts extents later.
    /// Blocks the calling thread until that is done.
    pub zero_written: bool,
    /// Bypasses the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Refuses a file that another process (or device) opened exclusively, and keeps others out as
    /// long as the device is open (`flock`; on block devices `O_EXCL`, which keeps mounts and RAID
    /// away, too). For a part of a file see `part`.
    pub exclusive: bool,
    /// Claims, and reserves, only these bytes, so that others may claim other parts of the same
    /// file or block device. Requests are not confined to them: the caller sees to that
    /// (`block::layer::window`).
    pub part: Option<ByteRange>,
    /// Opens for reading only.
    pub read_only: bool,
    /// The identity that the device reports.
    pub identity: Identity,
    /// Its name in messages, if not its path: for a file that is made under a temporary name.
    pub name: Option<String>,
    /// Whether writes may stay in caches until a flush. If not, each write is carried out like one
    /// with `fua`.
    pub is_write_cache_volatile: bool,
    /// Goes on after a durable call has failed: requests under way fail,
    /// [`block::Event::WritesLost`] is published, and later requests are promised durability again.
    /// For an owner that then reports to each of its clients that writes may be lost; without this
    /// option nothing is promised until the device is opened again.
    pub goes_on_after_loss: bool,
    /// Notices when another process cuts the file, or takes blocks out of it; then all requests
    /// fail that read or make something durable. For files that only their owner changes, and that
    /// must not read as zeroes. Without effect on block devices.
    pub notices_cuts: bool,
    /// Notices when no name leads to the file any more: then all requests fail that make something
    /// durable, and reads go on. For files of which nobody else has what they hold. Without effect on
    /// block devices.
    pub notices_removal: bool,
    /// With `notices_cuts`: what is noted then.
    pub cut_note: Option<CutNote>,
    /// Carries durable writes out on the thread that submits them, as long as the medium is so fast
    /// that handing them to the engine would take longer ([`crate::limits::WAIT_US_MAX`]). For
    /// writes that are more urgent than most other work of the thread: those of a log. Past the
    /// page cache (`direct`) only.
    pub waits_for_fast_writes: bool,
    /// Uses io_uring where the kernel permits it; otherwise blocking calls on tokio's threads.
    pub io_uring: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            size: None,
            preallocate: false,
            zero_written: false,
            direct: false,
            exclusive: false,
            part: None,
            read_only: false,
            identity: Identity::default(),
            name: None,
            is_write_cache_volatile: true,
            goes_on_after_loss: false,
            notices_cuts: false,
            cut_note: None,
            waits_for_fast_writes: false,
            notices_removal: false,
            io_uring: true,
        }
    }
}
