//! The bounds of this crate.

use std::time::Duration;

/// Bytes of the unit in which content is made and checked: the smallest logical block, and the
/// atomic unit of media.
pub const UNIT_BYTES: usize = 512;

/// Requests in flight of one run. Enough to fill a session of many connections; small enough that looking for overlaps
/// by going through all of them costs less than a request.
pub const DEPTH_MAX: u32 = 1024;

/// Drawn requests that wait because they overlap one in flight. When it is full the run waits instead of drawing on.
pub const PARKED_MAX: usize = 64;

/// Most bytes of one request of a generator. Requests larger than the device takes are split.
pub const REQUEST_BYTES_MAX: u32 = 16 << 20;

/// Samples a time series keeps (24 bytes each): 24 MiB, four minutes of 4,000 requests a second. Beyond it, it thins
/// itself out.
pub const SAMPLES_MAX: usize = 1 << 20;

/// Requests of one group of the group means, as in the iCache paper's figure 6.
pub const GROUP_REQUESTS: u64 = 1000;

/// Groups kept; beyond it neighbours are merged.
pub const GROUPS_MAX: usize = 1 << 14;

/// Interval between two calls of a progress callback.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Requests answered at once after which a run yields to other tasks of its thread.
pub const READY_IN_A_ROW_MAX: u32 = 64;

/// Requests in flight while everything is read back at the end.
pub const VERIFY_DEPTH: usize = 32;

/// Bytes of one such request: large, because nothing about it is measured.
pub const VERIFY_REQUEST_BYTES: u64 = 256 << 10;

/// Wrong units described one by one; the others are only counted.
pub const MISMATCHES_DESCRIBED_MAX: usize = 16;

/// Bytes of one line of a trace. Real ones are below 200; a file without line ends is refused instead of read into
/// memory.
pub const TRACE_LINE_BYTES_MAX: usize = 4096;

/// Most bytes of one request of a trace: SCSI's 16-byte commands could transfer 2 TiB, which no
/// recorder has ever seen. A larger one is a damaged line.
pub const TRACE_REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Bytes that are moved together when a trace is rebased: large enough that near addresses stay
/// near, small enough that little else comes along.
pub const REBASE_CHUNK_BYTES: u64 = 1 << 20;

/// Most chunks that a trace may touch to be rebased, 4 TiB: their numbers are some 64 MiB of memory.
pub const REBASE_CHUNKS_MAX: usize = 1 << 22;

/// Points drawn per run in a scatter plot: what keeps a report of several plots below one MiB.
pub const PLOT_POINTS_MAX: usize = 2000;

const _: () = assert!(VERIFY_REQUEST_BYTES.is_multiple_of(UNIT_BYTES as u64));
const _: () = assert!(GROUPS_MAX.is_multiple_of(2));
const _: () = assert!(PARKED_MAX > 0);
