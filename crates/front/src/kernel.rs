//! A disk of the kernel's own NBD client: `/dev/nbdN`, set up over generic netlink, without `nbd-client`.
//!
//! The kernel gets one end of a pair of sockets, and the server has the other. There is no
//! handshake: netlink messages carry its content to the kernel, and a new size, too.
//!
//! When this process ends without taking the disk down, the kernel keeps requests for
//! [`LOST_TIME_MAX`]. A process that takes the same disk with the same backend before that gives it
//! another socket, and the requests go on.
//!
//! | module | holds |
//! |---|---|
//! | `netlink` | messages to the kernel and its answers |
//! | here | the disk |

use std::fs;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};

use block::{Event, Geometry};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use crate::limits::{KERNEL_DISKS_MAX, LOST_TIME_MAX, SHUTDOWN_TIME_MAX};
use crate::server::NbdServer;

mod netlink;

use netlink::{Change, Family};

/// A disk of the kernel that is not served yet. Dropping it takes the disk down, unless it was
/// taken over from another process.
#[derive(Debug)]
pub struct KernelDisk {
    path: PathBuf,
    index: u32,
    /// The kernel requires it with every change.
    backend: String,
    /// `None` once it is served.
    stream: Option<StdUnixStream>,
    is_new: bool,
}

impl Drop for KernelDisk {
    fn drop(&mut self) {
        if self.stream.take().is_some() && self.is_new {
            let disconnected = Family::find().and_then(|family| family.disconnect(self.index));
            if let Err(error) = disconnected {
                tracing::warn!(%error, disk = %self.path.display(), "the kernel keeps a disk that nobody serves");
            }
        }
    }
}

/// The number of `/dev/nbdN`.
///
/// # Errors
/// `InvalidInput` for another path.
pub fn index_of(path: &Path) -> io::Result<u32> {
    let number = path.to_str().and_then(|text| text.strip_prefix("/dev/nbd")).filter(|text| !text.starts_with('+'));
    number.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let words = format!("{} is no disk of the kernel's NBD client: write /dev/nbd0", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, words)
    })
}

/// Whether the disk at `path` is mounted, swapped to, or part of another one, a partition of it
/// included. It is not opened for that: this process answers its requests.
pub fn is_in_use(path: &Path) -> bool {
    let Some(name) = path.file_name() else { return false };
    let disk = Path::new("/sys/class/block").join(name);
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // A folder of the disk with a number of its own is a partition.
    let parts: Vec<PathBuf> =
        entries(&disk).filter(|part| part.join("partition").exists()).chain([disk.clone()]).collect();
    let numbers: Vec<String> = parts.iter().filter_map(|part| fs::read_to_string(part.join("dev")).ok()).collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    parts.iter().any(|part| entries(&part.join("holders")).next().is_some())
        || names_any(&mounts, 2, numbers.iter().map(|number| number.trim()))
        || names_any(&swaps, 0, parts.iter().filter_map(|part| part.file_name()?.to_str()))
}

/// Whether the word at `column` of any line is one of `names`, or ends with one behind a slash.
fn names_any<'a>(lines: &str, column: usize, names: impl Iterator<Item = &'a str>) -> bool {
    let words: Vec<&str> = lines.lines().filter_map(|line| line.split_whitespace().nth(column)).collect();
    let is_word = |name: &str| words.iter().any(|word| word.rsplit('/').next() == Some(name));
    names.into_iter().any(is_word)
}

/// Whether the kernel has an NBD client, and this process may set it up.
///
/// # Errors
/// `Unsupported` where it has none; `PermissionDenied` for a user other than root.
pub fn check_kernel_nbd() -> io::Result<()> {
    if !Path::new("/sys/module/nbd").exists() {
        let words = "this kernel has no NBD client now: `modprobe nbd` loads it where there is one";
        return Err(io::Error::new(io::ErrorKind::Unsupported, words));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "disks of the kernel are for root"))
}

/// The first free disk of the kernel.
pub fn free_disk() -> Option<PathBuf> {
    let is_free = |index: &u32| {
        let folder = folder(*index);
        folder.exists() && !folder.join("pid").exists()
    };
    (0..KERNEL_DISKS_MAX).find(is_free).map(|index| PathBuf::from(format!("/dev/nbd{index}")))
}

fn folder(index: u32) -> PathBuf {
    PathBuf::from(format!("/sys/block/nbd{index}"))
}

