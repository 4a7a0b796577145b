//! `--clock real`: a target and `forebay bench` as processes of their own, so that the processor time of each is its
//! own.
//!
//! As root, each end is in a network namespace. They are joined by a veth pair, whose MTU sets the
//! size of frames and whose offloads, which would join frames, are off; and by a link of a gigabit
//! per second with delay and loss ([`Wan`](crate::wan::Wan)). Otherwise both are on loopback,
//! frames cannot be chosen, delay is added by the initiator, and the notes of the outcome say so.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::Value;

use crate::error::LabError;
use crate::limits::{READY_TIME_MAX, UNIT_BYTES};
use crate::namespaces::{End, Namespaces, TARGET_ADDRESSES};
use crate::outcome::{Row, Span};
use crate::wan::Packets;

/// How many points of an experiment are run, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Every point, long enough for a reliable number.
    Full,
    /// Few points, short: shows that it runs.
    Quick,
}

const IQN: &str = "iqn.2026-11.io.forebay:lab";
/// The file of the attachment's log.
const LOG: &str = "lab.log";
/// The name of the attachment.
const ATTACHMENT: &str = "lab";
/// Larger than the range that an experiment writes again and again.
const LOG_SIZE: &str = "128MiB";

/// The directory and the network of an experiment's processes. Everything is deleted when it is
/// dropped.
pub struct Stage {
    program: PathBuf,
    directory: tempfile::TempDir,
    namespaces: Option<Namespaces>,
}

/// How an initiator uses TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connections {
    /// A session of as many ordinary connections; of one, plain iSCSI.
    Ordinary(u32),
    /// As many pairs of a connection for requests and one for responses (paper 001 section 2.2).
    Split(u32),
}

impl Connections {
    /// TCP connections.
    pub(crate) fn tcp(self) -> u32 {
        match self {
            Self::Ordinary(count) => count,
            Self::Split(pairs) => 2 * pairs,
        }
    }

    /// The name of its line in a figure.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ordinary(_) => "MC/S",
            Self::Split(_) => "split",
        }
    }
}

/// The link of a gigabit per second between the ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) round_trip_us: u64,
    /// Packets lost of a million, both ways.
    pub(crate) loss_ppm: u32,
}

/// The load of a benchmark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) rw: &'static str,
    pub(crate) bytes: u32,
    pub(crate) depth: u32,
    pub(crate) connections: Connections,
    /// The link with delay, set as given; `None` for the way without delay.
    pub(crate) way: Option<Way>,
    pub(crate) milliseconds: u64,
}

/// The results of a benchmark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) iops: f64,
    pub(crate) megabytes_per_second: f64,
    client_cpu_us: Option<f64>,
    server_cpu_us: Option<f64>,
}

impl Measured {
    /// A row of an outcome in which `ours` counts.
    pub(crate) fn row(self, panel: String, series: String, at: f64, paper: Option<Span>, ours: f64) -> Row {
        let Self { client_cpu_us, server_cpu_us, .. } = self;
        Row { panel, series, at, paper, ours, client_cpu_us, server_cpu_us }
    }
}

impl Stage {
    pub(crate) fn new(program: &Path) -> Result<Self, LabError> {
        let directory = tempfile::Builder::new().prefix("forebay-lab-").tempdir();
        let directory = directory.map_err(|error| LabError::Other(format!("no temporary directory: {error}")))?;
        Ok(Self { program: program.to_owned(), directory, namespaces: Namespaces::new() })
    }

    /// Whether there are namespaces: whether frames, congestion control and loss can be chosen.
    pub(crate) fn has_frames(&self) -> bool {
        self.namespaces.is_some()
    }

    /// The program under test.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The directory for the files of an experiment.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Packets on the link with delay since the last call, both ways.
    pub(crate) fn count_packets(&self) -> Packets {
        self.namespaces.as_ref().map(|namespaces| namespaces.wan().take_packets()).unwrap_or_default()
    }

