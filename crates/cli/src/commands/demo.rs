//! `demo`: the main job on this machine alone.
//!
//! A target serves a RAM LUN that behaves like a disk of 7200 rpm, behind a link of 1 ms round trip. The same seeded
//! closed loop of requests runs on it twice: plainly, and through a write-back cache. Half-way through the second run
//! the attached process is killed with SIGKILL and attached again; the writes it had not acknowledged are issued again.
//! At the end every block is read from the LUN itself and checked. Everything lives in a temporary directory; the
//! processes are this same program.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::clock::Clock;
use block::{ByteRange, SharedDevice};
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use front::ListenAddress;
use indicatif::ProgressBar;
use serde_json::json;
use stack::place_device::is_in_memory;
use stack::remote::RemoteConfig;
use stack::settings::Settings;
use stack::time::system_clock;
use stack::{Error, Failure, Result};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use workload::Measurement;
use workload::closed_loop::{ClosedLoop, Ending, Limit, Plan, RunError};
use workload::generator::Profile;
use workload::ledger::{InitialContent, Ledger};
use workload::report::{Report, Run, comparison};
use workload::verify::verify_all;

use super::signal;
use super::subject::nbd_device;
use crate::arguments::Demo;
use crate::output::{duration_in_words, print_json, print_line, progress_bar};

const IQN: &str = "iqn.2026-11.io.forebay:demo";
const LUN: &str = "0=ram:256MiB,disk=7200rpm";
const FOOTPRINT_BYTES: u64 = 32 << 20;
const DEPTH: u32 = 4;
const LINK_ROUND_TRIP: &str = "1ms";
const CACHE_SIZE: &str = "64MiB";

/// `forebay demo`. On every way out its processes and files are gone.
pub async fn run(arguments: Demo) -> Result<()> {
    let interrupted = signal::termination_or_hangup()?;
    tokio::select! {
        result = show_main_job(arguments) => result,
        () = interrupted => Err(Error::new(Failure::Other, "interrupted")),
    }
}

async fn show_main_job(arguments: Demo) -> Result<()> {
    let stage = Stage::new()?;
    let began = Instant::now();
    if !arguments.json.json {
        print_line("A RAM disk of 256 MiB that behaves like one of 7200 rpm (8.5 ms seek, 4.17 ms rotation, 20 MB/s,");
        print_line("no write cache), served over iSCSI behind a link of 1 ms; 89 % writes of 2 KiB, depth 4.");
    }
    let plain = stage.run_plain(&arguments).await?;
    let cached = stage.run_cached(&arguments).await?;
    let report = Report {
        title: "forebay: a remote disk, plain and through a local cache",
        introduction: INTRODUCTION,
        plain: plain.as_run("plain iSCSI"),
        cached: cached.as_run("write-back cache"),
        facts: facts(&arguments, &cached),
    };
    let html = report.to_html().map_err(|error| Error::new(Failure::Other, error.to_string()))?;
    std::fs::write(&arguments.report, html)
        .map_err(|error| Error::io(format!("cannot write the report {}", arguments.report.display()), &error))?;
    print_result(&arguments, &plain, &cached, began.elapsed());
    Ok(())
}

const INTRODUCTION: &str = "The same seeded requests (89 % writes of 2 KiB, zipf over 32 MiB, four in flight) on a RAM \
                            LUN that behaves like a disk of 7200 rpm behind a link of 1 ms round trip: plainly over \
                            iSCSI, and through forebay's write-back cache, whose process was killed with SIGKILL \
                            half-way and attached again. Every write was durable on the local disk before it was \
                            acknowledged, and every block was verified on the LUN at the end.";

/// A temporary directory and the processes in it; both are gone when it is dropped.
struct Stage {
    directory: tempfile::TempDir,
    program: PathBuf,
    clock: Arc<dyn Clock>,
}

/// The results of one run.
struct Outcome {
    closed_loop: ClosedLoop,
    measurement: Measurement,
    verified_bytes: u64,
    /// From the kill to the first request served again.
    recovery: Option<Duration>,
}

impl Outcome {
    fn as_run<'a>(&'a self, name: &'a str) -> Run<'a> {
        Run {
            name,
            measurement: &self.measurement,
            series: self.closed_loop.series().expect("the plan keeps the series"),
            outages: self.closed_loop.outages(),
        }
    }
}

