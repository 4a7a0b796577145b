//! The cases: which client, how deep, how large, how many sessions.
//!
//! iscsi-perf reads only, so qemu-img bench does the writes; our own client does both, and alone
//! can request data digests.

use std::process::Command;

use crate::processor::on_processors;
use crate::server::{self, Server};
use crate::{Arguments, Result};

/// Rates from which the count of qemu-img's requests is computed: it takes a count and not a time.
const WRITES_PER_SECOND_GUESS: [(u32, u64); 2] = [(4096, 50_000), (128 << 10, 10_000)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// libiscsi's iscsi-perf, reading.
    IscsiPerf,
    /// qemu-img bench over libiscsi, writing.
    QemuWrite,
    /// `forebay bench`, reading.
    Read,
    /// `forebay bench`, writing.
    Write,
}

#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    pub client: Client,
    pub block_bytes: u32,
    pub depth: u32,
    pub sessions: u32,
    pub has_digests: bool,
    /// Our rate divided by tgt's: the aim, at least.
    pub rate_aim: Option<f64>,
    /// Our processor time per operation divided by tgt's: the aim, at most.
    pub cpu_aim: Option<f64>,
}

impl Case {
    const fn new(name: &'static str, client: Client, block_bytes: u32, depth: u32) -> Self {
        Self { name, client, block_bytes, depth, sessions: 1, has_digests: false, rate_aim: None, cpu_aim: None }
    }

    const fn aims(mut self, rate: f64, cpu: Option<f64>) -> Self {
        self.rate_aim = Some(rate);
        self.cpu_aim = cpu;
        self
    }

    const fn sessions(mut self, sessions: u32) -> Self {
        self.sessions = sessions;
        self
    }

    const fn digests(mut self) -> Self {
        self.has_digests = true;
        self
    }
}

const SMALL: u32 = 4096;
const LARGE: u32 = 128 << 10;

/// The cases of each round.
pub const CASES: &[Case] = &[
    Case::new("iscsi-perf 4 KiB random read, depth 1", Client::IscsiPerf, SMALL, 1).aims(1.5, None),
    Case::new("iscsi-perf 4 KiB random read, depth 8", Client::IscsiPerf, SMALL, 8),
    Case::new("iscsi-perf 4 KiB random read, depth 32", Client::IscsiPerf, SMALL, 32).aims(1.25, Some(0.4)),
    Case::new("iscsi-perf 4 KiB random read, depth 128", Client::IscsiPerf, SMALL, 128),
    Case::new("iscsi-perf 4 KiB read, depth 32, 4 sessions", Client::IscsiPerf, SMALL, 32).sessions(4),
    Case::new("qemu-img 4 KiB write, depth 1", Client::QemuWrite, SMALL, 1).aims(1.5, None),
    Case::new("qemu-img 4 KiB write, depth 8", Client::QemuWrite, SMALL, 8),
    Case::new("qemu-img 4 KiB write, depth 32", Client::QemuWrite, SMALL, 32).aims(1.25, Some(0.4)),
    Case::new("qemu-img 4 KiB write, depth 128", Client::QemuWrite, SMALL, 128),
    Case::new("iscsi-perf 128 KiB read, depth 8", Client::IscsiPerf, LARGE, 8).aims(1.5, None),
    Case::new("qemu-img 128 KiB write, depth 8", Client::QemuWrite, LARGE, 8).aims(1.5, None),
    Case::new("forebay 4 KiB random read, depth 1", Client::Read, SMALL, 1),
    Case::new("forebay 4 KiB random read, depth 32", Client::Read, SMALL, 32),
    Case::new("forebay 4 KiB random read, depth 32, digests", Client::Read, SMALL, 32).digests(),
    Case::new("forebay 4 KiB random read, depth 128", Client::Read, SMALL, 128),
    Case::new("forebay 4 KiB read, depth 32, 4 sessions", Client::Read, SMALL, 32).sessions(4),
    Case::new("forebay 4 KiB random write, depth 32", Client::Write, SMALL, 32),
    Case::new("forebay 128 KiB random read, depth 8", Client::Read, LARGE, 8).aims(1.5, None),
    Case::new("forebay 128 KiB random read, depth 8, digests", Client::Read, LARGE, 8).digests(),
    Case::new("forebay 128 KiB random write, depth 8", Client::Write, LARGE, 8).aims(1.5, None),
    Case::new("forebay 128 KiB write, depth 8, digests", Client::Write, LARGE, 8).digests(),
];