    /// The stage in words, for the notes.
    pub(crate) fn words(&self) -> &'static str {
        match self.has_frames() {
            true => {
                "both ends on this machine, in two network namespaces joined by a veth pair without offloads, or where \
                 a round trip is given, by a link of a gigabit per second whose delay and loss TCP itself sees (two \
                 TUN devices; adds 0.15 ms)"
            }
            false => {
                "both ends on this machine, over loopback (65,536-byte frames): not root, so no network namespaces"
            }
        }
    }

    /// Sets the size of frames.
    pub(crate) fn set_frames(&self, bytes: u32) -> Result<(), LabError> {
        self.namespaces.as_ref().map_or(Ok(()), |namespaces| namespaces.set_mtu(bytes))
    }

    /// Sets the congestion control of later connections. Returns whether this kernel has it.
    pub(crate) fn set_congestion_control(&self, name: &str) -> bool {
        self.namespaces.as_ref().is_some_and(|namespaces| namespaces.set_congestion_control(name).is_ok())
    }

    /// A target with one logical unit: in RAM, or a file.
    pub(crate) fn serve(&self, is_disk: bool) -> Result<Served, LabError> {
        let lun = match is_disk {
            true => format!("0=file:{},size={UNIT_BYTES}", self.directory.path().join("disk.img").display()),
            false => format!("0=ram:{UNIT_BYTES}"),
        };
        // In its own namespace the target has an address on each way; without one, only this
        // machine may connect.
        let portal = if self.has_frames() { "0.0.0.0:0" } else { "127.0.0.1:0" };
        let serve = ["target", "serve", "--allow-remote", "--portal", portal, "--iqn", IQN, "--lun", &lun];
        let mut command = self.command(End::Target, &serve);
        let (child, ready) = start(&mut command)?;
        match ready.rsplit_once(':').and_then(|(_, port)| port.parse().ok()) {
            Some(port) => Ok(Served { child, port }),
            None => Err(LabError::Other(format!("the target is ready at \"{ready}\", which has no port"))),
        }
    }

    /// An attachment with a write log in front of a logical unit.
    pub(crate) fn attach_log(&self, url: &str) -> Result<Attached, LabError> {
        let (log, socket) = (self.directory().join(LOG), self.directory().join("lab.nbd"));
        let (log, front) = (log.display().to_string(), format!("nbd:unix:{}", socket.display()));
        let log = ["--log", &log, "--log-size", LOG_SIZE];
        let attach = [&["attach", url, "--name", ATTACHMENT, "--as", &front][..], &log].concat();
        let (child, _) = start(&mut self.command(End::Initiator, &attach))?;
        Ok(Attached(child))
    }

    /// The URL of the target on that way. The link is set to the delay and loss of `way`.
    pub(crate) fn url(&self, served: &Served, way: Option<Way>) -> String {
        let [near, far] = TARGET_ADDRESSES;
        let address = match (&self.namespaces, way) {
            (Some(namespaces), Some(way)) => {
                namespaces.wan().set(Duration::from_micros(way.round_trip_us / 2), way.loss_ppm);
                far
            }
            (Some(_), None) => near,
            (None, _) => "127.0.0.1",
        };
        format!("iscsi://{address}:{}/{IQN}/0", served.port)
    }

    /// Runs a benchmark against it to its end.
    pub(crate) fn bench(&self, served: &Served, load: Load) -> Result<Measured, LabError> {
        let (bytes, depth) = (load.bytes.to_string(), load.depth.to_string());
        let (seconds, pid) = (format!("{}ms", load.milliseconds), served.child.0.id().to_string());
        let round_trip_us = load.way.map_or(0, |way| way.round_trip_us);
        let round_trip = format!("{round_trip_us}us");
        let url = self.url(served, load.way);
        let mut arguments = vec!["bench", &url, "--rw", load.rw, "--bs", &bytes, "--depth", &depth];
        arguments.extend(["--server-pid", &pid, "--seconds", &seconds, "--allow-data-loss", "--json"]);
        let (Connections::Ordinary(count) | Connections::Split(count)) = load.connections;
        let count = count.to_string();
        arguments.extend(["--connections", &count]);
        if matches!(load.connections, Connections::Split(_)) {
            arguments.push("--split-connections");
        }
        if self.namespaces.is_none() && round_trip_us > 0 {
            arguments.extend(["--link-round-trip", &round_trip]);
        }
        self.measure(&arguments)
    }

    /// Runs so many requests over the first `footprint_bytes` of what `subject` names, a URL or an attachment.
    pub(crate) fn bench_requests(
        &self,
        subject: &str,
        served: &Served,
        load: Load,
        requests: u64,
        footprint_bytes: u64,
    ) -> Result<Measured, LabError> {
        let (bytes, depth, requests) = (load.bytes.to_string(), load.depth.to_string(), requests.to_string());
        let (footprint, pid) = (footprint_bytes.to_string(), served.child.0.id().to_string());
        let mut arguments = vec!["bench", subject, "--rw", load.rw, "--bs", &bytes, "--depth", &depth];
        arguments.extend(["--server-pid", &pid, "--requests", &requests, "--footprint", &footprint]);
        arguments.extend(["--allow-data-loss", "--json"]);
        self.measure(&arguments)
    }

    /// Runs `forebay bench` at the initiator's end.
    fn measure(&self, arguments: &[&str]) -> Result<Measured, LabError> {
        let mut command = self.command(End::Initiator, arguments);
        let output = command.output().map_err(|error| LabError::Run("forebay bench".to_owned(), error))?;
        if !output.status.success() {
            return Err(LabError::Other(format!("forebay bench: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        let json: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| LabError::Other(format!("forebay bench printed no JSON: {error}")))?;
        let number = |value: &Value| value.as_f64();
        Ok(Measured {
            iops: number(&json["iops"]).unwrap_or(0.0),
            megabytes_per_second: number(&json["bytes_per_second"]).unwrap_or(0.0) / 1e6,
            client_cpu_us: number(&json["cpu_us_per_op"]["client"]),
            server_cpu_us: number(&json["cpu_us_per_op"]["server"]),
        })
    }

    /// `forebay` at one end, with directories of its own.
    fn command(&self, end: End, arguments: &[&str]) -> Command {
        let mut command = match &self.namespaces {
            Some(namespaces) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespaces.name(end)]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
        for (variable, folder) in [("FOREBAY_RUNTIME_DIR", "run"), ("FOREBAY_STATE_DIR", "state")] {
            command.env(variable, self.directory.path().join(folder));
        }
        command
    }
}

/// A process of the stage; killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It fails if the process has ended already, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A target that serves.
pub(crate) struct Served {
    child: Running,
    port: u16,
}

/// An attachment.
pub(crate) struct Attached(Running);

impl Attached {
    /// Its name in `forebay status`.
    pub(crate) fn name(&self) -> &'static str {
        ATTACHMENT
    }

    /// Detaches, which ends when the logical unit has all data.
    pub(crate) fn detach(mut self, stage: &Stage) -> Result<(), LabError> {
        let mut command = stage.command(End::Initiator, &["detach", ATTACHMENT]);
        let output = command.output().map_err(|error| LabError::Run("forebay detach".to_owned(), error))?;
        if !output.status.success() {
            return Err(LabError::Other(format!("forebay detach: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        self.0.0.wait().map_err(|error| LabError::Run("forebay attach".to_owned(), error))?;
        // The log belongs to this logical unit; the next attachment has another.
        let log = stage.directory().join(LOG);
        std::fs::remove_file(&log).map_err(|error| LabError::Other(format!("cannot remove {}: {error}", log.display())))
    }
}

/// Starts a process that prints `ready: ADDRESS` once it serves, and waits for that.
fn start(command: &mut Command) -> Result<(Running, String), LabError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.stdout(Stdio::piped()).spawn().map_err(|error| LabError::Run(program.clone(), error))?;
    let mut running = Running(child);
    let ready = running.0.stdout.take().and_then(|stdout| {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let ready = BufReader::new(stdout)
                .lines()
                .map_while(Result::ok)
                .find_map(|line| line.strip_prefix("ready: ").map(str::to_owned));
            // The receiver may have given up after [`READY_TIME_MAX`].
            let _ = sender.send(ready);
        });
        receiver.recv_timeout(READY_TIME_MAX).ok().flatten()
    });
    if let Some(ready) = ready {
        return Ok((running, ready));
    }
    // The process is killed, in case it still runs, so that its standard error ends.
    let _ = running.0.kill();
    let mut said = String::new();
    if let Some(mut stderr) = running.0.stderr.take() {
        stderr.read_to_string(&mut said).map_err(|error| LabError::Run(program, error))?;
    }
    Err(LabError::Other(format!("it did not get ready: {}", said.trim())))
}
