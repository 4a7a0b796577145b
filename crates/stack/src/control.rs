//! The control socket that every long-running forebay process answers on.
//!
//! One JSON object a line. The caller sends one [`ControlRequest`]; the process answers with any number of
//! `{"progress": ...}` lines and then one `{"ok": ...}` or `{"error": {"failure": ..., "message":
//! ...}}`. The socket lies in the run-time directory, which only its owner can enter, so every
//! process that can connect may command.
//!
//! Neither side waits for ever for the other. A caller that sends nothing is told so after some
//! seconds, or after a moment while others need its place, and disconnected; one that reads nothing
//! after a moment; and both at once when the process ends. A process sends `{"progress": null}` while it
//! works on an answer; one that is silent for longer is considered stuck.

use std::fs::Permissions;
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};

use crate::error::{Error, Failure, Result};
use crate::events::EventLog;
use crate::limits::{
    ANSWER_TIME_MAX, CONTROL_ANSWERS_MAX, CONTROL_CALLERS_MAX, CONTROL_LINE_BYTES_MAX, CONTROL_REQUEST_TIME_MAX,
    CONTROL_SIGN_OF_LIFE_INTERVAL, CONTROL_SILENCE_MAX, CONTROL_TRANSFER_TIME_MAX, ENDING_TIME_MAX,
};
use crate::name_lock::NameLock;
use crate::paths::Paths;
use crate::status::{Answer, Report};

/// A caller's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ControlRequest {
    /// The status of the process.
    Status,
    /// What happened in the process after the event of this number; 0 for all.
    Events {
        /// The number.
        after: u64,
    },
    /// Make durable all that was acknowledged.
    Flush,
    /// Write back all dirty data.
    Clean,
    /// Change a setting while it runs.
    Set {
        /// Its key, like `cache.mode`.
        key: String,
        /// Its new value.
        value: String,
    },
    /// Read the configuration file, or the files of all attachments, again.
    Reload,
    /// Start an attachment that the daemon keeps and does not start by itself.
    Start {
        /// Its name.
        attachment: String,
    },
    /// Do not start an attachment that waits for its next start, until it is asked for.
    Hold {
        /// Its name.
        attachment: String,
    },
    /// Stop; write all dirty data back first, unless `keep_dirty`.
    Detach {
        /// Keep dirty data, durably, in the cache.
        keep_dirty: bool,
        /// Remove the cache once it is clean.
        #[serde(default)]
        remove_cache: bool,
    },
}

/// The channel on which a handler reports its progress.
pub type Progress = mpsc::UnboundedSender<Report>;

/// One line of a process's answer. The reader takes reports and answers as raw JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line<R, A> {
    /// Progress; `null` only shows that the process is alive.
    Progress(R),
    /// The answer.
    Ok(Box<A>),
    /// The error, in place of an answer.
    Error(Refusal),
}

/// A line as a process writes it.
type Said = Line<Option<Report>, Answer>;

/// A line as a caller reads it.
type Received = Line<Value, Value>;

/// An error on the wire.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    #[serde(deserialize_with = "known_failure")]
    failure: Failure,
    message: String,
}

/// A failure kind; an unknown kind of a newer process is read as `Other`.
fn known_failure<'de, D: Deserializer<'de>>(said: D) -> std::result::Result<Failure, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(said)?).unwrap_or(Failure::Other))
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.failure, refusal.message)
    }
}

/// The handler of requests.
pub trait Handler: 'static {
    /// Answers one request; reports sent to `progress` reach the caller before the answer.
    fn handle(&self, request: ControlRequest, progress: Progress) -> impl Future<Output = Result<Answer>>;
}

/// The error of a process that is no daemon, for a request to one.
pub(crate) fn is_no_daemon(name: &str) -> Error {
    Error::new(Failure::Usage, format!("\"{name}\" is no daemon, which alone starts attachments and holds them"))
}

