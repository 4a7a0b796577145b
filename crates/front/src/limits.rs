//! The bounds of this crate.

use std::time::Duration;

/// Requests of one connection under way in the device. Twice the deepest queue of the Linux NBD
/// driver and of common benchmarks; beyond it, no further request is read from the connection.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 256;

/// Bytes of one connection under way: payloads in the device, and replies not sent yet. Two
/// megabytes would keep a 10 Gbit/s link busy at 1 ms; the rest is room for uneven devices. One
/// request beyond it is still served, alone.
pub const BYTES_IN_FLIGHT_MAX: u64 = 16 << 20;

/// Default count of connections with a full share of the buffers: nbdcopy opens four, the Linux
/// driver up to one per processor.
pub const CONNECTIONS_MAX: usize = 16;

/// Connections besides those with full shares. A client may be idle for days and stays connected:
/// its file system is mounted. It holds no buffers then, and has no share. One connection more is
/// accepted and closed at once.
pub const SPARE_CONNECTIONS_MAX: usize = 48;

/// Bytes of buffers for a connection while others have all full shares: one step of a request, and
/// small requests.
pub const SPARE_SHARE_BYTES: usize = 1 << 20;

/// Default bytes of buffers that one server lends to connections with a full share, an equal one
/// for each: what that may have under way. Requests larger than a share have places besides these.
pub const BUFFER_BYTES_MAX: usize = CONNECTIONS_MAX * BYTES_IN_FLIGHT_MAX as usize;

/// Requests larger than a connection's share that are under way at once, over all connections. They
/// are rare, and one keeps any link busy while the next one is prepared.
pub const LARGE_REQUESTS_MAX: usize = 2;

/// Bytes of buffers for these.
pub const LARGE_BYTES_MAX: usize = LARGE_REQUESTS_MAX * nbd::limits::PAYLOAD_BYTES_MAX as usize;

/// Time for which a large request may depend on its client, for payload or reply, while others
/// wait: 1 MiB/s for the largest.
pub const LARGE_TIME_MAX: Duration = Duration::from_secs(32);

/// Time a client has to finish the handshake. Programs take milliseconds, people with a debugger do not matter here.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Connections in their handshakes at once. They take milliseconds, and hold a few KiB. With more,
/// the oldest of the peer with most of them is closed. At the pace of accepting, the others have
/// ten milliseconds at least.
pub const HANDSHAKES_MAX: usize = 128;

/// Work of a handshake in one turn after which all handshakes rest: longer than any but that of a
/// TLS signature, which takes one to two milliseconds with a key of 2048 bits.
pub const HANDSHAKE_STEP_LONG: Duration = Duration::from_micros(200);

/// For how many times its own duration all handshakes rest after such a step: together they take a
/// quarter of the thread.
pub const HANDSHAKE_REST: u32 = 3;

/// Connections that are accepted before the next one waits for [`ACCEPT_INTERVAL`]: a client that
/// connects again and again gets a fifth of the thread.
pub const ACCEPTS_IN_A_ROW: u32 = 16;

/// The pause after [`ACCEPTS_IN_A_ROW`] connections.
pub const ACCEPT_INTERVAL: Duration = Duration::from_millis(1);

/// How long the kernel keeps requests of its disk (`/dev/nbdN`) whose server has ended: enough for
/// a restart and the recovery of a large cache. After that they fail.
pub const LOST_TIME_MAX: Duration = Duration::from_secs(300);

/// Disks of the kernel among which a free one is searched; its module makes 16 by default.
pub const KERNEL_DISKS_MAX: u32 = 256;

/// Time for connections to finish their requests when a server shuts down. An administrator that
/// ends the process allows 5 s or more, and the layers below the server need most of it.
pub const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(2);

/// Pause after `accept` failed for lack of descriptors or memory, which may last.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Slices of one vectored write. Past some dozens the cost per slice stays and the cost per call no longer shows; a
/// reply takes two.
pub const SLICES_PER_WRITE_MAX: usize = 64;

/// Bytes of one step of a request that takes several: a cache request without other active
/// connections, and partial blocks.
pub const STEP_BYTES: u64 = 1 << 20;

/// Bytes of a cache request that are read at a time where the device answers at once, or other
/// connections are active: 20 us of memory, 0.3 ms of a device of 200 MiB/s.
pub const CACHE_PIECE_BYTES: u64 = 64 << 10;
const _: () = assert!(CACHE_PIECE_BYTES <= STEP_BYTES);

/// The same for a trim or for zeroes, which transfer no data; in memory it takes 50 us. Up to this
/// size they are one device request.
pub const ZERO_PIECE_BYTES: u64 = 1 << 20;

/// The same where the device does not answer at once and no other connection is active.
pub const ZERO_PIECE_BYTES_ALONE: u64 = 64 << 20;

/// Bytes of requests without payload that one connection may have under way in the device: a long
/// one, or many small ones.
pub const WORK_SHARE_BYTES: u64 = 1 << 20;
const _: () = assert!(WORK_SHARE_BYTES >= ZERO_PIECE_BYTES);

/// Bytes of the longest block status request that does not wait in the line of long ones: looking
/// up the extents takes no longer than reading the data.
pub const STATUS_BYTES: u64 = 1 << 20;

/// Shorter block status requests that one connection may have under way in the device.
pub const STATUS_REQUESTS_MAX: u64 = 4;

/// The unit of [`WORK_SHARE_BYTES`]: as many units as requests may be in flight, at least.
pub const SHARE_UNIT_BYTES: u64 = 4096;
const _: () = assert!(WORK_SHARE_BYTES / SHARE_UNIT_BYTES >= REQUESTS_IN_FLIGHT_MAX as u64);

