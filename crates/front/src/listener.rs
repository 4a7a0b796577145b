//! A listening socket.
//!
//! What it keeps true of a socket file:
//! - Only its owner may connect (mode 0600) unless [`SocketAccess`] allows more, from its first
//!   moment: connections are refused until group and mode are set.
//! - A file without a listening process is replaced; one with a listening process is left alone,
//!   and so is any other file. Servers that bind in one directory take turns, by a lock on the
//!   directory, so that two of them cannot both find it stale.
//! - It is removed with the listener, unless another process has put another there meanwhile.
//!
//! TCP addresses must be loopback ones unless the caller allows others: NBD has no authentication
//! of its own.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, chmod, chownat, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::address::ListenAddress;
use crate::handshakes::Peer;

/// Connections that the kernel keeps until they are accepted: at the pace of accepting, a tenth of
/// a second.
const BACKLOG: i32 = 512;

/// The access to a socket file: users that can write to it may connect (unix(7)). TCP addresses
/// have neither mode nor group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permission bits, at most 0777. `None` is 0600, or 0660 where a group is given.
    pub mode: Option<u32>,
    /// Id of the file's group. `None` is the one that the directory gives it.
    pub group: Option<u32>,
}

/// Every permission bit a socket file may have.
const MODE_MAX: u32 = 0o777;

impl SocketAccess {
    /// The permission bits of the file.
    ///
    /// # Errors
    /// `InvalidInput` for others than permission bits.
    pub(crate) fn mode_bits(self) -> io::Result<u32> {
        let bits = self.mode.unwrap_or(if self.group.is_some() { 0o660 } else { 0o600 });
        if bits > MODE_MAX {
            return Err(invalid(format!("a socket's mode is at most {MODE_MAX:o}, not {bits:o}")));
        }
        Ok(bits)
    }

    fn mode(self) -> io::Result<Mode> {
        self.mode_bits().map(Mode::from_bits_truncate)
    }

    /// Gives `path` its group, then its mode: a wider mode never applies to the wrong group.
    fn apply(self, path: &Path, mode: Mode) -> io::Result<()> {
        if let Some(group) = self.group {
            let group = Some(Gid::from_raw(group));
            chownat(CWD, path, None, group, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| {
                let error = io::Error::from(error);
                let message = format!("{} cannot be given its group: {error}", path.display());
                io::Error::new(error.kind(), message)
            })?;
        }
        Ok(chmod(path, mode)?)
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// A socket that accepts connections.
pub struct Listener(Kind);

enum Kind {
    Unix { listener: UnixListener, file: SocketFile },
    Tcp(TcpListener),
}

/// A connection just accepted.
pub(crate) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Accepted {
    /// The user or address of the peer.
    pub(crate) fn peer(&self) -> Peer {
        match self {
            Self::Unix(stream) => stream.peer_cred().map_or(Peer::Unknown, |process| Peer::User(process.uid())),
            Self::Tcp(stream) => stream.peer_addr().map_or(Peer::Unknown, |address| Peer::Address(address.ip())),
        }
    }
}

/// A socket file, removed on drop if it is still the same one.
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = |found: &fs::Metadata| (found.dev(), found.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(|found| is_ours(&found)) {
            // No other code depends on it: the next server replaces a stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Listens on a socket file for its owner only, or on a loopback address.
    ///
    /// # Errors
    /// `AddrInUse` when another process listens there, `AlreadyExists` for a file that is no
    /// socket, `InvalidInput` for an address that is not loopback; errors of the system.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(address: &ListenAddress) -> io::Result<Self> {
        Self::bind_with(address, SocketAccess::default())
    }

    /// Listens on a socket file with this `access`, or on a loopback address.
    ///
    /// # Errors
    /// As [`Listener::bind`]; `InvalidInput` also for a mode above 0777, and for any mode or group
    /// with a TCP address; `PermissionDenied` for a group that the process may not assign.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind_with(address: &ListenAddress, access: SocketAccess) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(tcp) if !tcp.ip().is_loopback() => {
                Err(invalid(format!("{tcp} can be reached from other hosts, and NBD has no authentication")))
            }
            ListenAddress::Tcp(tcp) if access != SocketAccess::default() => {
                Err(invalid(format!("{tcp} is no socket file: it has neither mode nor group")))
            }
            ListenAddress::Tcp(tcp) => bind_tcp(tcp),
            ListenAddress::Unix(path) => bind_unix(path, access),
        }
    }

    /// Listens on a socket file or any address, for every client that can reach it: NBD has no
    /// authentication.
    ///
    /// # Errors
    /// As [`Listener::bind`], except that any address is taken.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind_anywhere(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Unix(path) => bind_unix(path, SocketAccess::default()),
            ListenAddress::Tcp(tcp) => bind_tcp(tcp),
        }
    }

    /// The address where it listens, with the actual port.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<ListenAddress> {
        match &self.0 {
            Kind::Unix { file, .. } => Ok(ListenAddress::Unix(file.path.clone())),
            Kind::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
        }
    }

    /// Accepts one connection and closes it.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn turn_away(&self) -> io::Result<()> {
        self.accept().await.map(drop)
    }

    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        match &self.0 {
            Kind::Unix { listener, .. } => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Requests and replies are small and awaited: none may wait for an acknowledgement.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream))
            }
        }
    }
}

