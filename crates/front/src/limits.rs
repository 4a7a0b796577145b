//! The bounds of this crate.

use std::time::Duration;

/// Requests of one connection under way in the device. Twice the deepest queue of the Linux NBD driver and of common
/// benchmarks; above it, no further request is taken from the connection.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 256;

/// Bytes of one connection under way: payloads in the device, and replies not yet sent. Two megabytes would keep a 10
/// Gbit/s link busy at 1 ms; the rest is room for uneven devices. One request above it is still served, alone.
pub const BYTES_IN_FLIGHT_MAX: u64 = 16 << 20;

/// Connections that have a full share of the buffers at once unless told otherwise: nbdcopy opens four, the Linux
/// driver up to one per processor.
pub const CONNECTIONS_MAX: usize = 16;

/// Connections beside as many as there are full shares. A client may be idle for days and is let be: its file system is
/// mounted. It holds nothing then, and has no share. One connection more is accepted and closed at once.
pub const SPARE_CONNECTIONS_MAX: usize = 48;

/// Bytes of buffers that a connection may have while others have all full shares: one step of a request, and what is
/// small.
pub const SPARE_SHARE_BYTES: usize = 1 << 20;

/// Bytes of buffers one server lends at once unless told otherwise to connections with a full share, an equal one to
/// each: what that may have under way. Requests larger than a share have places beside it.
pub const BUFFER_BYTES_MAX: usize = CONNECTIONS_MAX * BYTES_IN_FLIGHT_MAX as usize;

/// Requests larger than a connection's share that are under way at once, over all connections. They are rare, and one
/// keeps any link busy while the next one is made ready.
pub const LARGE_REQUESTS_MAX: usize = 2;

/// Bytes of buffers for them.
pub const LARGE_BYTES_MAX: usize = LARGE_REQUESTS_MAX * nbd::limits::PAYLOAD_BYTES_MAX as usize;

/// Time for which a client may keep its large request in its hands, payload or reply, while others wait: 1 MiB/s for
/// the largest.
pub const LARGE_TIME_MAX: Duration = Duration::from_secs(32);

/// Time a client has to finish the handshake. Programs take milliseconds, people with a debugger do not matter here.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Connections in their handshakes at once. They come and go within milliseconds, and hold a few KiB; with more, the
/// oldest of who has most of them gives way. At the pace at which they are taken the others have ten milliseconds at
/// least.
pub const HANDSHAKES_MAX: usize = 128;

/// Connections that are taken before the next ones wait for [`ACCEPT_INTERVAL`]: who connects again and again has a
/// fifth of the thread.
pub const ACCEPTS_IN_A_ROW: u32 = 16;

/// See [`ACCEPTS_IN_A_ROW`].
pub const ACCEPT_INTERVAL: Duration = Duration::from_millis(1);

/// How long the kernel keeps requests of its disk (`/dev/nbdN`) whose server is gone: enough for one that starts again
/// and recovers a large cache. Then they fail.
pub const LOST_TIME_MAX: Duration = Duration::from_secs(300);

/// Disks of the kernel among which a free one is looked for; its module makes 16 unless told otherwise.
pub const KERNEL_DISKS_MAX: u32 = 256;

/// Time a server that shuts down gives its connections to finish what is under way. Whoever ends the process gives it 5
/// s or more, and what is below the server needs most of it.
pub const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(2);

/// Pause after `accept` failed for want of descriptors or memory, which does not get better at once.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Slices of one vectored write. Past some dozens the cost per slice stays and the cost per call no longer shows; a
/// reply takes two.
pub const SLICES_PER_WRITE_MAX: usize = 64;

/// Bytes of one step of a request that takes several: a cache request that nobody is beside, and whatever is not whole
/// blocks.
pub const STEP_BYTES: u64 = 1 << 20;

/// Bytes of a cache request that are read at a time where the device answers on the spot, or others ask for something:
/// 20 us of memory, 0.3 ms of a device of 200 MiB/s.
pub const CACHE_PIECE_BYTES: u64 = 64 << 10;
const _: () = assert!(CACHE_PIECE_BYTES <= STEP_BYTES);

/// The same of a trim or of zeroes, which send no data; in memory it takes 50 us. Up to here they are one request of
/// the device.
pub const ZERO_PIECE_BYTES: u64 = 1 << 20;

/// The same where the device takes its time and nobody is beside.
pub const ZERO_PIECE_BYTES_ALONE: u64 = 64 << 20;

/// Bytes that one connection may have under way in the device of requests that bring no data: a long one, or many small
/// ones.
pub const WORK_SHARE_BYTES: u64 = 1 << 20;
const _: () = assert!(WORK_SHARE_BYTES >= ZERO_PIECE_BYTES);

/// Bytes of the longest request for what is allocated that does not stand in line with the other long ones: looking at
/// them takes no longer than reading them.
pub const STATUS_BYTES: u64 = 1 << 20;

/// Shorter requests for what is allocated that one connection may have under way in the device.
pub const STATUS_REQUESTS_MAX: u64 = 4;