/// A bound control socket. Its file is removed with it.
pub struct ControlServer {
    listener: UnixListener,
    path: PathBuf,
    /// What happens in this process, for its handlers.
    events: Rc<EventLog>,
    /// Of a process that has a name; `None` in tests of the socket alone.
    _name: Option<NameLock>,
}

impl ControlServer {
    /// Takes the name `name` and binds its socket.
    ///
    /// # Errors
    /// `InUse` when a living process has that name.
    pub fn bind_as(paths: &Paths, name: &str) -> Result<Self> {
        let path = paths.control_socket(name);
        check_free(&path)?;
        let name = NameLock::take(paths, name)?;
        let mut server = Self::bind(&path)?;
        server._name = Some(name);
        Ok(server)
    }

    /// Binds `path`. A socket file without a listener is replaced.
    ///
    /// # Errors
    /// `InUse` when a living process answers there.
    pub fn bind(path: &Path) -> Result<Self> {
        check_free(path)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(format!("cannot replace {}", path.display()), &error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path)
            .and_then(|listener| {
                // Until the run-time directory is made private, only the mode of the socket
                // excludes others.
                std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
                Ok(listener)
            })
            .map_err(|error| cannot_listen(path, &error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Ok(Self { listener, path: path.to_owned(), events: Rc::new(EventLog::new(&name)), _name: None })
    }

    /// Where events of this process are noted.
    pub fn events(&self) -> Rc<EventLog> {
        Rc::clone(&self.events)
    }

    /// Answers callers with `handler` until `stop`, and after that those that have sent a request.
    pub async fn serve(&self, handler: Rc<impl Handler>, stop: impl Future<Output = ()>) {
        base::background::named("control", self.answer_callers(handler, stop)).await;
    }

    async fn answer_callers(&self, handler: Rc<impl Handler>, stop: impl Future<Output = ()>) {
        let (mut asking, mut answering) = (FuturesUnordered::new(), FuturesUnordered::new());
        tokio::pin!(stop);
        let crowded = watch::Sender::new(false);
        loop {
            crowded.send_replace(asking.len() >= CONTROL_CALLERS_MAX);
            tokio::select! {
                biased;
                Some(()) = answering.next() => {}
                Some(asked) = asking.next() => {
                    if let Some((stream, line)) = asked {
                        answering.push(answer_caller(stream, line, Rc::clone(&handler)));
                    }
                }
                () = &mut stop => break,
                accepted = self.listener.accept(),
                    if asking.len() < CONTROL_CALLERS_MAX && answering.len() < CONTROL_ANSWERS_MAX =>
                {
                    match accepted {
                        Ok((stream, _)) => asking.push(receive_request(stream, crowded.subscribe())),
                        Err(error) => tracing::warn!(%error, "the control socket could not accept a caller"),
                    }
                }
            }
        }
        drop(asking);
        while let Some(()) = answering.next().await {}
    }
}

/// # Errors
/// `InUse` when a living process answers at `path`.
fn check_free(path: &Path) -> Result<()> {
    if !is_alive(path) {
        return Ok(());
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let message = format!("\"{name}\" is running already: choose another --name, or `forebay detach {name}` first");
    Err(Error::new(Failure::InUse, message))
}

/// `sun_path` of unix(7), without the zero behind it.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The one error that a user may not understand is a path that is longer than a socket address.
fn cannot_listen(path: &Path, error: &std::io::Error) -> Error {
    let words = format!("cannot listen on {}", path.display());
    match error.kind() {
        ErrorKind::InvalidInput => {
            let message = format!(
                "{words}: the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes; name a shorter run-time \
                 directory with FOREBAY_RUNTIME_DIR, or give a shorter --name"
            );
            Error::new(Failure::Usage, message)
        }
        _ => Error::io(words, error),
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // A file that is gone or cannot be removed does no harm; the next bind replaces it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A caller and its request line; `None` for one that hangs up, or sends none in time and is told so:
/// that is shorter while it is `crowded`.
async fn receive_request(mut stream: UnixStream, mut crowded: watch::Receiver<bool>) -> Option<(UnixStream, String)> {
    let begun = tokio::time::Instant::now();
    let mut line = String::new();
    let received = {
        let mut reader = BufReader::new((&mut stream).take(CONTROL_LINE_BYTES_MAX));
        let gives_way = async {
            tokio::time::sleep(CONTROL_TRANSFER_TIME_MAX).await;
            // The sender lives as long as this.
            let _ = crowded.wait_for(|is_crowded| *is_crowded).await;
        };
        tokio::select! {
            biased;
            received = reader.read_line(&mut line) => Some(received),
            () = tokio::time::sleep(CONTROL_REQUEST_TIME_MAX) => None,
            () = gives_way => None,
        }
    };
    let Some(received) = received else {
        let message = format!(
            "no request came within {} s of the connect, and the connection is closed: ask again",
            begun.elapsed().as_secs()
        );
        // Not as a process that cannot be reached: it lives.
        let refusal = Refusal { failure: Failure::Other, message };
        // Sending fails when the caller has disconnected.
        let _ = write_line(&mut stream, &Said::Error(refusal)).await;
        return None;
    };
    received.ok()?;
    (!line.is_empty()).then_some((stream, line))
}

async fn answer_caller(mut stream: UnixStream, line: String, handler: Rc<impl Handler>) {
    // If this process stood still, the caller was given the error that it does not answer, and has
    // gone: the request must not be carried out much later.
    if has_hung_up(&stream) {
        return;
    }
    let (progress, mut reports) = mpsc::unbounded_channel();
    let request = parse_request(&line);
    // A caller that disconnects stops a cleaning that it asked for, and is not waited for by a flush.
    // A change of the process, or its end, is never left half done.
    let ends_with_caller = matches!(request, Ok(ControlRequest::Clean | ControlRequest::Flush));
    let mut is_listening = true;
    let answer = async { handler.handle(request?, progress).await };
    tokio::pin!(answer);
    let mut signs = tokio::time::interval(CONTROL_SIGN_OF_LIFE_INTERVAL);
    // The first tick comes at once.
    signs.tick().await;
    let result = loop {
        let report = tokio::select! {
            biased;
            Some(report) = reports.recv() => Some(report),
            result = &mut answer => break result,
            _ = signs.tick() => None,
        };
        if is_listening && write_line(&mut stream, &Said::Progress(report)).await.is_err() {
            if ends_with_caller {
                return;
            }
            is_listening = false;
        }
    };
    // Reports that were sent together with the answer.
    while let Ok(report) = reports.try_recv() {
        if !is_listening || write_line(&mut stream, &Said::Progress(Some(report))).await.is_err() {
            return;
        }
    }
    let line = match result {
        Ok(answer) => Said::Ok(Box::new(answer)),
        Err(error) => Said::Error(Refusal { failure: error.failure(), message: error.to_string() }),
    };
    // Sending fails when the caller has disconnected.
    let _ = write_line(&mut stream, &line).await;
}

/// Whether a caller has disconnected; one that only closed its sending side has not.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut polled, Some(&now)), Ok(1..)) && polled[0].revents().contains(PollFlags::HUP)
}

/// Parses a request line. Unknown fields are refused, which serde does not do for variants without
/// fields.
fn parse_request(line: &str) -> Result<ControlRequest> {
    let refused = |why: &dyn std::fmt::Display| Error::new(Failure::Usage, format!("this is no request: {why}"));
    let said: Value = serde_json::from_str(line).map_err(|error| refused(&error))?;
    let request: ControlRequest = serde_json::from_value(said.clone()).map_err(|error| refused(&error))?;
    if json!(request) != said {
        return Err(refused(&format_args!("of this, only {} is known", json!(request))));
    }
    Ok(request)
}

/// Writes a line; a reader that takes nothing for too long gets an error.
async fn write_line(writer: &mut (impl AsyncWriteExt + Unpin), said: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_value(said)?.to_string();
    line.push('\n');
    tokio::time::timeout(CONTROL_TRANSFER_TIME_MAX, writer.write_all(line.as_bytes())).await?
}

/// Whether a process listens at `path`. A process that was just killed may still hold its sockets
/// while it ends: it disconnects without an answer, where a living one answers, or at least stays
/// connected.
fn is_alive(path: &Path) -> bool {
    let deadline = Instant::now() + ENDING_TIME_MAX;
    while Instant::now() < deadline {
        let Ok(mut stream) = BlockingStream::connect(path) else { return false };
        let asked = stream
            .set_read_timeout(Some(ANSWER_TIME_MAX))
            .and_then(|()| writeln!(stream, "{}", json!(ControlRequest::Status)))
            .and_then(|()| stream.read(&mut [0]));
        match asked {
            Ok(0) => {}
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
            // An answer, or silence: the process is busy, or not serving yet.
            Ok(_) | Err(_) => return true,
        }
    }
    true
}

/// Sends `request` to the process behind `path` and returns its answer. Long work is waited for
/// while the process shows signs of life.
///
/// # Errors
/// `NotFound` when no process listens there, `Unreachable` when it ends without an answer, or is
/// stuck; the process's own error otherwise.
pub async fn call(path: &Path, request: &ControlRequest, on_progress: impl FnMut(&Report)) -> Result<Value> {
    call_within(path, request, CONTROL_SILENCE_MAX, on_progress).await.map_err(|failed| match failed {
        NoAnswer::Silent { error, .. } | NoAnswer::Other(error) => error,
    })
}

/// Whether a process runs under a name, and answers.
#[derive(Debug)]
pub enum Presence {
    /// It answered with its status.
    Answers(Value),
    /// A process listens and does not answer.
    Silent {
        /// Its process id, where that is known.
        pid: Option<u32>,
        /// The error, in words.
        error: Error,
    },
    /// No process runs there, or it is ending.
    Absent,
}

/// The status of the process behind `path`, if one runs.
///
/// # Errors
/// The process's own.
pub async fn look(path: &Path) -> Result<Presence> {
    match call_within(path, &ControlRequest::Status, CONTROL_SILENCE_MAX, |_| {}).await {
        Ok(status) => Ok(Presence::Answers(status)),
        Err(NoAnswer::Silent { pid, error }) => Ok(Presence::Silent { pid, error }),
        Err(NoAnswer::Other(error)) if matches!(error.failure(), Failure::NotFound | Failure::Unreachable) => {
            Ok(Presence::Absent)
        }
        Err(NoAnswer::Other(error)) => Err(error),
    }
}

/// Why there is no answer.
enum NoAnswer {
    /// The process accepts connections and does not answer.
    Silent {
        pid: Option<u32>,
        error: Error,
    },
    Other(Error),
}

async fn call_within(
    path: &Path,
    request: &ControlRequest,
    silence_max: Duration,
    on_progress: impl FnMut(&Report),
) -> std::result::Result<Value, NoAnswer> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let stream = UnixStream::connect(path).await.map_err(|error| match error.kind() {
        // Its listen queue is full.
        ErrorKind::WouldBlock => silent(&name, None, silence_max),
        _ => {
            let directory = path.parent().unwrap_or(path).display();
            let message = format!(
                "nothing runs under the name \"{name}\" in {directory} ({error}); `forebay status` lists what does"
            );
            NoAnswer::Other(Error::new(Failure::NotFound, message))
        }
    })?;
    call_over(stream, (&name, silence_max), request, on_progress).await
}

/// Sends `request` to the process `name` at the other end of `stream`.
async fn call_over(
    mut stream: UnixStream,
    (name, silence_max): (&str, Duration),
    request: &ControlRequest,
    mut on_progress: impl FnMut(&Report),
) -> std::result::Result<Value, NoAnswer> {
    let hung_up = |why: &dyn std::fmt::Display| {
        NoAnswer::Other(Error::new(Failure::Unreachable, format!("\"{name}\" hung up before it answered ({why})")))
    };
    let closed = || {
        let message = format!(
            "\"{name}\" closed the connection without an answer, as a process does that ends; `forebay status` lists \
             what runs"
        );
        NoAnswer::Other(Error::new(Failure::Unreachable, message))
    };
    let lost = |error: &std::io::Error| match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => closed(),
        _ => hung_up(error),
    };
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid()).and_then(|pid| u32::try_from(pid).ok());
    match write_line(&mut stream, request).await {
        Err(error) if error.kind() == ErrorKind::TimedOut => return Err(silent(name, pid, silence_max)),
        // Who has closed the connection may have said why.
        Ok(()) | Err(_) => {}
    }
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let mut bounded = (&mut reader).take(CONTROL_LINE_BYTES_MAX);
        tokio::select! {
            received = bounded.read_line(&mut line) => received.map_err(|error| lost(&error))?,
            () = standstill(pid, silence_max) => return Err(silent(name, pid, silence_max)),
        };
        if line.is_empty() {
            return Err(closed());
        }
        match serde_json::from_str(&line).map_err(|error| hung_up(&error))? {
            // Without a report it is a sign of life, like a report that only a newer caller could
            // read.
            Received::Progress(said) => {
                Option::<Report>::deserialize(said).ok().flatten().iter().for_each(&mut on_progress)
            }
            Received::Ok(answer) => return Ok(*answer),
            Received::Error(refusal) => return Err(NoAnswer::Other(refusal.into())),
        }
    }
}

