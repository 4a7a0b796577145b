//! How to open a file as a device.

use base::range::ByteRange;
use block::Identity;

/// How to open. The default opens an existing file or block device for reading and writing, through the page cache.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Size in bytes, a multiple of 512. A missing or empty file gets this size, sparse; an existing one must have it.
    /// `None`: the file exists and its size counts.
    pub size: Option<u64>,
    /// Reserves the space of the whole file, so that no write ends in *no space*.
    pub preallocate: bool,
    /// Writes a new file out with zeroes, so that no write allocates or converts extents later. Takes as long as that
    /// takes, on the calling thread.
    pub zero_written: bool,
    /// Bypasses the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Refuses a file that another process (or device) opened exclusively, and keeps it so while the device is there
    /// (`flock`; on block devices `O_EXCL`, which keeps mounts and RAID away, too). Of a part, see `part`.
    pub exclusive: bool,
    /// Claims, and reserves, these bytes only, so that others may claim others of the same file or block device.
    /// Nothing keeps requests to them: whoever opens a part sees to that (`block::layer::window`).
    pub part: Option<ByteRange>,
    /// Opens for reading only.
    pub read_only: bool,
    /// What the device says it is.
    pub identity: Identity,
    /// What messages call it, where that is not its path: of a file that is made under another name than it will have.
    pub name: Option<String>,
    /// Whether writes may stay in caches until a flush. When not, each write is carried out like one with `fua`.
    pub is_write_cache_volatile: bool,
    /// Goes on after a durable call has failed: what is under way fails, [`block::Event::WritesLost`] is said, and what
    /// comes later is promised anew. For an owner who then tells every client of its own that what it wrote may be
    /// lost; without that, nothing is promised any more until the device is opened again.
    pub goes_on_after_loss: bool,
    /// Notices when somebody else cuts the file, or takes blocks out of it, and fails all requests then that read or
    /// make something durable. For files that nobody but their owner changes, and that must not be read as zeroes. Of
    /// block devices it does nothing.
    pub notices_cuts: bool,
    /// Carries durable writes out on the thread that submits them, as long as the medium is so fast that handing them
    /// to the engine would take longer ([`crate::limits::WAIT_US_MAX`]). For writes that little else on the thread goes
    /// before: those of a log. Past the page cache (`direct`) only.
    pub waits_for_fast_writes: bool,
    /// Uses io_uring where the kernel permits it; otherwise, or where not, blocking calls on tokio's threads.
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
            waits_for_fast_writes: false,
            io_uring: true,
        }
    }
}
