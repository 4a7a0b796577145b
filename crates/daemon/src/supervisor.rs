//! The attachments of this host as a state machine: from files, from what happens to processes, and
//! from the clock, to [`Action`]s. It does no I/O and reads no clock.
//!
//! ```text
//!            ┌──────────────── its wait is over, or asked for ────────────────┐
//!            ▼                                                                │
//! file ──► sought ──nobody──► starting ──answers──► running ──ends──► waiting │ failed │ detached
//!            └──────somebody─────┴────────────────────►┘
//!
//! file gone, or the daemon stops: detaching, until its process has ended
//! somebody runs under its name that is none of its file: taken, until that has ended
//! what it stands on does not serve yet: it waits for that
//! ```
//!
//! | a process ended | then |
//! |---|---|
//! | in order, with success | its user detached it: nothing, until it is asked for |
//! | killed, or with an error that may pass | it waits, and is started again |
//! | with an error that a person has to mend | it failed: until its file changes, or it is asked for |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use base::clock::Instant;
use stack::status::daemon::{FileRefused, KeptStatus};
use stack::{Error, Failure, Result};

use crate::change::Change;
use crate::end::End;
use crate::file::AttachmentFile;
use crate::files::FilesSeen;
use crate::kept::{Kept, ProcessState, Told};
use crate::order::stands_on;

/// What is to be done; each names an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Look for a process with its name: [`Supervisor::found`] or [`Supervisor::absent`] follows.
    Seek(String),
    /// Start a process with this file: [`Supervisor::started`] or [`Supervisor::ended`] follows.
    Spawn(String, PathBuf),
    /// Tell its process to write everything dirty back, and to end.
    Detach(String),
    /// Tell its process once more what it refused ([`Kept::unset`]): [`Supervisor::told`] follows.
    Set(String),
    /// End its process soon, with what is dirty left in its cache or log.
    Terminate(String),
    /// Note for the next daemon that it is not to be started.
    Hold(String),
    /// Forget that.
    Release(String),
}

/// How a process is that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It does not answer yet: it may be somebody else's.
    Starts,
    /// It answers, and is of the file.
    Serves,
    /// A daemon before this one told it to detach.
    Ends,
}

/// What other files changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesChange {
    /// Names that are new.
    pub added: Vec<String>,
    /// Names that are gone.
    pub removed: Vec<String>,
    /// Files that say something else now: as they were, and as they are.
    pub changed: Vec<(AttachmentFile, AttachmentFile)>,
}

/// All attachments.
#[derive(Debug, Default)]
pub struct Supervisor {
    kept: BTreeMap<String, Kept>,
    refused: Vec<FileRefused>,
    actions: VecDeque<Action>,
    is_stopping: bool,
    troubles: Vec<(String, End)>,
}

