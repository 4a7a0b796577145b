//! The bounds of this crate.

use base::limits::BUFFER_BYTES_MAX;

/// Longest string of the protocol (export names, descriptions, error messages), in bytes: "Conventions" of the NBD
/// document.
pub const STRING_BYTES_MAX: usize = 4096;

/// Longest data of one option or option reply that is parsed, in bytes: a name, a description and
/// some queries. A longer option is skipped and answered `NBD_REP_ERR_TOO_BIG`; a longer option
/// reply ends the connection.
pub const OPTION_BYTES_MAX: usize = 2 * STRING_BYTES_MAX;

/// Size of the staging area, in bytes. Large enough that one system call brings the headers of a
/// deep queue, or several small writes with their payload; small enough that only a little of a
/// large payload is copied: the rest of it is received in place.
pub const STAGING_BYTES: usize = 16 << 10;

/// Bytes of small messages that are gathered in one run, the last message excepted. A run is freed
/// when all of it was sent. Without this bound a client that always leaves some bytes untaken would
/// make one run grow for ever.
pub const RUN_BYTES: usize = 16 << 10;

/// Payloads from this many bytes are *bulk*: after one, another is expected, and copying its beginning out of the
/// staging area is worth avoiding. Measured with fio over a Unix socket: at 64 KiB the staging area itself costs a
/// quarter of a payload in copying.
pub const BULK_PAYLOAD_BYTES: usize = 2 * STAGING_BYTES;

/// Bytes staged at once after a bulk payload: some headers, and little of the next payload.
pub const BULK_STAGING_BYTES: usize = 256;

/// Largest payload of one read or write, in bytes, announced as the maximum of `NBD_INFO_BLOCK_SIZE`: 2^25 is what the
/// document asks every server to take ("Size constraints").
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Largest minimum block size a peer may announce, in bytes ("Size constraints").
pub const BLOCK_BYTES_MIN_MAX: u32 = 64 << 10;

/// Extents a server sends for one block status request, and a client keeps of a reply; a reply may cover less than was
/// asked for.
pub const STATUS_EXTENTS_MAX: usize = 4096;

/// Content chunks that do not touch each other which a client accepts for one read. A server that
/// cuts a read into more is taken for hostile.
pub const READ_CHUNKS_MAX: usize = 1024;

/// Outstanding requests of a client on one connection; beyond it `Client::submit` fails. Far above
/// any useful depth.
pub const CLIENT_REQUESTS_MAX: usize = 16 << 10;

const _: () = assert!(OPTION_BYTES_MAX < STAGING_BYTES, "an option is parsed where it was staged");
const _: () = assert!(BULK_STAGING_BYTES < STAGING_BYTES, "expecting bulk makes less room, not more");
const _: () = assert!(PAYLOAD_BYTES_MAX as usize <= BUFFER_BYTES_MAX, "a payload is received into one buffer");
const _: () = assert!(STATUS_EXTENTS_MAX <= 1 << 20, "the document's bound on descriptors per chunk");