impl Stage {
    fn new() -> Result<Self> {
        // A cache on a file system in memory is refused: its data would not survive a power
        // failure.
        let usual = std::env::temp_dir();
        let folder = if is_in_memory(&usual) { PathBuf::from("/var/tmp") } else { usual };
        let directory = tempfile::Builder::new()
            .prefix("forebay-demo-")
            .tempdir_in(folder)
            .map_err(|error| Error::io("cannot make a temporary directory", &error))?;
        let program = std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
        Ok(Self { directory, program, clock: system_clock()? })
    }

    async fn run_plain(&self, arguments: &Demo) -> Result<Outcome> {
        let target = self.start_target().await?;
        let attached = self.attach(&target, "plain", &[]).await?;
        let mut closed_loop = self.closed_loop(arguments)?;
        let device = nbd_device(&self.front("plain")).await?;
        let bar = progress_bar("plain iSCSI", 1000);
        expect_finished(closed_loop.run(device, |progress| show(&bar, progress.share)).await)?;
        bar.finish_and_clear();
        attached.detach(self, "plain").await?;
        self.finish(target, closed_loop, None).await
    }

    async fn run_cached(&self, arguments: &Demo) -> Result<Outcome> {
        let target = self.start_target().await?;
        let cache = self.path("demo.cache").display().to_string();
        let cache_options = ["--cache", cache.as_str(), "--cache-size", CACHE_SIZE, "--cache-mode", "write-back"];
        let mut attached = self.attach(&target, "cached", &cache_options).await?;
        let mut closed_loop = self.closed_loop(arguments)?;
        let bar = progress_bar("write-back cache", 1000);
        let device = nbd_device(&self.front("cached")).await?;
        let mut is_killed = false;
        let ending = closed_loop
            .run(device, |progress| {
                if progress.share >= 0.5 && !is_killed {
                    bar.set_message("killed, recovering");
                    is_killed = attached.kill_now();
                }
                show(&bar, progress.share)
            })
            .await;
        let Ending::DeviceFailed { .. } = ending.map_err(verification)? else {
            return Err(Error::new(Failure::Other, "the attached process was killed, but its device did not fail"));
        };
        drop(attached);
        let attached = self.attach(&target, "cached", &cache_options).await?;
        let device = nbd_device(&self.front("cached")).await?;
        bar.set_message("write-back cache, recovered");
        expect_finished(closed_loop.run(device, |progress| show(&bar, progress.share)).await)?;
        bar.finish_and_clear();
        let recovery = closed_loop.outages().first().and_then(|outage| Some(outage.until? - outage.from));
        // The disk's slowness has been shown; writing back and checking need not wait for it.
        self.forebay(&["set", "target", "lun.0.disk=off"]).await?;
        attached.detach(self, "cached").await?;
        self.finish(target, closed_loop, recovery).await
    }

    /// Reads everything that was written from the LUN itself.
    async fn finish(&self, target: Running, closed_loop: ClosedLoop, recovery: Option<Duration>) -> Result<Outcome> {
        self.forebay(&["set", "target", "lun.0.disk=off"]).await?;
        let ledger = closed_loop.ledger().expect("the plan verifies");
        let verified_bytes = self.verify(&target, ledger).await?;
        target.stop().await;
        let measurement = closed_loop.measurement();
        Ok(Outcome { closed_loop, measurement, verified_bytes, recovery })
    }

    async fn verify(&self, target: &Running, ledger: &Ledger) -> Result<u64> {
        let remote = RemoteConfig::of(&url_of(target), &Settings::default())?.connect(&self.clock).await?;
        let device: SharedDevice = remote.clone();
        let bar = progress_bar("verifying every block", 1000);
        let verified = verify_all(&device, ledger, |share| show(&bar, share))
            .await
            .map_err(|error| Error::new(Failure::VerificationFailed, error.to_string()));
        bar.finish_and_clear();
        remote.close().await?;
        Ok(verified?.bytes)
    }

    fn closed_loop(&self, arguments: &Demo) -> Result<ClosedLoop> {
        let footprint = ByteRange { offset: 0, length: FOOTPRINT_BYTES };
        let plan = Plan {
            profile: Profile::icache(arguments.seed, footprint),
            depth: DEPTH,
            limit: Limit::Time(arguments.run_time),
            verify: Some(InitialContent::Zero),
            keep_series: true,
        };
        ClosedLoop::new(plan, self.clock.clone()).map_err(|error| Error::new(Failure::Usage, error.to_string()))
    }

    async fn start_target(&self) -> Result<Running> {
        self.start(&["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", LUN]).await
    }

    async fn attach(&self, target: &Running, name: &str, more: &[&str]) -> Result<Running> {
        let (url, front) = (url_of(target), format!("nbd:{}", self.front(name)));
        let fixed = ["attach", &url, "--name", name, "--as", &front, "--link-round-trip", LINK_ROUND_TRIP];
        self.start(&[&fixed, more].concat()).await
    }

