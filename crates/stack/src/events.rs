//! What happened in a process: its last events in their order, for `forebay events`.
//!
//! The list is in memory and ends with its process. Readers ask for what came after the last event
//! that they know; none of them is waited for, and an event that is forgotten before they ask is
//! counted.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::limits::{EVENT_WORDS_BYTES_MAX, EVENTS_MAX};
use crate::status::{Answer, Event, Events};
use crate::time::milliseconds_since_1970;

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An attachment or mount serves, or the daemon begins.
    Started,
    /// Its target is not there yet.
    TargetAwaited,
    /// A session is lost.
    SessionLost,
    /// Requests fail, since their target was away for too long.
    RequestsFail,
    /// There is a session again.
    SessionBack,
    /// What was acknowledged may be lost.
    DataLost,
    /// Something is wrong with a store, or with what is dirty in it.
    Trouble,
    /// Such a thing is over.
    TroubleOver,
    /// The logical unit has another size.
    Resized,
    /// A setting was changed.
    Set,
    /// It was told to detach.
    Detaching,
    /// The daemon starts a process.
    ProcessStarting,
    /// Its process serves.
    ProcessServes,
    /// Its process ended, and is started again later.
    ProcessWaits,
    /// Its process ended, and is not started again.
    ProcessFailed,
    /// It was detached, and is left so.
    Detached,
    /// Another attachment has its name.
    NameTaken,
    /// Its file is gone, and so is it.
    Forgotten,
    /// A file has a mistake.
    FileRefused,
    /// The files were read again.
    FilesRead,
}

/// A word for each kind, and its meaning; `docs/reference/events.md` has them.
pub const KINDS: &[(EventKind, &str, &str)] = &[
    (EventKind::Started, "started", "It serves. Of the daemon: it keeps the attachments of its directory."),
    (EventKind::TargetAwaited, "target-awaited", "Its target is not there yet, and is looked for."),
    (EventKind::SessionLost, "session-lost", "The session with its target is lost, and looked for again."),
    (
        EventKind::RequestsFail,
        "requests-fail",
        "The target was away for `timeout.replacement`, or has shut this host out: requests fail.",
    ),
    (EventKind::SessionBack, "session-back", "There is a session again."),
    (EventKind::DataLost, "data-lost", "A flush reported that what was acknowledged may be lost."),
    (EventKind::Trouble, "trouble", "Something needs attention: a `trouble` of `forebay status` that was not there."),
    (EventKind::TroubleOver, "trouble-over", "It is over."),
    (EventKind::Resized, "resized", "The logical unit has another size."),
    (EventKind::Set, "set", "A setting was changed while it runs, as the cache's mode."),
    (EventKind::Detaching, "detaching", "It was told to end."),
    (EventKind::ProcessStarting, "process-starting", "The daemon starts its process."),
    (EventKind::ProcessServes, "process-serves", "Its process serves, or was found to."),
    (EventKind::ProcessWaits, "process-waits", "Its process ended, and is started again after a wait."),
    (EventKind::ProcessFailed, "process-failed", "Its process ended with an error that a person has to mend."),
    (EventKind::Detached, "detached", "Its process ended in order, and is left so."),
    (EventKind::NameTaken, "name-taken", "Another attachment runs under its name."),
    (EventKind::Forgotten, "forgotten", "Its file is gone, and it has ended."),
    (EventKind::FileRefused, "file-refused", "A file of an attachment has a mistake."),
    (EventKind::FilesRead, "files-read", "The daemon read the files of its attachments again."),
];

impl EventKind {
    /// The kind in a word.
    pub fn as_str(self) -> &'static str {
        KINDS.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, word, _)| word)
    }
}

/// The last events of a process.
pub struct EventLog {
    /// The name of the process.
    name: String,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Event>,
    /// The number of the last event.
    last: u64,
}

