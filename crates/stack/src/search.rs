//! The search for a target that cannot be reached yet, and the answers to control requests
//! meanwhile; an attachment or a mount waits for it.

use std::cell::RefCell;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use tokio::sync::{Notify, watch};

use crate::control::{ControlRequest, ControlServer, Handler, Progress, is_no_daemon};
use crate::error::{Error, Failure, Result};
use crate::events::{EventKind, EventLog};
use crate::flag::wait_until;
use crate::fronts::Fronts;
use crate::limits::{SEARCH_WAIT_MAX, SEARCH_WAIT_MIN};
use crate::remotes::{Remotes, RemotesConfig};
use crate::settings::Settings;
use crate::status::Answer;
use crate::status::sought::{Reached, SoughtRemote, SoughtStatus};
use crate::status::start::StartStatus;
use crate::systemd;

/// The attachment or mount that starts when its target is found.
pub(crate) enum Sought {
    /// An attachment with these fronts, whose applications wait meanwhile, and what it was started with.
    Attachment(Fronts, Box<StartStatus>),
    /// A mount in this directory.
    Mount(PathBuf),
}

/// The state of a search for a target.
pub(crate) struct Search {
    sought: Sought,
    name: String,
    events: Rc<EventLog>,
    portal: String,
    replacement_timeout: Duration,
    may_have_dirty_data: bool,
    state: RefCell<State>,
    search_now: Notify,
    /// `true` once the search is to stop.
    stopping: watch::Sender<bool>,
    /// `true` once it has ended.
    ended: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    attempts: u32,
    wait: Option<Duration>,
    last_error: Option<String>,
    is_failing: bool,
}

impl Search {
    pub(crate) fn new(sought: Sought, name: &str, config: &RemotesConfig, events: Rc<EventLog>) -> Self {
        let remotes = &config.remotes;
        Self {
            sought,
            name: name.to_owned(),
            events,
            portal: remotes.first().map(|remote| remote.url.portal.to_string()).unwrap_or_default(),
            replacement_timeout: remotes.iter().map(|remote| remote.waits.replacement).max().unwrap_or_default(),
            may_have_dirty_data: false,
            state: RefCell::default(),
            search_now: Notify::new(),
            stopping: watch::Sender::new(false),
            ended: watch::Sender::new(false),
        }
    }

    /// Sets whether the waiting attachment may have dirty data.
    pub(crate) fn with_dirty_data(self, may_have_dirty_data: bool) -> Self {
        Self { may_have_dirty_data, ..self }
    }

    /// Begins with a wait where the target was found, and lost again with this error.
    pub(crate) fn after(self, lost: Option<Error>) -> Self {
        if let Some(error) = &lost {
            self.note_failure(error, SEARCH_WAIT_MAX);
        }
        self
    }

    fn note_failure(&self, error: &Error, wait: Duration) {
        tracing::warn!(%error, "the target is not there yet");
        if self.state.borrow().last_error.is_none() {
            self.events.note(EventKind::TargetAwaited, error.to_string());
        }
        let mut state = self.state.borrow_mut();
        state.last_error = Some(error.to_string());
        state.wait = Some(wait);
    }

    /// Searches, and answers at `control`, until the target is found. `None` when it was detached,
    /// or `signal` came, before that.
    ///
    /// # Errors
    /// Errors that waiting does not cure.
    pub(crate) async fn until_found(
        self,
        config: &RemotesConfig,
        clock: &Arc<dyn Clock>,
        control: &ControlServer,
        signal: impl Future<Output = ()>,
    ) -> Result<Option<Remotes>> {
        let search = Rc::new(self);
        let found = async {
            let found = tokio::select! {
                biased;
                () = signal => Ok(None),
                () = wait_until(&search.stopping) => Ok(None),
                found = search.run(config, clock) => found.map(Some),
                () = search.turn_away() => unreachable!("applications are turned away for ever"),
                () = systemd::keep_informed(|| async { search.summary() }) => unreachable!("it is told for ever"),
            };
            search.ended.send_replace(true);
            found
        };
        tokio::join!(found, control.serve(Rc::clone(&search), wait_until(&search.ended))).0
    }

