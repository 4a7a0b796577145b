//! The settings of an attachment: the one table from which the command line, its files, `forebay
//! set`, the status, the manual page and the reference are made.
//!
//! A row describes a choice, and when it can be made. The readers of its key decide about its
//! effect. The rows of fronts are beside the fronts.

use std::time::Duration;

use cache::limits::{LINE_BYTES_MAX, LINE_BYTES_MIN};
use difference::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN};
use initiator::limits::CONNECTIONS_MAX;
use iscsi::pdu::Isid;

use super::kind::{Kind, Step};
use super::setting::{Changes, Part, Setting};
use crate::busy_polling::BusyPolling;
use crate::fronts::settings::{FRONT, ROWS as FRONT_ROWS};
use crate::limits::{
    CLEAN_MAX_BYTES, DESTAGE_BATCH_BYTES, DESTAGE_TIME_MIN, DESTAGE_WRITES, LOG_CACHE_BYTES, LOG_RAM_BYTES,
    LOG_SEGMENT_BYTES, LOG_SLOT_BYTES,
};
use crate::place::PLACE_UNIT_BYTES;

/// Every setting, in the order of the help.
pub fn rows() -> impl Iterator<Item = &'static Setting> + Clone {
    ROWS.iter().chain(FRONT_ROWS.iter().copied().flatten())
}

