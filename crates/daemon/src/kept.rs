//! The state of one attachment that the daemon keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::clock::Instant;
use stack::status::daemon::KeptStatus;

use crate::backoff::Backoff;
use crate::end::End;
use crate::file::AttachmentFile;

/// What is known of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// A process with its name is looked for, to be adopted.
    Sought,
    /// A process was started, or found, and does not answer yet.
    Starting,
    /// It answers.
    Running,
    /// It is started again at this time.
    Waiting(Instant),
    /// It is started when what it stands on serves.
    Behind,
    /// It ended, and another start would end as this one.
    Failed,
    /// An attachment that is none of its file runs under its name, and is left alone.
    Taken,
    /// Somebody detached it.
    Detached,
    /// It was told to detach.
    Detaching,
    /// It could not detach, and goes on; it is told again at this time.
    Staying(Instant),
}

impl ProcessState {
    /// For the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sought | Self::Starting => "starting",
            Self::Running => "running",
            Self::Waiting(_) | Self::Behind => "waiting",
            Self::Failed => "failed",
            Self::Taken => "taken",
            Self::Detached => "detached",
            Self::Detaching | Self::Staying(_) => "detaching",
        }
    }

    /// When something is to be done.
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Self::Waiting(at) | Self::Staying(at) => Some(at),
            _ => None,
        }
    }

    /// Whether there is no process of its own, and none on its way.
    pub fn is_idle(self) -> bool {
        matches!(self, Self::Waiting(_) | Self::Behind | Self::Failed | Self::Taken | Self::Detached)
    }
}

/// A setting that a process was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// Why it was refused, if it was.
    pub refused: Option<String>,
}

/// An attachment.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its file, as it was read last without a mistake.
    pub file: AttachmentFile,
    /// The mistake that its file has now, with which it cannot be started.
    pub mistake: Option<String>,
    /// Whether it has a file, and the daemon is not stopping: else it is to be detached.
    pub is_wanted: bool,
    /// Whether it was detached before this daemon began: one that runs is adopted, and none started.
    pub is_held: bool,
    /// Whether somebody asked for it while it was ending: then it is started again after that.
    pub is_asked_for: bool,
    /// Settings of the file that count at its next start.
    pub needs_start: BTreeSet<&'static str>,
    /// Its process.
    pub pid: Option<u32>,
    /// Whether that is known to be of its file: one that was found and does not answer is told nothing.
    pub is_known: bool,
    /// Settings that its file has, and its process refused so far: their values, and why.
    unset: BTreeMap<&'static str, (String, String)>,
    set_at: Option<Instant>,
    set_backoff: Backoff,
    state: ProcessState,
    since: Instant,
    starts: u64,
    backoff: Backoff,
    last_end: Option<End>,
    why: Option<String>,
}

impl Kept {
    /// One that is looked for at `now`.
    pub fn new(file: AttachmentFile, now: Instant) -> Self {
        Self {
            file,
            mistake: None,
            is_wanted: true,
            is_held: false,
            is_asked_for: false,
            needs_start: BTreeSet::new(),
            pid: None,
            is_known: false,
            unset: BTreeMap::new(),
            set_at: None,
            set_backoff: Backoff::default(),
            state: ProcessState::Sought,
            since: now,
            starts: 0,
            backoff: Backoff::default(),
            last_end: None,
            why: None,
        }
    }

    /// Its state.
    pub fn state(&self) -> ProcessState {
        self.state
    }

    /// Why it is in this state, in words; of one that runs, how it ended last.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Enters a state.
    pub fn enter(&mut self, state: ProcessState, now: Instant) {
        if self.state.as_str() != state.as_str() {
            self.since = now;
            // What was refused before may be taken now.
            self.set_at = (state == ProcessState::Running && !self.unset.is_empty()).then_some(now);
        }
        self.state = state;
    }

