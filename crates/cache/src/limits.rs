//! The bounds of this crate.

/// Bytes of the smallest cache line, which is the usual one: what file systems read and write at once.
pub const LINE_BYTES_MIN: u64 = 4096;
/// Bytes of a cache line by default; see [`LINE_BYTES_MIN`].
pub const LINE_BYTES_DEFAULT: u64 = LINE_BYTES_MIN;

/// Bytes of the largest cache line: the paper's, and what a disk reads in about the time that it takes to find it.
pub const LINE_BYTES_MAX: u64 = 256 << 10;

/// Bytes that one bit of the valid and dirty bitmaps stands for: the smallest logical block.
pub const SECTOR_BYTES: u64 = 512;

/// Largest origin in bytes: the table has 6 bytes for the number of a block, and the smallest block is of 4 KiB.
pub const ORIGIN_BYTES_MAX: u64 = 1 << 60;

/// Most frames of a cache. Frame numbers have 32 bits on disk and in memory, and the largest of them mean *none*.
pub const FRAMES_MAX: u64 = u32::MAX as u64 - 16;

/// Fewest frames of a cache: below this, replacement finds nothing to replace.
pub const FRAMES_MIN: u64 = 16;

/// Default count of frames in a set, the paper's (2.4).
pub const WAYS_DEFAULT: u32 = 256;

/// Bytes of consecutive blocks that share a set, so that they can stand in consecutive frames (paper 2.3); one block,
/// if that is larger. Long enough for the cache device to stream, short enough that a small hot region is spread over
/// all sets.
pub const RUN_BYTES: u64 = 64 << 10;

/// Default share of the log in the cache device: one part of this many.
pub const LOG_SHARE: u64 = 64;

/// Default bounds of the log in bytes. At depth one a write takes 512 bytes, so the smaller one holds 500 of them; the
/// larger one is replayed in well under a second.
pub const LOG_BYTES_DEFAULT_MIN: u64 = 256 << 10;
/// Upper bound of the default log in bytes; see [`LOG_BYTES_DEFAULT_MIN`].
pub const LOG_BYTES_DEFAULT_MAX: u64 = 32 << 20;

/// Most lines one write-back record announces at once; a longer write is carried out in pieces of this many. 1 MiB at a
/// time costs nothing in throughput and keeps one request from filling the log.
pub const WRITE_GROUP_LINES_MAX: usize = 256;

/// Bytes of the lines that are cleaned with one flush of the origin for a write that waits for room. On a disk that
/// seeks for every line of 4 KiB this is about half a second, the longest that such a write has to wait.
pub const CLEAN_BATCH_BYTES: u64 = 256 << 10;

/// Bytes of memory for deferred data, if the log is large enough and the cache may take so much. Writes that find no
/// room go to their frames at once. Half of it is placed at a time, which is long enough for a disk to have many places
/// to choose from, and short enough for a flush.
pub const DEFERRED_BYTES_MAX: usize = 16 << 20;

/// Bytes of memory that a part of deferred data takes beside the data itself.
pub const DEFERRED_PART_BYTES: usize = 256;

/// Deferred data is at most this fraction of the log, so that it is placed before the log is full.
pub const DEFERRED_LOG_SHARE: u64 = 2;

/// Bytes of consecutive frames that are written at once when deferred data is placed.
pub const PLACED_BYTES_MAX: u64 = 256 << 10;

/// Writes that place deferred data in flight: enough for a disk to choose their order.
pub const PLACES_IN_FLIGHT: usize = 32;

/// Bytes of the first round of cleaning: what throttles itself starts low.
pub const CLEAN_ROUND_BYTES_START: u64 = 256 << 10;

/// Most bytes of a batch of cleaning, but for the end of its last run of neighbours: the lists it keeps are searched,
/// and they stay short.
pub const CLEAN_BATCH_BYTES_MAX: u64 = 2 << 20;

/// Most bytes of a round beside a foreground, 160 MiB/s: more would be noticed on any LUN of today.
pub const CLEAN_ROUND_BYTES_MAX: u64 = 16 << 20;

/// Duration of a round of cleaning while clients use the devices, in milliseconds: long enough to
/// measure their response times.
pub const CLEAN_ROUND_MS: u64 = 100;

