//! The command line: with `guidance`, the one definition that gives the parser, `--help`, the manual pages, the reference pages
//! and the shell completions.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::units::ByteSize;
use block::layer::multipath::Policy;
use cache::{Admission, Associativity, CrashMode, LineSize, Mode, Percent, Replacement};
use clap::{ArgGroup, Args, Parser, Subcommand};
use iscsi::pdu::Isid;
use lab::Clock;
use stack::lun_spec::{LunSpec, parse_duration};
use stack::remote::parse_connections;
use workload::bench::ReadWrite;
use workload::replay::Pace;
use workload::trace::Format;
use writelog::{DestageOrder, Durability};

/// Remote block storage as near as a local disk.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, max_term_width = 100, propagate_version = true, subcommand_required = true)]
pub struct Arguments {
    /// Say more (-v: what happens, -vv: every detail); FOREBAY_LOG takes a tracing filter
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// What log lines on standard error look like
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text", global = true)]
    pub log_format: LogFormat,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the main job on this machine alone: a slow remote disk, then the same through a local cache
    Demo(Demo),
    /// Serve logical units over iSCSI
    #[command(subcommand)]
    Target(Target),
    /// List the targets that a portal offers
    Discover(Discover),
    /// Show what a logical unit says of itself
    Inquiry(Inquiry),
    /// Attach a remote logical unit, cached or not, and offer it to local applications
    Attach(Box<Attach>),
    /// Stop an attachment, after writing everything dirty back, or a target
    Detach(Detach),
    /// Show what runs on this host, or one of it in detail
    Status(Status),
    /// Write everything dirty in an attachment's cache back to its logical unit
    Clean(Clean),
    /// Change a setting of what runs, like `cache.mode=write-through`
    Set(Set),
    /// Look into a cache that nobody has open
    #[command(subcommand)]
    Cache(Cache),
    /// Look into a write log that nobody has open
    #[command(subcommand)]
    Log(Log),
    /// Measure a logical unit or an attachment
    Bench(Bench),
    /// Replay a block trace and check every read against what was written
    Replay(Replay),
    /// The papers' experiments: what the paper found, what is found here, the ratio, a figure
    #[command(subcommand)]
    Lab(Lab),
    /// Write manual pages, reference pages or shell completions
    #[command(subcommand, hide = true)]
    Generate(Generate),
}

#[derive(Debug, Args)]
pub struct Json {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Demo {
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "forebay-demo.html")]
    pub report: PathBuf,
    /// How long each of the two runs takes
    #[arg(long, value_name = "DURATION", default_value = "8s", value_parser = parse_duration)]
    pub run_time: Duration,
    /// Seed of the workload: the same seed, the same requests
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Subcommand)]
pub enum Target {
    /// Serve in the foreground until SIGTERM; prints `ready: ADDRESS` for each portal
    Serve(Box<TargetServe>),
    /// Read the configuration file again: targets, logical units, accounts and access change while sessions go on
    Reload(TargetReload),
    /// Say whether a configuration file makes sense, without serving it
    Check(TargetCheck),
    /// Show sessions, connections and logical units
    Status(TargetStatus),
}