/// Longest pause after a piece of a long request, for other connections.
pub const PAUSE_TIME_MAX: Duration = Duration::from_secs(1);

/// The cost of a request in the device besides its bytes, where several connections have some in
/// it: about the bytes that a link moves while a small request is handled.
pub const REQUEST_COST: u64 = 32 << 10;

/// The cost that a light connection may have under way: seven requests of a page, or one of 128
/// KiB.
pub const LIGHT_COST: u64 = 256 << 10;

/// The least cost that heavy connections may have in the device beside a light one: two pieces, so
/// that one is on its way to the device while the other is on its way back.
pub const BESIDE_LIGHT_COST: u64 = 2 * (REQUEST_COST + PIECE_BYTES_MIN);

/// The same without a light connection, and the upper limit otherwise: what one connection may
/// have.
pub const SHARED_COST: u64 = BYTES_IN_FLIGHT_MAX;
const _: () = assert!(BESIDE_LIGHT_COST <= SHARED_COST);

/// Interval at which the undelayed time of a device is measured again: for a second or less of it
/// the device has few requests.
pub const ROOM_INTERVAL: Duration = Duration::from_secs(10);

/// Count of pieces for the mean of that time.
pub const ROOM_SAMPLES: u32 = 16;

/// Time for which a connection counts as active after a request.
pub const BESIDE_TIME: Duration = Duration::from_secs(1);

/// Pieces that fit into the room of heavy connections: as many as are under way at once, when it is
/// small.
pub const PIECES_IN_ROOM: u64 = 4;

/// Bytes of a piece of a read or write, at least and at most.
pub const PIECE_BYTES_MIN: u64 = 32 << 10;
/// See [`PIECE_BYTES_MIN`].
pub const PIECE_BYTES_MAX: u64 = STEP_BYTES;

/// Bytes that a connection receives, and has the device move, before the runtime looks at the
/// sockets of others, where the device answers at once: 50 us of memory.
pub const TURN_BYTES: u64 = 256 << 10;

/// The same for all connections in their handshakes together: four options, where most handshakes
/// have two.
pub const TURN_BYTES_HANDSHAKE: u64 = 64 << 10;

/// The same for a heavy connection beside a light one, half of whose time passes with what is
/// received or sent at once.
pub const TURN_BYTES_BESIDE_LIGHT: u64 = 64 << 10;
const _: () = assert!(TURN_BYTES_BESIDE_LIGHT >= PIECE_BYTES_MIN && TURN_BYTES_BESIDE_LIGHT < TURN_BYTES);

/// The least count of a request: 64 small ones are a turn.
pub const TURN_REQUEST_BYTES: u64 = 4096;

/// The count of a refused or malformed request: 16 are a turn, since several clients may have their
/// turns before another one, and this slows down no proper request.
pub const TURN_REFUSED_BYTES: u64 = 16 << 10;

/// Requests that the kernel may have in the background of a FUSE file: reads and writes of io_uring
/// and of the page cache of a loop device. Those of waiting threads come in addition;
/// [`BYTES_IN_FLIGHT_MAX`] limits what is under way in the device.
pub const FUSE_BACKGROUND_MAX: u16 = 64;

/// Bytes whose extents are asked for at once when searching the next hole or data of a file.
pub const SEEK_STEP_BYTES: u64 = 1 << 30;

/// Bytes of one command of the client that carries no payload: the largest multiple of every block size below 4 GiB.
pub const CLIENT_PIECE_BYTES: u64 = (4 << 30) - (64 << 10);

const _: () = assert!(CLIENT_PIECE_BYTES <= u32::MAX as u64, "lengths on the wire have 32 bits");
const _: () = assert!(BYTES_IN_FLIGHT_MAX >= STEP_BYTES);
const _: () = assert!(SPARE_SHARE_BYTES as u64 >= STEP_BYTES);

/// Requests of a mount under way at once. The kernel has at most [`FUSE_BACKGROUND_MAX`] of its own
/// and one for each thread that uses the directory; beyond this, those threads wait.
pub const VOLUME_REQUESTS_MAX: u32 = 256;
const _: () = assert!(VOLUME_REQUESTS_MAX > FUSE_BACKGROUND_MAX as u32);

/// How long changes in a mount may stay volatile without an `fsync`: as with ext4.
pub const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// How long the kernel may cache names and attributes of a mount: no other host changes them.
pub const VOLUME_CACHE_TIME: Duration = Duration::from_secs(3600);

/// By how much the kernel keeps attributes of a shared mount for less than the lease lasts: the kernel counts from when
/// it has the answer. One that comes later is taken back.
pub const ATTRIBUTES_LEASE_MARGIN: Duration = Duration::from_secs(1);

/// Inodes of a shared mount of which the kernel keeps attributes. It is told to forget each of them before another host
/// gets the lock, in some 0.1 s; of others it asks each time.
pub const ATTRIBUTES_KEPT_MAX: usize = 65_536;

/// After so many of them others have their turn on the runtime.
pub const ATTRIBUTES_FORGOTTEN_AT_ONCE: usize = 256;

/// Bytes that a mount keeps of the names of open directories, all together: eight million names of 20 bytes, each with
/// its inode (12 bytes). While a directory is read it may take twice its bytes. One that finds no room is not listed
/// (`ENOMEM`).
pub const LISTING_BYTES_MAX: u32 = 256 << 20;

/// Names of a directory that are prepared for one answer: as many as fit in a page, if they are short. Where more of
/// them are looked up for it, because some are gone, others have their turn on the runtime after so many.
pub const DIRECTORY_ENTRIES_MAX: usize = 128;