impl Supervisor {
    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Supervisor::tick`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.kept.values().filter_map(Kept::deadline).min()
    }

    /// Whether each attachment serves, or has ended once.
    pub fn is_settled(&self) -> bool {
        !self.kept.values().any(|kept| matches!(kept.state(), ProcessState::Sought | ProcessState::Starting))
    }

    /// Whether [`Supervisor::stop`] was asked for, and is done.
    pub fn is_over(&self) -> bool {
        self.is_stopping && self.kept.is_empty() && self.actions.is_empty()
    }

    /// Attachments that did not end in order when the daemon stopped, and names under which something else runs.
    pub fn troubles(&self) -> &[(String, End)] {
        &self.troubles
    }

    /// The attachment `name`.
    pub fn get(&self, name: &str) -> Option<&Kept> {
        self.kept.get(name)
    }

    /// The file of each.
    pub fn files(&self) -> BTreeMap<String, PathBuf> {
        self.kept.iter().map(|(name, kept)| (name.clone(), kept.file.path.clone())).collect()
    }

    /// All of them, for the status. `seconds` is the time of day at `now`, since 1970.
    pub fn status(&self, now: Instant, seconds: u64) -> (Vec<KeptStatus>, Vec<FileRefused>) {
        (self.kept.values().map(|kept| kept.status(now, seconds)).collect(), self.refused.clone())
    }

    /// A line for the service manager.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.kept.values().for_each(|kept| *counts.entry(kept.state().as_str()).or_default() += 1);
        let mut words: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        if !self.refused.is_empty() {
            words.push(format!("files with mistakes: {}", self.refused.len()));
        }
        if words.is_empty() { "no attachments".to_owned() } else { words.join(", ") }
    }

    /// Takes the files as they are now. `is_held` tells which attachments were detached before this
    /// daemon began. One whose file has a mistake now goes on as it is.
    pub fn take_files(&mut self, seen: FilesSeen, is_held: impl Fn(&str) -> bool, now: Instant) -> FilesChange {
        let mut change = FilesChange::default();
        if self.is_stopping {
            return change;
        }
        let is_gone = |name: &&String| !seen.files.iter().any(|file| file.name == **name);
        let gone: Vec<String> = self.kept.keys().filter(is_gone).cloned().collect();
        for name in gone {
            let Some(kept) = self.kept.get_mut(&name).filter(|kept| kept.is_wanted) else { continue };
            match seen.refused.iter().find(|refused| refused.file == kept.file.path) {
                Some(refused) => kept.mistake = Some(refused.why.clone()),
                None => change.removed.push(name),
            }
        }
        for file in seen.files {
            self.take_file(file, &is_held, now, &mut change);
        }
        self.unwant(&change.removed, now);
        self.refused = seen.refused;
        self.start_what_waited(now);
        change
    }

    fn take_file(
        &mut self,
        file: AttachmentFile,
        is_held: &impl Fn(&str) -> bool,
        now: Instant,
        change: &mut FilesChange,
    ) {
        let name = file.name.clone();
        let Some(kept) = self.kept.get_mut(&name) else {
            let is_held = is_held(&name);
            let mut kept = Kept::new(file, now);
            kept.is_held = is_held;
            self.kept.insert(name.clone(), kept);
            self.actions.push_back(Action::Seek(name.clone()));
            change.added.push(name);
            return;
        };
        let old = std::mem::replace(&mut kept.file, file);
        let had_mistake = kept.mistake.take().is_some();
        let is_changed = !old.says_the_same(&kept.file);
        if !kept.is_wanted {
            // It was to be detached, and is to be there again.
            kept.is_wanted = true;
            if matches!(kept.state(), ProcessState::Staying(_)) {
                kept.enter(ProcessState::Running, now);
            }
            change.added.push(name);
            match kept.state() {
                // Its end is near, and its next start has all of it; should it not end, that is said.
                ProcessState::Detaching => kept.needs_start.extend(Change::between(&old, &kept.file).keys()),
                _ if is_changed => change.changed.push((old, kept.file.clone())),
                _ => {}
            }
            return;
        }
        let is_other_now = match kept.state() {
            ProcessState::Failed => is_changed || had_mistake,
            ProcessState::Taken => is_changed,
            _ => false,
        };
        if is_other_now {
            kept.enter(ProcessState::Sought, now);
            self.actions.push_back(Action::Seek(name));
        }
        if is_changed {
            change.changed.push((old, kept.file.clone()));
        }
    }

    /// They are to be detached; those without a process are gone at once.
    fn unwant(&mut self, names: &[String], now: Instant) {
        // All of them first: which of them stand on others is their order.
        for name in names {
            self.kept.entry(name.clone()).and_modify(|kept| kept.is_wanted = false);
        }
        for name in names {
            if self.kept.get(name).is_some_and(|kept| kept.state().is_idle()) {
                self.drop_one(name, now);
            }
        }
        self.detach_what_may(now);
    }

    /// Detaches it, but not before what stands on it and is to go as well.
    fn detach_in_turn(&mut self, name: &str, now: Instant) {
        if !self.carries_any_that_goes(name) {
            self.detach(name, now);
        }
    }

    fn detach(&mut self, name: &str, now: Instant) {
        if let Some(kept) = self.kept.get_mut(name) {
            kept.enter(ProcessState::Detaching, now);
            self.actions.push_back(Action::Detach(name.to_owned()));
        }
    }

    /// What it stands on, and what that stands on, and so on.
    fn below(&self, name: &str) -> BTreeSet<String> {
        let mut below = BTreeSet::new();
        let mut names = vec![name.to_owned()];
        while let Some(above) = names.pop().and_then(|name| self.kept.get(&name)) {
            for other in self.kept.values().filter(|other| stands_on(&above.file, &other.file)) {
                if other.file.name != name && below.insert(other.file.name.clone()) {
                    names.push(other.file.name.clone());
                }
            }
        }
        below
    }

    /// Whether anything stands on it that is detached, or to be. Those that stand on each other have no order.
    fn carries_any_that_goes(&self, name: &str) -> bool {
        let below = self.below(name);
        let goes = |kept: &&Kept| !kept.is_wanted || kept.state() == ProcessState::Detaching;
        let mut going = self.kept.values().filter(goes).map(|kept| &kept.file.name);
        going.any(|other| other != name && !below.contains(other) && self.below(other).contains(name))
    }

    /// What is to serve before `name` starts, and is on its way. One that has failed, or that its user
    /// detached, is not waited for.
    fn awaited(&self, name: &str) -> Option<String> {
        self.below(name).into_iter().find(|below| {
            let state = self.kept.get(below).map(Kept::state);
            let is_coming = matches!(
                state,
                Some(
                    ProcessState::Sought
                        | ProcessState::Starting
                        | ProcessState::Waiting(_)
                        | ProcessState::Behind
                        | ProcessState::Detaching
                )
            );
            is_coming && !self.below(below).contains(name)
        })
    }

    /// Starts those for which nothing is missing any more.
    fn start_what_waited(&mut self, now: Instant) {
        if self.is_stopping {
            return;
        }
        let is_behind = |kept: &&Kept| kept.is_wanted && kept.state() == ProcessState::Behind;
        let behind: Vec<String> = self.kept.values().filter(is_behind).map(|kept| kept.file.name.clone()).collect();
        for name in behind {
            if self.awaited(&name).is_none()
                && let Some(kept) = self.kept.get_mut(&name)
            {
                kept.enter(ProcessState::Sought, now);
                self.actions.push_back(Action::Seek(name));
            }
        }
    }

    fn drop_one(&mut self, name: &str, now: Instant) {
        let was = self.kept.remove(name);
        if let Some(taken) = was.as_ref().filter(|kept| self.is_stopping && kept.state() == ProcessState::Taken) {
            self.troubles.push((name.to_owned(), not_stopped(taken.why().unwrap_or_default())));
        }
        // When the daemon stops, what its user detached stays so for the next one.
        let stays = self.is_stopping && was.is_some_and(|kept| kept.is_held || kept.state() == ProcessState::Detached);
        if !stays {
            self.actions.push_back(Action::Release(name.to_owned()));
        }
        self.start_what_waited(now);
        self.detach_what_may(now);
    }

    /// Detaches those that are to go, and carry nothing that is to go before them.
    fn detach_what_may(&mut self, now: Instant) {
        let is_served = |kept: &Kept| matches!(kept.state(), ProcessState::Starting | ProcessState::Running);
        let is_left = |kept: &&Kept| !kept.is_wanted && kept.is_known && is_served(kept);
        let left: Vec<String> = self.kept.values().filter(is_left).map(|kept| kept.file.name.clone()).collect();
        left.iter().for_each(|name| self.detach_in_turn(name, now));
    }

    /// A process of its file runs under that name, or one that does not say yet what it is.
    pub fn found(&mut self, name: &str, pid: u32, seen: Seen, now: Instant) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        // It may have been found before it answered.
        if kept.state() != ProcessState::Starting || kept.pid != Some(pid) {
            kept.note_start();
        }
        kept.pid = Some(pid);
        kept.is_known = seen != Seen::Starts;
        let state = match seen {
            Seen::Starts => ProcessState::Starting,
            Seen::Serves => ProcessState::Running,
            Seen::Ends => ProcessState::Detaching,
        };
        kept.enter(state, now);
        if !kept.is_wanted && kept.is_known {
            self.detach_in_turn(name, now);
        }
        self.start_what_waited(now);
    }

    /// A process that is none of its file has its name. It is left alone.
    pub fn taken(&mut self, name: &str, why: &str, now: Instant) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        kept.pid = None;
        kept.is_known = false;
        kept.is_asked_for = false;
        kept.enter_because(ProcessState::Taken, why, now);
        match kept.is_wanted {
            true => self.start_what_waited(now),
            false => self.drop_one(name, now),
        }
    }

    /// The process that had its name has ended.
    pub fn freed(&mut self, name: &str, now: Instant) {
        if let Some(kept) = self.kept.get_mut(name).filter(|kept| kept.state() == ProcessState::Taken) {
            kept.enter(ProcessState::Sought, now);
            self.actions.push_back(Action::Seek(name.to_owned()));
        }
    }

    /// No process runs under that name.
    pub fn absent(&mut self, name: &str, now: Instant) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        if !kept.is_wanted {
            self.drop_one(name, now);
            return;
        }
        if kept.is_held {
            kept.enter(ProcessState::Detached, now);
            return self.start_what_waited(now);
        }
        if let Some(mistake) = kept.mistake.clone() {
            kept.enter_because(ProcessState::Failed, &mistake, now);
            return self.start_what_waited(now);
        }
        let awaited = self.awaited(name);
        let Some(kept) = self.kept.get_mut(name) else { return };
        if let Some(below) = awaited {
            let why = format!("it stands on \"{below}\", which does not serve yet");
            return kept.enter_because(ProcessState::Behind, &why, now);
        }
        kept.note_start();
        kept.enter(ProcessState::Starting, now);
        self.actions.push_back(Action::Spawn(name.to_owned(), kept.file.path.clone()));
    }

    /// Its process was started.
    pub fn started(&mut self, name: &str, pid: u32, now: Instant) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        kept.pid = Some(pid);
        kept.is_known = true;
        if !kept.is_wanted {
            self.detach_in_turn(name, now);
        }
    }

    /// Its process answers.
    pub fn answers(&mut self, name: &str, now: Instant) {
        if let Some(kept) = self.kept.get_mut(name).filter(|kept| kept.state() == ProcessState::Starting) {
            kept.enter(ProcessState::Running, now);
            kept.is_known = true;
            if !kept.is_wanted {
                self.detach_in_turn(name, now);
            }
        }
        self.start_what_waited(now);
    }

    /// Its process was told settings. They are told again where it refused them.
    pub fn told(&mut self, name: &str, told: Vec<Told>, now: Instant) {
        if let Some(kept) = self.kept.get_mut(name).filter(|kept| kept.pid.is_some()) {
            kept.note_set(told, now);
        }
    }

    /// Its process ended, or could not be started or looked for.
    pub fn ended(&mut self, name: &str, end: End, now: Instant) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        // Its file came back while it was detached, or somebody wants it again.
        let begins_again =
            matches!(kept.state(), ProcessState::Detaching | ProcessState::Staying(_)) || kept.is_asked_for;
        if !kept.is_wanted {
            if self.is_stopping && end != End::Detached {
                self.troubles.push((name.to_owned(), end));
            }
            self.drop_one(name, now);
            return;
        }
        kept.note_end(end, now);
        if begins_again {
            kept.enter(ProcessState::Sought, now);
            self.actions.push_back(Action::Seek(name.to_owned()));
        } else if kept.state() == ProcessState::Detached {
            self.actions.push_back(Action::Hold(name.to_owned()));
        }
        self.start_what_waited(now);
        self.detach_what_may(now);
    }

    /// It could not detach, and goes on.
    pub fn stayed(&mut self, name: &str, why: &str, now: Instant) {
        let Some(kept) = self.kept.get_mut(name).filter(|kept| kept.state() == ProcessState::Detaching) else { return };
        if self.is_stopping {
            self.actions.push_back(Action::Terminate(name.to_owned()));
        } else if kept.is_wanted {
            kept.enter(ProcessState::Running, now);
            self.detach_what_may(now);
        } else {
            let again_at = now + kept.wait();
            kept.enter_because(ProcessState::Staying(again_at), why, now);
        }
    }

    /// Its file has settings that count at its next start.
    pub fn note_needs_start(&mut self, name: &str, keys: &[&'static str]) {
        if let Some(kept) = self.kept.get_mut(name).filter(|kept| !kept.state().is_idle()) {
            kept.needs_start.extend(keys);
        }
    }

    /// Starts one that waits, has failed, or was detached; one that `is_ending` after its end. Others
    /// go on.
    ///
    /// # Errors
    /// `NotFound` for a name that is none; `Usage` where its file has a mistake; `InUse` while it
    /// is being detached, or something else runs under its name.
    pub fn start(&mut self, name: &str, is_ending: bool, now: Instant) -> Result<()> {
        let kept = self.known(name)?;
        match (kept.state(), &kept.mistake) {
            (ProcessState::Detaching | ProcessState::Staying(_), _) => {
                Err(Error::new(Failure::InUse, format!("\"{name}\" is being detached")))
            }
            (ProcessState::Taken, _) => {
                let why = kept.why().unwrap_or_default();
                let message = format!("{why}; `forebay detach {name}` ends that one, and this is attached then");
                Err(Error::new(Failure::InUse, message))
            }
            (state, Some(mistake)) if state.is_idle() => {
                Err(Error::new(Failure::Usage, format!("{mistake}; mend it, and `forebay daemon reload`")))
            }
            (state, None) if state.is_idle() => {
                kept.is_held = false;
                kept.enter(ProcessState::Sought, now);
                self.actions.push_back(Action::Seek(name.to_owned()));
                Ok(())
            }
            _ => {
                kept.is_asked_for = is_ending;
                Ok(())
            }
        }
    }

    /// Keeps one without a process from being started.
    ///
    /// # Errors
    /// `NotFound` for a name that is none; `InUse` for one with a process.
    pub fn hold(&mut self, name: &str, now: Instant) -> Result<()> {
        let kept = self.known(name)?;
        if !kept.state().is_idle() {
            let state = kept.state().as_str();
            let message = format!("\"{name}\" is {state}: `forebay detach {name}` once more when it runs");
            return Err(Error::new(Failure::InUse, message));
        }
        kept.enter(ProcessState::Detached, now);
        self.actions.push_back(Action::Hold(name.to_owned()));
        self.start_what_waited(now);
        Ok(())
    }

    fn known(&mut self, name: &str) -> Result<&mut Kept> {
        let Some(kept) = self.kept.get_mut(name) else {
            let is_its = |refused: &&FileRefused| refused.file.file_stem().is_some_and(|stem| stem == name);
            return Err(match self.refused.iter().find(is_its) {
                Some(refused) => Error::new(Failure::Usage, refused.why.clone()),
                None => Error::new(Failure::NotFound, format!("the daemon keeps no attachment \"{name}\"")),
            });
        };
        Ok(kept)
    }

    /// Detaches all of them, those that stand on others first. Nothing is started any more.
    pub fn stop(&mut self, now: Instant) {
        self.is_stopping = true;
        let names: Vec<String> = self.kept.keys().cloned().collect();
        // Those that could not are asked once more, and ended where they still cannot.
        for kept in self.kept.values_mut().filter(|kept| matches!(kept.state(), ProcessState::Staying(_))) {
            kept.enter(ProcessState::Running, now);
        }
        self.unwant(&names, now);
    }

    /// Does what is due at `now`.
    pub fn tick(&mut self, now: Instant) {
        for kept in self.kept.values_mut() {
            if kept.takes_turn_to_set(now) {
                self.actions.push_back(Action::Set(kept.file.name.clone()));
            }
        }
        let is_due = |kept: &&mut Kept| kept.state().deadline().is_some_and(|at| at <= now);
        for kept in self.kept.values_mut().filter(is_due) {
            let name = kept.file.name.clone();
            if let ProcessState::Waiting(_) = kept.state() {
                kept.enter(ProcessState::Sought, now);
                self.actions.push_back(Action::Seek(name));
            } else {
                kept.enter(ProcessState::Detaching, now);
                self.actions.push_back(Action::Detach(name));
            }
        }
    }
}

/// What a stop says of a process that has the name of an attachment, and is left alone.
fn not_stopped(why: &str) -> End {
    End::Failed { code: Failure::InUse.exit_code(), why: format!("{why}; that one was not stopped") }
}

#[cfg(test)]
mod tests;
