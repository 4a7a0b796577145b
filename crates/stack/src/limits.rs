//! The bounds of this crate.

use std::ops::RangeInclusive;
use std::time::Duration;

use target::limits::LINGER_TIMEOUT;
use writelog::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_PAPER, SLOT_BYTES_MAX, UNIT_BYTES};

/// Longest line on a control socket: a status of some thousand sessions fits, a mistake does not fill the memory.
pub const CONTROL_LINE_BYTES_MAX: u64 = 4 << 20;

/// Callers of one control socket at once who have not said yet what they want; more wait in the listen queue.
pub const CONTROL_CALLERS_MAX: usize = 16;

/// Callers of one control socket at once who wait for an answer. Most are there in no time, some wait for minutes until
/// a cache is clean; more than these wait in the listen queue.
pub const CONTROL_ANSWERS_MAX: usize = 64;

/// How long a caller of a control socket, or the process, may take to send a line that is ready, or to take one: both
/// are programs on this host. Short, because as many silent callers as there may be keep the next one waiting for so
/// long, who himself waits for [`CONTROL_SILENCE_MAX`].
pub const CONTROL_TRANSFER_TIME_MAX: Duration = Duration::from_secs(1);

/// Time between two signs of life of a process that works on an answer.
pub const CONTROL_SIGN_OF_LIFE_INTERVAL: Duration = Duration::from_millis(500);

/// Silence after which a process that is asked for something is taken for one that stands still: many signs of life, so
/// that a loaded machine is none, and no more than a person waits for.
pub const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(CONTROL_SIGN_OF_LIFE_INTERVAL.as_millis() * 4 < CONTROL_SILENCE_MAX.as_millis());
const _: () = assert!(CONTROL_TRANSFER_TIME_MAX.as_millis() * 4 < CONTROL_SILENCE_MAX.as_millis());

/// Time a process that was just killed has to close its sockets and drop its locks, and one that lives to answer,
/// before a name or a logical unit is called in use. Ending takes milliseconds; with gigabytes of memory to unmap, some
/// tenths of a second.
pub const ENDING_TIME_MAX: Duration = Duration::from_millis(1500);

/// Time to wait for another process that changes the records of this host's caches: many times what some durable writes
/// of small files take.
pub const CHANGE_TIME_MAX: Duration = Duration::from_secs(5);

/// Time that an end has after a signal, with closing the stores and logging out. An orderly end takes tens of
/// milliseconds where the target answers; service managers give ten seconds and more before they kill.
pub const CLOSE_TIME_MAX: Duration = Duration::from_millis(2500);

/// Time that each step of an end has at least, when those before it have used up [`CLOSE_TIME_MAX`]: some round trips
/// of a target that answers.
pub const CLOSE_STEP_TIME_MIN: Duration = Duration::from_millis(300);

/// Steps of an end that may wait for the target: those of shared stores, the log, the cache, the change marks, a cache
/// that is removed, and the session.
pub const CLOSE_STEPS_MAX: u32 = 6;

/// Time that all fronts together have to finish what is under way, and a mount: side by side, before the first step.
pub const FRONTS_TIME_MAX: Duration = front::limits::SHUTDOWN_TIME_MAX;

/// Seconds that initiators of a gateway have to log out. Then their connections have [`LINGER_TIMEOUT`], and a front
/// has had its time.
pub const GATEWAY_DRAIN_SECONDS: u16 = (FRONTS_TIME_MAX.as_secs() - LINGER_TIMEOUT.as_secs()) as u16;
const _: () = assert!(GATEWAY_DRAIN_SECONDS > 0);

/// Time that a signal gives an attachment or a mount, whatever its peers do. What is left of it is for what the process
/// does itself.
pub const STOP_TIME_MAX: Duration = Duration::from_secs(5);
const _: () = assert!(FRONTS_TIME_MAX.as_millis() < CLOSE_TIME_MAX.as_millis());
const _: () = assert!(
    CLOSE_TIME_MAX.as_millis() + (CLOSE_STEPS_MAX as u128 - 1) * CLOSE_STEP_TIME_MIN.as_millis() + 1000
        <= STOP_TIME_MAX.as_millis()
);

/// Time that the last flush of a target has, behind all that its devices still have to do, so that a target ends within
/// five seconds, too. What initiators have not flushed was not promised to them.
pub const LAST_FLUSH_TIME_MAX: Duration = Duration::from_millis(700);

/// Time a process that listens on a control socket has for the first byte of an answer before it is taken for a busy
/// one.
pub const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);

/// Time that other hosts have to give up ranges of which a cache is dirty from before: longer than the longest time
/// that a target gives them, 60 s. Then the attachment ends with an error, and what is dirty stays.
pub const CLAIM_TIME_MAX: Duration = Duration::from_secs(90);

/// Connections of scrapers at once; one more closes the one that came first. A few monitors, each with a connection
/// that it keeps.
pub const METRICS_CONNECTIONS_MAX: usize = 32;

/// Silence after which a scraper's connection is closed, in the middle of a request or between two: what scrapes more
/// rarely connects again.
pub const METRICS_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Descriptors that a target needs besides its connections and the files of its logical units: standard streams, rings,
/// listeners, control and metrics.
pub const TARGET_DESCRIPTORS: u64 = 256;

/// Descriptors that a logical unit needs: its file, its rings and the events of its threads.
pub const UNIT_DESCRIPTORS: u64 = 16;

