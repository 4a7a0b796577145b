//! Events of an attachment or a mount that are found by looking at it again and again.
//!
//! What is there for less than a look is found where a counter tells of it: a session that was lost
//! and came back.

use crate::events::{EventKind, EventLog};
use crate::limits::WATCH_INTERVAL;
use crate::status::remote::RemoteStatus;

/// An attachment or a mount at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// Its session; `None` of a file.
    pub(crate) remote: Option<RemoteStatus>,
    /// Losses that flushes have reported.
    pub(crate) losses: u64,
    /// Everything that needs attention, in words.
    pub(crate) troubles: Vec<String>,
    pub(crate) size_bytes: u64,
    /// Whether it is to end.
    pub(crate) is_ending: bool,
}

/// Notes what is new, for ever.
pub(crate) async fn note_occurrences(events: &EventLog, look: impl Fn() -> Look) {
    let mut before = look();
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        let now = look();
        occurrences(&before, &now).into_iter().for_each(|(kind, words)| events.note(kind, words));
        before = now;
    }
}

/// What happened between two looks.
fn occurrences(before: &Look, now: &Look) -> Vec<(EventKind, String)> {
    let mut occurred = of_session(before.remote.as_ref(), now.remote.as_ref());
    let mut add = |kind, words: String| occurred.push((kind, words));
    if now.losses > before.losses {
        add(
            EventKind::DataLost,
            "what was acknowledged may be lost: each application is told at its next flush".into(),
        );
    }
    for trouble in new_in(&before.troubles, &now.troubles) {
        add(EventKind::Trouble, trouble.clone());
    }
    for trouble in new_in(&now.troubles, &before.troubles) {
        add(EventKind::TroubleOver, trouble.clone());
    }
    if now.size_bytes != before.size_bytes {
        add(EventKind::Resized, format!("from {} to {} bytes", before.size_bytes, now.size_bytes));
    }
    if now.is_ending && !before.is_ending {
        add(EventKind::Detaching, "it was told to end".into());
    }
    occurred
}

fn of_session(before: Option<&RemoteStatus>, now: Option<&RemoteStatus>) -> Vec<(EventKind, String)> {
    let (Some(before), Some(now)) = (before, now) else { return Vec::new() };
    let portal = &now.portal;
    let why = now.last_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
    let (was_there, is_there) = (has_session(before), has_session(now));
    let mut occurred = Vec::new();
    // Another one that is there as well: the one before was lost between the looks.
    if was_there && (!is_there || now.sessions > before.sessions) {
        occurred.push((EventKind::SessionLost, format!("with {}{why}", before.portal)));
    }
    if fails(now) && !fails(before) {
        occurred.push((EventKind::RequestsFail, format!("{} at {portal}{why}", now.state)));
    }
    if is_there && (!was_there || now.sessions > before.sessions) {
        occurred.push((EventKind::SessionBack, format!("with {portal}")));
    }
    occurred
}

fn has_session(remote: &RemoteStatus) -> bool {
    matches!(remote.state.as_str(), "online" | "replaying")
}

fn fails(remote: &RemoteStatus) -> bool {
    matches!(remote.state.as_str(), "failing" | "replaced" | "fenced")
}

/// The troubles of `now` that were not there before. One whose numbers changed, as of bytes that are
/// dirty, is the same.
fn new_in<'t>(before: &'t [String], now: &'t [String]) -> impl Iterator<Item = &'t String> {
    now.iter().filter(|trouble| !before.iter().any(|other| shape(other).eq(shape(trouble))))
}

/// A text without its digits.
fn shape(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| !c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(state: &str, sessions: u64) -> Look {
        let (state, portal) = (state.to_owned(), "h:1".to_owned());
        let last_error = Some("it is gone".to_owned());
        let remote = Some(RemoteStatus { state, portal, sessions, last_error, ..RemoteStatus::default() });
        Look { remote, size_bytes: 8, ..Look::default() }
    }

    fn kinds(before: &Look, now: &Look) -> Vec<&'static str> {
        occurrences(before, now).into_iter().map(|(kind, _)| kind.as_str()).collect()
    }

    #[test]
    fn a_session_that_is_lost_and_comes_back_is_noted_also_between_two_looks() {
        let (online, away, failing) = (look("online", 1), look("reconnecting", 1), look("failing", 1));
        assert!(kinds(&online, &online).is_empty());
        assert_eq!(kinds(&online, &away), ["session-lost"]);
        let (_, words) = occurrences(&online, &away).remove(0);
        assert_eq!(words, "with h:1: it is gone");
        assert!(kinds(&away, &away).is_empty());
        assert_eq!(kinds(&away, &failing), ["requests-fail"]);
        assert_eq!(kinds(&online, &failing), ["session-lost", "requests-fail"]);
        assert_eq!(kinds(&failing, &look("replaying", 2)), ["session-back"]);
        assert!(kinds(&look("replaying", 2), &look("online", 2)).is_empty(), "it was back already");
        assert_eq!(kinds(&online, &look("online", 2)), ["session-lost", "session-back"]);
        assert_eq!(kinds(&online, &look("fenced", 1)), ["session-lost", "requests-fail"]);
        let file = Look { remote: None, ..look("", 0) };
        assert!(kinds(&file, &file).is_empty());
    }

    #[test]
    fn a_trouble_is_noted_when_it_comes_and_when_it_goes_and_not_when_its_numbers_change() {
        let with = |troubles: &[&str]| Look {
            troubles: troubles.iter().map(|words| (*words).to_owned()).collect(),
            ..look("online", 1)
        };
        let (none, one, more) = (with(&[]), with(&["7 bytes are dirty"]), with(&["12 bytes are dirty"]));
        assert_eq!(occurrences(&none, &one), [(EventKind::Trouble, "7 bytes are dirty".to_owned())]);
        assert!(kinds(&one, &more).is_empty());
        assert_eq!(kinds(&one, &with(&["9 bytes are dirty", "the cache failed"])), ["trouble"]);
        assert_eq!(occurrences(&more, &none), [(EventKind::TroubleOver, "12 bytes are dirty".to_owned())]);
    }

    #[test]
    fn losses_sizes_and_the_end_are_noted_once() {
        let before = look("online", 1);
        let now = Look { losses: 1, size_bytes: 16, is_ending: true, ..before.clone() };
        assert_eq!(kinds(&before, &now), ["data-lost", "resized", "detaching"]);
        assert!(kinds(&now, &now).is_empty());
    }
}