/// Default bytes per second that cleaning sends under any load: a cache of 1 GiB is clean within 17
/// minutes.
pub const CLEAN_RATE_MIN_BYTES: u64 = 1 << 20;

/// One of this many requests is timed while nothing is cleaned; all are while something is.
pub const TIMED_ONE_OF: u32 = 16;

/// Largest write that cleaning sends to the origin, in bytes: what applications send at most in one request, as a rule,
/// so that it need not be more writes than theirs; on a disk of 200 MB/s five milliseconds, for which a request of the
/// foreground may wait.
pub const CLEAN_WRITE_BYTES_MAX: u64 = 1 << 20;

/// Writes to the origin that one batch of cleaning has in flight while no client sends requests, or
/// while a caller waits for the cleaning: enough to let a disk choose its order and to hide a
/// network's round trip.
pub const CLEAN_WRITES_IN_FLIGHT: usize = 8;

/// Lines being copied to a successor at once: enough to keep a disk busy, few enough that requests
/// get their turn.
pub const COPIES_IN_FLIGHT: usize = 32;

/// Batches that a write that waits for room tries to clean when the origin refuses whole ones: bad places of a disk lie
/// together, and the rest of it takes what is sent elsewhere.
pub const CLEAN_ATTEMPTS_MAX: usize = 4;

/// How long background cleaning pauses after the origin refused a write.
pub const CLEAN_RETRY_MS: u64 = 1000;

/// Milliseconds between two looks at whether a range of a shared origin is held (again), or can be cleaned.
pub const GRANT_PAUSE_MS: u64 = 20;

/// Bytes of data read from the origin that may wait for being inserted. When more arrives the cache device is the
/// slower one, and data is not inserted rather than readers held up.
pub const INSERT_BYTES_MAX: usize = 16 << 20;

/// Two pieces that miss and lie closer than this (bytes) are read from the origin in one request: the transfer costs
/// less than a second request.
pub const MISS_GAP_BYTES_MAX: u64 = 32 << 10;

/// Bytes of table read and written at once.
pub const TABLE_IO_BYTES: usize = 1 << 20;

/// Reads of the table in flight at open: while one is looked through the next are on their way.
pub const TABLE_READS_IN_FLIGHT: usize = 8;

/// Table pages put together before they are written, in a checkpoint: 4 MiB.
pub const PAGES_PER_BATCH: usize = 1024;

/// Pages with clean lines stored at once without hurry (crash mode warm), and how often, in milliseconds: at most 1
/// MiB/s of the cache device, and all pages of a cache of 64 GiB within five minutes.
pub const LAZY_PAGES: usize = 256;
/// Interval in which clean lines are stored without hurry; see [`LAZY_PAGES`].
pub const LAZY_INTERVAL_MS: u64 = 1000;

/// Table pages in flight in a checkpoint.
pub const TABLE_WRITES_IN_FLIGHT: usize = 16;

const _: () = assert!(LINE_BYTES_MIN == 8 * SECTOR_BYTES);
const _: () = assert!(LINE_BYTES_MAX <= CLEAN_BATCH_BYTES && CLEAN_BATCH_BYTES <= CLEAN_BATCH_BYTES_MAX);
const _: () = assert!(LINE_BYTES_MAX <= CLEAN_WRITE_BYTES_MAX);
const _: () = assert!(LINE_BYTES_MAX <= PLACED_BYTES_MAX);

/// Streams of sequential requests that are followed at once: more than a host's applications have, few enough to look
/// through.
pub const STREAMS_MAX: usize = 32;

/// Runs of bytes beyond the end of the origin that are named: enough to see where they are; all of them are counted.
pub const STRANDED_RANGES_MAX: usize = 8;

/// One slot for this many lines, to remember blocks that missed once.
pub const LINES_PER_SEEN_SLOT: usize = 4;

/// Parts into which an origin is divided to list where a cache has something clean: a megabyte of
/// memory while the list is made.
pub const HELD_PARTS_MAX: u64 = 1 << 20;

/// Revocations by a shared origin that are remembered, for data under way from there: some hundred
/// milliseconds of them at the rate of a busy LUN.
pub const REVOCATIONS_REMEMBERED_MAX: usize = 4096;
