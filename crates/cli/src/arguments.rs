//! The command line: with `guidance`, the one definition that gives the parser, `--help`, the manual pages, the
//! reference pages and the shell completions.

use std::path::PathBuf;
use std::time::Duration;

use base::units::ByteSize;
use clap::{ArgAction, Args, Parser, Subcommand};
use lab::Clock;
use stack::lun_spec::parse_duration;
use workload::bench::ReadWrite;
use workload::replay::Pace;
use workload::trace::Format;

use crate::settings_arguments::{ArrangementOptions, AttachOptions, Given, LoginOptions};

mod cache;
mod json;
mod log;
mod seconds;
mod target;

pub use cache::{Cache, CacheDiscard, CacheList, CacheMove, CachePath, CachePlace};
pub use json::Json;
pub use log::{Log, LogCheck, LogDiscard, LogPath, LogPlace, LogReplay};
use seconds::parse_seconds;
pub use target::{Target, TargetCheck, TargetReload, TargetServe, TargetStatus};

/// Where the help of every command names the options that all have: behind its own, before `--help`.
const GLOBAL_ORDER: usize = 900;

/// Remote block storage as near as a local disk.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, max_term_width = 100, propagate_version = true, subcommand_required = true)]
pub struct Arguments {
    /// Say more (-v: what happens, -vv: every detail); FOREBAY_LOG takes a tracing filter
    #[arg(short, long, action = ArgAction::Count, global = true, display_order = GLOBAL_ORDER)]
    pub verbose: u8,
    /// What log lines on standard error look like
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text", global = true, display_order = GLOBAL_ORDER)]
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
    /// Show who shares a logical unit, what they hold and what they wait for
    Locks(Locks),
    /// Attach a remote logical unit, cached or not, and offer it to local applications
    Attach(Box<Attach>),
    /// Stop an attachment, after writing everything dirty back, or a target, or the daemon alone
    Detach(Detach),
    /// Keep the attachments of a directory of files: start them, and start them again when they end unasked
    Daemon(Daemon),
    /// Show what runs on this host, or one of it in detail
    Status(Status),
    /// Show the load of all attachments, again each second
    Top(Top),
    /// Show what happened to attachments and mounts, in order
    Events(Events),
    /// Make everything durable that was acknowledged, without writing it back
    Flush(Flush),
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
    /// Make an empty ext2 file system on a logical unit or an attachment
    Mkfs(Mkfs),
    /// Mount the ext2 of a logical unit in a directory, until it is unmounted
    Mount(Mount),
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

#[derive(Debug, Args)]
pub struct Discover {
    /// The portal
    #[arg(value_name = "HOST[:PORT]")]
    pub portal: String,
    #[command(flatten)]
    pub login: Given<LoginOptions>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct Inquiry {
    /// The logical unit: iscsi://[USER@]HOST[:PORT]/IQN/LUN
    pub url: String,
    #[command(flatten)]
    pub login: Given<LoginOptions>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Locks {
    #[command(subcommand)]
    pub command: Option<LocksCommand>,
    /// The logical unit: iscsi://[USER@]HOST[:PORT]/IQN/LUN
    #[arg(required = true)]
    pub url: Option<String>,
    #[command(flatten)]
    pub login: Given<LoginOptions>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Subcommand)]
pub enum LocksCommand {
    /// End a client's life: nothing that it sends after this has any effect, and what it held passes on
    Fence {
        /// As `forebay locks` names it, like 3.12
        client: String,
        /// The logical unit: iscsi://[USER@]HOST[:PORT]/IQN/LUN
        url: String,
        #[command(flatten)]
        login: Given<LoginOptions>,
    },
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Attach {
    /// The logical unit: iscsi://[USER@]HOST[:PORT]/IQN/LUN; several, separated by commas, as one
    #[arg(value_name = "URL[,URL...]", required_unless_present = "config")]
    pub urls: Option<String>,
    #[command(flatten)]
    pub options: Given<AttachOptions>,
    /// Take settings from this file (TOML), and the URL where there is none; the command line wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Keep it: write its file for `forebay daemon`, which attaches it now and after each start of the system
    #[arg(long)]
    pub persist: bool,
    /// Any setting, also of those that --help-all lists; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print help
    #[arg(short, long, action = ArgAction::HelpShort)]
    help: Option<bool>,
    /// Print help with every setting
    #[arg(long, action = ArgAction::HelpLong)]
    help_all: Option<bool>,
}

#[derive(Debug, Args)]
pub struct Detach {
    /// The attachment, mount or target
    pub name: String,
    /// Stop at once and leave dirty data, durably, in the cache; not of a target
    #[arg(long)]
    pub keep_dirty: bool,
    /// Remove the file of the cache, once everything is written back
    #[arg(long, conflicts_with = "keep_dirty")]
    pub remove_cache: bool,
    /// Take its file away from the daemon, too, which then does not start it any more
    #[arg(long)]
    pub forget: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Daemon {
    #[command(subcommand)]
    pub command: Option<DaemonCommand>,
    /// Directory of the files, one for each attachment as for `attach --config` (default: FOREBAY_CONFIG_DIR)
    #[arg(long, value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// Detach everything in order on SIGTERM, before it ends; else the attachments go on without it
    #[arg(long)]
    pub stop_attachments: bool,
    #[arg(from_global)]
    pub verbose: u8,
    #[arg(from_global)]
    pub log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
pub enum DaemonCommand {
    /// Read the files again: attach what is new, detach what is gone, set what may change while it runs
    Reload(Json),
    /// Start an attachment that was detached, has failed or waits for its next start
    Start(DaemonStart),
}

#[derive(Debug, Args)]
pub struct DaemonStart {
    /// The attachment
    pub name: String,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct Status {
    /// The attachment, target or mount, or `daemon` (default: all)
    pub name: Option<String>,
    /// Wait this long for it to run, as after starting it in the background
    #[arg(long, value_name = "DURATION", requires = "name", value_parser = parse_duration)]
    pub wait: Option<Duration>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct Top {
    /// Show it once, after a second
    #[arg(long)]
    pub once: bool,
    /// Print JSON instead of text: one object each second, on a line; with --once one object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Events {
    /// The attachment, mount or target, or `daemon` (default: all)
    pub name: Option<String>,
    /// Go on with what happens from now on, until it is ended
    #[arg(long)]
    pub follow: bool,
    /// Print JSON instead of text: one object, or with --follow one for each event, each on a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Flush {
    /// The attachment or mount
    pub name: String,
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
    /// What to change
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Mkfs {
    /// A logical unit (iscsi://...), several as one, or the name of an attachment
    #[arg(value_name = "URL[,URL...]|NAME")]
    pub subject: String,
    #[command(flatten)]
    pub arrange: Given<ArrangementOptions>,
    /// Size of a block: 1KiB, 2KiB or 4KiB (default: 4KiB, 1KiB below 512MiB)
    #[arg(long, value_name = "SIZE")]
    pub block_size: Option<ByteSize>,
    /// Bytes for which there is one inode (default: 16KiB, fewer on small devices)
    #[arg(long, value_name = "SIZE")]
    pub bytes_per_inode: Option<ByteSize>,
    /// Name of the file system, at most 16 bytes
    #[arg(long, value_name = "LABEL")]
    pub label: Option<String>,
    /// Which file system it is (default: drawn)
    #[arg(long, value_name = "UUID")]
    pub uuid: Option<uuid::Uuid>,
    /// Share of the blocks that only the super-user may use, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..=50))]
    pub reserved: u8,
    /// Overwrite what the device holds without asking
    #[arg(long)]
    pub allow_data_loss: bool,
    #[command(flatten)]
    pub login: Given<LoginOptions>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub struct Mount {
    /// The logical unit: iscsi://[USER@]HOST[:PORT]/IQN/LUN; or a file or block device of this machine
    #[arg(value_name = "URL|PATH")]
    pub source: String,
    /// Where its files are
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
    /// Name for `forebay status` and `forebay detach` (default: the last part of the directory)
    #[arg(long)]
    pub name: Option<String>,
    /// Change nothing; what a crash left is made whole in memory only
    #[arg(long)]
    pub read_only: bool,
    /// Other hosts mount it at the same time, each with this option: they have it by turns
    #[arg(long)]
    pub shared: bool,
    /// Wait for a target that is not there yet
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub login: Given<LoginOptions>,
}

#[derive(Debug, Args)]
pub struct Bench {
    /// A logical unit (iscsi://...), several as one, or the name of an attachment
    #[arg(value_name = "URL[,URL...]|NAME")]
    pub subject: String,
    #[command(flatten)]
    pub arrange: Given<ArrangementOptions>,
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
    pub login: Given<LoginOptions>,
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
    pub arrange: Given<ArrangementOptions>,
    /// Its format: cloudphysics (CSV: version,time,op,size,lbn), blkparse (text), iolog (of fio), msr (CSV of Microsoft
    /// Research Cambridge), spc (Storage Performance Council), arc (the paper's), mqsim (also SSDsim's; times in
    /// nanoseconds) or vscsi (binary, of VMware's vscsiStats); default: what its beginning looks like
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Of a trace of several devices or files, the one to take, as the trace names it
    #[arg(long, value_name = "NAME")]
    pub source: Option<String>,
    /// Requests in flight
    #[arg(long, default_value_t = 1)]
    pub depth: u32,
    /// When requests are issued: full (as fast as they are answered), recorded (at their times), or so many times as
    /// fast as recorded (2x)
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
    pub login: Given<LoginOptions>,
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
    /// virtual: models of the paper's machines, repeatable to the digit; real: this machine (as root, in network
    /// namespaces)
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }
}