/// The result of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operations {
    pub count: f64,
    pub per_second: f64,
}

/// Runs a case against a server, all its sessions at once.
pub fn run(case: &Case, server: &Server, arguments: &Arguments) -> Result<Operations> {
    let outputs = std::thread::scope(|scope| {
        let commands = (0..case.sessions).map(|session| command(case, server, arguments, session));
        let run_one = |mut command: Command| move || server::run(&mut command).map_err(|e| e.to_string());
        let running: Vec<_> = commands.map(|command| scope.spawn(run_one(command))).collect();
        running.into_iter().map(|thread| thread.join().map_err(|_| "a client's thread panicked")).collect::<Vec<_>>()
    });
    let mut total = Operations::default();
    for output in outputs {
        let one = parse(case, &output??, arguments).ok_or_else(|| format!("{}: no result", case.name))?;
        total.count += one.count;
        total.per_second += one.per_second;
    }
    Ok(total)
}

fn requests(case: &Case, arguments: &Arguments) -> u64 {
    let guess = WRITES_PER_SECOND_GUESS.iter().find(|(bytes, _)| *bytes == case.block_bytes);
    let guess = guess.map_or(1000, |(_, guess)| *guess);
    // At depth 1 the wake-ups take the time.
    let guess = if case.depth == 1 { guess / 4 } else { guess };
    (guess * arguments.seconds).max(1)
}

fn command(case: &Case, server: &Server, arguments: &Arguments, session: u32) -> Command {
    let (depth, bytes, seconds) = (case.depth.to_string(), case.block_bytes.to_string(), arguments.seconds.to_string());
    let name = format!("iqn.2026-11.io.forebay:client-{session}");
    let mut command = on_processors(&arguments.client_cpus);
    match case.client {
        Client::IscsiPerf => {
            let blocks = (case.block_bytes / 512).to_string();
            command.args(["iscsi-perf", "-i", &name, "-m", &depth, "-b", &blocks, "-t", &seconds]);
            if case.block_bytes == SMALL {
                command.arg("-r");
            }
            command.arg(&server.url);
        }
        Client::QemuWrite => {
            let count = requests(case, arguments).to_string();
            command.args(["qemu-img", "bench", "-f", "raw", "-t", "none", "-c", &count, "-d", &depth, "-s", &bytes]);
            command.args(["-w", "--pattern=90", &server.url]);
        }
        Client::Read | Client::Write => {
            let pattern = if case.client == Client::Read { "randread" } else { "randwrite" };
            command.arg(&arguments.forebay).args([
                "bench",
                &server.url,
                "--json",
                "--allow-data-loss",
                "--rw",
                pattern,
            ]);
            command.args(["--bs", &bytes, "--depth", &depth, "--seconds", &seconds, "--initiator-name", &name]);
            // On one host a LUN is attached once: each session is a host of its own.
            let host = server.stage.join(&name);
            command.env("FOREBAY_STATE_DIR", host.join("state")).env("FOREBAY_RUNTIME_DIR", host.join("run"));
            if case.has_digests {
                command.arg("--digests");
            }
        }
    }
    command
}

/// The result in a client's output.
fn parse(case: &Case, output: &str, arguments: &Arguments) -> Option<Operations> {
    match case.client {
        Client::IscsiPerf => {
            let text = output.rsplit("iops average ").next()?;
            let per_second: f64 = text.split_whitespace().next()?.parse().ok()?;
            Some(Operations { count: per_second * arguments.seconds as f64, per_second })
        }
        Client::QemuWrite => {
            let text = output.rsplit("Run completed in ").next()?;
            let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
            let count = requests(case, arguments) as f64;
            Some(Operations { count, per_second: count / seconds })
        }
        Client::Read | Client::Write => {
            let measured: serde_json::Value = serde_json::from_str(output).ok()?;
            Some(Operations { count: measured["operations"].as_f64()?, per_second: measured["iops"].as_f64()? })
        }
    }
}