impl KernelDisk {
    /// Sets the disk at `path` up for `server`, or takes it over from a process that served the
    /// same `backend` and has ended. Programs may use it from now on; they wait until it is served.
    ///
    /// # Errors
    /// `Unsupported` on a kernel without an NBD client, `PermissionDenied` for a user other than
    /// root, `AddrInUse` when another process uses it; errors of the kernel.
    pub fn connect(path: &Path, server: &NbdServer, backend: &str) -> io::Result<Self> {
        let index = index_of(path)?;
        check_kernel_nbd()?;
        let family = Family::find()?;
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (flags, geometry) = server.facts();
        let change = |socket: RawFd| Change { index, socket: Some(socket), geometry: Some(geometry), flags, backend };
        let change = change(theirs.as_raw_fd());
        let context = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let before = backend_of(index);
        match &before {
            None => family.connect(&change, LOST_TIME_MAX).map_err(context)?,
            Some(same) if *same == backend => {
                tracing::info!(disk = %path.display(), "the disk goes on where another process left it");
                family.reconfigure(&change).map_err(context)?;
            }
            Some(_) => {
                let words = format!("{} is in use, by something else", path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, words));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            index,
            backend: backend.to_owned(),
            stream: Some(ours),
            is_new: before.is_none(),
        })
    }

    /// Serves it until `shutdown`; then the kernel releases it, and the requests under way are
    /// finished.
    ///
    /// # Errors
    /// `NotConnected` when another process took it down.
    ///
    /// # Panics
    /// When it was served before.
    pub async fn serve(mut self, server: &NbdServer, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let (index, stream) = (self.index, self.stream.take().expect("a disk is served once"));
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            // A dropped sender counts as a shutdown.
            let _ = stopped.await;
        };
        let events = server.events();
        let served = server.serve_negotiated(UnixStream::from_std(stream)?, stopped);
        let serving = tokio::spawn(base::background::named("kernel-nbd", served));
        let mut serving = std::pin::pin!(serving);
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                _ = &mut serving => {
                    let words = format!("{} was taken down by somebody else", self.path.display());
                    return Err(io::Error::new(io::ErrorKind::NotConnected, words));
                }
                event = events.receive() => {
                    if matches!(event, Event::Resized(_) | Event::Missed) {
                        tell_size(index, server.facts().1, self.backend.clone()).await;
                    }
                }
            }
        }
        let disconnected = blocking(move || Family::find()?.disconnect(index)).await;
        // Requests that the kernel has sent by now are answered; the kernel closes the socket
        // itself.
        if tokio::time::timeout(SHUTDOWN_TIME_MAX, &mut serving).await.is_err() {
            drop(stop);
            serving.abort();
        }
        disconnected
    }
}

/// The backend of a disk that is connected; empty if none was named.
fn backend_of(index: u32) -> Option<String> {
    let folder = folder(index);
    let backend = || fs::read_to_string(folder.join("backend")).unwrap_or_default().trim().to_owned();
    folder.join("pid").exists().then(backend)
}

async fn tell_size(index: u32, geometry: Geometry, backend: String) {
    let change = move || {
        let change = Change { index, socket: None, geometry: Some(geometry), flags: 0, backend: &backend };
        Family::find()?.reconfigure(&change)
    };
    match blocking(change).await {
        Ok(()) => {
            tracing::info!(size_bytes = geometry.size_bytes, index, "the kernel was told the new size of its disk")
        }
        Err(error) => tracing::warn!(%error, index, "the kernel does not take the new size of its disk"),
    }
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_in_use_where_a_mount_or_a_swap_names_it_or_a_part_of_it() {
        let mounts = "36 35 43:2 / /mnt rw - ext4 /dev/nbd0p2 rw\n";
        assert!(names_any(mounts, 2, ["43:0", "43:2"].into_iter()) && !names_any(mounts, 2, ["43:1"].into_iter()));
        let swaps = "Filename Type Size Used Priority\n/dev/nbd1 partition 8 0 -2\n";
        assert!(names_any(swaps, 0, ["nbd1"].into_iter()) && !names_any(swaps, 0, ["nbd", "nbd11"].into_iter()));
    }

    #[test]
    fn a_disk_of_the_kernel_has_a_number() {
        assert_eq!(index_of(Path::new("/dev/nbd0")).unwrap(), 0);
        assert_eq!(index_of(Path::new("/dev/nbd15")).unwrap(), 15);
        for path in ["/dev/nbd", "/dev/nbdx", "/dev/nbd+1", "/dev/sda", "nbd0", "/dev/nbd0p1"] {
            assert!(index_of(Path::new(path)).is_err(), "{path}");
        }
    }
}
