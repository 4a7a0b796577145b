//! `make bench-cache-peers`: the kernel's caches and ours in front of one LUN, each in a virtual machine that is reset,
//! and that loses power, in the middle of writing.
//!
//! ```text
//!   this machine                                        guest: Linux 6.12 in QEMU's emulator, made anew for each cache
//!   load and record ── iSCSI ──► forebay target serve ──► /dev/bcache0 · /dev/mapper/cached · /dev/nbd0
//!   (load.rs)                                                  cache (peer.rs): bcache · dm-cache · forebay attach
//!   forebay target serve, LUN in RAM ◄── iSCSI ── the kernel's initiator, or forebay's ─┘    │
//!   the cache's disk (disk.rs) ◄── NBD, by QEMU ── /dev/vda ◄─────────────────────────────────┘
//! ```
//! The load and the record of acknowledged writes are outside of the guest, so they outlive it. The
//! cache's disk has a volatile write cache: a reset keeps all that reached the disk, a power loss
//! loses what no flush made durable, by a seeded draw.
//!
//! The same seed gives every cache the same requests. Raw results are printed as they come, the
//! table last. An emulator is slow, but slow for all alike: its seconds are not those of a machine,
//! so only counts are compared, and times with one another.

#![forbid(unsafe_code)]

mod disk;
mod load;
mod peer;

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use tests::World;
use tests::guest::{Guest, RunningGuest};

use crate::disk::Disk;
use crate::load::{Counts, Load, Survival};
use crate::peer::{LUN_BYTES, PEERS, PORT, Peer};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Head of the table. Units have 512 bytes; values separated by slashes are those after each end of
/// a guest.
const TABLE_HEAD: &str = "\
| cache | hit ratio | MiB read from the LUN | MiB written to it | MiB on the wire | hit ratio after each end | lost units, flushed | lost units, \
acknowledged only | seconds to the first read |
|---|--:|--:|--:|--:|--:|--:|--:|--:|";

/// Longest life of one guest.
const PATIENCE: Duration = Duration::from_secs(600);

/// Compares caches in front of one LUN.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only caches whose name begins so
    #[arg(long, default_value = "")]
    only: String,
    /// Requests that warm a new cache
    #[arg(long, default_value_t = 12_000)]
    warm_up: u64,
    /// Requests that are measured then
    #[arg(long, default_value_t = 5_000)]
    measured: u64,
    /// Requests, half of them writes, before the guest ends
    #[arg(long, default_value_t = 2_000)]
    until_end: u64,
    /// Reads that say how warm a cache is after that
    #[arg(long, default_value_t = 1_500)]
    after: u64,
    /// Seed of all requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How the guests of each cache end, in order
    #[arg(long, value_delimiter = ',', default_value = "reset,reset,power-loss")]
    ends: Vec<End>,
}

/// How a guest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum End {
    /// What reached its disk stays there.
    Reset,
    /// What its disk was not told to keep may be lost.
    PowerLoss,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new()?;
    let mut rows = Vec::new();
    for peer in PEERS.iter().filter(|peer| peer.name.starts_with(&arguments.only)) {
        rows.push(runtime.block_on(measure(&arguments, peer))?);
    }
    println!("\n{TABLE_HEAD}");
    rows.iter().for_each(|row| println!("{row}"));
    Ok(())
}

/// Measures one cache, from its making through all its ends.
async fn measure(arguments: &Arguments, peer: &Peer) -> Result<String> {
    let world = World::new();
    let target = world.target(["--lun", &format!("0=ram:{LUN_BYTES}")]);
    let portal_port = target.portal().rsplit_once(':').ok_or("a portal has a port")?.1.to_owned();
    let mut disk = Disk::new(&world.path("disk"), arguments.seed)?;
    let mut load = Load::new(arguments.seed);
    let traffic = || Traffic::of(&world.status("target"));

    let mut running = Running::boot(peer, &disk, &portal_port, true)?;
    load.connect(running.guest.address(PORT)).await?;
    say(peer, "made", &json!({ "ready_s": running.ready_s, "from_boot_s": running.from_boot_s }));
    load.run(arguments.warm_up, 0.3).await?;
    let before = traffic();
    let counts = load.run(arguments.measured, 0.3).await?;
    let measured = Share { counts, traffic: traffic().since(&before) };
    let dirty = running.ask(peer.dirty);
    say(peer, "measured", &json!({ "share": measured.json(), "dirty": dirty }));

    let mut after = Vec::new();
    for &end in &arguments.ends {
        load.run_and_leave(arguments.until_end).await?;
        drop(running);
        disk = disk.after(end == End::PowerLoss)?;
        running = Running::boot(peer, &disk, &portal_port, false)?;
        load.connect(running.guest.address(PORT)).await?;
        let before = traffic();
        let counts = load.read(arguments.after).await?;
        let warmth = Share { counts, traffic: traffic().since(&before) };
        let survival = load.verify().await?;
        let again = Again { end, ready_s: running.ready_s, from_boot_s: running.from_boot_s, warmth, survival };
        say(peer, "again", &again.json());
        after.push(again);
    }
    load.disconnect().await;
    Ok(row(peer, &measured, &after))
}