    fn front(&self, name: &str) -> ListenAddress {
        ListenAddress::Unix(self.path(&format!("{name}.nbd")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("FOREBAY_RUNTIME_DIR", self.path("run"))
            .env("FOREBAY_STATE_DIR", self.path("state"))
            .env_remove("FOREBAY_CHAP_PASSWORD")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs `forebay` to its end.
    async fn forebay(&self, arguments: &[&str]) -> Result<()> {
        let output = self.command(arguments).output().await.map_err(|error| Error::io("cannot run forebay", &error))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::new(Failure::Other, String::from_utf8_lossy(&output.stderr).trim()))
    }

    /// Starts `forebay` and waits until it is ready.
    async fn start(&self, arguments: &[&str]) -> Result<Running> {
        let io_error = |error: &std::io::Error| Error::io("cannot run forebay", error);
        let mut child = self.command(arguments).stdout(Stdio::piped()).spawn().map_err(|error| io_error(&error))?;
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        while let Some(line) = lines.next_line().await.map_err(|error| io_error(&error))? {
            if let Some(ready) = line.strip_prefix("ready: ") {
                return Ok(Running { child, ready: ready.to_owned() });
            }
        }
        Err(Error::new(Failure::Other, format!("`forebay {}` ended before it was ready", arguments.join(" "))))
    }
}

/// A `forebay` process that said `ready:`; killed when dropped.
struct Running {
    child: Child,
    ready: String,
}

impl Running {
    /// SIGKILL, at once. Whether it worked.
    fn kill_now(&mut self) -> bool {
        self.child.start_kill().is_ok()
    }

    async fn detach(mut self, stage: &Stage, name: &str) -> Result<()> {
        stage.forebay(&["detach", name]).await?;
        self.child.wait().await.map_err(|error| Error::io("the attached process", &error))?;
        Ok(())
    }

    /// SIGTERM. The process is gone when this returns, killed if need be.
    async fn stop(mut self) {
        if let Some(id) = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(STOP_PATIENCE, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

/// How long a target may take to end before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

fn url_of(target: &Running) -> String {
    format!("iscsi://{}/{IQN}/0", target.ready)
}

fn show(bar: &ProgressBar, share: f64) -> ControlFlow<()> {
    bar.set_position((share * 1000.0) as u64);
    ControlFlow::Continue(())
}

fn expect_finished(ending: std::result::Result<Ending, RunError>) -> Result<()> {
    match ending.map_err(verification)? {
        Ending::Finished => Ok(()),
        Ending::Stopped => Err(Error::new(Failure::Other, "the run was stopped")),
        Ending::DeviceFailed { error, .. } => Err(error.into()),
    }
}

fn verification(error: RunError) -> Error {
    Error::new(Failure::VerificationFailed, error.to_string())
}

fn facts(arguments: &Demo, cached: &Outcome) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact("seed", arguments.seed.to_string()),
        fact("time of each run", format!("{} s", arguments.run_time.as_secs_f64())),
        fact("from the kill to the first answer", duration_in_words(cached.recovery)),
        fact("verified on the LUN at the end", format!("{} bytes", cached.verified_bytes)),
        fact("forebay", env!("CARGO_PKG_VERSION").to_owned()),
    ]
}

fn print_result(arguments: &Demo, plain: &Outcome, cached: &Outcome, took: Duration) {
    if arguments.json.json {
        print_json(&json!({
            "plain": plain.measurement,
            "cached": cached.measurement,
            "recovery_ms": cached.recovery.map(|recovery| recovery.as_secs_f64() * 1e3),
            "verified_bytes": { "plain": plain.verified_bytes, "cached": cached.verified_bytes },
            "report": arguments.report,
        }));
        return;
    }
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header([
        "",
        "plain iSCSI",
        "write-back cache",
        "gain",
        "paper: iSCSI",
        "paper: iCache",
    ]);
    for row in comparison(&plain.measurement, &cached.measurement) {
        table.add_row([row.name, &row.plain, &row.cached, &row.gain, row.paper_plain, row.paper_cached]);
    }
    print_line(&table.to_string());
    print_line(&format!(
        "Killed with SIGKILL half-way through the second run, serving again after {}; every block verified: {} bytes \
         plain, {} cached.",
        duration_in_words(cached.recovery),
        plain.verified_bytes,
        cached.verified_bytes
    ));
    print_line(&format!("Report: {} ({:.0} s in all)", arguments.report.display(), took.as_secs_f64()));
}
