//! Our target and tgt as processes on the servers' processors, each with one RAM-backed LUN of 1 GiB, written once.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tests::Process;

use crate::processor::on_processors;
use crate::{Result, processor};

const IQN: &str = "iqn.2026-11.io.forebay:bench";
/// Size of each LUN. For tgt it is a file in shared memory.
const LUN_BYTES: u64 = 1 << 30;
/// tgt numbers its control sockets with 15 bits; this leaves room for the few of one run.
const TGT_CONTROL_PORTS: usize = 32_000;
/// How long a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// tgt with its `aio` store, its best.
    TgtAio,
    /// tgt with its `rdwr` store, its default.
    TgtReadWrite,
    Ours,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::TgtAio => "tgt aio",
            Self::TgtReadWrite => "tgt rdwr",
            Self::Ours => "forebay",
        }
    }

    fn store(self) -> Option<&'static str> {
        match self {
            Self::TgtAio => Some("aio"),
            Self::TgtReadWrite => Some("rdwr"),
            Self::Ours => None,
        }
    }
}

/// A server that runs, until it is dropped.
pub struct Server {
    pub kind: Kind,
    /// The URL of its LUN.
    pub url: String,
    /// A directory for the state of the clients.
    pub stage: PathBuf,
    running: Running,
}

/// The server's process, killed when it is dropped.
enum Running {
    Ours(Process),
    Tgt(Tgt),
}

struct Tgt {
    process: Child,
    /// Its medium.
    file: PathBuf,
    /// The name of its control socket.
    control: String,
}

impl Server {
    /// Starts a server on `cpus` and writes its whole LUN.
    pub fn start(kind: Kind, index: usize, forebay: &Path, cpus: &str, stage: &Path) -> Result<Self> {
        let server = match kind.store() {
            None => Self::start_ours(kind, forebay, cpus, stage)?,
            Some(store) => Self::start_tgt(kind, store, index, cpus, stage)?,
        };
        let requests = (LUN_BYTES >> 20).to_string();
        let fill = ["bench", "-f", "raw", "-t", "none", "-c", &requests, "-d", "4", "-s", "1048576", "-w", &server.url];
        run(Command::new("qemu-img").args(fill))?;
        Ok(server)
    }

    fn start_ours(kind: Kind, forebay: &Path, cpus: &str, stage: &Path) -> Result<Self> {
        let lun = format!("1=ram:{}MiB", LUN_BYTES >> 20);
        let mut command = on_processors(cpus);
        command
            .arg(forebay)
            .args(["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN, "--lun", &lun])
            .env("FOREBAY_RUNTIME_DIR", stage.join("run"))
            .env("FOREBAY_STATE_DIR", stage.join("state"));
        let process = Process::start(&mut command).map_err(|ended| ended.stderr)?;
        let url = format!("iscsi://{}/{IQN}/1", process.ready);
        Ok(Self { kind, url, stage: stage.to_owned(), running: Running::Ours(process) })
    }

    fn start_tgt(kind: Kind, store: &str, index: usize, cpus: &str, stage: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let control = (usize::from(port) % TGT_CONTROL_PORTS + index).to_string();
        let portal = format!("portal=127.0.0.1:{port}");
        let process = on_processors(cpus)
            .args(["tgtd", "-f", "-C", &control, "--iscsi", &portal])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let file = PathBuf::from(format!("/dev/shm/forebay-bench-{}-{store}", std::process::id()));
        let url = format!("iscsi://127.0.0.1:{port}/{IQN}/1");
        let running = Running::Tgt(Tgt { process, file: file.clone(), control });
        let server = Self { kind, url, stage: stage.to_owned(), running };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if began.elapsed() > START_TIMEOUT {
                return Err("tgtd did not start".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::File::create(&file)?.set_len(LUN_BYTES)?;
        let path = file.to_string_lossy().into_owned();
        let target = ["--mode", "target", "--op", "new", "--tid", "1", "-T", IQN];
        let unit = ["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1"];
        let unit = [&unit[..], &["-b", &path, "--bstype", store]].concat();
        let access = ["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"];
        for step in [&target[..], &unit, &access] {
            server.administer(step)?;
        }
        Ok(server)
    }

    /// Makes tgt offer digests, or not: by default it does not. Our target always offers them.
    pub fn offer_digests(&self, are_offered: bool) -> Result<()> {
        let value = if are_offered { "CRC32C,None" } else { "None" };
        let update = ["--mode", "target", "--op", "update", "--tid", "1", "--value", value, "--name"];
        ["HeaderDigest", "DataDigest"].iter().try_for_each(|name| self.administer(&[&update[..], &[name]].concat()))
    }

    /// Runs tgtadm; does nothing for our target.
    fn administer(&self, order: &[&str]) -> Result<()> {
        let Running::Tgt(Tgt { control, .. }) = &self.running else { return Ok(()) };
        run(Command::new("tgtadm").args(["-C", control, "--lld", "iscsi"]).args(order)).map(drop)
    }

    /// Processor time of all its threads so far, in microseconds.
    pub fn cpu_us(&self) -> Result<f64> {
        let id = match &self.running {
            Running::Ours(process) => process.id(),
            Running::Tgt(tgt) => tgt.process.id(),
        };
        processor::of_process_us(id)
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Runs a command to its end. Returns its standard output, or an error with its standard error.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr)).into())
}
