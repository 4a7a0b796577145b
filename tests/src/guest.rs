//! A Linux of its own for a test: Debian's 6.12 kernel in QEMU's emulator (TCG, so no right to use KVM is needed), with
//! busybox, the programs and kernel modules that the test names, and the test's script, nothing else. It boots in three
//! seconds and is gone with the test.
//!
//! ```text
//!   test                                    guest
//!   boot(script) ──────────────────────────► sh -eu /script
//!   wait_for("ready") ◄── second serial port ── echo ready
//!   answer("go on")  ──────────────────────► read -r reply
//!   finish() ◄──────────────────────────────── its end; a script that fails fails the test
//! ```
//! The guest reaches servers on this machine's 127.0.0.1 at [`HOST`], and nothing needs to be allowed for that: QEMU
//! connects for it. The other way, a port of the guest is a port of 127.0.0.1 here: [`Guest::with_ports`]. What the
//! kernel says is kept apart, in [`Transcript::kernel_log`].

mod initramfs;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use initramfs::Initramfs;

use crate::tool;

/// This machine's 127.0.0.1, seen from a guest.
pub const HOST: &str = "10.0.2.2";

/// Longest life of a guest: ten times what is usual, because an emulator on a loaded machine is slow, not wrong.
const PATIENCE: Duration = Duration::from_secs(240);

/// For the network card of every guest.
const BASE_MODULES: &[&str] = &["virtio_pci", "virtio_net"];

/// A guest to be.
pub struct Guest {
    programs: Vec<String>,
    modules: Vec<String>,
    files: Vec<(String, String)>,
    memory_mib: u32,
    ports: Vec<u16>,
    disks: Vec<String>,
    patience: Duration,
}

impl Default for Guest {
    fn default() -> Self {
        Self::new()
    }
}