fn say(peer: &Peer, what: &str, value: &Value) {
    println!("{}: {what}: {value}", peer.name);
}

/// A guest whose cache is made and served.
struct Running {
    guest: RunningGuest,
    /// Seconds of the guest from its first step towards the cache to the first block read through it.
    ready_s: f64,
    /// Seconds of this machine from switching the guest on to that read.
    from_boot_s: f64,
}

impl Running {
    fn boot(peer: &Peer, disk: &Disk, portal_port: &str, is_new: bool) -> Result<Self> {
        let began = Instant::now();
        let forebay = tests::forebay_binary().display().to_string();
        let programs: Vec<&str> = peer.programs.iter().copied().chain([forebay.as_str()]).collect();
        let mut guest = Guest::new()
            .with_programs(&programs)
            .with_modules(peer.modules)
            .with_disk(&disk.drive())
            .with_memory_mib(768)
            .with_ports(&[PORT])
            .with_patience(PATIENCE)
            .boot(&peer.script(&forebay, portal_port, is_new));
        let begun = uptime(&guest.wait_for("begun: "))?;
        let first = uptime(&guest.wait_for("first: "))?;
        let from_boot_s = began.elapsed().as_secs_f64();
        guest.wait_for("serving");
        Ok(Self { guest, ready_s: first - begun, from_boot_s })
    }

    /// Runs a function of the guest's script. Returns its output.
    fn ask(&mut self, command: &str) -> String {
        self.guest.answer(command);
        self.guest.wait_for("answer: ").split_off("answer: ".len())
    }
}

fn uptime(line: &str) -> Result<f64> {
    Ok(line.split_whitespace().nth(1).ok_or("no uptime")?.parse()?)
}

/// The traffic of the LUN's target.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    read_bytes: u64,
    reads: u64,
    written_bytes: u64,
    wire_bytes: u64,
}

impl Traffic {
    fn of(status: &Value) -> Self {
        let sum = |list: &str, key: &str| -> u64 {
            status[list].as_array().into_iter().flatten().filter_map(|each| each[key].as_u64()).sum()
        };
        Self {
            read_bytes: sum("luns", "read_bytes"),
            reads: sum("luns", "reads"),
            written_bytes: sum("luns", "written_bytes"),
            wire_bytes: sum("connections", "bytes_received") + sum("connections", "bytes_sent"),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            read_bytes: self.read_bytes - before.read_bytes,
            reads: self.reads - before.reads,
            written_bytes: self.written_bytes - before.written_bytes,
            wire_bytes: self.wire_bytes - before.wire_bytes,
        }
    }
}

/// The requests to the cache, and the LUN traffic that they caused.
struct Share {
    counts: Counts,
    traffic: Traffic,
}

impl Share {
    /// Share of the bytes read that were not read from the LUN; negative where more was read from
    /// it.
    fn hit_ratio(&self) -> f64 {
        1.0 - self.traffic.read_bytes as f64 / self.counts.read_bytes.max(1) as f64
    }

    fn json(&self) -> Value {
        json!({
            "hit_ratio": round(self.hit_ratio(), 4),
            "read_bytes": self.counts.read_bytes,
            "written_bytes": self.counts.written_bytes,
            "seconds": round(self.counts.seconds, 1),
            "lun_reads": self.traffic.reads,
            "lun_read_bytes": self.traffic.read_bytes,
            "lun_written_bytes": self.traffic.written_bytes,
            "wire_bytes": self.traffic.wire_bytes,
        })
    }
}

/// The results of a guest that was booted again after its end.
struct Again {
    end: End,
    ready_s: f64,
    from_boot_s: f64,
    warmth: Share,
    survival: Survival,
}

impl Again {
    fn json(&self) -> Value {
        json!({
            "end": if self.end == End::Reset { "reset" } else { "power-loss" },
            "ready_s": self.ready_s,
            "from_boot_s": round(self.from_boot_s, 1),
            "warmth": self.warmth.json(),
            "survival": self.survival.json(),
        })
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// A line of the table for `docs/measurements/cache-peers.md`.
fn row(peer: &Peer, measured: &Share, after: &[Again]) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let list = |text: fn(&Again) -> String| after.iter().map(text).collect::<Vec<_>>().join(" / ");
    format!(
        "| {} | {:.3} | {:.1} | {:.1} | {:.1} | {} | {} | {} | {} |",
        peer.name,
        measured.hit_ratio(),
        mib(measured.traffic.read_bytes),
        mib(measured.traffic.written_bytes),
        mib(measured.traffic.wire_bytes),
        list(|again| format!("{:.3}", again.warmth.hit_ratio())),
        list(|again| again.survival.lost_flushed.to_string()),
        list(|again| again.survival.lost_acknowledged.to_string()),
        list(|again| format!("{:.2}", again.ready_s)),
    )
}
