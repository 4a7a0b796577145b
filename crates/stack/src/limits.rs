//! The bounds of this crate.

use std::ops::RangeInclusive;
use std::time::Duration;

use target::limits::{DRAIN_GRACE, LINGER_TIMEOUT};
use writelog::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_PAPER, SLOT_BYTES_MAX, UNIT_BYTES};

/// Longest line on a control socket: a status of some thousand sessions fits, a mistake does not fill the memory.
pub const CONTROL_LINE_BYTES_MAX: u64 = 4 << 20;

/// Callers of one control socket that have not sent their request yet; more wait in the listen
/// queue.
pub const CONTROL_CALLERS_MAX: usize = 16;

/// Callers of one control socket that wait for an answer. Most answers come at once, some take
/// minutes until a cache is clean; more callers wait in the listen queue.
pub const CONTROL_ANSWERS_MAX: usize = 64;

/// Longest record that is read (of a sidecar, or of a list of this host): a sidecar with all registrations of
/// persistent reservations has some hundred KiB, the state of sharing with all spans of ended lives as many.
pub const RECORD_BYTES_MAX: u64 = 4 << 20;

/// How long a caller of a control socket may take until it has sent its request: some seconds pass
/// between its connect and its line where many programs wait for a processor. While all places of
/// callers are taken, one that has had [`CONTROL_TRANSFER_TIME_MAX`] gives its place to the next.
pub const CONTROL_REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a caller of a control socket, or the process, may take to take a line that is ready, and
/// how long a silent caller keeps its place from others: both are programs on this host. Short, because silent
/// callers in all places delay the next caller by this time, and that one waits for [`CONTROL_SILENCE_MAX`] itself.
pub const CONTROL_TRANSFER_TIME_MAX: Duration = Duration::from_secs(1);

/// Time between two signs of life of a process that works on an answer.
pub const CONTROL_SIGN_OF_LIFE_INTERVAL: Duration = Duration::from_millis(500);

/// Silence after which a process is considered stuck: many signs of life, so that a loaded machine
/// does not cause it, and as long as a person waits.
pub const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(CONTROL_SIGN_OF_LIFE_INTERVAL.as_millis() * 4 < CONTROL_SILENCE_MAX.as_millis());
const _: () = assert!(CONTROL_TRANSFER_TIME_MAX.as_millis() * 4 < CONTROL_SILENCE_MAX.as_millis());

/// Time for a process that was just killed to close its sockets and drop its locks, or for a living
/// one to answer, before a name or a logical unit counts as in use. Ending takes milliseconds; with
/// gigabytes of memory to unmap, some tenths of a second.
pub const ENDING_TIME_MAX: Duration = Duration::from_millis(1500);

/// Time to wait for another process that changes the records of this host's caches: many times the
/// duration of some durable writes of small files.
pub const CHANGE_TIME_MAX: Duration = Duration::from_secs(5);

/// Events that a process keeps for `forebay events`: days of an attachment with a poor link, and of a
/// daemon with many attachments the last hours. Beyond that the oldest is forgotten, and counted.
pub const EVENTS_MAX: usize = 1024;

/// Bytes of the words of one event; what is longer is cut. All of them fit one line of the control
/// socket, however its characters are written there (six bytes for one, at most).
pub const EVENT_WORDS_BYTES_MAX: usize = 512;
const _: () = assert!((EVENTS_MAX * (6 * EVENT_WORDS_BYTES_MAX + 512)) as u64 <= CONTROL_LINE_BYTES_MAX - 4096);

/// Time for an end after a signal, including closing the stores and logging out. An orderly end
/// takes tens of milliseconds where the target answers; service managers give ten seconds and more
/// before they kill.
pub const CLOSE_TIME_MAX: Duration = Duration::from_millis(2500);

/// Time for the marks of an attachment that is detached, to be emptied (where hosts share the
/// logical unit) and then to get their last tokens: a target whose disk is slow answers BUSY for up
/// to ten seconds each time, and there are one or two of a cache and of a log. A target that does
/// not answer at all is left earlier.
pub const LAST_MARKS_TIME_MAX: Duration = Duration::from_secs(30);

/// Shortest time for each step of an end, when those before it have used up [`CLOSE_TIME_MAX`]:
/// some round trips to a target that answers.
pub const CLOSE_STEP_TIME_MIN: Duration = Duration::from_millis(300);

/// Steps of an end that may wait for the target: those of shared stores, the log, the cache, the
/// change marks, the removal of a cache, and the session.
pub const CLOSE_STEPS_MAX: u32 = 6;

/// Time for all fronts together to finish their requests, and for a mount: side by side, before the
/// first step.
pub const FRONTS_TIME_MAX: Duration = front::limits::SHUTDOWN_TIME_MAX;