/// Scrapes of metrics that wait for their answer; more wait in their connections.
pub const METRICS_WAITING_MAX: usize = 8;

/// Time between two looks at what the service manager is told in words.
pub const SERVICE_STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// Time between two looks at what an attachment should warn of, or waits for: soon for a person, and a file status each
/// is nothing.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait of a reload for a LUN that an earlier one removed: its sessions have a few seconds to log out, and then
/// a second or so to end.
pub const RETIRING_WAIT_MAX: Duration = Duration::from_secs(10);

/// Bytes inside each direction of a modelled link before its writer waits: what is on the way at 10 Gbit/s and 3 ms, so
/// that the model, not its memory, limits the rate.
pub const LINK_IN_FLIGHT_BYTES_MAX: usize = 4 << 20;

/// Largest run of bytes that travels a modelled link as one, and arrives when its last byte does: small against the
/// bytes on the way, large enough that a megabyte costs no more than some dozen wake-ups.
pub const LINK_CHUNK_BYTES_MAX: usize = 16 << 10;

/// Largest cache that is written out with zeroes when it is made, which takes about a second. In a file that is only
/// allocated, the first durable write to each place makes the file system commit its journal; measured here, that
/// doubles the mean write. Larger caches pay that once for each place instead of waiting for minutes at the start.
pub const ZERO_WRITTEN_BYTES_MAX: u64 = 1 << 30;

/// Longest file name of a block device's sidecar: 255 bytes is what file systems take, less `.new` of the record that
/// replaces it.
pub const SIDECAR_NAME_BYTES_MAX: usize = 255 - 4;

/// Longest answer of the kernel about one connection: `tcp_info` has 280 bytes today and grows by some with each few
/// releases.
pub const SOCK_DIAG_ANSWER_BYTES: usize = 4096;

/// Time between two questions about how each path reaches its unit: as often as Linux's multipath asks at first. A
/// state without access is found out by the first request that is refused; this finds ways that became better, or worse
/// without being closed.
pub const ACCESS_INTERVAL: Duration = Duration::from_secs(5);

/// First wait between attempts to reach a target that has not been there yet; doubled each time.
pub const SEARCH_WAIT_MIN: Duration = Duration::from_millis(100);

/// Longest wait between attempts to reach a target that has not been there yet: a login costs a target next to nothing,
/// and after a power failure everybody waits for everybody.
pub const SEARCH_WAIT_MAX: Duration = Duration::from_secs(5);

/// Fronts of one attachment: each has buffers of its own.
pub const FRONTS_MAX: usize = 8;

/// Pause after a local application could not be turned away, which the lack of descriptors does.
pub const TURN_AWAY_PAUSE: Duration = Duration::from_millis(100);

/// How long another attachment is waited for that is asked how much memory its cache takes. One that stands still must
/// not keep others from starting.
pub const STATUS_TIME_MAX: Duration = Duration::from_secs(1);

/// Segments of a write log that is made, in bytes.
pub const LOG_SEGMENT_BYTES: RangeInclusive<u64> = SEGMENT_BYTES_PAPER as u64..=SEGMENT_BYTES_MAX as u64;

/// Slots of RAM or of persistent memory of a write log that is made, in bytes.
pub const LOG_SLOT_BYTES: RangeInclusive<u64> = UNIT_BYTES..=SLOT_BYTES_MAX as u64;

/// RAM for the slots of a write log, in bytes: at least one segment of the paper; at most what some seconds of writes
/// fill, which a power loss takes.
pub const LOG_RAM_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 30;

/// RAM for the newest records of a write log, in bytes: what a host can spare for one attachment.
pub const LOG_CACHE_BYTES: RangeInclusive<u64> = 0..=4 << 30;

/// Bytes of a write log that one batch takes from, all in RAM: at least one segment of the paper, at most what a host
/// can spare.
pub const DESTAGE_BATCH_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 30;

/// Writes of one batch in flight: beyond that they wait in the session anyway.
pub const DESTAGE_WRITES: RangeInclusive<u64> = 1..=256;

/// Shortest time after which destaging looks again: shorter ones are a loop that computes.
pub const DESTAGE_TIME_MIN: Duration = Duration::from_millis(1);

/// Ranges in which a host that shares a LUN registers what its cache has from before: as many commands, and entries in
/// the target's table. Where a cache has more, what is between near ones is registered with them.
pub const REGISTERED_RANGES_MAX: usize = 1024;

/// Of these, so many at once: the others of a queue stay free for whoever else uses the session.
pub const REGISTERED_AT_ONCE: usize = 32;

/// First pause between two attempts to clear a change mark, while others write to the LUN; doubled each time.
pub const CLEAR_PAUSE_MIN: Duration = Duration::from_millis(5);

/// Attempts to clear a change mark while others write to the LUN. With their pauses, some five seconds: what is left of
/// a program that was killed is written by then, also by a slow disk. Whoever goes on writing is recorded as having
/// changed everything by less, and then a CLEAR comes through.
pub const CLEAR_TRIES_MAX: u32 = 10;

/// Bytes of unchanged blocks that a mount keeps beside the kernel's own pages and names: mostly structure, of which 64
/// MiB serve hundreds of thousands of files.
pub const MOUNT_CACHE_BYTES: u64 = 64 << 20;
