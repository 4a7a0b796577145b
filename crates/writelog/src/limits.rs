//! The bounds of this crate.

use std::time::Duration;

/// Bytes that one unit of a place stands for: the atomic unit of the media, in which records and their data are laid
/// out.
pub const UNIT_BYTES: u64 = 512;

/// Size of a log segment in bytes, unless another is asked for: what gives [`SEGMENTS_WANTED`], within these bounds. At
/// the least a few records of a moderate load; at the most several of the largest, since the last record of a segment
/// is only as large as its rest.
pub const SEGMENT_BYTES_AUTO: std::ops::RangeInclusive<u32> = 256 << 10..=1 << 20;

/// Segments that a log should have at least: one of them is what is destaged at once, and what becomes free at once.
pub const SEGMENTS_WANTED: u64 = 256;

/// Size of a segment in the paper (2.1), in bytes; also the smallest.
pub const SEGMENT_BYTES_PAPER: u32 = 64 << 10;

/// Segments of RAM in the paper (2.1): its 16 buffers.
pub const RAM_SEGMENTS_PAPER: usize = 16;

/// Largest segment in bytes. A segment is read at once when it is destaged.
pub const SEGMENT_BYTES_MAX: u32 = 4 << 20;

/// Fewest segments: one open, one named as the next, and two that can be destaged while those fill.
pub const SEGMENTS_MIN: u32 = 4;

/// Most bytes of all segments: places have 31 bits.
pub const LOG_BYTES_MAX: u64 = (1 << 31) * UNIT_BYTES;

/// Bytes of checkpoints and segments that are written with zeroes when a log is made in a file: some ten seconds on a
/// fast disk, minutes on a slow one. A larger log pays a commit of the file system for each record of its first pass
/// over what is behind.
pub const DATA_BYTES_MAX: u64 = 16 << 30;

/// Default and paper's (2.1) size of an NVRAM slot in bytes.
pub const SLOT_BYTES_DEFAULT: u32 = 1 << 10;

/// Largest slot in bytes; a slot is moved to the log as one entry.
pub const SLOT_BYTES_MAX: u32 = 16 << 10;

/// Slots that a power loss leaves neither whole nor free: they are written and cleared one at a time.
pub const SLOTS_TORN_MAX: u64 = 1;

/// One extent of a checkpoint for this many bytes of log. Extents beyond that make writes wait: the checkpoint would
/// not have room. A log full of single 512-byte writes has one extent in 1024 bytes (its record takes as much as the
/// data).
pub const CHECKPOINT_BYTES_PER_EXTENT: u64 = 1024;

/// Intervals of checkpoints that a fast medium may fill before the pause between two is over: 256 MiB by default, which
/// are read in half a second.
pub const TAIL_INTERVALS_MAX: u64 = 4;

/// Bytes of a checkpoint written or read at once. Large enough that a disk is busy with them, and small enough that an
/// allocator gives them back.
pub const CHECKPOINT_IO_BYTES: usize = 256 << 10;

/// Most entries of one record: with 16 bytes each they take at most a quarter of it.
pub const RECORD_ENTRIES_MAX: usize = 1024;

/// Most records on their way at once. Detection of damage relies on it: a record further behind a
/// missing one proves that the missing one was durable.
pub const RECORDS_IN_FLIGHT_MAX: usize = store::limits::RECORDS_IN_FLIGHT_MAX;

/// Turns of the workers between a record that may start and its start. In one turn all ready tasks
/// are polled, also those of writers that were just answered.
pub const TURNS_BEFORE_RECORD: u32 = 1;

/// A second record goes on its way beside the first only with this many bytes of data: smaller ones wait and share the
/// next, since a medium that flushes for each gains nothing from two.
pub const SECOND_RECORD_BYTES: u64 = 32 << 10;

