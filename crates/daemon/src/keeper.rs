//! Keeps the attachments: does what the [`Supervisor`] asks for, and tells it what happened.
//!
//! Everything runs on one thread. Each action is a future of its own, which goes on until the
//! process that it concerns has ended; none is waited for by another.

use std::cell::RefCell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use base::clock::{Clock, Instant};
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::Value;
use stack::control::{ControlRequest, Presence, call, look};
use stack::events::{EventKind, EventLog};
use stack::paths::Paths;
use stack::status::daemon::{DaemonStatus, FileChange, FileRefused, FilesRead};
use stack::systemd;
use stack::time::{seconds_since_1970, system_clock};
use stack::{Error, Failure, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

use crate::NAME;
use crate::change::Change;
use crate::config::DaemonConfig;
use crate::end::{End, failure};
use crate::end_note::EndNotes;
use crate::file::AttachmentFile;
use crate::files::{FilesSeen, read_directory};
use crate::kept::{Kept, ProcessState, Told};
use crate::limits::{ANSWER_LOOK_INTERVAL, READY_TIME_MAX};
use crate::processes::{Found, Process, Processes};
use crate::reading::Reading;
use crate::sameness::{differences, other_units};
use crate::supervisor::{Action, FilesChange, Seen, Supervisor};

/// The attachments, and what keeps them.
pub(crate) struct Keeper {
    pub(crate) config: DaemonConfig,
    paths: Paths,
    clock: Arc<dyn Clock>,
    processes: Processes,
    pub(crate) supervisor: RefCell<Supervisor>,
    files: Reading,
    /// Held by one reading of the files at a time, until what they changed is set.
    reading: tokio::sync::Mutex<()>,
    /// There may be new actions.
    woken: Notify,
    pub(crate) events: Rc<EventLog>,
    /// `true` once the daemon ends.
    pub(crate) ended: watch::Sender<bool>,
}

impl Keeper {
    /// One that does nothing yet.
    ///
    /// # Errors
    /// When the folder of notes cannot be used, or the system has no descriptor left.
    pub(crate) fn new(config: DaemonConfig, paths: &Paths, events: Rc<EventLog>) -> Result<Self> {
        let notes = EndNotes::open(paths)?;
        let processes = Processes::new(paths, notes, config.program.clone(), config.arguments.clone());
        Ok(Self {
            config,
            paths: paths.clone(),
            clock: system_clock()?,
            processes,
            supervisor: RefCell::default(),
            files: Reading::default(),
            reading: tokio::sync::Mutex::default(),
            woken: Notify::new(),
            events,
            ended: watch::Sender::new(false),
        })
    }

    /// Takes the files as they are at the start.
    ///
    /// # Errors
    /// When their directory is there and cannot be read.
    pub(crate) async fn begin(&self) -> Result<()> {
        self.events
            .note(EventKind::Started, format!("it keeps the attachments of {}", self.config.directory.display()));
        match self.seen().await {
            Ok(seen) => self.take_files(seen).1.iter().for_each(|mistake| tracing::warn!("{mistake}")),
            // It may be made later, as by `attach --persist`.
            Err(error) if error.failure() == Failure::NotFound => tracing::warn!("there are no attachments: {error}"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Does what the supervisor asks for, until it has nothing left to keep.
    pub(crate) async fn keep(&self) {
        let mut work: FuturesUnordered<LocalBoxFuture<'_, ()>> = FuturesUnordered::new();
        loop {
            while let Some(action) = self.next_action() {
                match action {
                    Action::Seek(name) => work.push(self.seek(name).boxed_local()),
                    Action::Spawn(name, file) => work.push(self.start(name, file).boxed_local()),
                    Action::Detach(name) => work.push(self.detach(name).boxed_local()),
                    Action::Set(name) => work.push(self.set_again(name).boxed_local()),
                    Action::Terminate(name) => self.processes.terminate(&name),
                    Action::Hold(name) => self.processes.notes.hold(&name),
                    Action::Release(name) => self.processes.notes.remove(&name),
                }
            }
            if self.supervisor.borrow().is_over() {
                return;
            }
            let deadline = self.supervisor.borrow().deadline();
            let wait = async {
                match deadline {
                    Some(deadline) => self.clock.sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(()) = work.next() => {}
                () = wait => self.supervisor.borrow_mut().tick(self.clock.now()),
                () = self.woken.notified() => {}
            }
        }
    }

    fn next_action(&self) -> Option<Action> {
        self.supervisor.borrow_mut().next_action()
    }

    /// Tells the supervisor of something, at this moment.
    pub(crate) fn tell<T>(&self, event: impl FnOnce(&mut Supervisor, Instant) -> T) -> T {
        let told = event(&mut self.supervisor.borrow_mut(), self.clock.now());
        self.woken.notify_one();
        told
    }

    /// The same of what happened to `name`; the log has its new state.
    fn tell_of(&self, name: &str, event: impl FnOnce(&mut Supervisor, Instant)) {
        let state = || self.supervisor.borrow().get(name).map(Kept::state);
        let before = state();
        self.tell(event);
        let (after, supervisor) = (state(), self.supervisor.borrow());
        let is_start = after == Some(ProcessState::Starting) && before != after;
        let (before, after) = (before.map(ProcessState::as_str), after.map(ProcessState::as_str));
        let Some(kept) = supervisor.get(name) else {
            tracing::info!(attachment = name, "it is not kept any more");
            self.note_forgotten(name);
            return;
        };
        if is_start || after != before {
            self.note_state(name, kept);
        }
        let (why, pid) = (kept.why().unwrap_or_default(), kept.pid);
        match after.filter(|_| after != before).unwrap_or_default() {
            "running" => tracing::info!(attachment = name, pid, "it runs"),
            "detached" => tracing::info!(attachment = name, "it was detached, and is left so"),
            "waiting" => match kept.state().deadline() {
                Some(at) => {
                    let wait = at.since(self.clock.now()).as_secs_f64().round();
                    tracing::warn!(attachment = name, why, "it does not run, and is started again in {wait} s");
                }
                None => tracing::info!(attachment = name, why, "it waits for that one"),
            },
            "failed" => {
                tracing::error!(attachment = name, why, "it does not run, and is not started until its file changes");
            }
            _ if after != before => tracing::debug!(attachment = name, pid, "it is {}", after.unwrap_or_default()),
            _ => {}
        }
    }

    /// The same of its end. What one that was to be detached did not write back is said now or never.
    fn tell_end(&self, name: &str, end: End) {
        let is_leaving = self.supervisor.borrow().get(name).is_some_and(Kept::is_leaving);
        if let Some(why) = end.why().filter(|_| is_leaving) {
            tracing::error!(attachment = name, why, "it did not end in order");
        }
        self.tell_of(name, |supervisor, now| supervisor.ended(name, end, now));
    }

    fn note_forgotten(&self, name: &str) {
        self.events.note_of(name, EventKind::Forgotten, "its file is gone, and it is not kept any more");
    }

    /// Notes the state that an attachment has entered.
    fn note_state(&self, name: &str, kept: &Kept) {
        let why = kept.why().unwrap_or_default();
        let of_process = || kept.pid.map_or_else(String::new, |pid| format!("process {pid}"));
        let (kind, words) = match kept.state() {
            ProcessState::Sought => return,
            ProcessState::Starting => (EventKind::ProcessStarting, of_process()),
            ProcessState::Running => (EventKind::ProcessServes, of_process()),
            ProcessState::Waiting(at) => {
                let seconds = at.since(self.clock.now()).as_secs_f64().round();
                (EventKind::ProcessWaits, format!("it is started again in {seconds} s: {why}"))
            }
            ProcessState::Behind => (EventKind::ProcessWaits, why.to_owned()),
            ProcessState::Failed => (EventKind::ProcessFailed, why.to_owned()),
            ProcessState::Taken => (EventKind::NameTaken, why.to_owned()),
            ProcessState::Detached => (EventKind::Detached, "it is left so until somebody asks for it".to_owned()),
            ProcessState::Detaching | ProcessState::Staying(_) => (EventKind::Detaching, why.to_owned()),
        };
        self.events.note_of(name, kind, words);
    }

    /// Adopts the process that runs under this name, if it is of the file, and watches it to its end.
    async fn seek(&self, name: String) {
        let (process, status) = match self.processes.find(&name).await {
            Found::Nobody => return self.tell_of(&name, |supervisor, now| supervisor.absent(&name, now)),
            Found::Unclear(end) => return self.tell_end(&name, end),
            Found::Somebody(process, status) => (process, status),
        };
        let is_asked = self.processes.notes.is_asked(&name, process.pid);
        let Some(status) = status else {
            return if is_asked { self.see_off(&name, process).await } else { self.await_answer(&name, process).await };
        };
        if is_asked && is_detaching(&status) {
            return self.see_off(&name, process).await;
        }
        // It was asked, and could not.
        self.processes.notes.forget_asked(&name);
        if self.is_of_another(&name, &status) {
            return self.leave_alone(&name, &process, &status).await;
        }
        tracing::info!(attachment = name, pid = process.pid, "it runs already, and is adopted");
        let process = self.processes.hold(&name, process);
        self.adopt(&name, process.pid, &status);
        self.watch(&name, &process, self.processes.end_of_stranger(&name, &process)).await;
    }

    fn is_of_another(&self, name: &str, status: &Value) -> bool {
        let supervisor = self.supervisor.borrow();
        supervisor.get(name).is_some_and(|kept| other_units(&kept.file.start, status).is_some())
    }

    /// A process that answers is that of the file; some of its settings may be others.
    fn adopt(&self, name: &str, pid: u32, status: &Value) {
        self.tell_of(name, |supervisor, now| {
            supervisor.found(name, pid, Seen::Serves, now);
            let start = supervisor.get(name).map(|kept| kept.file.start.clone()).unwrap_or_default();
            supervisor.note_needs_start(name, &differences(&start, status).unwrap_or_default());
        });
    }

    /// A process that a daemon before this one told to detach: it is started again when it has ended.
    async fn see_off(&self, name: &str, process: Process) {
        tracing::info!(attachment = name, pid = process.pid, "a daemon before this one told it to detach");
        let process = self.processes.hold(name, process);
        self.tell_of(name, |supervisor, now| supervisor.found(name, process.pid, Seen::Ends, now));
        let staying = async {
            self.processes.until_it_answers(name, &process, |status| !is_detaching(status)).await;
            self.processes.notes.forget_asked(name);
            self.tell_of(name, |supervisor, now| supervisor.stayed(name, "it could not be detached", now));
            std::future::pending().await
        };
        let end = tokio::select! {
            end = self.processes.end_of_stranger(name, &process) => end,
            never = staying => never,
        };
        self.tell_end(name, end);
    }

    /// A process that does not say what it is: it is told nothing before it does.
    async fn await_answer(&self, name: &str, process: Process) {
        self.tell_of(name, |supervisor, now| supervisor.found(name, process.pid, Seen::Starts, now));
        let status = tokio::select! {
            status = self.processes.until_it_answers(name, &process, |_| true) => status,
            end = self.processes.end_of_stranger(name, &process) => {
                return self.tell_end(name, end);
            }
        };
        if self.is_of_another(name, &status) {
            return self.leave_alone(name, &process, &status).await;
        }
        let process = self.processes.hold(name, process);
        self.adopt(name, process.pid, &status);
        self.watch(name, &process, self.processes.end_of_stranger(name, &process)).await;
    }

    /// A process that is none of the file: it is not touched, and the file waits for its end.
    async fn leave_alone(&self, name: &str, process: &Process, status: &Value) {
        let file = self.supervisor.borrow().get(name).map(|kept| kept.file.start.clone()).unwrap_or_default();
        let running = other_units(&file, status).unwrap_or_default();
        let why = format!(
            "an attachment of {running} runs under its name (process {}), and its file says {}",
            process.pid,
            file.urls.join(",")
        );
        tracing::error!(attachment = name, why, "it is not kept");
        self.tell_of(name, |supervisor, now| supervisor.taken(name, &why, now));
        if let Err(error) = process.wait().await {
            tracing::warn!(attachment = name, %error, "the end of that process cannot be told");
            return;
        }
        self.tell_of(name, |supervisor, now| supervisor.freed(name, now));
    }

    /// Starts a process, and watches it to its end.
    async fn start(&self, name: String, file: PathBuf) {
        let (child, process) = match self.processes.start(&name, &file) {
            Ok(started) => started,
            Err(error) => {
                let why = format!("{} cannot be started: {error}", self.config.program.display());
                let end = End::Failed { code: Failure::Other.exit_code(), why };
                return self.tell_end(&name, end);
            }
        };
        self.tell_of(&name, |supervisor, now| supervisor.started(&name, process.pid, now));
        self.watch(&name, &process, self.processes.end_of_child(&name, child, &process)).await;
    }

    /// Tells when a process answers, and how it ended.
    async fn watch(&self, name: &str, process: &Process, end: impl Future<Output = End>) {
        let answering = async {
            self.processes.until_it_answers(name, process, |_| true).await;
            self.tell_of(name, |supervisor, now| supervisor.answers(name, now));
            std::future::pending().await
        };
        let end = tokio::select! {
            end = end => end,
            never = answering => never,
        };
        self.tell_end(name, end);
    }

    /// Starts an attachment that somebody asks for; one that is ending as soon as it has.
    ///
    /// # Errors
    /// Those of [`Supervisor::start`].
    pub(crate) async fn start_as_asked(&self, name: &str) -> Result<()> {
        // A `forebay detach` returns a moment before its process has ended.
        let is_ending = self.processes.is_held(name)
            && match look(&self.paths.control_socket(name)).await {
                Ok(Presence::Answers(status)) => is_detaching(&status),
                Ok(Presence::Absent) => true,
                Ok(Presence::Silent { .. }) | Err(_) => false,
            };
        self.tell(|supervisor, now| supervisor.start(name, is_ending, now))
    }

    /// Tells a process to write everything dirty back, and to end. Its end is told by who watches it.
    async fn detach(&self, name: String) {
        let socket = self.paths.control_socket(&name);
        let request = ControlRequest::Detach { keep_dirty: false, remove_cache: false };
        self.processes.note_asked(&name);
        loop {
            let Err(error) = call(&socket, &request, |_| {}).await else { return };
            // An attachment may end with an error, too.
            if !self.processes.is_running(&name) {
                return;
            }
            match look(&socket).await {
                // It has not begun to listen, or does not any more.
                Ok(Presence::Absent) => tokio::time::sleep(ANSWER_LOOK_INTERVAL).await,
                // It starts still, and has nothing attached, or stands still.
                Ok(Presence::Silent { .. }) => return self.processes.terminate(&name),
                Ok(Presence::Answers(_)) | Err(_) => {
                    tracing::warn!(attachment = name, %error, "it cannot be detached now");
                    self.processes.notes.forget_asked(&name);
                    return self.tell_of(&name, |supervisor, now| supervisor.stayed(&name, &error.to_string(), now));
                }
            }
        }
    }

    /// The daemon was told to end.
    pub(crate) async fn stop(&self, again: impl AsyncFnOnce()) {
        if self.config.stops_attachments {
            self.tell(Supervisor::stop);
            let mut ended = self.ended.subscribe();
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => {}
                () = again() => tracing::warn!("the daemon ends before all attachments have"),
            }
        }
        self.ended.send_replace(true);
    }

    /// # Errors
    /// When attachments that were to be detached did not end in order, or something else has the name of one.
    pub(crate) fn check_end(&self) -> Result<()> {
        let supervisor = self.supervisor.borrow();
        let in_words = |(name, end): &(String, End)| format!("{name}: {}", end.why().unwrap_or_default());
        let troubles: Vec<String> = supervisor.troubles().iter().map(in_words).collect();
        match supervisor.troubles().first() {
            Some((_, end)) => {
                Err(Error::new(end.code().and_then(failure).unwrap_or(Failure::Other), troubles.join("; ")))
            }
            None => Ok(()),
        }
    }

    /// Tells the service manager, and whoever waits for it, that the attachments serve or have
    /// failed once; after that how they are. Never ends.
    pub(crate) async fn inform(&self, on_ready: impl FnOnce(&Path)) {
        let settled = async {
            while !self.supervisor.borrow().is_settled() {
                tokio::time::sleep(ANSWER_LOOK_INTERVAL).await;
            }
        };
        if tokio::time::timeout(READY_TIME_MAX, settled).await.is_err() {
            tracing::warn!("some attachments start still");
        }
        on_ready(&self.config.directory);
        systemd::ready();
        systemd::keep_informed(|| async { self.supervisor.borrow().summary() }).await;
    }

    /// Reads the files again on SIGHUP. Never ends.
    pub(crate) async fn reload_on_hangup(&self) {
        let Ok(mut hangups) = signal(SignalKind::hangup()) else { return std::future::pending().await };
        while hangups.recv().await.is_some() {
            if let Err(error) = self.reload().await {
                tracing::error!(%error, "the files could not be read; everything goes on as before");
            }
        }
    }

    async fn seen(&self) -> Result<FilesSeen> {
        let (owners, directory) = (self.supervisor.borrow().files(), self.config.directory.clone());
        let paths = self.paths.clone();
        self.files.read(move || read_directory(&directory, &paths, |name| owners.get(name).cloned())).await
    }

    /// What the files changed, and the mistakes in them.
    fn take_files(&self, seen: FilesSeen) -> (FilesChange, Vec<String>) {
        let mistakes: Vec<String> = seen.refused.iter().map(|refused| refused.why.clone()).collect();
        let known = self.supervisor.borrow().status(self.clock.now(), 0).1;
        let is_new = |refused: &&FileRefused| !known.contains(refused);
        for refused in seen.refused.iter().filter(is_new) {
            self.events.note(EventKind::FileRefused, refused.why.clone());
        }
        let is_held = |name: &str| self.processes.notes.is_held(name);
        let change = self.tell(|supervisor, now| supervisor.take_files(seen, is_held, now));
        // Those that had no process are gone already.
        change.removed.iter().filter(|name| self.supervisor.borrow().get(name).is_none()).for_each(|name| {
            self.note_forgotten(name);
        });
        (change, mistakes)
    }

    /// Reads the files again: new ones are attached, those that are gone are detached, and of those
    /// that changed is set what can be set.
    ///
    /// # Errors
    /// When the directory cannot be read; nothing is changed then.
    pub(crate) async fn reload(&self) -> Result<FilesRead> {
        let _one = self.reading.lock().await;
        systemd::reloading();
        let read = match self.seen().await {
            Ok(seen) => Ok(self.take_over(seen).await),
            Err(error) => Err(error),
        };
        systemd::ready();
        read
    }

    async fn take_over(&self, seen: FilesSeen) -> FilesRead {
        let files_refused = seen.refused.clone();
        let (change, mistakes) = self.take_files(seen);
        let changed = join_all(change.changed.iter().map(|(old, new)| self.apply(old, new))).await;
        tracing::info!(
            added = change.added.join(" "),
            removed = change.removed.join(" "),
            changed = changed.len(),
            "the files were read again"
        );
        let counts = [(change.added.len(), "added"), (change.removed.len(), "removed"), (changed.len(), "changed")];
        let counts = counts.map(|(count, what)| format!("{count} {what}"));
        self.events.note(EventKind::FilesRead, counts.join(", "));
        mistakes.iter().for_each(|mistake| tracing::warn!("{mistake}"));
        let directory = self.config.directory.clone();
        FilesRead { directory, added: change.added, removed: change.removed, changed, files_refused }
    }

    /// Sets in an attachment that runs what its file says otherwise.
    async fn apply(&self, old: &AttachmentFile, new: &AttachmentFile) -> FileChange {
        let (name, change) = (&new.name, Change::between(old, new));
        let mut applied = FileChange { name: name.clone(), ..FileChange::default() };
        if self.supervisor.borrow().get(name).is_none_or(|kept| kept.pid.is_none()) {
            // It has all of it at its next start.
            return applied;
        }
        let told = self.set(name, change.live).await;
        for Told { key, value, refused } in &told {
            match refused {
                None => applied.set.push(format!("{key}={value}")),
                Some(why) => applied.refused.push(format!("{key}={value}: {why}")),
            }
        }
        self.tell(|supervisor, now| supervisor.told(name, told, now));
        applied.needs_start = change.at_start.iter().map(|key| (*key).to_owned()).collect();
        self.tell(|supervisor, _| supervisor.note_needs_start(name, &change.at_start));
        applied
    }

    async fn set(&self, name: &str, settings: Vec<(&'static str, String)>) -> Vec<Told> {
        let socket = self.paths.control_socket(name);
        let mut told = Vec::new();
        for (key, value) in settings {
            let request = ControlRequest::Set { key: key.to_owned(), value: value.clone() };
            let refused = call(&socket, &request, |_| {}).await.err().map(|error| error.to_string());
            told.push(Told { key, value, refused });
        }
        told
    }

    /// Sets once more what an attachment refused, and its file has still.
    async fn set_again(&self, name: String) {
        // A reload may have taken other values meanwhile.
        let _one = self.reading.lock().await;
        let unset = self.supervisor.borrow().get(&name).map(Kept::unset).unwrap_or_default();
        let told = self.set(&name, unset).await;
        for Told { key, value, refused } in &told {
            match refused {
                None => tracing::info!(attachment = name, "{key}={value} is set now"),
                Some(why) => tracing::debug!(attachment = name, why, "{key}={value} is refused again"),
            }
        }
        self.tell(|supervisor, now| supervisor.told(&name, told, now));
    }

    /// For `forebay status`.
    pub(crate) fn status(&self) -> DaemonStatus {
        let (attachments, files_refused) = self.supervisor.borrow().status(self.clock.now(), seconds_since_1970());
        DaemonStatus {
            name: NAME.to_owned(),
            pid: std::process::id(),
            directory: self.config.directory.clone(),
            attachments,
            files_refused,
        }
    }
}

fn is_detaching(status: &Value) -> bool {
    !status["detaching"].is_null()
}