    /// When something is to be done.
    pub fn deadline(&self) -> Option<Instant> {
        self.state.deadline().into_iter().chain(self.set_at).min()
    }

    /// Settings that its file has, and its process refused so far.
    pub fn unset(&self) -> Vec<(&'static str, String)> {
        self.unset.iter().map(|(key, (value, _))| (*key, value.clone())).collect()
    }

    /// Its process was told these settings, and took or refused each for this reason.
    pub fn note_set(&mut self, told: Vec<Told>, now: Instant) {
        for Told { key, value, refused } in told {
            match refused {
                None => drop(self.unset.remove(key)),
                Some(why) => drop(self.unset.insert(key, (value, why))),
            }
        }
        if self.unset.is_empty() {
            self.set_backoff = Backoff::default();
        }
        self.set_at = (!self.unset.is_empty()).then(|| now + self.set_backoff.wait_after(None));
    }

    /// Whether they are to be set again now, which is asked once.
    pub fn takes_turn_to_set(&mut self, now: Instant) -> bool {
        self.set_at.take_if(|at| *at <= now).is_some()
    }

    /// Enters a state for a reason.
    pub fn enter_because(&mut self, state: ProcessState, why: &str, now: Instant) {
        self.why = Some(why.to_owned());
        self.enter(state, now);
    }

    /// A process is started or adopted, by the file as it is.
    pub fn note_start(&mut self) {
        self.starts += 1;
        self.is_asked_for = false;
        self.is_held = false;
        // What it waited for is over.
        self.why = self.last_end.as_ref().and_then(End::why).map(str::to_owned);
        self.needs_start.clear();
        self.note_no_set();
    }

    /// Its next process begins with what its file says.
    fn note_no_set(&mut self) {
        self.unset.clear();
        self.set_at = None;
        self.set_backoff = Backoff::default();
    }

    /// Its process ended. It waits for its next start, has failed for good, or is detached.
    pub fn note_end(&mut self, end: End, now: Instant) {
        let served = (self.state == ProcessState::Running).then(|| now.since(self.since));
        self.pid = None;
        self.is_known = false;
        self.note_no_set();
        let why = end.why().map(str::to_owned);
        let next = match &self.mistake {
            _ if end == End::Detached => ProcessState::Detached,
            Some(mistake) => {
                self.why = Some(mistake.clone());
                self.last_end = Some(end);
                return self.enter(ProcessState::Failed, now);
            }
            None if end.may_pass() => ProcessState::Waiting(now + self.backoff.wait_after(served)),
            None => ProcessState::Failed,
        };
        self.why = why;
        self.last_end = Some(end);
        self.enter(next, now);
    }

    /// The wait before another attempt to detach it.
    pub fn wait(&mut self) -> Duration {
        self.backoff.wait_after(None)
    }

    /// Whether its process is to be detached, or is being detached.
    pub fn is_leaving(&self) -> bool {
        let is_told = matches!(self.state, ProcessState::Detaching | ProcessState::Staying(_));
        self.pid.is_some() && (is_told || !self.is_wanted)
    }

    /// For `forebay status`. `seconds` is the time of day at `now`, since 1970.
    pub fn status(&self, now: Instant, seconds: u64) -> KeptStatus {
        KeptStatus {
            name: self.file.name.clone(),
            file: self.file.path.clone(),
            state: self.state.as_str().to_owned(),
            why: self.why.clone(),
            exit_code: self.last_end.as_ref().and_then(End::code),
            wait_ms: self.state.deadline().map(|at| at.since(now).as_millis() as u64),
            pid: self.pid,
            restarts: self.starts.saturating_sub(1),
            since: seconds.saturating_sub(now.since(self.since).as_secs()),
            needs_start: self.needs_start.iter().map(|key| (*key).to_owned()).collect(),
            not_set: self.unset.iter().map(|(key, (value, why))| format!("{key}={value}: {why}")).collect(),
        }
    }
}
