//! `--clock real`: a target and `forebay bench` as processes of their own, so that the processor time of each is its own.
//!
//! As root, each end is in a network namespace, joined by a veth pair: its MTU is what the frames are, and offloads that would join
//! frames are off. Otherwise both are on loopback, frames cannot be chosen, and the outcome says so.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;

use serde_json::Value;

use crate::limits::{READY_TIME_MAX, UNIT_BYTES};
use crate::outcome::{Row, Span};

/// How much of an experiment is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Every point, long enough to mean something.
    Full,
    /// Few points, short: shows that it runs.
    Quick,
}

/// Why an experiment did not run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// It has no model.
    #[error("{0} runs by the real clock only")]
    NoModel(&'static str),
    /// A device of a model.
    #[error("the modelled device failed: {0}")]
    Device(block::Error),
    /// A program could not be run.
    #[error("cannot run {0}: {1}")]
    Run(String, std::io::Error),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

const IQN: &str = "iqn.2026-11.io.forebay:lab";
const TARGET_ADDRESS: &str = "10.98.0.1";
const INITIATOR_ADDRESS: &str = "10.98.0.2";

/// Where an experiment's processes run, and their files. Everything is gone when it is dropped.
pub struct Stage {
    program: PathBuf,
    directory: tempfile::TempDir,
    namespaces: Option<Namespaces>,
}

/// What a benchmark is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) rw: &'static str,
    pub(crate) bytes: u32,
    pub(crate) depth: u32,
    /// Sessions at once, each of one connection; the depth is divided among them.
    pub(crate) sessions: u32,
    /// Added by the initiator to its own link.
    pub(crate) round_trip_us: u64,
    pub(crate) milliseconds: u64,
}

/// What it measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) iops: f64,
    pub(crate) megabytes_per_second: f64,
    client_cpu_us: Option<f64>,
    server_cpu_us: Option<f64>,
}

impl Measured {
    /// A row of an outcome in which `ours` counts.
    pub(crate) fn row(self, series: String, at: f64, paper: Option<Span>, ours: f64) -> Row {
        let Self { client_cpu_us, server_cpu_us, .. } = self;
        Row { series, at, paper, ours, client_cpu_us, server_cpu_us }
    }
}

impl Stage {
    pub(crate) fn new(program: &Path) -> Result<Self, LabError> {
        let directory = tempfile::Builder::new().prefix("forebay-lab-").tempdir();
        let directory = directory.map_err(|error| LabError::Other(format!("no temporary directory: {error}")))?;
        Ok(Self { program: program.to_owned(), directory, namespaces: Namespaces::new() })
    }

    /// Whether the size of frames can be chosen.
    pub(crate) fn has_frames(&self) -> bool {
        self.namespaces.is_some()
    }