#[derive(Debug, Args)]
pub struct TargetServe {
    /// Address to listen on, IPv4 or [IPv6]; more than one may be given
    #[arg(long = "portal", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3260")]
    pub portals: Vec<SocketAddr>,
    /// The target's name
    #[arg(long, value_name = "IQN", required_unless_present = "config")]
    pub iqn: Option<String>,
    /// A logical unit: NUMBER=ram:SIZE or NUMBER=file:PATH[,size=SIZE][,direct], then [,read-only] [,write-cache]
    /// [,block=512|4096] [,disk=7200rpm] [,seek=DURATION] [,rotation=DURATION] [,transfer=SIZE/s]
    #[arg(long = "lun", value_name = "SPEC", required_unless_present = "config")]
    pub luns: Vec<LunSpec>,
    /// A configuration file (TOML) instead of --iqn and --lun
    #[arg(long, value_name = "FILE", conflicts_with_all = ["iqn", "luns", "chap_user", "chap_file", "mutual_chap_user", "mutual_chap_file"])]
    pub config: Option<PathBuf>,
    /// Ask initiators for this CHAP user's secret
    #[arg(long, value_name = "USER")]
    pub chap_user: Option<String>,
    /// File with the CHAP secret (its first line); or set FOREBAY_CHAP_PASSWORD
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    pub chap_file: Option<PathBuf>,
    /// Who the target proves to be, to initiators that ask for it (mutual CHAP)
    #[arg(long, value_name = "USER", requires = "chap_user")]
    pub mutual_chap_user: Option<String>,
    /// File with the target's own CHAP secret (its first line); or set FOREBAY_MUTUAL_CHAP_PASSWORD
    #[arg(long, value_name = "FILE", requires = "mutual_chap_user")]
    pub mutual_chap_file: Option<PathBuf>,
    /// Serve metrics for Prometheus here, at /metrics; prints `metrics: ADDRESS`
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Listen on addresses other than this machine's loopback
    #[arg(long)]
    pub allow_remote: bool,
    /// Name for `forebay status` and `forebay target status`
    #[arg(long, default_value = "target")]
    pub name: String,
}

#[derive(Debug, Args)]
pub struct TargetName {
    /// The --name it was started with
    #[arg(default_value = "target")]
    pub name: String,
}

#[derive(Debug, Args)]
pub struct TargetReload {
    #[command(flatten)]
    pub name: TargetName,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct TargetCheck {
    /// The configuration file (TOML)
    pub config: PathBuf,
    /// Allow addresses other than this machine's loopback
    #[arg(long)]
    pub allow_remote: bool,
}

#[derive(Debug, Args)]
pub struct TargetStatus {
    #[command(flatten)]
    pub name: TargetName,
    #[command(flatten)]
    pub json: Json,
}

/// How to log in.
#[derive(Debug, Default, Args)]
pub struct Login {
    /// CHAP user (default: the USER@ of the URL)
    #[arg(long, value_name = "USER")]
    pub chap_user: Option<String>,
    /// File with the CHAP secret (its first line); or set FOREBAY_CHAP_PASSWORD
    #[arg(long, value_name = "FILE")]
    pub chap_file: Option<PathBuf>,
    /// The CHAP user that the target must prove to be (mutual CHAP)
    #[arg(long, value_name = "USER")]
    pub mutual_chap_user: Option<String>,
    /// File with the target's CHAP secret (its first line); or set FOREBAY_MUTUAL_CHAP_PASSWORD
    #[arg(long, value_name = "FILE", requires = "mutual_chap_user")]
    pub mutual_chap_file: Option<PathBuf>,
    /// The initiator's name (default: one made from this host's machine-id)
    #[arg(long, value_name = "IQN", env = "FOREBAY_INITIATOR_NAME", hide_env_values = true)]
    pub initiator_name: Option<String>,
    /// The initiator's part of the session's name, twelve hexadecimal digits; several sessions count up from it (default: for an
    /// attachment one that stays with its name, else a random one)
    #[arg(long, value_name = "ISID")]
    pub isid: Option<Isid>,
    #[command(flatten)]
    pub patience: Patience,
    /// Make the link slower: add this round-trip time (for trials)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub link_round_trip: Option<Duration>,
    /// Check header and data digests (CRC32C)
    #[arg(long)]
    pub digests: bool,
    /// Connections of the session, as far as the target allows them
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = parse_connections)]
    pub connections: u16,
    /// Send requests over one connection and get responses over another, for each of --connections; a target
    /// that does not know this gets ordinary connections
    #[arg(long)]
    pub split_connections: bool,
}

/// How long a target is waited for.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Patience {
    /// How long a connection may take to open, and then a login (default: 15s)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub login_timeout: Option<Duration>,
    /// How long a command may take before it is aborted and issued again (default: 30s)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub command_timeout: Option<Duration>,
    /// Silence after which the target is pinged, and then after which it is gone; 0s for no pings (default: 5s)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub keepalive: Option<Duration>,
    /// How long I/O waits for a target that is away before it fails (default: 120s for an attachment, else 30s)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub replacement_timeout: Option<Duration>,
}

