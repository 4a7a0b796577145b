//! Finds, starts, watches and signals the processes of attachments.
//!
//! A process is held by a descriptor (`pidfd_open(2)`), never by its number alone, which the system
//! may give to another process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use stack::control::{Presence, look};
use stack::paths::Paths;
use stack::{Error, Failure};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};

use crate::end::End;
use crate::end_note::{EndNote, EndNotes, VARIABLE};
use crate::limits::ANSWER_LOOK_INTERVAL;

/// Variables by which a service manager speaks to the daemon, and not to its attachments.
const OF_THE_SERVICE_MANAGER: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// How often a process is looked for that ends while it is being adopted.
const ADOPTIONS_MAX: usize = 3;

/// The processes of all attachments.
pub(crate) struct Processes {
    paths: Paths,
    program: PathBuf,
    arguments: Vec<OsString>,
    running: RefCell<BTreeMap<String, Rc<Process>>>,
    /// What they leave at their ends.
    pub(crate) notes: EndNotes,
}

/// A process.
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Becomes readable when it ends.
    descriptor: AsyncFd<OwnedFd>,
}

/// Who runs under a name.
pub(crate) enum Found {
    Nobody,
    /// This process, with its status, or without one while it does not answer.
    Somebody(Process, Option<Value>),
    /// It cannot be told, for this reason.
    Unclear(End),
}

impl Process {
    #[expect(deprecated, reason = "the function in its place is unsafe, which an `OwnedFd` does not need")]
    fn open(pid: u32) -> io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let descriptor = pidfd_open(raw, PidfdFlags::empty())?;
        Ok(Self { pid, descriptor: AsyncFd::with_interest(descriptor, Interest::READABLE)? })
    }

    /// Waits for its end.
    pub(crate) async fn wait(&self) -> io::Result<()> {
        self.descriptor.readable().await.map(drop)
    }

    fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(self.descriptor.get_ref(), PollFlags::IN)];
        matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
    }
}

impl Processes {
    /// Processes of `program`, with `arguments` before those of each attachment.
    pub(crate) fn new(paths: &Paths, notes: EndNotes, program: PathBuf, arguments: Vec<OsString>) -> Self {
        Self { paths: paths.clone(), program, arguments, running: RefCell::default(), notes }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.paths.control_socket(name)
    }

    /// Looks for a process that runs under `name`.
    pub(crate) async fn find(&self, name: &str) -> Found {
        for _ in 0..ADOPTIONS_MAX {
            let (pid, status) = match self.pid_of(name).await {
                Ok(None) => return Found::Nobody,
                Ok(Some(found)) => found,
                Err(error) => return unclear(&error),
            };
            let Ok(process) = Process::open(pid) else { continue };
            // The number could be that of another process by now, but for one that answers again.
            if status.is_some() && !matches!(self.pid_of(name).await, Ok(Some((again, _))) if again == pid) {
                continue;
            }
            self.notes.keep_those_of(name, pid);
            return Found::Somebody(process, status);
        }
        unclear(&Error::new(Failure::InUse, "a process with its name begins and ends"))
    }

    /// The process under `name`, and its status, if it answers.
    async fn pid_of(&self, name: &str) -> stack::Result<Option<(u32, Option<Value>)>> {
        match look(&self.socket(name)).await? {
            Presence::Absent => Ok(None),
            Presence::Silent { pid: Some(pid), .. } => Ok(Some((pid, None))),
            Presence::Silent { pid: None, error } => Err(error),
            Presence::Answers(status) if status["kind"] == "attachment" => {
                Ok(pid_in(&status).map(|pid| (pid, Some(status))))
            }
            Presence::Answers(status) => {
                let kind = status["kind"].as_str().unwrap_or("process");
                Err(Error::new(Failure::InUse, format!("a {kind} runs under its name")))
            }
        }
    }

    /// Holds the process of the attachment `name`, which may be signalled from then on.
    pub(crate) fn hold(&self, name: &str, process: Process) -> Rc<Process> {
        let process = Rc::new(process);
        self.running.borrow_mut().insert(name.to_owned(), Rc::clone(&process));
        process
    }

    /// Starts `forebay attach` with this file, in a process group of its own: what is typed at the
    /// daemon's terminal does not end it.
    ///
    /// # Errors
    /// When there can be no such process.
    pub(crate) fn start(&self, name: &str, file: &Path) -> io::Result<(Child, Rc<Process>)> {
        self.notes.remove(name);
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(["attach", "--name", name, "--config"]).arg(file);
        command.env(VARIABLE, self.notes.path(name));
        OF_THE_SERVICE_MANAGER.iter().for_each(|variable| {
            command.env_remove(variable);
        });
        // Its log goes where the daemon's goes, and needs no daemon to go there.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let child = command.spawn()?;
        let process = Process::open(child.id().ok_or(io::ErrorKind::NotFound)?)?;
        Ok((child, self.hold(name, process)))
    }

    /// How a child ended.
    pub(crate) async fn end_of_child(&self, name: &str, mut child: Child, process: &Process) -> End {
        let ended = child.wait().await;
        self.running.borrow_mut().remove(name);
        match ended {
            Ok(status) => End::of_status(status, self.note_of(name, process)),
            Err(error) => End::Killed { why: format!("its end cannot be told: {error}") },
        }
    }

    /// Notes that a process is told to detach by the daemon.
    pub(crate) fn note_asked(&self, name: &str) {
        if let Some(process) = self.running.borrow().get(name) {
            self.notes.note_asked(name, process.pid);
        }
    }

    /// How a process ended that is no child.
    pub(crate) async fn end_of_stranger(&self, name: &str, process: &Process) -> End {
        if let Err(error) = process.wait().await {
            return End::Killed { why: format!("its end cannot be told: {error}") };
        }
        self.running.borrow_mut().remove(name);
        End::of_stranger(self.note_of(name, process), !self.socket(name).exists())
    }

    fn note_of(&self, name: &str, process: &Process) -> Option<EndNote> {
        self.notes.read(name).filter(|note| note.pid == process.pid)
    }

    /// The status of the process at its control socket, once it answers there and `is_fine`.
    pub(crate) async fn until_it_answers(
        &self,
        name: &str,
        process: &Process,
        is_fine: impl Fn(&Value) -> bool,
    ) -> Value {
        loop {
            if let Ok(Presence::Answers(status)) = look(&self.socket(name)).await
                && pid_in(&status) == Some(process.pid)
                && is_fine(&status)
            {
                return status;
            }
            tokio::time::sleep(ANSWER_LOOK_INTERVAL).await;
        }
    }

    /// Whether a process under `name` is watched.
    pub(crate) fn is_held(&self, name: &str) -> bool {
        self.running.borrow().contains_key(name)
    }

    /// Whether the process that was held under `name` has not ended.
    pub(crate) fn is_running(&self, name: &str) -> bool {
        self.running.borrow().get(name).is_some_and(|process| !process.has_ended())
    }

    /// SIGTERM: it ends within five seconds, and what is dirty stays so, durably.
    pub(crate) fn terminate(&self, name: &str) {
        if let Some(process) = self.running.borrow().get(name) {
            // One that has ended needs none.
            let _ = pidfd_send_signal(process.descriptor.get_ref(), Signal::TERM);
        }
    }
}

fn pid_in(status: &Value) -> Option<u32> {
    status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())
}

fn unclear(error: &Error) -> Found {
    Found::Unclear(End::Failed { code: error.failure().exit_code(), why: error.to_string() })
}