impl Guest {
    /// One with busybox and a network.
    pub fn new() -> Self {
        let modules = BASE_MODULES.iter().map(|&name| name.to_owned()).collect();
        Self {
            programs: Vec::new(),
            modules,
            files: Vec::new(),
            memory_mib: 512,
            ports: Vec::new(),
            disks: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// Programs of this machine that it has, too, by name.
    #[must_use]
    pub fn with_programs(mut self, names: &[&str]) -> Self {
        self.programs.extend(names.iter().map(|&name| name.to_owned()));
        self
    }

    /// Kernel modules that are loaded, with all they depend on.
    #[must_use]
    pub fn with_modules(mut self, names: &[&str]) -> Self {
        self.modules.extend(names.iter().map(|&name| name.to_owned()));
        self
    }

    /// A file in it.
    #[must_use]
    pub fn with_file(mut self, path: &str, content: &str) -> Self {
        self.files.push((path.to_owned(), content.to_owned()));
        self
    }

    /// Its memory, of which files outside mounted disks take theirs.
    #[must_use]
    pub fn with_memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// TCP ports on which it serves: [`RunningGuest::address`] says where they are on this machine.
    #[must_use]
    pub fn with_ports(mut self, ports: &[u16]) -> Self {
        self.ports.extend(ports);
        self
    }

    /// A virtio disk with a volatile write cache whose flushes are heeded, `/dev/vda` and on: what QEMU takes as the
    /// `file` of a drive, a path or `nbd:unix:PATH`. The module `virtio_blk` is loaded for it.
    #[must_use]
    pub fn with_disk(self, file: &str) -> Self {
        let mut guest = self.with_modules(&["virtio_blk"]);
        guest.disks.push(file.to_owned());
        guest
    }

    /// Its longest life, where that is not the one of a test.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Starts it with this shell script, of which every command has to succeed.
    ///
    /// # Panics
    /// When a tool, a program or the kernel is missing.
    pub fn boot(&self, script: &str) -> RunningGuest {
        let kernel = kernel();
        let version = only_entry(&kernel.join("lib/modules"));
        let directory =
            tempfile::Builder::new().prefix("forebay-guest-").tempdir().expect("there is a temporary directory");
        let archive = directory.path().join("initramfs");
        let mut initramfs = Initramfs::new(directory.path().join("root"));
        self.programs.iter().for_each(|name| initramfs.add_program(name));
        self.modules.iter().for_each(|name| initramfs.add_module(&kernel, &version, name));
        self.files.iter().for_each(|(path, content)| initramfs.add_file(path, content.as_bytes(), 0o644));
        initramfs.add_file("/init", include_bytes!("guest/init.sh"), 0o755);
        initramfs.add_file("/script", script.as_bytes(), 0o755);
        initramfs.pack(&archive);
        let console = directory.path().join("console");
        let monitor = directory.path().join("monitor");
        // Port 0 here: a free one, which QEMU's monitor tells.
        let forwards: String = self.ports.iter().map(|port| format!(",hostfwd=tcp:127.0.0.1:0-:{port}")).collect();
        // It ends with the thread of the test, also when that has no time to drop it.
        let disks = self
            .disks
            .iter()
            .flat_map(|file| ["-drive".to_owned(), format!("if=virtio,format=raw,cache=writeback,file={file}")]);
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", &self.memory_mib.to_string()])
            .args(["-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-netdev", &format!("user,id=net{forwards}"), "-device", "virtio-net-pci,netdev=net,romfile="])
            .args(["-append", "console=ttyS0 loglevel=5 oops=panic panic=-1 mitigations=off"])
            .args(disks)
            .arg("-kernel")
            .arg(kernel.join(format!("boot/vmlinuz-{version}")))
            .arg("-initrd")
            .arg(&archive)
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .args(["-serial", "stdio"])
            .arg("-monitor")
            .arg(format!("unix:{},server=on,wait=off", monitor.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("qemu-system-x86_64: {error}; tests/tools/install-packages installs it"));
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        let deadline = Instant::now() + self.patience;
        RunningGuest { child, stdin, lines, said: Vec::new(), console, monitor, deadline, _directory: directory }
    }
}

/// The unpacked kernel package.
fn kernel() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/guest-kernel");
    PathBuf::from(tool(&script.display().to_string(), [""; 0]).trim())
}

fn only_entry(folder: &Path) -> String {
    let mut entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let entry = entries.next().expect("the package has modules of one version").expect("it can be read");
    entry.file_name().to_string_lossy().into_owned()
}

/// A guest that runs. It ends when this is dropped.
pub struct RunningGuest {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    said: Vec<String>,
    console: PathBuf,
    monitor: PathBuf,
    deadline: Instant,
    _directory: tempfile::TempDir,
}

impl RunningGuest {
    /// Waits until the script prints a line that begins so, and returns it.
    ///
    /// # Panics
    /// When the script ends or takes too long.
    #[track_caller]
    pub fn wait_for(&mut self, beginning: &str) -> String {
        loop {
            match self.next_line() {
                Some(line) if line.starts_with(beginning) => return line,
                Some(_) => {}
                None => panic!("it ended before it said \"{beginning}\":\n{}", self.everything()),
            }
        }
    }

    /// Where a port of [`Guest::with_ports`] is on this machine. For a guest that has said something.
    ///
    /// # Panics
    /// When it has no such port.
    pub fn address(&self, port: u16) -> SocketAddr {
        let mut monitor = UnixStream::connect(&self.monitor).expect("QEMU made its monitor before the guest began");
        monitor.set_read_timeout(Some(PATIENCE)).expect("the duration is not zero");
        monitor.write_all(b"info usernet\n").expect("QEMU runs");
        let lines = BufReader::new(monitor).lines().map_while(Result::ok);
        // TCP[HOST_FORWARD]  13       127.0.0.1 40123       10.0.2.15  3260     0     0
        let forwards = lines.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let is_it = |words: &Vec<String>| words.get(5).is_some_and(|inside| *inside == port.to_string());
        let outside = forwards
            .filter(|words| words.first().is_some_and(|word| word.contains("HOST_FORWARD")))
            .find(is_it)
            .and_then(|words| words.get(3)?.parse().ok());
        SocketAddr::from(([127, 0, 0, 1], outside.expect("the guest has this port")))
    }

    /// A line for the script's `read`.
    ///
    /// # Panics
    /// When the guest is gone.
    pub fn answer(&mut self, line: &str) {
        let sent = self.stdin.write_all(format!("{line}\n").as_bytes()).and_then(|()| self.stdin.flush());
        sent.unwrap_or_else(|error| panic!("the guest is gone ({error}):\n{}", self.everything()));
    }

    /// Waits for the script's end.
    ///
    /// # Panics
    /// When it fails, or takes too long.
    #[track_caller]
    pub fn finish(mut self) -> Transcript {
        self.wait_for("exit: ");
        let kernel_log = self.kernel_log();
        assert_eq!(self.said.last().map(String::as_str), Some("exit: 0"), "the script failed:\n{}", self.everything());
        self.said.pop();
        Transcript { lines: std::mem::take(&mut self.said), kernel_log }
    }

    #[track_caller]
    fn next_line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                self.said.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it takes too long:\n{}", self.everything()),
        }
    }

    /// Whether its kernel is dead, with this module in the trace.
    pub fn kernel_died_in(&self, module: &str) -> bool {
        let log = self.kernel_log();
        log.contains("Kernel panic") && log.contains(&format!("[{module}]"))
    }

    fn kernel_log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap_or_default()).replace('\r', "")
    }

    fn everything(&self) -> String {
        format!("{}\n--- its kernel:\n{}", self.said.join("\n"), self.kernel_log())
    }
}

impl Drop for RunningGuest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the guest:\n{}", self.everything());
        }
        // It may be gone already; there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a guest left.
#[derive(Debug)]
pub struct Transcript {
    /// What the script printed.
    pub lines: Vec<String>,
    /// What its kernel printed: warnings and worse.
    pub kernel_log: String,
}

impl Transcript {
    /// The rest of the line that the script printed as `KEY: VALUE`.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn value(&self, key: &str) -> &str {
        let found = self.lines.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        found.unwrap_or_else(|| panic!("no \"{key}: ...\" in {:#?}", self.lines))
    }
}