/// How several logical units are one device.
#[derive(Debug, Default, Args)]
pub struct Arrange {
    /// Stripe over the logical units of several URLs, this much on each in turn; the order of the URLs is part of the layout
    #[arg(long, value_name = "SIZE")]
    pub stripe: Option<ByteSize>,
    /// Which of several paths to one logical unit takes a request: failover (default) or round-robin
    #[arg(long, value_name = "POLICY", conflicts_with = "stripe", value_parser = parse_policy)]
    pub multipath: Option<Policy>,
}

#[derive(Debug, Args)]
pub struct Discover {
    /// The portal
    #[arg(value_name = "HOST[:PORT]")]
    pub portal: String,
    #[command(flatten)]
    pub login: Login,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct Inquiry {
    /// The logical unit: iscsi://[USER@]HOST[:PORT]/IQN/LUN
    pub url: String,
    #[command(flatten)]
    pub login: Login,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("kept").args(["cache", "difference"]).multiple(true))]
pub struct Attach {
    /// The logical unit: iscsi://[USER@]HOST[:PORT]/IQN/LUN; several, separated by commas, as one
    #[arg(value_name = "URL[,URL...]")]
    pub urls: String,
    #[command(flatten)]
    pub arrange: Arrange,
    /// Name for the other commands (default: made from the IQN and the LUN)
    #[arg(long)]
    pub name: Option<String>,
    /// Cache in this file, block device, or a file in this directory; made when it does not exist
    #[arg(long, value_name = "PATH")]
    pub cache: Option<PathBuf>,
    /// Where in the file or block device the cache begins, a multiple of 4KiB: several then share one, each with a size of its own (default: a cache
    /// takes all of it)
    #[arg(long, value_name = "BYTES", requires = "cache")]
    pub cache_offset: Option<ByteSize>,
    /// Size of a cache that is made (files are allocated in full)
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub cache_size: Option<ByteSize>,
    /// write-back: a write is acknowledged when the cache has it, durably; write-through: when the logical unit has it;
    /// write-around: likewise, and only reads are cached; pass-through: nothing is cached; read-only: writes fail
    #[arg(long, value_name = "MODE", default_value = "write-back", requires = "cache")]
    pub cache_mode: Mode,
    /// What a crash leaves of the cache: nothing (discard; excludes write-back), everything (all; each insertion is a durable write), dirty lines
    /// (dirty), or dirty lines and the clean ones of more than a few seconds ago (warm). Default: what the cache has, dirty for one that is made
    #[arg(long, value_name = "CRASH", requires = "cache")]
    pub cache_crash: Option<CrashMode>,
    /// Which generation of its content the logical unit has, a number from 1 on: the clean lines of a cache of another one do not count, and a
    /// difference from another one is refused (default: both are taken as they are)
    #[arg(
        long,
        value_name = "NUMBER",
        alias = "cache-generation",
        requires = "kept",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub generation: Option<u64>,
    /// Nobody else writes to the logical unit, of this host or another: clean lines count although the target cannot tell what others
    /// changed. The cache remembers it; =no takes it back
    #[arg(
        long,
        value_name = "yes|no",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "yes",
        value_parser = yes_or_no,
        requires = "cache"
    )]
    pub cache_exclusive: Option<bool>,
    /// Data that only the cache or the write log has replaces what others have written to the same places since. Without it such an
    /// attach is refused
    #[arg(long)]
    pub overwrite_changes: bool,
    /// Which line goes when room is needed: lru, clock, 2q or s3-fifo
    #[arg(long, value_name = "POLICY", default_value = "s3-fifo", requires = "cache")]
    pub cache_replacement: Replacement,
    /// Which lines get room when they are read or written: always, or those that come a second time (second-use)
    #[arg(long, value_name = "POLICY", default_value = "always", requires = "cache")]
    pub cache_admission: Admission,
    /// Past how many bytes a sequential stream goes past the cache (default: never)
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub cache_cutoff: Option<ByteSize>,
    /// How far sequential reads are read ahead (default: not)
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub cache_prefetch: Option<ByteSize>,
    /// Read the rest of a line, too, when a part of it is read that is not in the cache: for large lines
    #[arg(long, requires = "cache")]
    pub cache_prefetch_lines: bool,
    /// Clean in the background above this share of dirty lines: 0% for continuously, 100% for on command and at the end only
    #[arg(long, value_name = "PERCENT", default_value = "50%", requires = "cache")]
    pub cache_clean_above: Percent,
    /// Share of dirty lines at which writes wait for cleaning
    #[arg(long, value_name = "PERCENT", default_value = "90%", requires = "cache")]
    pub cache_dirty_max: Percent,
    /// Bytes per second below which cleaning does not give way to other requests
    #[arg(long, value_name = "SIZE", default_value = "1MiB", requires = "cache")]
    pub cache_clean_min: ByteSize,
    /// Most bytes per second that cleaning sends (default: no bound)
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub cache_clean_max: Option<ByteSize>,
    /// Ways of each set of a cache that is made: a number, or `full` for one set
    #[arg(long, value_name = "WAYS", requires = "cache", value_parser = parse_associativity)]
    pub cache_associativity: Option<Associativity>,
    /// A byte of the logical unit at which a line of a cache that is made begins (default: where its first partition or, without one, its physical
    /// blocks begin)
    #[arg(long, value_name = "SIZE", requires = "cache_size")]
    pub cache_alignment: Option<ByteSize>,
    /// Size of a line of a cache that is made, 4KiB to 256KiB: larger lines take less memory for the same bytes (default: 4KiB)
    #[arg(long, value_name = "SIZE", requires = "cache_size")]
    pub cache_block_size: Option<LineSize>,
    /// Keep checksums of the data of a cache that is made, four bytes of memory a line: what its device returns damaged comes from the logical
    /// unit, or is an error where it is dirty; for lines of 4KiB
    #[arg(long, requires = "cache_size")]
    pub cache_checksums: bool,
    /// Use at most this many lines of a cache that is made
    #[arg(long, value_name = "COUNT", requires = "cache_size")]
    pub cache_lines: Option<u64>,
    /// Most memory that this cache and those of this host's other attachments may take together, by their tables; a cache for which it is too little
    /// is refused (default: no bound)
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub cache_memory: Option<ByteSize>,
    /// Acknowledge writes from a log in this file, block device, or a file in this directory; made when it does not exist
    /// (over a cache, if there is one, too)
    #[arg(long, value_name = "PATH")]
    pub log: Option<PathBuf>,
    /// Where in the file or block device the log begins, a multiple of 4KiB: it shares that with others then, caches or logs, each with a size of its
    /// own (default: a log takes all of it)
    #[arg(long, value_name = "BYTES", requires = "log")]
    pub log_offset: Option<ByteSize>,
    /// Size of a log that is made (files are allocated in full)
    #[arg(long, value_name = "SIZE", requires = "log")]
    pub log_size: Option<ByteSize>,
    /// Size of a segment of a log that is made, 64KiB to 4MiB: what is used again at once (default: what suits the size of the log, or the profile's)
    #[arg(long, value_name = "SIZE", requires = "log_size")]
    pub log_segment_size: Option<ByteSize>,
    /// Size of a slot of RAM or of persistent memory, of a log that is made, 512 to 16KiB (default: 1KiB)
    #[arg(long, value_name = "SIZE", requires = "log_size")]
    pub log_slot_size: Option<ByteSize>,
    /// log: a write is acknowledged when the log has it, durably; nvram: when persistent memory has it; unsafe-volatile:
    /// when RAM has it, and a power loss loses what was not flushed
    #[arg(long, value_name = "MODE", default_value = "log", requires = "log")]
    pub durability: Durability,
    /// Persistent memory for --durability nvram: a file on a file system mounted with -o dax, made when it does not exist, or a device /dev/daxN.M
    #[arg(long, value_name = "PATH", requires = "log")]
    pub nvram: Option<PathBuf>,
    /// Size of persistent memory that is made
    #[arg(long, value_name = "SIZE", requires = "nvram")]
    pub nvram_size: Option<ByteSize>,
    /// RAM for slots with --durability unsafe-volatile, 64KiB to 1GiB; with --destage-order log at most half the log (default: 4MiB, or the
    /// profile's 16 segments)
    #[arg(long, value_name = "SIZE", requires = "log")]
    pub log_ram: Option<ByteSize>,
    /// RAM for the newest records, up to 4GiB: reads find them there, and what leaves for the logical unit while it is there is not read back
    /// (default: 64MiB, or none with the profile; never more than the log)
    #[arg(long, value_name = "SIZE", requires = "log")]
    pub log_cache: Option<ByteSize>,
    /// What the logical unit gets first. log: it is always as it was at some moment; lba: ascending; last-write-first
    /// (default: log, or the profile's)
    #[arg(long, value_name = "ORDER", requires = "log")]
    pub destage_order: Option<DestageOrder>,
    /// The logical unit is on a disk that transfers this much in the time of a seek (256KiB): near pieces are sent as one, with what lies
    /// between them, read first and written back; only where no other host writes to it
    #[arg(long, value_name = "SIZE", requires = "log")]
    pub destage_seek: Option<ByteSize>,
    /// Share of the log in use from which data leaves for the logical unit under load, and not in idle moments only (default: 25%, or the
    /// profile's 90%)
    #[arg(long, value_name = "PERCENT", requires = "log")]
    pub destage_start: Option<Percent>,
    /// Share of the log in use from which data leaves at full speed (default: 75%); what is less than --destage-start counts as that, but writes
    /// are slowed down from here on all the same
    #[arg(long, value_name = "PERCENT", requires = "log")]
    pub destage_full_speed: Option<Percent>,
    /// Share of the slots in use from which they are moved to the log: of --durability nvram or unsafe-volatile (default: 50%, or the profile's
    /// 90%)
    #[arg(long, value_name = "PERCENT", requires = "log")]
    pub slots_start: Option<Percent>,
    /// Time without a request after which the log counts as idle, and data leaves (default: 50ms)
    #[arg(long, value_name = "DURATION", requires = "log", value_parser = parse_duration)]
    pub destage_idle: Option<Duration>,
    /// Age that data in the log does not exceed as long as the logical unit takes what comes: from three quarters of it on it leaves whatever the
    /// load (default: 5s; with the profile never)
    #[arg(long, value_name = "DURATION", requires = "log", value_parser = parse_duration)]
    pub destage_age: Option<Duration>,
    /// Most bytes of log that are sent between two flushes of the logical unit, and take as much RAM, 64KiB to 1GiB; less when the log is small or
    /// full (default: 32MiB, or the profile's 64KiB)
    #[arg(long, value_name = "SIZE", requires = "log")]
    pub destage_batch: Option<ByteSize>,
    /// Writes to the logical unit under way at most, reached when the log is as full as --destage-full-speed says, 1 to 256 (default: 8, and up to 128 while writers
    /// wait for room in the log; or the profile's 1)
    #[arg(long, value_name = "NUMBER", requires = "log")]
    pub destage_writes: Option<u64>,
    /// Behave as described in a paper, peaks included: paper. It needs slots: --durability nvram or unsafe-volatile
    #[arg(long, value_name = "NAME", requires = "log", value_parser = ["paper"])]
    pub profile: Option<String>,
    /// Leave the logical unit as it is, shared with others who do, and write what differs from it to this file, block device, or a file in this
    /// directory; made when it does not exist. A cache is of the logical unit, then, and read-only
    #[arg(long, value_name = "PATH", conflicts_with = "log")]
    pub difference: Option<PathBuf>,
    /// Size of a difference that is made (files are allocated in full)
    #[arg(long, value_name = "SIZE", requires = "difference")]
    pub difference_size: Option<ByteSize>,
    /// Bytes copied at once when a part of them is written, of a difference that is made: 4KiB to 1MiB (default: 64KiB)
    #[arg(long, value_name = "SIZE", requires = "difference")]
    pub difference_chunk: Option<ByteSize>,
    /// Where to offer it: nbd:unix:PATH, nbd:HOST:PORT, or auto (an NBD socket in the run-time directory)
    #[arg(long = "as", value_name = "FRONT", default_value = "auto")]
    pub front: String,
    /// Permissions of the NBD socket file, octal (default: 0600, or 0660 with --socket-group)
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub socket_mode: Option<u32>,
    /// Group of the NBD socket file, by name or number: that of a hypervisor's user, for one
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    pub socket_group: Option<u32>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Be ready before the target is there: applications wait for it, up to the replacement timeout, and it is looked for until it comes
    #[arg(long)]
    pub wait: bool,
    /// Serve metrics for Prometheus here, at /metrics; prints `metrics: ADDRESS`
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub login: Login,
}