/// Ends when a silent process is to be given up: a stopped one soon, since waiting would not help.
async fn standstill(pid: Option<u32>, silence_max: Duration) {
    let deadline = tokio::time::Instant::now() + silence_max;
    while tokio::time::Instant::now() < deadline {
        tokio::time::sleep(CONTROL_SIGN_OF_LIFE_INTERVAL).await;
        if pid.is_some_and(is_stopped) {
            return;
        }
    }
}

fn silent(name: &str, pid: Option<u32>, silence_max: Duration) -> NoAnswer {
    let seconds = silence_max.as_secs();
    let words = match pid {
        Some(pid) if is_stopped(pid) => {
            format!("\"{name}\" does not answer: its process {pid} is stopped; `kill -CONT {pid}` lets it go on")
        }
        Some(pid) => format!("\"{name}\" (process {pid}) has not answered for {seconds} s: it starts, or stands still"),
        None => format!("\"{name}\" has not answered for {seconds} s, and others wait for it"),
    };
    NoAnswer::Silent { pid, error: Error::new(Failure::Unreachable, words) }
}

/// Whether a signal or a debugger has stopped a process (proc(5), field 3 of `stat`).
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may contain anything, but ends with the last parenthesis.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_of(lines_done: u64) -> Report {
        Report::Cleaned { lines_done, lines_total: 3 }
    }

    struct Echo;

    impl Handler for Echo {
        async fn handle(&self, request: ControlRequest, progress: Progress) -> Result<Answer> {
            match request {
                ControlRequest::Status => Ok(Answer::set("it is", "fine")),
                ControlRequest::Clean => {
                    for step in 0..3 {
                        progress.send(step_of(step)).expect("the caller is there");
                    }
                    Ok(Answer::ends("it"))
                }
                _ => Err(Error::new(Failure::WouldLoseData, "no")),
            }
        }
    }

    async fn with_server<T>(test: impl AsyncFnOnce(&Path) -> T) -> T {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("echo.sock");
        let server = ControlServer::bind(&path).unwrap();
        tokio::select! {
            () = server.serve(Rc::new(Echo), std::future::pending()) => unreachable!("a server serves until it is \
                                                                                      dropped"),
            result = test(&path) => result,
        }
    }

    #[tokio::test]
    async fn requests_are_answered_with_progress_in_between() {
        with_server(async |path| {
            assert_eq!(call(path, &ControlRequest::Status, |_| {}).await.unwrap(), json!({ "it is": "fine" }));
            let mut steps = Vec::new();
            call(path, &ControlRequest::Clean, |step| steps.push(step.clone())).await.unwrap();
            assert_eq!(steps, [0, 1, 2].map(step_of));
            let error = call(path, &ControlRequest::Detach { keep_dirty: true, remove_cache: false }, |_| {})
                .await
                .unwrap_err();
            assert_eq!((error.failure(), error.to_string()), (Failure::WouldLoseData, "no".into()));
        })
        .await;
    }

    /// The case of a caller that stops a process which another caller is stopping.
    #[tokio::test]
    async fn who_asks_what_ends_meanwhile_is_told_what_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.sock");
        for is_listening in [false, true] {
            let listener = UnixListener::bind(&path).unwrap();
            let end = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                if is_listening {
                    BufReader::new(&mut stream).read_line(&mut String::new()).await.unwrap();
                }
            };
            let asked = ControlRequest::Detach { keep_dirty: false, remove_cache: false };
            let (answer, ()) = tokio::join!(call(&path, &asked, |_| {}), end);
            let error = answer.map_err(|error| (error.failure(), error.to_string())).unwrap_err();
            assert_eq!(error.0, Failure::Unreachable);
            assert!(error.1.contains("\"disk\" closed the connection without an answer"), "{error:?}");
            std::fs::remove_file(&path).unwrap();
        }
    }

    /// A handler that takes many steps for every request.
    #[derive(Default)]
    struct Slow {
        steps: std::cell::Cell<usize>,
    }

    const SLOW_STEPS: usize = 1000;

    impl Handler for Slow {
        async fn handle(&self, _: ControlRequest, progress: Progress) -> Result<Answer> {
            for step in 0..SLOW_STEPS {
                // Sent whether or not a caller reads it.
                let _ = progress.send(step_of(step as u64));
                self.steps.set(step + 1);
                tokio::task::yield_now().await;
            }
            Ok(Answer::ends("it"))
        }
    }

    #[tokio::test]
    async fn who_hangs_up_stops_a_cleaning_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        for (request, is_finished) in [
            (ControlRequest::Clean, false),
            (ControlRequest::Detach { keep_dirty: false, remove_cache: false }, true),
            (ControlRequest::Set { key: "cache.size".into(), value: "1GiB".into() }, true),
        ] {
            let path = directory.path().join("slow.sock");
            let server = ControlServer::bind(&path).unwrap();
            let handler = Rc::new(Slow::default());
            let hang_up = async {
                let mut stream = UnixStream::connect(&path).await.unwrap();
                write_line(&mut stream, &json!(request)).await.unwrap();
                let mut first = [0];
                stream.read_exact(&mut first).await.unwrap();
            };
            // It returns when the caller's request is finished.
            server.serve(Rc::clone(&handler) as Rc<_>, hang_up).await;
            assert_eq!(handler.steps.get() == SLOW_STEPS, is_finished, "{request:?}: {} steps", handler.steps.get());
        }
    }

    /// A handler that works on every request for longer than a caller waits for a sign of life, in
    /// virtual time.
    struct Thorough;

    impl Handler for Thorough {
        async fn handle(&self, _: ControlRequest, _: Progress) -> Result<Answer> {
            tokio::time::sleep(10 * CONTROL_SILENCE_MAX).await;
            Ok(Answer::ends("it"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_work_is_waited_for_and_a_process_that_stands_still_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.sock");
        let server = ControlServer::bind(&path).unwrap();
        let request = ControlRequest::Detach { keep_dirty: false, remove_cache: false };
        let answered = tokio::select! {
            () = server.serve(Rc::new(Thorough), std::future::pending()) => {
                unreachable!("it serves until it is dropped")
            }
            answered = call(&path, &request, |report| panic!("{report:?} is no report")) => answered,
        };
        assert!(answered.is_ok(), "{answered:?}");
        // Its callers wait in the queue of its socket.
        let error = call(&path, &ControlRequest::Status, |_| {}).await.unwrap_err();
        assert_eq!(error.failure(), Failure::Unreachable);
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        assert!(matches!(look(&path).await, Ok(Presence::Silent { .. })));
        let handler = Rc::new(Slow::default());
        server.serve(Rc::clone(&handler) as Rc<_>, tokio::time::sleep(CONTROL_SILENCE_MAX)).await;
        assert_eq!(handler.steps.get(), 0, "what they asked for is not done later");
        drop(server);
        assert!(matches!(look(&path).await, Ok(Presence::Absent)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_or_reads_nothing_keeps_neither_others_waiting_nor_the_process_from_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("echo.sock");
        let server = ControlServer::bind(&path).unwrap();
        let crowd = async {
            let mut silent = Vec::new();
            for _ in 0..3 * CONTROL_CALLERS_MAX {
                silent.push(UnixStream::connect(&path).await.unwrap());
            }
            assert_eq!(call(&path, &ControlRequest::Status, |_| {}).await.unwrap(), json!({ "it is": "fine" }));
            silent
        };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let crowd = async {
            let silent = crowd.await;
            let late = UnixStream::connect(&path).await.unwrap();
            tokio::task::yield_now().await;
            stop.send(()).unwrap();
            (silent, late)
        };
        let serve = server.serve(Rc::new(Echo), async { stopped.await.unwrap() });
        let (crowd, ()) = tokio::join!(crowd, serve);
        drop(crowd);
    }

    #[tokio::test(start_paused = true)]
    async fn sixteen_who_say_nothing_hold_up_who_comes_next_and_fifteen_do_not() {
        for (count, holds_up) in [(15, false), (16, true)] {
            with_server(async |path| {
                let mut silent = Vec::new();
                for _ in 0..count {
                    silent.push(UnixStream::connect(path).await.unwrap());
                }
                let begun = tokio::time::Instant::now();
                call(path, &ControlRequest::Status, |_| {}).await.unwrap();
                assert_eq!(begun.elapsed() >= CONTROL_TRANSFER_TIME_MAX, holds_up, "{count}: {:?}", begun.elapsed());
            })
            .await;
        }
    }

    /// A program that gets no processor between its connect and its line.
    #[tokio::test(start_paused = true)]
    async fn a_slow_caller_is_answered_and_one_that_says_nothing_is_told_why_it_is_not() {
        with_server(async |path| {
            for (seconds, words) in [(9, "fine"), (11, "no request came within 10 s")] {
                let mut stream = UnixStream::connect(path).await.unwrap();
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                drop(write_line(&mut stream, &json!(ControlRequest::Status)).await);
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                assert!(answer.contains(words), "{seconds} s: {answer}");
            }
        })
        .await;
    }

    /// The process lives.
    #[tokio::test]
    async fn a_caller_whose_request_is_late_hears_why_the_connection_is_closed() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let refusal = Refusal { failure: Failure::Other, message: "too late".into() };
        write_line(&mut theirs, &Said::Error(refusal)).await.unwrap();
        drop(theirs);
        match call_over(ours, ("disk", CONTROL_SILENCE_MAX), &ControlRequest::Status, |_| {}).await {
            Err(NoAnswer::Other(error)) => assert_eq!(error.to_string(), "too late"),
            other => panic!("{:?} is no refusal", other.is_ok()),
        }
    }

    /// A handler that never answers, and counts its requests.
    #[derive(Default)]
    struct Mute {
        asked: std::cell::Cell<usize>,
    }

    impl Handler for Mute {
        async fn handle(&self, _: ControlRequest, _: Progress) -> Result<Answer> {
            self.asked.set(self.asked.get() + 1);
            std::future::pending().await
        }
    }

    /// Whatever the number that come at once, and that were there before.
    #[tokio::test(start_paused = true)]
    async fn sixty_four_wait_for_an_answer_and_the_others_to_be_heard() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mute.sock");
        let server = ControlServer::bind(&path).unwrap();
        let handler = Rc::new(Mute::default());
        let crowd = async {
            let mut crowd = Vec::new();
            for count in [1, 99] {
                for _ in 0..count {
                    let mut stream = UnixStream::connect(&path).await.unwrap();
                    write_line(&mut stream, &json!(ControlRequest::Status)).await.unwrap();
                    crowd.push(stream);
                }
                tokio::time::sleep(CONTROL_SILENCE_MAX).await;
            }
            handler.asked.get()
        };
        let asked = tokio::select! {
            () = server.serve(Rc::clone(&handler) as Rc<_>, std::future::pending()) => {
                unreachable!("it serves until it is dropped")
            }
            asked = crowd => asked,
        };
        assert_eq!(asked, 64);
    }

    #[tokio::test]
    async fn garbage_is_refused_and_the_server_lives_on() {
        with_server(async |path| {
            for garbage in ["garbage\n", "{}\n", "{\"command\":\"status\",\"more\":1}\n"] {
                let mut stream = UnixStream::connect(path).await.unwrap();
                stream.write_all(garbage.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                assert!(answer.contains("usage"), "{garbage}: {answer}");
            }
            assert!(call(path, &ControlRequest::Status, |_| {}).await.is_ok());
        })
        .await;
    }

    /// A line is read up to 4 MiB: a longer one is no request.
    #[tokio::test]
    async fn a_line_has_so_many_bytes_and_no_more() {
        const BYTES: usize = 4 << 20;
        with_server(async |path| {
            for (bytes, is_taken) in [(BYTES, true), (BYTES + 1, false)] {
                let mut stream = UnixStream::connect(path).await.unwrap();
                let (begin, end) = ("{\"command\":\"status\"", "}\n");
                let line = format!("{begin}{}{end}", " ".repeat(bytes + 1 - begin.len() - end.len()));
                // The server does not read the rest, and does not wait for it.
                drop(stream.write_all(line.as_bytes()).await);
                let mut answer = Vec::new();
                drop(stream.read_to_end(&mut answer).await);
                let answer = String::from_utf8(answer).unwrap();
                assert_eq!(answer.contains("fine"), is_taken, "{bytes} bytes: {answer}");
                assert_eq!(answer.contains("usage"), !is_taken, "{bytes} bytes: {answer}");
            }
        })
        .await;
    }

    /// A killed process closes its sockets one by one: an observer of the first close finds the
    /// control socket still open.
    #[test]
    fn the_socket_of_a_dying_process_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.sock");
        let dying = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let end = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(dying);
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bound = runtime.block_on(async { ControlServer::bind(&path).map(|_| ()) });
        end.join().unwrap();
        assert!(bound.is_ok(), "{bound:?}");
    }

    /// Its callers wait in the queue of its socket and are reset, or it accepts them and ends.
    #[tokio::test]
    async fn a_process_that_ends_without_an_answer_is_unreachable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.sock");
        for accepts in [false, true] {
            let ending = UnixListener::bind(&path).unwrap();
            let end = async move {
                // Until the caller is in the queue.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                if accepts {
                    drop(ending.accept().await);
                }
            };
            let (answer, ()) = tokio::join!(call(&path, &ControlRequest::Status, |_| {}), end);
            assert_eq!(answer.unwrap_err().failure(), Failure::Unreachable);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the dead socket's file is left");
        let living = ControlServer::bind(&path).unwrap();
        let error = ControlServer::bind(&path).err().expect("it is taken");
        assert_eq!(error.failure(), Failure::InUse);
        drop(living);
        assert!(!path.exists());
        let error = call(&path, &ControlRequest::Status, |_| {}).await.unwrap_err();
        assert_eq!(error.failure(), Failure::NotFound);
    }
}
