//! `events`: what happened to what runs on this host.
//!
//! Each process is asked for what it noted after the last event that is known of it. Nothing is held
//! there for a reader: with `--follow` it is asked again and again, and a reader that is slow finds
//! that the oldest are forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use futures_util::future::join_all;
use serde_json::{Value, json};
use stack::control::{ControlRequest, call};
use stack::limits::STATUS_TIME_MAX;
use stack::paths::{Paths, check_name};
use stack::status::{self, Event};
use stack::{Error, Failure, Result};

use crate::arguments::Events;
use crate::output::{plain, print_json, print_line, prints_line};

/// Pause between two questions with `--follow`: at once for a person, and little work for a process.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// `forebay events`.
pub async fn run(arguments: Events) -> Result<()> {
    let paths = Paths::to_ask_what_runs()?;
    if let Some(name) = &arguments.name {
        check_name(name)?;
    }
    let name = arguments.name.as_deref();
    let mut known = Known::default();
    if arguments.follow {
        return follow(&paths, &mut known, name, arguments.json).await;
    }
    paths.check_runtime()?;
    let seen = known.ask(&paths, name).await;
    if let Some(name) = name.filter(|name| seen.is_unknown(name)) {
        let message = format!("nothing runs under the name \"{name}\", and the daemon knows of none");
        return Err(Error::new(Failure::NotFound, message));
    }
    seen.silent.iter().for_each(|silence| eprintln!("{}", plain(silence)));
    if arguments.json {
        let events: Vec<Value> = seen.events.iter().map(Noted::as_json).collect();
        print_json(&json!({ "events": events, "forgotten": seen.forgotten, "silent": seen.silent }));
        return Ok(());
    }
    seen.words_of_forgotten().iter().for_each(|line| print_line(line));
    seen.events.iter().for_each(|noted| print_line(&noted.in_words()));
    Ok(())
}