/// Seconds for the initiators of a gateway to log out: whole ones that leave their connections
/// [`DRAIN_GRACE`] and [`LINGER_TIMEOUT`] within the time of a front.
pub const GATEWAY_DRAIN_SECONDS: u16 =
    ((FRONTS_TIME_MAX.as_millis() - DRAIN_GRACE.as_millis() - LINGER_TIMEOUT.as_millis()) / 1000) as u16;
const _: () = assert!(GATEWAY_DRAIN_SECONDS > 0);

/// Time within which a signal ends an attachment or a mount, whatever its peers do. The rest of it
/// is for the work of the process itself.
pub const STOP_TIME_MAX: Duration = Duration::from_secs(5);
const _: () = assert!(FRONTS_TIME_MAX.as_millis() < CLOSE_TIME_MAX.as_millis());
// A target that is silent is found out before a logout gives up, and the user is told so.
const _: () = assert!(
    CLOSE_TIME_MAX.as_millis() + CLOSE_STEP_TIME_MIN.as_millis() < initiator::limits::LOGOUT_TIMEOUT.as_millis()
);
const _: () = assert!(
    CLOSE_TIME_MAX.as_millis() + (CLOSE_STEPS_MAX as u128 - 1) * CLOSE_STEP_TIME_MIN.as_millis() + 1000
        <= STOP_TIME_MAX.as_millis()
);

/// Time for the last flush of a target, after all requests that its devices still have, so that a
/// target ends within five seconds, too. Data that initiators have not flushed was not promised to
/// be durable.
pub const LAST_FLUSH_TIME_MAX: Duration = Duration::from_millis(700);

/// Time for the first byte of an answer from a process that listens on a control socket, before it
/// counts as busy.
pub const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);

/// Time for other hosts to give up ranges of which a cache has old dirty data: longer than the
/// longest time that a target gives them, 60 s. After it the attachment ends with an error, and
/// keeps the dirty data.
pub const CLAIM_TIME_MAX: Duration = Duration::from_secs(90);

/// Connections of scrapers at once; one more closes the oldest. A few monitors, each with a
/// persistent connection.
pub const METRICS_CONNECTIONS_MAX: usize = 32;

/// Silence after which a scraper's connection is closed, in the middle of a request or between two:
/// a monitor that scrapes more rarely connects again.
pub const METRICS_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Descriptors that a target needs besides its connections and the files of its logical units: standard streams, rings,
/// listeners, control and metrics.
pub const TARGET_DESCRIPTORS: u64 = 256;

/// Descriptors that a logical unit needs: its file, its rings and the events of its threads.
pub const UNIT_DESCRIPTORS: u64 = 16;

/// Scrapes of metrics that wait for their answer; more wait in their connections.
pub const METRICS_WAITING_MAX: usize = 8;

/// Interval at which the status text for the service manager is updated.
pub const SERVICE_STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// Interval at which an attachment is checked for what to warn of or wait for: soon for a person,
/// and each check only costs a few calls of stat.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait of a reload for a LUN that an earlier reload removed: its sessions have a few
/// seconds to log out, and then a second or so to end.
pub const RETIRING_WAIT_MAX: Duration = Duration::from_secs(10);

/// Bytes inside each direction of a modelled link before its writer waits: those under way at 10
/// Gbit/s and 3 ms, so that the model, not its memory, limits the rate.
pub const LINK_IN_FLIGHT_BYTES_MAX: usize = 4 << 20;

/// Largest run of bytes that travels over a modelled link as one, and arrives with its last byte:
/// small against the bytes under way, large enough that a megabyte costs only some dozen wake-ups.
pub const LINK_CHUNK_BYTES_MAX: usize = 16 << 10;

/// Largest new cache that is written with zeroes when it is made, which takes about a second. In a
/// file that is only allocated, the first durable write to each place makes the file system commit
/// its journal; measured here, that doubles the mean write. Larger caches pay that once for each
/// place instead of minutes at the start.
pub const ZERO_WRITTEN_BYTES_MAX: u64 = 1 << 30;

/// Longest file name of a block device's sidecar: file systems take 255 bytes, and the record that
/// replaces it ends in `.new`.
pub const SIDECAR_NAME_BYTES_MAX: usize = 255 - 4;

/// Longest answer of the kernel about one connection: `tcp_info` has 280 bytes today and grows a
/// little every few releases.
pub const SOCK_DIAG_ANSWER_BYTES: usize = 4096;

/// Interval at which each path's access state is read: as often as Linux's multipath does at first.
/// A state without access shows with the first refused request; this finds paths that became
/// better, or worse without being closed.
pub const ACCESS_INTERVAL: Duration = Duration::from_secs(5);

/// First wait between attempts to reach a target for the first time; doubled each time.
pub const SEARCH_WAIT_MIN: Duration = Duration::from_millis(100);

/// Longest wait between attempts to reach a target for the first time: a login costs a target very
/// little, and after a power failure many hosts wait for each other.
pub const SEARCH_WAIT_MAX: Duration = Duration::from_secs(5);

