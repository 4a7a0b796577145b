//! The bounds of this crate.

/// Bytes of one superblock copy: what every disk we know writes without reading first, and the alignment of every
/// buffer.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// Unit in which log records are laid out, in bytes: the atomic unit of the media we support, so that a torn record
/// never damages its neighbours.
pub const RECORD_UNIT_BYTES: usize = 512;

/// Largest logical block of an origin in bytes: a request then never covers part of a sector, one line of a cache holds
/// whole blocks, and so does what a log keeps together.
pub const LOGICAL_BLOCK_BYTES_MAX: u32 = 4096;

/// Bytes of zeroes that are written at once to a device on which a store is made.
pub const ZEROES_IO_BYTES: u64 = 1 << 20;

/// Ranges whose clean copies wait to be forgotten because the origin reports that they changed, and that are being
/// forgotten; the next one is for everything. As many as one report brings to us, and more than there are requests that
/// hold them up.
pub const FORGETTINGS_MAX: usize = 64;

/// Largest record, in bytes, with its header: what half of a deep queue of small writes takes whose data goes along.
pub const RECORD_BYTES_MAX: usize = 256 << 10;

/// Records of a log on their way to the medium at a time; more wait and gather appends. One keeps the disk busy while
/// the owner's thread makes the other; with more of them each carries fewer appends, which costs the thread and brings
/// nothing.
pub const RECORDS_IN_FLIGHT_MAX: usize = 2;

/// Smallest log region in bytes: four of the records it allows (a quarter of the region each).
pub const LOG_BYTES_MIN: u64 = 16 << 10;

/// Largest log region in bytes: replay reads the whole region once, which is about a second on a SATA disk.
pub const LOG_BYTES_MAX: u64 = 256 << 20;

/// Bytes that replay reads at once.
pub const REPLAY_WINDOW_BYTES: u64 = 1 << 20;

/// Largest sequence or epoch that anything on a device may claim. Counting there would take centuries; what claims
/// more is damaged, and counting on from it would overflow.
pub const SEQUENCE_MAX: u64 = u64::MAX >> 1;

const _: () = assert!(RECORD_BYTES_MAX.is_multiple_of(RECORD_UNIT_BYTES));
const _: () = assert!(REPLAY_WINDOW_BYTES as usize >= 2 * RECORD_BYTES_MAX);
const _: () = assert!(SUPERBLOCK_BYTES.is_multiple_of(RECORD_UNIT_BYTES));

/// Turns of the waiting appends between a record that may start and its start. A writer whose
/// append is acknowledged hands its answer to a client's task, which sends the next request, which
/// becomes a task that appends. Without turns the first writer to return had a record to itself,
/// the others wrote their data in vain meanwhile, and 32 writers took half again as long.
pub const TURNS_BEFORE_RECORD: u32 = 2;