#[derive(Debug, Args)]
pub struct Detach {
    /// The attachment or target
    pub name: String,
    /// Stop at once and leave dirty data, durably, in the cache; not of a target
    #[arg(long)]
    pub keep_dirty: bool,
    /// Remove the file of the cache, once everything is written back
    #[arg(long, conflicts_with = "keep_dirty")]
    pub remove_cache: bool,
}

#[derive(Debug, Args)]
pub struct Status {
    /// The attachment or target (default: all)
    pub name: Option<String>,
    /// Wait this long for it to run, as after starting it in the background
    #[arg(long, value_name = "DURATION", requires = "name", value_parser = parse_duration)]
    pub wait: Option<Duration>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct Clean {
    /// The attachment
    pub name: String,
}

#[derive(Debug, Args)]
pub struct Set {
    /// The attachment or target
    pub name: String,
    /// Settings: connections=NUMBER, reconnect=now (look at once for a target that is away), cache.mode=MODE, cache.replacement=lru|clock|2q|s3-fifo,
    /// cache.admission=always|second-use, cache.cutoff=SIZE|off, cache.prefetch=SIZE|off, cache.prefetch-lines=on|off, cache.clean-above=PERCENT,
    /// cache.dirty-max=PERCENT, cache.clean-min=SIZE, cache.clean-max=SIZE|off, cache.size=SIZE, cache.associativity=WAYS|full,
    /// cache.block-size=SIZE, cache.lines=COUNT|all, log.destage-start=PERCENT, log.destage-full-speed=PERCENT, log.destage-idle=DURATION,
    /// log.destage-age=DURATION, log.destage-batch=SIZE, log.destage-writes=NUMBER; for targets lun.NUMBER.disk=on|off
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum Cache {
    /// List the caches of this host
    List(CacheList),
    /// Give part of the size of one attachment's cache to another's, while both are used
    Move(CacheMove),
    /// Show what a cache holds, for which logical unit
    Inspect(CachePath),
    /// Read the whole metadata and report damage
    Check(CachePath),
    /// Give up what a cache holds, dirty data too, also of one that is damaged or gone
    Discard(CacheDiscard),
}

#[derive(Debug, Subcommand)]
pub enum Log {
    /// List the write logs of this host that may hold what their logical units do not have
    List(Json),
    /// Show what a write log holds, for which logical unit
    Inspect(LogPath),
    /// Read everything the logical unit does not have, compare it with its checksums, and name what is damaged
    Check(LogCheck),
    /// Bring everything to the logical unit
    Replay(Box<LogReplay>),
    /// Give up what a write log holds, dirty data too, also of one that is damaged or gone
    Discard(LogDiscard),
}

#[derive(Debug, Args)]
pub struct LogPlace {
    /// The log's file or block device
    pub path: PathBuf,
    /// Where in that it begins (default: it takes all of it)
    #[arg(long, value_name = "BYTES")]
    pub log_offset: Option<ByteSize>,
}

#[derive(Debug, Args)]
pub struct LogPath {
    #[command(flatten)]
    pub place: LogPlace,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct LogCheck {
    #[command(flatten)]
    pub place: LogPlace,
    /// The log's persistent memory, if it has any, or a copy of it: it is checked, too
    #[arg(long, value_name = "PATH")]
    pub nvram: Option<PathBuf>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct LogReplay {
    #[command(flatten)]
    pub place: LogPlace,
    /// The logical unit: iscsi://[USER@]HOST[:PORT]/IQN/LUN; several, separated by commas, as one
    #[arg(value_name = "URL[,URL...]")]
    pub urls: String,
    #[command(flatten)]
    pub arrange: Arrange,
    /// The log's persistent memory, if it has any
    #[arg(long, value_name = "PATH")]
    pub nvram: Option<PathBuf>,
    /// What the log has replaces what others have written to the same places since. Without it such a replay is refused
    #[arg(long)]
    pub overwrite_changes: bool,
    #[command(flatten)]
    pub login: Login,
}

#[derive(Debug, Args)]
pub struct LogDiscard {
    #[command(flatten)]
    pub place: LogPlace,
    /// Do not ask, even when dirty data is lost
    #[arg(long)]
    pub allow_data_loss: bool,
}

#[derive(Debug, Args)]
pub struct CacheList {
    /// Measure for so long what those in use have to do: reads and writes a second, hit ratio, requests in flight
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub load: Option<Duration>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct CacheMove {
    /// How much
    pub size: ByteSize,
    /// The attachment whose cache shrinks
    #[arg(long, value_name = "NAME")]
    pub from: String,
    /// The attachment whose cache grows
    #[arg(long, value_name = "NAME")]
    pub to: String,
}

#[derive(Debug, Args)]
pub struct CachePlace {
    /// The cache's file or block device
    pub path: PathBuf,
    /// Where in that it begins (default: it takes all of it)
    #[arg(long, value_name = "BYTES")]
    pub cache_offset: Option<ByteSize>,
}

#[derive(Debug, Args)]
pub struct CachePath {
    #[command(flatten)]
    pub place: CachePlace,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct CacheDiscard {
    #[command(flatten)]
    pub place: CachePlace,
    /// Only what lies beyond the end of a logical unit that became smaller, as large as that was when the cache was attached last; the rest stays
    #[arg(long)]
    pub beyond_end: bool,
    /// Do not ask, even when dirty data is lost
    #[arg(long)]
    pub allow_data_loss: bool,
}

#[derive(Debug, Args)]
pub struct Bench {
    /// A logical unit (iscsi://...), several as one, or the name of an attachment
    #[arg(value_name = "URL[,URL...]|NAME")]
    pub subject: String,
    #[command(flatten)]
    pub arrange: Arrange,
    /// randread, randwrite, read, write or randrw
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    pub rw: ReadWrite,
    /// Share of reads in randrw, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Size of a request
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub bs: ByteSize,
    /// Skew of random requests: the block of rank k with a probability proportional to 1/k^THETA
    #[arg(long, value_name = "THETA")]
    pub zipf: Option<f64>,
    /// Requests in flight, of each job
    #[arg(long, default_value_t = 32)]
    pub depth: u32,
    /// Jobs at once, each with a session (or connection to the attachment) and a part of the device of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub jobs: u32,
    /// How long: a count of seconds, or a duration like 500ms
    #[arg(long, value_name = "DURATION", default_value = "5", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// The process that serves, to show its CPU time (default: found by its control socket when it runs on this host)
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Stop after this many requests of each job instead
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds")]
    pub requests: Option<u64>,
    /// Only the first bytes of the device (default: all of it)
    #[arg(long, value_name = "SIZE")]
    pub footprint: Option<ByteSize>,
    /// Check every read against what was written
    #[arg(long)]
    pub verify: bool,
    /// Seed of the requests
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Overwrite what the device holds without asking
    #[arg(long)]
    pub allow_data_loss: bool,
    #[command(flatten)]
    pub login: Login,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct Replay {
    /// The trace, as it is or packed by gzip or zstd; - for standard input
    pub trace: PathBuf,
    /// A logical unit (iscsi://...), several as one, or the name of an attachment
    #[arg(value_name = "URL[,URL...]|NAME", required_unless_present = "dry_run")]
    pub subject: Option<String>,
    #[command(flatten)]
    pub arrange: Arrange,
    /// Its format: cloudphysics (CSV: version,time,op,size,lbn), blkparse (text), iolog (of fio), msr (CSV of Microsoft Research Cambridge), spc
    /// (Storage Performance Council), arc (the paper's) or mqsim (also SSDsim's; times in nanoseconds); default: what the first line looks like
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Of a trace of several devices or files, the one to take, as the trace names it
    #[arg(long, value_name = "NAME")]
    pub source: Option<String>,
    /// Requests in flight
    #[arg(long, default_value_t = 1)]
    pub depth: u32,
    /// When requests are issued: full (as fast as they are answered), recorded (at their times), or so many times as fast as recorded (2x)
    #[arg(long, value_name = "PACE", default_value = "full")]
    pub pace: Pace,
    /// Stop after this many requests
    #[arg(long, value_name = "COUNT")]
    pub requests: Option<u64>,
    /// Read the trace, say what it has and how large a logical unit it needs, and end
    #[arg(long)]
    pub dry_run: bool,
    /// Move what the trace touches together, in chunks of 1 MiB, to fit a smaller logical unit
    #[arg(long)]
    pub rebase: bool,
    /// Overwrite what the device holds without asking; a trace without writes needs no leave
    #[arg(long)]
    pub allow_data_loss: bool,
    #[command(flatten)]
    pub login: Login,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Subcommand)]
pub enum Lab {
    /// List the experiments
    List(Json),
    /// Run one and keep what it found for `lab report`
    Run(LabRun),
    /// Write one page with the figures of all that was run
    Report(LabReport),
}

#[derive(Debug, Args)]
pub struct LabRun {
    /// The experiment, as `lab list` names it
    pub name: String,
    /// virtual: models of the paper's machines, repeatable to the digit; real: this machine (as root, in network namespaces)
    #[arg(long, default_value = "real", value_parser = parse_clock)]
    pub clock: Clock,
    /// Few points, a tenth of a second each
    #[arg(long)]
    pub quick: bool,
    /// Where outcomes are kept
    #[arg(long, value_name = "DIRECTORY", default_value = "forebay-lab")]
    pub out: PathBuf,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct LabReport {
    /// Where outcomes are kept
    #[arg(long, value_name = "DIRECTORY", default_value = "forebay-lab")]
    pub out: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Generate {
    /// Manual pages, one a command, into a directory
    Man {
        /// The directory
        directory: PathBuf,
    },
    /// Pages of `docs/reference/`, into a directory
    Reference {
        /// The directory
        directory: PathBuf,
    },
    /// Completions for a shell, on standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn parse_clock(text: &str) -> Result<Clock, String> {
    [Clock::Virtual, Clock::Real]
        .into_iter()
        .find(|clock| clock.as_str() == text)
        .ok_or_else(|| format!("\"{text}\" is no clock: virtual or real"))
}

fn parse_policy(text: &str) -> Result<Policy, String> {
    [Policy::Failover, Policy::RoundRobin]
        .into_iter()
        .find(|policy| policy.as_str() == text)
        .ok_or_else(|| format!("\"{text}\" is no policy of paths: failover or round-robin"))
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => parse_duration(text),
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o777);
    mode.ok_or_else(|| format!("\"{text}\" is no mode: three octal digits, as in 0660"))
}

fn parse_group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(format!("there is no group \"{text}\" on this host")),
        Err(error) => Err(format!("the group \"{text}\" cannot be looked up: {error}")),
    }
}

fn parse_associativity(text: &str) -> Result<Associativity, String> {
    match text {
        "full" => Ok(Associativity::Full),
        ways => ways
            .parse()
            .ok()
            .filter(|&ways| ways > 0)
            .map(Associativity::Ways)
            .ok_or_else(|| format!("\"{ways}\" is no associativity: a number of ways, or `full`")),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        other => Err(format!("\"{other}\" is neither yes nor no")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }
}