/// Fronts of one attachment: each has buffers of its own.
pub const FRONTS_MAX: usize = 8;

/// Pause after a local application could not be disconnected, for lack of descriptors.
pub const TURN_AWAY_PAUSE: Duration = Duration::from_millis(100);

/// Time to wait for another attachment's report of its cache's memory. A stuck one must not keep
/// others from starting.
pub const STATUS_TIME_MAX: Duration = Duration::from_secs(1);

/// Segments of a new write log, in bytes.
pub const LOG_SEGMENT_BYTES: RangeInclusive<u64> = SEGMENT_BYTES_PAPER as u64..=SEGMENT_BYTES_MAX as u64;

/// Slots of RAM or of persistent memory of a new write log, in bytes.
pub const LOG_SLOT_BYTES: RangeInclusive<u64> = UNIT_BYTES..=SLOT_BYTES_MAX as u64;

/// RAM for the slots of a write log, in bytes: at least one segment of the paper; at most what some
/// seconds of writes fill, which a power loss destroys.
pub const LOG_RAM_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 30;

/// RAM for the newest records of a write log, in bytes: what a host can spare for one attachment.
pub const LOG_CACHE_BYTES: RangeInclusive<u64> = 0..=4 << 30;

/// Bound of the rate of cleaning, in bytes per second: with less an end would seem to hang.
pub const CLEAN_MAX_BYTES: RangeInclusive<u64> = 64 << 10..=u64::MAX;

/// Bytes of a write log from which one batch is taken, all in RAM: at least one segment of the
/// paper, at most what a host can spare.
pub const DESTAGE_BATCH_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 30;

/// Writes of one batch in flight: beyond that they wait in the session anyway.
pub const DESTAGE_WRITES: RangeInclusive<u64> = 1..=256;

/// Shortest interval of destaging: a shorter one would be a busy loop.
pub const DESTAGE_TIME_MIN: Duration = Duration::from_millis(1);

/// Ranges in which a host that shares a LUN registers its cache's earlier content: as many
/// commands, and entries in the target's table. If the cache has more, near ranges are joined, with
/// the blocks between them.
pub const REGISTERED_RANGES_MAX: usize = 1024;

/// Registrations at once: the rest of the queue depth stays free for other requests of the session.
pub const REGISTERED_AT_ONCE: usize = 32;

/// First pause between two attempts to clear a change mark, while others write to the LUN; doubled each time.
pub const CLEAR_PAUSE_MIN: Duration = Duration::from_millis(5);

/// Attempts to clear a change mark while other hosts write to the LUN. With their pauses, some five
/// seconds: by then the last writes of a killed program are done, also on a slow disk. A host that
/// goes on writing has every range recorded sooner, and then a CLEAR succeeds.
pub const CLEAR_TRIES_MAX: u32 = 10;

/// CLEARs in succession that fail although nothing was recorded since the report: one may have been lost with its
/// session; a target that answers none would hold up an attach by the longest time of a command for each.
pub const CLEARS_UNEXPLAINED_MAX: u32 = 2;

/// How long a target that says nothing about changes is asked again: longer than the ten seconds for
/// which it may answer BUSY to a TAKE, and than a LUN is away that is put back at once.
pub const TELLING_TIME_MAX: Duration = Duration::from_secs(12);

/// First pause before it is asked again; doubled each time.
pub const TELLING_PAUSE_MIN: Duration = Duration::from_millis(20);

/// Longest pause before it is asked again.
pub const TELLING_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Attempts to have a target name what the base of a difference has, while others write there: nobody
/// should, and a further write comes to every attempt.
pub const NAMINGS_MAX: u32 = 3;

/// Bytes of unchanged blocks that a mount keeps besides the kernel's own pages and names: mostly
/// structure, of which 64 MiB serve hundreds of thousands of files.
pub const MOUNT_CACHE_BYTES: u64 = 64 << 20;

/// Time for another path to answer, when one has heard that everything was changed: longer than
/// keepalives take to notice that it is gone.
pub const PATH_ANSWER_MAX: Duration = Duration::from_secs(15);

/// Silence after which a target is asked, and then after which it is gone, unless the user says another.
pub const KEEPALIVE: Duration = Duration::from_secs(5);

/// The same for a LUN that several hosts share: a connection that carries nothing any more is found out, and another
/// one is there, before the lease of this host and the time for an answer to a callback are over.
pub const KEEPALIVE_SHARED: Duration = Duration::from_secs(2);

/// What a dead connection may take of a lease to be found out, in percent: when it dies, up to a third of the lease has
/// passed since the last renewal.
pub const NOTICE_PERCENT_OF_LEASE: u32 = 60;

/// Interval at which its state is looked at meanwhile.
pub const PATH_LOOK_INTERVAL: Duration = Duration::from_millis(100);