    /// Logs in, repeatedly.
    async fn run(&self, config: &RemotesConfig, clock: &Arc<dyn Clock>) -> Result<Remotes> {
        let mut next_wait = SEARCH_WAIT_MIN;
        loop {
            let wait = self.state.borrow().wait;
            if let Some(wait) = wait {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = self.search_now.notified() => next_wait = SEARCH_WAIT_MIN,
                }
            }
            self.state.borrow_mut().attempts += 1;
            match config.connect(clock).await {
                Ok(remotes) => return Ok(remotes),
                Err(error) if may_pass(&error) => self.note_failure(&error, next_wait),
                Err(error) => return Err(error),
            }
            next_wait = (next_wait * 2).min(SEARCH_WAIT_MAX);
        }
    }

    /// Disconnects applications that have waited long enough, for ever.
    async fn turn_away(&self) {
        tokio::time::sleep(self.replacement_timeout).await;
        self.state.borrow_mut().is_failing = true;
        match &self.sought {
            Sought::Attachment(fronts, _) => fronts.turn_away().await,
            Sought::Mount(_) => std::future::pending().await,
        }
    }

    fn state_in_a_word(&self) -> &'static str {
        if self.state.borrow().is_failing { "failing" } else { "reconnecting" }
    }

    /// A line for the service manager.
    fn summary(&self) -> String {
        format!("{}: {} is not there yet", self.state_in_a_word(), self.portal)
    }

    /// The status of the attachment or mount, as far as it is known.
    fn status(&self) -> SoughtStatus {
        let state = self.state.borrow();
        let (reached, start) = match &self.sought {
            Sought::Attachment(fronts, start) => (Reached::Fronts(Box::new(fronts.status())), Some((**start).clone())),
            Sought::Mount(directory) => (Reached::Directory { address: directory.clone() }, None),
        };
        SoughtStatus {
            kind: self.kind(),
            name: self.name.clone(),
            pid: std::process::id(),
            reached,
            lun: (),
            size_bytes: (),
            remote: SoughtRemote {
                state: self.state_in_a_word(),
                portal: self.portal.clone(),
                last_error: state.last_error.clone(),
                sessions: 0,
                connections: 0,
                reconnect_attempts: state.attempts,
                reconnect_wait_ms: state.wait.map(|wait| wait.as_millis() as u64),
            },
            start,
            cache: (),
            log: (),
        }
    }

    fn kind(&self) -> &'static str {
        match self.sought {
            Sought::Attachment(..) => "attachment",
            Sought::Mount(_) => "mount",
        }
    }

    fn detach(&self, keep_dirty: bool) -> Result<Answer> {
        if self.may_have_dirty_data && !keep_dirty {
            let message =
                format!("{}: what may be dirty cannot be written back; --keep-dirty leaves it", self.summary());
            return Err(Error::new(Failure::Unreachable, message));
        }
        self.stopping.send_replace(true);
        Ok(Answer::ends(&self.name))
    }

    fn set(&self, key: &str, value: &str) -> Result<Answer> {
        if key != "reconnect" {
            return Err(self.refusal());
        }
        Settings::of_running(key, value)?;
        self.search_now.notify_one();
        Ok(Answer::set(key, value))
    }

    fn refusal(&self) -> Error {
        Error::new(Failure::Unreachable, self.summary())
    }
}

/// Whether another attempt may have another result without a change on this host.
fn may_pass(error: &Error) -> bool {
    matches!(error.failure(), Failure::Unreachable | Failure::InUse)
}

impl Handler for Search {
    async fn handle(&self, request: ControlRequest, _progress: Progress) -> Result<Answer> {
        match request {
            ControlRequest::Status => Ok(Answer::Sought(Box::new(self.status()))),
            ControlRequest::Events { after } => Ok(self.events.answer(after)),
            ControlRequest::Start { .. } | ControlRequest::Hold { .. } => Err(is_no_daemon(&self.name)),
            ControlRequest::Flush | ControlRequest::Clean | ControlRequest::Reload => Err(self.refusal()),
            ControlRequest::Set { key, value } => self.set(&key, &value),
            // A cache that was not opened is not removed: it may hold dirty data.
            ControlRequest::Detach { keep_dirty, .. } => self.detach(keep_dirty),
        }
    }
}