/// All but those of fronts.
static ROWS: &[Setting] = &[
    Setting::new(Part::Attachment, "name", "name", Kind::Text("NAME"), "Name for the other commands")
        .unset("made from the IQN and the LUN")
        .basic(),
    Setting::cache("cache.path", "cache", Kind::Path, "Cache in this file, block device, or a file in this directory")
        .needs(&[])
        .more("It is made when it does not exist.")
        .basic(),
    Setting::cache("cache.size", "cache-size", Kind::SIZE, "Size of a cache that is made")
        .changes(Changes::ByReplacement)
        .more("Files are allocated in full.")
        .basic(),
    Setting::cache(
        "cache.mode",
        "cache-mode",
        Kind::Choice(&["write-back", "write-through", "write-around", "pass-through", "read-only"]),
        "When a write is acknowledged",
    )
    .default("write-back")
    .live()
    .more(
        "write-back: when the cache has it, durably; write-through: when the logical unit has it; write-around: \
         likewise, and only reads are cached; pass-through: nothing is cached; read-only: writes fail. A change from \
         write-back cleans first.",
    )
    .basic(),
    Setting::new(
        Part::Log,
        "log.path",
        "log",
        Kind::Path,
        "Acknowledge writes from a log in this file, block device, or a file in this directory",
    )
    .more("It is made when it does not exist; it lies over a cache, if there is one, too.")
    .basic(),
    Setting::log("log.size", "log-size", Kind::SIZE, "Size of a log that is made")
        .at_format()
        .more("Files are allocated in full.")
        .basic(),
    Setting::log(
        "log.durability",
        "durability",
        Kind::Choice(&["log", "nvram", "unsafe-volatile"]),
        "What has a write that the log acknowledges",
    )
    .default("log")
    .more(
        "log: the log, durably; nvram: persistent memory; unsafe-volatile: RAM, and a power loss loses what was not \
         flushed.",
    )
    .basic(),
    Setting::new(
        Part::Difference,
        "difference.path",
        "difference",
        Kind::Path,
        "Leave the logical unit as it is, shared with others who do, and write what differs from it here",
    )
    .more(
        "A file, block device, or a file in this directory; made when it does not exist. A cache is of the logical \
         unit, then, and read-only.",
    )
    .basic(),
    Setting::new(
        Part::Difference,
        "difference.size",
        "difference-size",
        Kind::SIZE,
        "Size of a difference that is made",
    )
    .needs(&["difference.path"])
    .at_format()
    .more("Files are allocated in full.")
    .basic(),
    FRONT,
    Setting::new(Part::Attachment, "read-only", "read-only", Kind::Switch, "Refuse writes").default("off").basic(),
    Setting::new(Part::Attachment, "wait", "wait", Kind::Switch, "Be ready before the target is there")
        .default("off")
        .more("Applications wait for it, up to the replacement timeout, and it is looked for until it comes.")
        .basic(),
    Setting::new(
        Part::Attachment,
        "shared",
        "shared",
        Kind::Switch,
        "Other hosts use the unit at the same time; caches stay coherent",
    )
    .default("off")
    .more(
        "The target has to serve it with the option \"shared\". A cache is then in write-through and keeps what was \
         read, also from one attachment to the next, but for what others changed between. Several URLs are paths, \
         and one host. Several attachments of one host may share a logical unit, too, each with a cache of its own. \
         What is under way when a session is lost is not written again, and fails.",
    )
    .basic(),
    Setting::new(
        Part::Attachment,
        "metrics",
        "metrics",
        Kind::Checked("ADDRESS:PORT", check_address),
        "Serve metrics for Prometheus here, at /metrics",
    )
    .unset("none are served")
    .more("Prints `metrics: ADDRESS`.")
    .basic(),
    Setting::new(
        Part::Arrangement,
        "stripe",
        "stripe",
        Kind::SIZE,
        "Stripe over the logical units of several URLs, this much on each in turn",
    )
    .more("The order of the URLs is part of the layout.")
    .basic(),
    Setting::new(
        Part::Arrangement,
        "multipath",
        "multipath",
        Kind::Choice(&["failover", "round-robin"]),
        "Which of several paths to one logical unit takes a request",
    )
    .unset("failover")
    .basic(),
    Setting::login("chap.user", "chap-user", Kind::Text("USER"), "CHAP user").unset("the USER@ of the URL").basic(),
    Setting::login("chap.file", "chap-file", Kind::Path, "File with the CHAP secret (its first line)")
        .unset("FOREBAY_CHAP_PASSWORD")
        .basic(),
    Setting::login(
        "connections",
        "connections",
        Kind::Number(1..=CONNECTIONS_MAX as u64, None),
        "Connections of the session, as far as the target allows them",
    )
    .default("1")
    .live()
    .basic(),
    Setting::login(
        "chap.mutual-user",
        "mutual-chap-user",
        Kind::Text("USER"),
        "The CHAP user that the target must prove to be (mutual CHAP)",
    ),
    Setting::login(
        "chap.mutual-file",
        "mutual-chap-file",
        Kind::Path,
        "File with the target's CHAP secret (its first line)",
    )
    .unset("FOREBAY_MUTUAL_CHAP_PASSWORD")
    .needs(&["chap.mutual-user"]),
    Setting::login("initiator-name", "initiator-name", Kind::Text("IQN"), "The initiator's name")
        .unset("one made from this host's machine-id")
        .variable("FOREBAY_INITIATOR_NAME"),
    Setting::login(
        "isid",
        "isid",
        Kind::Checked("ISID", check_isid),
        "The initiator's part of the session's name, twelve hexadecimal digits",
    )
    .unset("for an attachment one that stays with its name, else a random one")
    .more("Several sessions count up from it."),
    Setting::login(
        "timeout.login",
        "login-timeout",
        Kind::TIME,
        "How long a connection may take to open, and then a login",
    )
    .default("15s"),
    Setting::login(
        "timeout.command",
        "command-timeout",
        Kind::TIME,
        "How long a command may take before it is aborted and issued again",
    )
    .default("30s"),
    Setting::login(
        "timeout.keepalive",
        "keepalive",
        Kind::TIME,
        "Silence after which target and LUN are asked, and then after which they are gone; 0s for never",
    )
    .unset("2s for a LUN that hosts share, else 5s"),
    Setting::login(
        "timeout.replacement",
        "replacement-timeout",
        Kind::TIME,
        "How long I/O waits for a target that is away before it fails",
    )
    .unset("120s for an attachment, else 30s"),
    Setting::login(
        "link.round-trip",
        "link-round-trip",
        Kind::TIME,
        "Make the link slower: add this round-trip time (for trials)",
    ),
    Setting::login("digests", "digests", Kind::Switch, "Check header and data digests (CRC32C)").default("off"),
    Setting::login(
        "split-connections",
        "split-connections",
        Kind::Switch,
        "Send requests over one connection and get responses over another, for each of the connections",
    )
    .default("off")
    .more("A target that does not know this gets ordinary connections."),
    Setting::login(
        "busy-poll",
        "busy-poll",
        Kind::Checked("auto|off|DURATION", |text| text.parse::<BusyPolling>().map(drop)),
        "How long connections look for answers before they sleep, while few commands are under way and looking pays",
    )
    .default("auto")
    .more(
        "auto: as long as waking a thread takes on this machine. Only on TCP connections of their own, not with \
         link.round-trip.",
    ),
    Setting::login("reconnect", "", Kind::Choice(&["now"]), "Look at once for a target that is away")
        .without_flag()
        .changes(Changes::LiveOnly),
    Setting::new(
        Part::Attachment,
        "generation",
        "generation",
        Kind::Number(1..=u64::MAX, None),
        "Which generation of its content the logical unit has",
    )
    .old_flag("cache-generation")
    .needs(&["cache.path", "difference.path"])
    .unset("a cache and a difference are taken as they are")
    .more("The clean lines of a cache of another one do not count, and a difference from another one is refused."),
    Setting::new(
        Part::Attachment,
        "overwrite-changes",
        "overwrite-changes",
        Kind::Switch,
        "Data that only the cache or the write log has replaces what others have written to the same places since",
    )
    .default("off")
    .more(
        "A difference stays over a base that others have changed. Without it such an attach is refused, as is one with \
         another copy than the state directory knows.",
    ),
    Setting::cache("cache.offset", "cache-offset", Kind::SIZE, "Where in the file or block device the cache begins")
        .unset("a cache takes all of it")
        .more("A multiple of 4KiB; several then share one, each with a size of its own."),
    Setting::cache(
        "cache.crash",
        "cache-crash",
        Kind::Choice(&["discard", "all", "dirty", "warm"]),
        "What a crash leaves of the cache",
    )
    .unset("what the cache has, dirty for one that is made")
    .more(
        "discard: nothing (excludes write-back); all: everything, each insertion is a durable write; dirty: dirty \
         lines; warm: these and the clean ones of more than a few seconds ago.",
    ),
    Setting::cache(
        "cache.exclusive",
        "cache-exclusive",
        Kind::Switch,
        "Nobody else writes to the logical unit, of this host or another",
    )
    .unset("what the cache remembers")
    .more("Clean lines count then although the target cannot tell what others changed. off takes it back."),
    Setting::cache(
        "cache.replacement",
        "cache-replacement",
        Kind::Choice(&["lru", "clock", "2q", "s3-fifo"]),
        "Which line goes when room is needed",
    )
    .default("s3-fifo")
    .live(),
    Setting::cache(
        "cache.admission",
        "cache-admission",
        Kind::Choice(&["always", "second-use"]),
        "Which lines get room when they are read or written",
    )
    .default("always")
    .live()
    .more("second-use: those that come a second time."),
    Setting::cache(
        "cache.cutoff",
        "cache-cutoff",
        Kind::SIZE_OR_OFF,
        "Past how many bytes a sequential stream goes past the cache",
    )
    .default("off")
    .live(),
    Setting::cache("cache.prefetch", "cache-prefetch", Kind::SIZE_OR_OFF, "How far sequential reads are read ahead")
        .default("off")
        .live(),
    Setting::cache(
        "cache.prefetch-lines",
        "cache-prefetch-lines",
        Kind::Switch,
        "Read the rest of a line, too, when a part of it is read that is not in the cache: for large lines",
    )
    .default("off")
    .live(),
    Setting::cache(
        "cache.clean-above",
        "cache-clean-above",
        Kind::Share,
        "Clean in the background above this share of dirty lines",
    )
    .default("50%")
    .live()
    .more("0% for continuously, 100% for on command and at the end only."),
    Setting::cache(
        "cache.dirty-max",
        "cache-dirty-max",
        Kind::Share,
        "Share of dirty lines at which writes wait for cleaning",
    )
    .default("90%")
    .live(),
    Setting::cache(
        "cache.clean-min",
        "cache-clean-min",
        Kind::SIZE,
        "Bytes per second below which cleaning does not give way to other requests",
    )
    .default("1MiB")
    .live(),
    Setting::cache(
        "cache.clean-max",
        "cache-clean-max",
        Kind::Size(CLEAN_MAX_BYTES, Step::Any, Some("off")),
        "Most bytes per second that cleaning sends",
    )
    .default("off")
    .live()
    .more("`forebay clean` and `forebay detach` keep to it as well."),
    Setting::cache(
        "cache.deferred",
        "cache-deferred",
        Kind::SIZE_OR_OFF,
        "Largest write whose data goes into the cache's log in one piece, and only later to its place",
    )
    .default("off")
    .live()
    .more(
        "One durable write of the cache's device instead of two at the same time, at the price of writing everything \
         twice: for disks that seek. Only in write-back.",
    ),
    Setting::cache(
        "cache.associativity",
        "cache-associativity",
        Kind::Number(1..=u32::MAX as u64, Some("full")),
        "Ways of each set of a cache that is made; full for one set",
    )
    .default("256")
    .changes(Changes::ByReplacement),
    Setting::cache(
        "cache.alignment",
        "cache-alignment",
        Kind::SIZE,
        "A byte of the logical unit at which a line of a cache that is made begins",
    )
    .needs(&["cache.size"])
    .unset("where its first partition or, without one, its physical blocks begin")
    .at_format(),
    Setting::cache(
        "cache.block-size",
        "cache-block-size",
        Kind::Size(LINE_BYTES_MIN..=LINE_BYTES_MAX, Step::PowerOfTwo, None),
        "Size of a line of a cache that is made",
    )
    .needs(&["cache.size"])
    .default("4KiB")
    .changes(Changes::ByReplacement)
    .more("Larger lines take less memory for the same bytes."),
    Setting::cache(
        "cache.checksums",
        "cache-checksums",
        Kind::Switch,
        "Keep checksums of the data of a cache that is made, four bytes of memory a line; for lines of 4KiB",
    )
    .needs(&["cache.size"])
    .default("off")
    .at_format()
    .more("What its device returns damaged comes from the logical unit, or is an error where it is dirty."),
    Setting::cache(
        "cache.lines",
        "cache-lines",
        Kind::Number(0..=u64::MAX, Some("all")),
        "Use at most this many lines of a cache that is made",
    )
    .needs(&["cache.size"])
    .default("all")
    .changes(Changes::ByReplacement),
    Setting::cache(
        "cache.memory",
        "cache-memory",
        Kind::SIZE_OR_OFF,
        "Most memory that this cache and those of this host's other attachments may take together, by their tables",
    )
    .default("off")
    .more("A cache for which it is too little is refused."),
    Setting::log("log.offset", "log-offset", Kind::SIZE, "Where in the file or block device the log begins")
        .unset("a log takes all of it")
        .more("A multiple of 4KiB; it shares that with others then, caches or logs, each with a size of its own."),
    Setting::log(
        "log.segment-size",
        "log-segment-size",
        Kind::Size(LOG_SEGMENT_BYTES, Step::Multiple(PLACE_UNIT_BYTES), None),
        "Size of a segment of a log that is made: what is used again at once",
    )
    .needs(&["log.size"])
    .unset("what suits the size of the log, or the profile's")
    .at_format(),
    Setting::log(
        "log.slot-size",
        "log-slot-size",
        Kind::Size(LOG_SLOT_BYTES, Step::PowerOfTwo, None),
        "Size of a slot of RAM or of persistent memory, of a log that is made",
    )
    .needs(&["log.size"])
    .unset("1KiB")
    .at_format(),
    Setting::log("log.nvram", "nvram", Kind::Path, "Persistent memory for durability nvram")
        .more("A file on a file system mounted with -o dax, made when it does not exist, or a device /dev/daxN.M."),
    Setting::log("log.nvram-size", "nvram-size", Kind::SIZE, "Size of persistent memory that is made")
        .needs(&["log.nvram"])
        .at_format(),
    Setting::log(
        "log.ram",
        "log-ram",
        Kind::Size(LOG_RAM_BYTES, Step::Any, None),
        "RAM for slots with durability unsafe-volatile",
    )
    .unset("4MiB, or the profile's 16 segments")
    .more("With destage order log at most half the log."),
    Setting::log("log.cache", "log-cache", Kind::Size(LOG_CACHE_BYTES, Step::Any, None), "RAM for the newest records")
        .unset("64MiB, or none with the profile; never more than the log")
        .more("Reads find them there, and what leaves for the logical unit while it is there is not read back."),
    Setting::log(
        "log.destage-order",
        "destage-order",
        Kind::Choice(&["log", "lba", "last-write-first"]),
        "What the logical unit gets first",
    )
    .unset("log, or the profile's")
    .more("log: it is always as it was at some moment; lba: ascending."),
    Setting::log(
        "log.destage-seek",
        "destage-seek",
        Kind::SIZE,
        "The logical unit is on a disk that transfers this much in the time of a seek (256KiB)",
    )
    .more(
        "Near pieces are sent as one, with what lies between them, read first and written back; only where no other \
         host writes to it.",
    ),
    Setting::log(
        "log.destage-start",
        "destage-start",
        Kind::Share,
        "Share of the log in use from which data leaves for the logical unit under load, and not in idle moments only",
    )
    .unset("25%, or the profile's 90%")
    .live(),
    Setting::log(
        "log.destage-full-speed",
        "destage-full-speed",
        Kind::Share,
        "Share of the log in use from which data leaves at full speed",
    )
    .unset("75%")
    .live()
    .more("What is less than log.destage-start counts as that, but writes are slowed down from here on all the same."),
    Setting::log(
        "log.slots-start",
        "slots-start",
        Kind::Share,
        "Share of the slots in use from which they are moved to the log: of durability nvram or unsafe-volatile",
    )
    .unset("50%, or the profile's 90%"),
    Setting::log(
        "log.slots-eager",
        "",
        Kind::Switch,
        "Move slots to the log as soon as its device is idle and they fill a record: of durability nvram or \
         unsafe-volatile",
    )
    .unset("off")
    .without_flag(),
    Setting::log(
        "log.destage-idle",
        "destage-idle",
        DESTAGE_TIME,
        "Time without a request after which the log counts as idle, and data leaves",
    )
    .unset("50ms")
    .live(),
    Setting::log(
        "log.destage-age",
        "destage-age",
        DESTAGE_TIME,
        "Age that data in the log does not exceed as long as the logical unit takes what comes",
    )
    .unset("5s; with the profile never")
    .live()
    .more("From three quarters of it on it leaves whatever the load."),
    Setting::log(
        "log.destage-batch",
        "destage-batch",
        Kind::Size(DESTAGE_BATCH_BYTES, Step::Any, None),
        "Most bytes of log that are sent between two flushes of the logical unit, and take as much RAM",
    )
    .unset("32MiB, or the profile's 64KiB")
    .live()
    .more("Less when the log is small or full."),
    Setting::log(
        "log.destage-writes",
        "destage-writes",
        Kind::Number(DESTAGE_WRITES, None),
        "Writes to the logical unit under way at most, reached when the log is as full as log.destage-full-speed says",
    )
    .unset("8, and up to 128 while writers wait for room in the log; or the profile's 1")
    .live(),
    Setting::log("log.profile", "profile", Kind::Choice(&["paper"]), "Behave as described in a paper, peaks included")
        .more("It needs slots: durability nvram or unsafe-volatile."),
    Setting::new(
        Part::Difference,
        "difference.chunk",
        "difference-chunk",
        Kind::Size(CHUNK_BYTES_MIN as u64..=CHUNK_BYTES_MAX as u64, Step::PowerOfTwo, None),
        "Bytes copied at once when a part of them is written, of a difference that is made",
    )
    .needs(&["difference.path"])
    .unset("64KiB")
    .at_format(),
    Setting::new(
        Part::Difference,
        "difference.accept-loss",
        "difference-accept-loss",
        Kind::Switch,
        "Take a difference whose file was cut, removed or moved away while it was in use, or make a new one",
    )
    .needs(&["difference.path"])
    .default("off")
    .more("Without it such an attach is refused, so that nothing is missed in silence."),
];

const DESTAGE_TIME: Kind = Kind::Time(DESTAGE_TIME_MIN);

const _: () = assert!(DESTAGE_TIME_MIN.as_nanos() > Duration::ZERO.as_nanos());

fn check_address(text: &str) -> Result<(), String> {
    let address = text.parse::<std::net::SocketAddr>();
    address.map(drop).map_err(|_| "it is an address and a port, like 127.0.0.1:9860 or [::1]:9860".to_owned())
}

fn check_isid(text: &str) -> Result<(), String> {
    text.parse::<Isid>().map(drop).map_err(|error| error.to_string())
}