/// Bytes that may wait for a record in the order of their arrival: some records' worth. Further
/// changes wait before the queue, where submitters take turns.
pub const QUEUE_BYTES_MAX: u64 = 4 * store::limits::RECORD_BYTES_MAX as u64;

/// Likewise while there is no room for records: enough to show level 2 that room is wanted, and no
/// more than a moment's work when there is some.
pub const QUEUE_BYTES_WHEN_FULL: u64 = 64 << 10;

/// Sectors of one entry of zeroes or discarded bytes (1 TiB); a longer request makes several.
pub const ZERO_SECTORS_MAX: u64 = 1 << 31;

/// Largest write that destaging sends to the origin, in bytes.
pub const DESTAGE_WRITE_BYTES_MAX: u64 = 1 << 20;

/// Largest range of the origin that is made zero with one request, in bytes: what a thick medium may write before a
/// read of the range goes on.
pub const DESTAGE_ZEROES_BYTES_MAX: u64 = 16 << 20;

/// Largest range that is discarded with one request, in bytes. No medium writes for it, and each cut may cost a
/// granule.
pub const DESTAGE_DISCARD_BYTES_MAX: u64 = 1 << 30;

/// Bytes of zeroes or discards that cost about as much as one byte sent, an estimate: WRITE SAME
/// and UNMAP carry no data, and a medium writes zeroes at its own pace. 32 MiB of a batch are 2 GiB
/// of zeroes.
pub const ZERO_BYTES_A_BYTE: u64 = 64;

/// For their pace all slots come free in this many lumps: a lump is some records, since over a full
/// log several records end at once after none for long.
pub const LUMPS_OF_SLOTS: u64 = 8;

/// Lumps of room kept in reserve: one that is used up while the next is under way, and as much
/// again, since no two take the same time.
pub const LUMPS_RESERVED: f64 = 2.0;

/// Share of the room made that becomes reserve again once it is used up: little, since writers wait for it meanwhile.
pub const SHARE_FOR_RESERVE: f64 = 1.0 / 32.0;

/// When less than this share of the reserve is left, the rate admitted falls towards zero: the rest
/// has to last until the next lump, even if that is late.
pub const SHARE_OF_RESERVE_LEFT: f64 = 0.25;

/// Shorter waits for the pace are skipped; later changes wait longer instead. Timers are not more
/// exact than this.
pub const PAUSE_LEAST: Duration = Duration::from_millis(1);

/// Shares of the largest age: from the first on slots leave for the log, from the second on the
/// log's data leaves for the origin, at the third level 2 is at full speed. The rest is time for
/// batches under way: at the default of five seconds 1.25 s for the first batch.
pub const AGE_SHARES: [f64; 3] = [0.5, 0.75, 0.875];

/// Segments whose first sector is read at once when a log is opened after a crash: enough for a
/// disk to sort.
pub const SEGMENT_STARTS_AT_ONCE: usize = 32;

/// Bytes of RAM for the newest records by default; never more than the log has. A record that is
/// destaged while it is in RAM is not read back, so over a fast origin the log device is only
/// written.
pub const RECORD_CACHE_BYTES: usize = 64 << 20;

/// Least count of batches that a log makes: a batch's share has no room for new records until all
/// of it is on the origin, and the other shares take them.
pub const BATCHES_A_LOG: u64 = 8;

/// Least bytes of a batch (unless the options have less), however full the log is: the flush of the
/// origin is still a small part of it, and writers that wait for room wait for all of it.
pub const BATCH_BYTES_WHEN_FULL: u64 = 512 << 10;

/// Size of a batch while records wait for room, as a time at the rate at which room was made
/// lately, at least [`BATCH_BYTES_WHEN_FULL`]: so the flush of a fast origin is a small part of it,
/// too.
pub const BATCH_TIME_WHEN_FULL: Duration = Duration::from_millis(25);

/// Writes to the origin in flight for each writer that waits for room. Without a log there would be
/// one for each; level 2 also has the flushes between its batches.
pub const DESTAGE_WRITES_A_WRITER: usize = 2;