    /// In words, for the notes.
    pub(crate) fn words(&self) -> &'static str {
        match self.has_frames() {
            true => "both ends on this machine, in two network namespaces joined by a veth pair without offloads",
            false => {
                "both ends on this machine, over loopback (65,536-byte frames): not root, so no network namespaces"
            }
        }
    }

    /// Sizes of frames from now on.
    pub(crate) fn set_frames(&self, bytes: u32) -> Result<(), LabError> {
        self.namespaces.as_ref().map_or(Ok(()), |namespaces| namespaces.set_mtu(bytes))
    }

    /// The congestion control of connections made from now on; whether this kernel has it.
    pub(crate) fn set_congestion_control(&self, name: &str) -> bool {
        self.namespaces.as_ref().is_some_and(|namespaces| namespaces.set_congestion_control(name).is_ok())
    }

    /// A target with one logical unit: in RAM, or a file.
    pub(crate) fn serve(&self, is_disk: bool) -> Result<Served, LabError> {
        let lun = match is_disk {
            true => format!("0=file:{},size={UNIT_BYTES}", self.directory.path().join("disk.img").display()),
            false => format!("0=ram:{UNIT_BYTES}"),
        };
        let address = if self.has_frames() { TARGET_ADDRESS } else { "127.0.0.1" };
        let portal = format!("{address}:0");
        let serve = ["target", "serve", "--allow-remote", "--portal", &portal, "--iqn", IQN, "--lun", &lun];
        let mut command = self.command(End::Target, &serve);
        let mut child = spawn(command.stdout(Stdio::piped()))?;
        let ready = child.stdout.take().and_then(|stdout| {
            let (sender, receiver) = channel();
            std::thread::spawn(move || {
                let ready = BufReader::new(stdout)
                    .lines()
                    .map_while(Result::ok)
                    .find_map(|line| line.strip_prefix("ready: ").map(str::to_owned));
                // Nobody may wait for it any more.
                let _ = sender.send(ready);
            });
            receiver.recv_timeout(READY_TIME_MAX).ok().flatten()
        });
        let served = Served { child, url: format!("iscsi://{}/{IQN}/0", ready.as_deref().unwrap_or_default()) };
        match ready {
            Some(_) => Ok(served),
            None => Err(LabError::Other("the target did not get ready".to_owned())),
        }
    }

    /// Runs a benchmark against it to its end.
    pub(crate) fn bench(&self, served: &Served, load: Load) -> Result<Measured, LabError> {
        let (bytes, depth) = (load.bytes.to_string(), load.depth.div_ceil(load.sessions).to_string());
        let (jobs, pid) = (load.sessions.to_string(), served.child.id().to_string());
        let seconds = format!("{}ms", load.milliseconds);
        let round_trip = format!("{}us", load.round_trip_us);
        let mut arguments = vec!["bench", &served.url, "--rw", load.rw, "--bs", &bytes, "--depth", &depth];
        arguments.extend(["--jobs", &jobs, "--server-pid", &pid, "--seconds", &seconds, "--allow-data-loss", "--json"]);
        if load.round_trip_us > 0 {
            arguments.extend(["--link-round-trip", &round_trip]);
        }
        let mut command = self.command(End::Initiator, &arguments);
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

/// A target that serves; killed when it is dropped.
pub(crate) struct Served {
    child: Child,
    url: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &mut Command) -> Result<Child, LabError> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|error| LabError::Run(program, error))
}

#[derive(Clone, Copy)]
enum End {
    Target,
    Initiator,
}

/// Two network namespaces and the veth pair between them; gone when dropped.
struct Namespaces {
    target: String,
    initiator: String,
}

impl Namespaces {
    /// `None` where they cannot be made: they take root and `ip`.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let namespaces = Self { target: format!("fbt{id}"), initiator: format!("fbi{id}") };
        let (target, initiator) = (&namespaces.target, &namespaces.initiator);
        ip(&["netns", "add", target]).ok()?;
        let made = ip(&["netns", "add", initiator])
            .and_then(|()| {
                let peer = ["type", "veth", "peer", "name", "lab0", "netns", initiator];
                ip(&[&["-n", target, "link", "add", "lab0"][..], &peer].concat())
            })
            .and_then(|()| namespaces.bring_up(target, TARGET_ADDRESS))
            .and_then(|()| namespaces.bring_up(initiator, INITIATOR_ADDRESS));
        made.ok().map(|()| namespaces)
    }

    fn bring_up(&self, namespace: &str, address: &str) -> Result<(), LabError> {
        ip(&["-n", namespace, "addr", "add", &format!("{address}/24"), "dev", "lab0"])?;
        // One segment a packet: without it the stack would hand on 64 KiB at once, whatever the MTU.
        ip(&["-n", namespace, "link", "set", "lab0", "gso_max_segs", "1"])?;
        ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        ip(&["-n", namespace, "link", "set", "lab0", "up"])
    }

    fn set_mtu(&self, bytes: u32) -> Result<(), LabError> {
        let set = |namespace: &str| ip(&["-n", namespace, "link", "set", "lab0", "mtu", &bytes.to_string()]);
        set(&self.target)?;
        set(&self.initiator)
    }

    fn set_congestion_control(&self, name: &str) -> Result<(), LabError> {
        let set = |namespace: &str| {
            let setting = format!("net.ipv4.tcp_congestion_control={name}");
            run(Command::new("ip").args(["netns", "exec", namespace, "sysctl", "-q", "-w", &setting]))
        };
        set(&self.target)?;
        set(&self.initiator)
    }

    fn name(&self, end: End) -> &str {
        match end {
            End::Target => &self.target,
            End::Initiator => &self.initiator,
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in [&self.target, &self.initiator] {
            // One that was never made is as good as one that is gone.
            let _ = ip(&["netns", "del", namespace]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), LabError> {
    run(Command::new("ip").args(arguments))
}

fn run(command: &mut Command) -> Result<(), LabError> {
    let words = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().map_err(|error| LabError::Run(words.clone(), error))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(LabError::Other(format!("{words}: {}", String::from_utf8_lossy(&output.stderr).trim()))),
    }
}