fn bind_tcp(address: &SocketAddr) -> io::Result<Listener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener).map(|listener| Listener(Kind::Tcp(listener)))
}

fn bind_unix(path: &Path, access: SocketAccess) -> io::Result<Listener> {
    let mode = access.mode()?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Released when the handle is dropped, at the end of this function.
    let directory = File::open(directory)?;
    flock(&directory, FlockOperation::LockExclusive)?;
    remove_stale(path)?;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let found = fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), device: found.dev(), inode: found.ino() };
    access.apply(path, mode)?;
    listen(&socket, BACKLOG)?;
    let listener = UnixListener::from_std(socket.into())?;
    Ok(Listener(Kind::Unix { listener, file }))
}

/// Removes a socket file that was left behind.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        let message = format!("{} exists and is no socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    match StdUnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => {
            let message = format!("somebody listens on {} already", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves the file behind");
        let address = ListenAddress::Unix(path.clone());
        let listener = Listener::bind(&address).unwrap();
        assert_eq!(listener.address().unwrap(), address);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = Listener::bind(&address).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn other_peoples_files_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        fs::write(&path, "precious").unwrap();
        let refused = Listener::bind(&ListenAddress::Unix(path.clone())).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&path).unwrap();
        let listener = Listener::bind(&ListenAddress::Unix(path.clone())).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        drop(listener);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_socket_has_the_mode_and_the_group_it_was_given() {
        let directory = tempfile::tempdir().unwrap();
        let address = ListenAddress::Unix(directory.path().join("a.sock"));
        let group = fs::metadata(directory.path()).unwrap().gid();
        for (mode, group, expected) in [
            (None, None, 0o600),
            (Some(0o666), None, 0o666),
            (None, Some(group), 0o660),
            (Some(0o640), Some(group), 0o640),
        ] {
            let listener = Listener::bind_with(&address, SocketAccess { mode, group }).unwrap();
            let found = fs::metadata(directory.path().join("a.sock")).unwrap();
            assert_eq!(found.permissions().mode() & 0o7777, expected);
            assert!(group.is_none_or(|group| found.gid() == group));
            drop(listener);
        }
        let sticky = SocketAccess { mode: Some(0o1777), group: None };
        let refused = Listener::bind_with(&address, sticky).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let refused = Listener::bind_with(&"127.0.0.1:0".parse().unwrap(), sticky).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    #[tokio::test]
    async fn only_loopback_unless_told_otherwise() {
        let refused = Listener::bind(&"0.0.0.0:0".parse().unwrap()).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(matches!(listener.address().unwrap(), ListenAddress::Tcp(address) if address.port() != 0));
    }
}