impl EventLog {
    /// No events yet of the process `name`.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), state: RefCell::default() }
    }

    /// Notes an event of the process itself.
    pub fn note(&self, kind: EventKind, words: impl Into<String>) {
        self.note_of(&self.name, kind, words);
    }

    /// Notes an event of the attachment `name`. Beyond [`EVENTS_MAX`] the oldest is forgotten.
    pub fn note_of(&self, name: &str, kind: EventKind, words: impl Into<String>) {
        let mut words = words.into();
        words.truncate(words.floor_char_boundary(EVENT_WORDS_BYTES_MAX));
        let state = &mut *self.state.borrow_mut();
        state.last += 1;
        let at_ms = milliseconds_since_1970();
        let event = Event { number: state.last, at_ms, name: name.to_owned(), event: kind.as_str().to_owned(), words };
        if state.kept.len() == EVENTS_MAX {
            state.kept.pop_front();
        }
        state.kept.push_back(event);
    }

    /// The answer to who asks for what came after the event of this number.
    pub fn answer(&self, number: u64) -> Answer {
        Answer::Events(Box::new(self.after(number)))
    }

    /// What came after the event of this number; 0 for all.
    fn after(&self, number: u64) -> Events {
        let state = self.state.borrow();
        let events: Vec<Event> = state.kept.iter().filter(|event| event.number > number).cloned().collect();
        let forgotten = state.last.saturating_sub(number).saturating_sub(events.len() as u64);
        Events { name: self.name.clone(), pid: std::process::id(), events, forgotten }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CONTROL_LINE_BYTES_MAX;

    #[test]
    fn a_process_keeps_so_many_events_and_counts_those_that_a_reader_missed() {
        let log = EventLog::new("disk");
        assert_eq!(log.after(0), Events { name: "disk".into(), pid: std::process::id(), ..Events::default() });
        for number in 0..1024 {
            log.note(EventKind::Set, format!("a={number}"));
        }
        let all = log.after(0);
        assert_eq!((all.events.len(), all.forgotten), (1024, 0));
        log.note_of("other", EventKind::Trouble, "one more");
        let all = log.after(0);
        assert_eq!((all.events.len(), all.forgotten, all.events[0].number), (1024, 1, 2));
        let new = log.after(1024);
        assert_eq!((new.events.len(), new.forgotten), (1, 0));
        let last = &new.events[0];
        assert_eq!((last.number, last.name.as_str(), last.event.as_str()), (1025, "other", "trouble"));
        assert_eq!(log.after(1025).events, []);
    }

    /// Every character takes as many bytes as JSON needs for one at most.
    #[test]
    fn the_words_of_an_event_are_cut_and_a_full_list_fits_a_line() {
        let log = EventLog::new(&"n".repeat(255));
        for _ in 0..EVENTS_MAX {
            log.note(EventKind::ProcessStarting, "\u{1}".repeat(2 * EVENT_WORDS_BYTES_MAX));
        }
        let all = log.after(0);
        assert_eq!(all.events[0].words.len(), EVENT_WORDS_BYTES_MAX);
        assert!(serde_json::to_string(&all).unwrap().len() as u64 <= CONTROL_LINE_BYTES_MAX - 1024);
        log.note(EventKind::Set, format!("{}\u{e9}", "a".repeat(EVENT_WORDS_BYTES_MAX - 1)));
        let last = log.after(EVENTS_MAX as u64).events.pop().unwrap();
        assert_eq!(last.words.len(), EVENT_WORDS_BYTES_MAX - 1, "no half of a character");
    }

    #[test]
    fn every_kind_has_a_word_of_its_own_and_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/events.md");
        let page = std::fs::read_to_string(path).expect("the page is there");
        for (index, (kind, word, meaning)) in KINDS.iter().enumerate() {
            assert_eq!(kind.as_str(), *word);
            assert!(KINDS[..index].iter().all(|(_, other, _)| other != word), "{word} twice");
            let row = format!("| `{word}` | {meaning} |");
            assert!(page.contains(&row), "{row} is missing");
        }
    }
}
