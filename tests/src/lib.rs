//! What the system tests share: the `forebay` binary, worlds of their own to run it in, and processes that always end.
//!
//! Every test gets a [`World`]: a temporary directory with its own run-time and state directories, so that tests run in
//! parallel and leave nothing behind. Processes are killed when they are dropped.

pub mod bare_session;
pub mod forwarder;
pub mod guest;
pub mod iscsi_test_cu;
pub mod mutation;
pub mod register;
pub mod tgt;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest wait for a process to say that it is ready, or to end: generous, because a loaded machine is slow, not
/// wrong.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Whether `is_so` becomes true in a time that no machine is too slow for. For those who have something to end first:
/// everybody else takes [`wait_until`].
pub fn comes_true(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Waits until `is_so`.
///
/// # Panics
/// With `what`, when it does not become true in a time that no machine is too slow for.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(comes_true(is_so), "it never came to this: {what}");
}

/// The path of the `forebay` binary: `FOREBAY_BIN`, or a release build made now.
pub fn forebay_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        if let Some(path) = std::env::var_os("FOREBAY_BIN") {
            let path = PathBuf::from(path);
            assert!(path.exists(), "FOREBAY_BIN names {}, which is not there: `make build` makes it", path.display());
            return path;
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--release", "--locked", "--package", "cli"])
            .current_dir(&root)
            .status()
            .expect("cargo is on the path");
        assert!(status.success(), "the forebay binary does not build");
        root.join("target/release/forebay")
    })
}

/// A place of its own for one test.
pub struct World {
    directory: tempfile::TempDir,
}

impl World {
    /// A fresh world.
    pub fn new() -> Self {
        let directory =
            tempfile::Builder::new().prefix("forebay-test-").tempdir().expect("there is a temporary directory");
        Self { directory }
    }