/// Share of the log that level 2 makes free once it was full before it stops: enough that it is not full again at the
/// next burst, and less than what the paper's profile leaves free (a tenth).
pub const ROOM_SHARE_AFTER_FULL: f64 = 1.0 / 16.0;

/// While room is short, a checkpoint starts when it frees this many times the bytes that it writes:
/// an eighth of the log device's time at most.
pub const CHECKPOINT_WORTH_TIMES: u64 = 8;

/// While records wait for room, the next checkpoint starts no sooner than this many times the
/// duration of the last one, unless it frees [`CHECKPOINT_WORTH_TIMES`] its bytes: a fifth of the
/// time at most.
pub const CHECKPOINT_REST_TIMES: u32 = 4;

/// Extents that one change adds at most to what a checkpoint names: in the middle of another it makes three of one.
pub const EXTENTS_OF_A_CHANGE: usize = 2;

/// Extents that a checkpoint collects while requests wait: some 50 us.
pub const EXTENTS_AT_ONCE: usize = 2048;

/// Approximate bytes of one read of the log when destaging is not in the order of the log. Large
/// enough that on a disk the seek is the smaller part (26 ms at 20 MB/s against 13), small enough
/// that a record of level 1 does not wait long behind a few.
pub const LOG_READ_BYTES: u64 = 512 << 10;

/// Bytes of segments read from the log at once: enough that the next one is in RAM when it is
/// wanted; a record waits for as much.
pub const SEGMENT_READ_BYTES_MAX: u64 = 1 << 20;

/// Pieces that are marked as clean while requests on other threads wait: some 20 us.
pub const PIECES_AT_ONCE: usize = 64;

/// Writes to the origin after which level 2 looks again how many may be in flight: more than enough to notice that the
/// log fills.
pub const RUNS_A_LOOK: usize = 8;

/// Pause after the origin refused what was destaged, in milliseconds.
pub const DESTAGE_RETRY_MS: u64 = 1000;

/// Batches that the origin refuses one after the other before writes that wait for room in the log are refused, too.
pub const FAILURES_BEFORE_GIVING_UP: u32 = 3;

/// Batches without anything to send before a destage of everything says that it cannot go on: requests may supersede
/// what one batch was about to take.
pub const EMPTY_BATCHES_MAX: u32 = 16;

/// Largest gap between two pieces of the origin that are read in one request, in bytes.
pub const READ_GAP_BYTES_MAX: u64 = 64 << 10;

/// Bytes of one read of a segment that cannot be read as a whole: a sector of most disks, the unit
/// that goes bad.
pub const VERIFY_READ_BYTES: usize = 4 << 10;

/// Reads of the same bytes of the log that fail one after the other before they count as unreadable.
pub const READS_BEFORE_GIVING_UP: u32 = 2;

/// Bytes of pooled buffers besides those of the newest records and of a batch: for the records
/// under way.
pub const POOLED_BYTES_MORE: usize = 2 << 20;
const _: () = assert!(POOLED_BYTES_MORE >= 4 * RECORDS_IN_FLIGHT_MAX * store::limits::RECORD_BYTES_MAX);

/// Size classes of the request histograms: up to 512 bytes, 1 KiB ... 1 MiB, and more.
pub const SIZE_CLASSES: usize = 13;

const _: () = assert!(CHECKPOINT_IO_BYTES.is_multiple_of(UNIT_BYTES as usize));
const _: () = assert!(RECORD_ENTRIES_MAX * 16 * 4 <= SEGMENT_BYTES_PAPER as usize);
const _: () = assert!(SLOT_BYTES_MAX * 2 <= SEGMENT_BYTES_PAPER);

/// Batches in a row with nothing to send, each after a retry's wait, before a full log takes a checkpoint to make room.
pub const EMPTY_BATCHES_BEFORE_CHECKPOINT: u32 = 4;