/// Prints what comes, until nobody reads it any more.
async fn follow(paths: &Paths, known: &mut Known, name: Option<&str>, is_json: bool) -> Result<()> {
    let mut silent = Vec::new();
    loop {
        let seen = known.ask(paths, name).await;
        seen.silent.iter().filter(|silence| !silent.contains(*silence)).for_each(|it| eprintln!("{}", plain(it)));
        let lines: Vec<String> = match is_json {
            true => seen.events.iter().map(|noted| noted.as_json().to_string()).collect(),
            false => seen.words_of_forgotten().into_iter().chain(seen.events.iter().map(Noted::in_words)).collect(),
        };
        if !lines.iter().all(|line| prints_line(line)) {
            return Ok(());
        }
        silent = seen.silent;
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

/// What is known of each process: its id, and the number of its last event.
#[derive(Default)]
struct Known(BTreeMap<String, (u32, u64)>);

/// An event, and the process that noted it.
struct Noted {
    process: String,
    event: Event,
}

/// What was noted since the last question.
#[derive(Default)]
struct Seen {
    /// Names of processes that answered.
    answered: Vec<String>,
    /// In the order of their times.
    events: Vec<Noted>,
    /// Events that were forgotten before they were asked for.
    forgotten: u64,
    /// Processes that did not answer, in words.
    silent: Vec<String>,
}

impl Known {
    /// Asks each process for what it noted since. Of a `name` that is what it noted, and what others
    /// noted of it.
    async fn ask(&mut self, paths: &Paths, name: Option<&str>) -> Seen {
        let names = paths.control_names();
        let answers = join_all(names.iter().map(|process| {
            let (pid, number) = self.0.get(process).copied().unwrap_or_default();
            answer_of(paths, process, pid, number)
        }));
        let answers = answers.await;
        self.0.retain(|process, _| names.contains(process));
        let mut seen = Seen::default();
        for (process, answer) in names.into_iter().zip(answers) {
            match answer {
                Ok(Some(events)) => self.take(process, events, name, &mut seen),
                Ok(None) => {}
                Err(error) if name.is_none_or(|name| name == process) => seen.silent.push(error.to_string()),
                Err(_) => {}
            }
        }
        seen.events.sort_by_key(|noted| noted.event.at_ms);
        seen
    }

    fn take(&mut self, process: String, said: status::Events, name: Option<&str>, seen: &mut Seen) {
        let of_process = name.is_none_or(|name| name == process);
        let last = self.0.get(&process).filter(|(pid, _)| *pid == said.pid).map_or(0, |(_, number)| *number);
        let last = said.events.last().map_or(last, |event| event.number);
        self.0.insert(process.clone(), (said.pid, last));
        if of_process {
            seen.forgotten += said.forgotten;
        }
        let is_meant = |event: &Event| of_process || name.is_some_and(|name| name == event.name);
        let meant = said.events.into_iter().filter(is_meant);
        seen.events.extend(meant.map(|event| Noted { process: process.clone(), event }));
        seen.answered.push(process);
    }
}

/// What `process` noted after the event of this number; all of it, if it is not the process with that
/// id any more. `None` where none runs.
async fn answer_of(paths: &Paths, process: &str, pid: u32, number: u64) -> Result<Option<status::Events>> {
    let said = ask(paths, process, number).await?;
    match said {
        Some(said) if number > 0 && said.pid != pid => ask(paths, process, 0).await,
        said => Ok(said),
    }
}

async fn ask(paths: &Paths, process: &str, after: u64) -> Result<Option<status::Events>> {
    let socket = paths.control_socket(process);
    let request = ControlRequest::Events { after };
    let answer = tokio::time::timeout(STATUS_TIME_MAX, call(&socket, &request, |_| {})).await;
    let silent = |_| {
        let message = format!("\"{process}\" does not answer: `forebay status {process}` says why");
        Err(Error::new(Failure::Unreachable, message))
    };
    match answer.unwrap_or_else(silent) {
        Ok(said) => status::read(&said).map(Some),
        // A killed process leaves its socket.
        Err(error) if error.failure() == Failure::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Seen {
    /// Whether neither a process nor an event is of this name.
    fn is_unknown(&self, name: &str) -> bool {
        self.events.is_empty() && self.silent.is_empty() && !self.answered.iter().any(|process| process == name)
    }

    fn words_of_forgotten(&self) -> Option<String> {
        (self.forgotten > 0).then(|| format!("{} earlier events are forgotten", self.forgotten))
    }
}

impl Noted {
    fn in_words(&self) -> String {
        let Event { at_ms, name, event, words, .. } = &self.event;
        let line = format!("{} {name} {event}", time_of_day(*at_ms));
        if words.is_empty() { plain(&line).into_owned() } else { plain(&format!("{line}: {words}")).into_owned() }
    }

    fn as_json(&self) -> Value {
        let Event { number, at_ms, name, event, words } = &self.event;
        json!({
            "at_ms": at_ms, "time": time_of_day(*at_ms), "name": name, "event": event, "words": words,
            "process": self.process, "number": number,
        })
    }
}

/// A time in the form of the log's lines: RFC 3339, UTC.
fn time_of_day(at_ms: u64) -> String {
    let time = i64::try_from(at_ms).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(|| at_ms.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pid: u32, numbers: &[u64], name: &str) -> status::Events {
        let event = |number: &u64| {
            let event = if number.is_multiple_of(2) { "session-lost" } else { "session-back" };
            Event { number: *number, at_ms: 1000 * number, name: name.into(), event: event.into(), words: "w".into() }
        };
        status::Events { name: "n".into(), pid, events: numbers.iter().map(event).collect(), forgotten: 0 }
    }

    #[test]
    fn of_a_name_is_what_its_process_noted_and_what_the_daemon_noted_of_it() {
        let mut known = Known::default();
        let mut seen = Seen::default();
        known.take("disk".into(), said(7, &[1, 2], "disk"), Some("disk"), &mut seen);
        known.take("daemon".into(), said(8, &[1], "web"), Some("disk"), &mut seen);
        known.take("daemon".into(), said(8, &[2, 3], "disk"), Some("disk"), &mut seen);
        assert_eq!(seen.events.len(), 4);
        assert_eq!(known.0["daemon"], (8, 3));
        assert!(!seen.is_unknown("disk") && !seen.is_unknown("daemon"));
        // Another process of that name begins with its first event.
        known.take("disk".into(), said(9, &[], "disk"), None, &mut seen);
        assert_eq!(known.0["disk"], (9, 0));
        assert!(Seen::default().is_unknown("disk"));
    }

    #[test]
    fn an_event_is_a_line_whatever_a_target_calls_itself() {
        let mut noted = Noted { process: "disk".into(), event: said(7, &[2], "disk").events.remove(0) };
        noted.event.words = "with\nh:1".into();
        assert_eq!(noted.in_words(), "1970-01-01T00:00:02.000Z disk session-lost: with\\nh:1");
        assert_eq!(noted.as_json()["time"], "1970-01-01T00:00:02.000Z");
        assert_eq!(time_of_day(u64::MAX), u64::MAX.to_string());
    }
}