/// What they are counted in: as many as may be in flight at least.
pub const SHARE_UNIT_BYTES: u64 = 4096;
const _: () = assert!(WORK_SHARE_BYTES / SHARE_UNIT_BYTES >= REQUESTS_IN_FLIGHT_MAX as u64);

/// Longest pause after a piece of a long request, for others.
pub const PAUSE_TIME_MAX: Duration = Duration::from_secs(1);

/// What a request costs in the device beside its bytes, where several connections have some in it: about as many bytes
/// as a link moves in the time that a small request takes to be worked on.
pub const REQUEST_COST: u64 = 32 << 10;

/// What a connection may have under way and counts as one that asks for little: seven requests of a page, or one of 128
/// KiB.
pub const LIGHT_COST: u64 = 256 << 10;

/// What those who ask for much may have in the device at least beside one who asks for little: two pieces, so that one
/// is on its way to the device while the other is on its way back.
pub const BESIDE_LIGHT_COST: u64 = 2 * (REQUEST_COST + PIECE_BYTES_MIN);

/// The same where nobody asks for little, and the most that it is otherwise: what one connection may have.
pub const SHARED_COST: u64 = BYTES_IN_FLIGHT_MAX;
const _: () = assert!(BESIDE_LIGHT_COST <= SHARED_COST);

/// Time after which what a device takes without delay is found out anew: a second of it or less is with little in the
/// device.
pub const ROOM_INTERVAL: Duration = Duration::from_secs(10);

/// Pieces of which the mean is taken for that.
pub const ROOM_SAMPLES: u32 = 16;

/// Time for which who asked for something counts as being there.
pub const BESIDE_TIME: Duration = Duration::from_secs(1);

/// Pieces that the room of those who ask for much holds: as many as are on their way at once, when it is small.
pub const PIECES_IN_ROOM: u64 = 4;

/// Bytes of a piece of a read or write, at least and at most.
pub const PIECE_BYTES_MIN: u64 = 32 << 10;
/// See [`PIECE_BYTES_MIN`].
pub const PIECE_BYTES_MAX: u64 = STEP_BYTES;

/// Bytes that a connection receives, and has the device move, before the runtime looks at the sockets of others, where
/// the device answers on the spot: 50 us of memory.
pub const TURN_BYTES: u64 = 256 << 10;

/// The same of a connection in its handshake, of which all together have one turn: four options, where most handshakes
/// have two.
pub const TURN_BYTES_HANDSHAKE: u64 = 64 << 10;

/// The same of one that asks for much beside one that asks for little. Half of the time of that one goes by with what
/// is received or sent at once.
pub const TURN_BYTES_BESIDE_LIGHT: u64 = 64 << 10;
const _: () = assert!(TURN_BYTES_BESIDE_LIGHT >= PIECE_BYTES_MIN && TURN_BYTES_BESIDE_LIGHT < TURN_BYTES);

/// What any request counts in it at least: 64 small ones are a turn.
pub const TURN_REQUEST_BYTES: u64 = 4096;

/// What one counts that is refused or is no request: 16 are a turn, since several clients may have their turns before
/// another one has its own, and nobody is slower for it who asks for something.
pub const TURN_REFUSED_BYTES: u64 = 16 << 10;

/// Requests that the kernel may have in the background of a FUSE file: reads and writes of io_uring and of the page
/// cache of a loop device. Those of threads that wait come beside them; what is under way in the device is bounded by
/// [`BYTES_IN_FLIGHT_MAX`].
pub const FUSE_BACKGROUND_MAX: u16 = 64;

/// Bytes whose extents are asked for at once for the next hole or data of a file.
pub const SEEK_STEP_BYTES: u64 = 1 << 30;

/// Bytes of one command of the client that carries no payload: the largest multiple of every block size below 4 GiB.
pub const CLIENT_PIECE_BYTES: u64 = (4 << 30) - (64 << 10);

const _: () = assert!(CLIENT_PIECE_BYTES <= u32::MAX as u64, "lengths on the wire have 32 bits");
const _: () = assert!(BYTES_IN_FLIGHT_MAX >= STEP_BYTES);
const _: () = assert!(SPARE_SHARE_BYTES as u64 >= STEP_BYTES);

/// Requests of a mount under way at once. The kernel has at most [`FUSE_BACKGROUND_MAX`] of its own and one for each
/// thread that uses the directory; above this, those threads wait.
pub const VOLUME_REQUESTS_MAX: u32 = 256;
const _: () = assert!(VOLUME_REQUESTS_MAX > FUSE_BACKGROUND_MAX as u32);

/// How long what is done in a mount may stay volatile when nobody asks for more: as with ext4.
pub const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// How long the kernel may keep names and attributes of a mount: nobody else changes them, and it asks again for what
/// it does not need for an hour.
pub const VOLUME_CACHE_TIME: Duration = Duration::from_secs(3600);

/// Names of a directory that are read at once: more than have room in an answer, so that a long directory is not read
/// twice.
pub const DIRECTORY_ENTRIES_MAX: usize = 256;