    /// A path inside this world.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The `forebay` command with this world's directories.
    pub fn forebay(&self) -> Command {
        let mut command = Command::new(forebay_binary());
        command
            .env("FOREBAY_RUNTIME_DIR", self.path("run"))
            .env("FOREBAY_STATE_DIR", self.path("state"))
            .env("FOREBAY_CONFIG_DIR", self.path("etc"))
            .env_remove("FOREBAY_CHAP_PASSWORD")
            .env_remove("FOREBAY_MUTUAL_CHAP_PASSWORD")
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs `forebay` to its end.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Finished {
        finish(self.forebay().args(arguments))
    }

    /// What `forebay status` says of the attachment or target `name`.
    ///
    /// # Panics
    /// When nothing runs under that name.
    #[track_caller]
    pub fn status(&self, name: &str) -> Value {
        self.run(["status", name, "--json"]).json()
    }

    /// Waits until this of the status of `name` is so, and returns that status.
    ///
    /// # Panics
    /// When it does not come to `what` in a time that no machine is too slow for.
    #[track_caller]
    pub fn wait_for_status(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status(name);
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "it never came to: {what}: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until `is_there` of the remote LUN of the attachment `name`, and returns its state then.
    ///
    /// # Panics
    /// When it does not come to `what` in a time that no machine is too slow for.
    #[track_caller]
    pub fn wait_for_remote(&self, name: &str, what: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        self.wait_for_status(name, what, |status| is_there(&status["remote"]))["remote"].take()
    }

    /// Starts `forebay` and waits until it says `ready:`.
    ///
    /// # Panics
    /// When it ends before that.
    pub fn start<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Process {
        Process::start(self.forebay().args(arguments)).unwrap_or_else(|finished| panic!("{finished:?}"))
    }

    /// Starts a target on a free port with `arguments` after the portal and the name.
    pub fn target<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Target {
        let fixed = ["target", "serve", "--portal", "127.0.0.1:0", "--iqn", IQN];
        let mut command = self.forebay();
        command.args(fixed).args(arguments);
        let process = Process::start(&mut command).unwrap_or_else(|finished| panic!("{finished:?}"));
        Target { process }
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

/// The name of every target that [`World::target`] starts.
pub const IQN: &str = "iqn.2026-11.io.forebay:test";

/// A running target.
pub struct Target {
    /// The process.
    pub process: Process,
}

impl Target {
    /// The URL of one of its logical units.
    pub fn url(&self, lun: u64) -> String {
        format!("iscsi://{}/{IQN}/{lun}", self.process.ready)
    }

    /// Its portal, ADDRESS:PORT.
    pub fn portal(&self) -> &str {
        &self.process.ready
    }
}

/// A running process that has said `ready:`.
pub struct Process {
    child: Child,
    /// What it said after `ready: `.
    pub ready: String,
    lines: Receiver<String>,
    errors: Errors,
}

impl Process {
    /// Starts `command` and waits until it prints `ready: ADDRESS`.
    ///
    /// # Errors
    /// What it said, when it ended first.
    ///
    /// # Panics
    /// When it says nothing for a minute.
    pub fn start(command: &mut Command) -> Result<Self, Finished> {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is there and may be run");
        let stdout = child.stdout.take().expect("it is piped");
        let errors = Errors::read(child.stderr.take().expect("it is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut process = Self { child, ready: String::new(), lines, errors };
        let mut said = String::new();
        loop {
            match process.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix("ready: ") {
                        process.ready = address.to_owned();
                        return Ok(process);
                    }
                    said.push_str(&line);
                    said.push('\n');
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    let mut finished = process.wait();
                    finished.stdout.insert_str(0, &said);
                    return Err(finished);
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it never got ready; it said: {said}"),
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has written `words` to its standard error.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn wait_for_words(&self, words: &str) {
        self.errors.wait_for(words);
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    /// SIGTERM, and waits for its end.
    pub fn terminate(self) -> Finished {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it is our child");
        self.wait()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within a minute.
    pub fn wait(mut self) -> Finished {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let stdout = self.lines.iter().map(|line| line + "\n").collect();
        Finished { code: status.code(), stdout, stderr: self.errors.all() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The standard error of a process, which can be looked at while it runs.
struct Errors {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Errors {
    fn read(mut stderr: ChildStderr) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let written = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut part) {
                all.extend_from_slice(&part[..count]);
                *written.lock().expect("nobody panics with it") = String::from_utf8_lossy(&all).into_owned();
            }
        });
        Self { text, reader: Some(reader) }
    }

    #[track_caller]
    fn wait_for(&self, words: &str) {
        let has_come = comes_true(|| self.text().contains(words));
        assert!(has_come, "\"{words}\" never came: {}", self.text());
    }

    /// What was written so far.
    fn text(&self) -> String {
        self.text.lock().expect("nobody panics with it").clone()
    }

    /// What was written until the end of the process, which is waited for.
    fn all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("reading cannot panic");
        }
        self.text()
    }
}

/// A command that takes its time, such as a detach that waits, and is looked at meanwhile. It ends when it is dropped.
pub struct Underway {
    child: Child,
    errors: Errors,
}

impl Underway {
    /// Starts `command`.
    ///
    /// # Panics
    /// When there is no such program.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("the binary is there");
        let errors = Errors::read(child.stderr.take().expect("it is piped"));
        Self { child, errors }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has written `words` to its standard error.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn wait_for_words(&self, words: &str) {
        self.errors.wait_for(words);
    }

    /// Waits for its end. What it prints is small enough for a pipe.
    ///
    /// # Panics
    /// When it does not end.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let mut status = None;
        wait_until("the command ends", || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        let mut stdout = String::new();
        if let Some(mut printed) = self.child.stdout.take() {
            printed.read_to_string(&mut stdout).expect("it is text");
        }
        Finished { code: status.and_then(|status| status.code()), stdout, stderr: self.errors.all() }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process that ended left.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Finished {
    /// Its standard output, after checking that it succeeded.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn success(self) -> String {
        assert_eq!(self.code, Some(0), "it failed:\n{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// What it printed, which is JSON, after checking that it succeeded.
    ///
    /// # Panics
    /// When it did not, or printed something else.
    #[track_caller]
    pub fn json(self) -> Value {
        let text = self.success();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"))
    }

    /// Checks that it failed with `code` and one line on standard error that contains each of `words`; nothing else.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn failure(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "more than one line: {}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "\"{word}\" is missing in: {}", self.stderr);
        }
    }
}

/// Runs `command` to its end, at most a few minutes.
///
/// # Panics
/// When the program is not installed: a missing tool fails the test.
pub fn finish(command: &mut Command) -> Finished {
    let program = command.get_program().to_owned();
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap_or_else(|error| {
        panic!("{program:?} cannot be run ({error}): tests/tools/install-packages installs it")
    });
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Finished { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// Runs a tool of somebody else to its end and checks that it succeeded.
///
/// # Panics
/// When it is not installed or fails.
#[track_caller]
pub fn tool<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    finish(&mut command).success()
}
