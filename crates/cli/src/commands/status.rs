//! `status`: what runs on this host.

use std::time::{Duration, Instant};

use base::units::ByteSize;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::{Value, json};
use stack::control::{ControlRequest, Presence, call, look};
use stack::paths::{Paths, check_name};
use stack::registry::{Entry, Registry};
use stack::status::{self, Shown};
use stack::{Error, Failure, Result};

use super::{daemon, overview, target};
use crate::arguments::Status;
use crate::output::{plain, print_json, print_line};

/// `forebay status`.
pub async fn run(arguments: Status) -> Result<()> {
    let paths = Paths::to_ask_what_runs()?;
    match arguments.name {
        Some(name) => {
            check_name(&name)?;
            let said = match one(&paths, &name, arguments.wait.unwrap_or_default()).await {
                Err(error) if error.failure() == Failure::NotFound => {
                    return Err(paths.check_runtime().err().unwrap_or(error));
                }
                said => said?,
            };
            if arguments.json.json {
                print_json(&said);
                return Ok(());
            }
            match status::read(&said)? {
                Shown::Target(status) => target::print_status(&status),
                Shown::Daemon(status) => daemon::lines(&status).iter().for_each(|line| print_line(line)),
                Shown::Mount(status) => overview::mount_lines(&status).iter().for_each(|line| print_line(line)),
                Shown::Attachment(status) => overview::lines(&status).iter().for_each(|line| print_line(line)),
            }
        }
        None => {
            let unseen = match paths.check_runtime() {
                Err(error) if error.failure() == Failure::NotFound => Some(error),
                seen => seen.map(|()| None)?,
            };
            let all = everything(&paths).await?;
            let dirty = left_dirty(&paths, &all);
            if arguments.json.json {
                let running: Vec<Value> = all.iter().map(Running::said).collect();
                print_json(&json!({ "running": running, "dirty": dirty? }));
            } else {
                match &unseen {
                    Some(error) => print_line(&format!("nothing runs that can be seen: {error}")),
                    None => print_table(&all),
                }
                let state = if unseen.is_some() { "not known to be attached" } else { "not attached" };
                // What runs is shown also where the registry cannot be read.
                dirty?.iter().for_each(|entry| print_line(&in_words(entry, state)));
            }
        }
    }
    Ok(())
}

/// A process under a name.
enum Running {
    /// Its status, raw, and as this version reads it.
    Answers { said: Value, shown: Result<Shown> },
    /// It has a socket but does not answer.
    Silent(Silent),
}

/// What is shown in the place of a status, for a process that does not answer.
#[derive(Serialize)]
struct Silent {
    name: String,
    /// It is not known.
    kind: (),
    pid: Option<u32>,
    silence: String,
}

impl Running {
    /// As JSON.
    fn said(&self) -> Value {
        match self {
            Self::Answers { said, .. } => said.clone(),
            Self::Silent(silent) => json!(silent),
        }
    }

    /// Whether the process has the store of `entry` open, or may have.
    fn may_have(&self, entry: &Entry) -> bool {
        match self {
            Self::Answers { shown: Ok(Shown::Attachment(status)), .. } => {
                let is_cache = status.cache_path.as_ref() == Some(&entry.cache) && status.cache_offset == entry.offset;
                let is_log = status.log_path.as_ref() == Some(&entry.cache) && status.log_offset == entry.offset;
                // An attachment that waits for its target will open the store.
                is_cache || is_log || (status.lun.is_none() && status.name == entry.name)
            }
            Self::Answers { .. } => false,
            Self::Silent(silent) => silent.name == entry.name,
        }
    }

    /// Its row of the table.
    fn row(&self) -> [String; 4] {
        match self {
            Self::Silent(Silent { name, silence, .. }) => [name.clone(), String::new(), String::new(), silence.clone()],
            Self::Answers { said, shown } => {
                let text = |key: &str| said[key].as_str().unwrap_or_default().to_owned();
                let state = shown.as_ref().map_or_else(ToString::to_string, state);
                // The daemon is not reached by applications.
                let place = if said["address"].is_string() { "address" } else { "directory" };
                [text("name"), text("kind"), text(place), state]
            }
        }
    }
}

/// Pause between attempts to reach a process that does not run yet: short for a person, rare for a
/// processor.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The state of `name`, once it answers. A process that ends without an answer may have a
/// successor.
async fn one(paths: &Paths, name: &str, wait: Duration) -> Result<Value> {
    let deadline = Instant::now() + wait;
    loop {
        let answer = call(&paths.control_socket(name), &ControlRequest::Status, |_| {}).await;
        match answer {
            Err(error) if is_absent(&error) && Instant::now() < deadline => {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            answer => return answer,
        }
    }
}

/// Whether no process runs there, or one that is ending; a killed process leaves its socket behind.
fn is_absent(error: &Error) -> bool {
    matches!(error.failure(), Failure::NotFound | Failure::Unreachable)
}

/// All processes of this host. One that does not answer is listed with the reason.
async fn everything(paths: &Paths) -> Result<Vec<Running>> {
    let names = paths.control_names();
    let looks = names.iter().map(async |name| match look(&paths.control_socket(name)).await? {
        Presence::Answers(said) => Ok(Some(Running::Answers { shown: status::read(&said), said })),
        Presence::Silent { pid, error } => {
            Ok(Some(Running::Silent(Silent { name: name.clone(), kind: (), pid, silence: error.to_string() })))
        }
        Presence::Absent => Ok::<_, Error>(None),
    });
    Ok(try_join_all(looks).await?.into_iter().flatten().collect())
}

/// The registry's entries of LUNs whose newest data may be on this host, and whose store no running
/// process has open.
fn left_dirty(paths: &Paths, running: &[Running]) -> Result<Vec<Entry>> {
    let mut left = Registry::open(paths)?.entries()?;
    left.retain(|entry| !running.iter().any(|running| running.may_have(entry)));
    // A stripe has an entry for each of its parts.
    left.dedup_by(|one, other| one.place() == other.place());
    Ok(left)
}

fn in_words(entry: &Entry, state: &str) -> String {
    let (what, place) = (entry.store.as_str(), entry.place());
    let argument = place.argument(what);
    if let Some(words) = entry.words_of_failure() {
        return format!("{state}: \"{}\", {}", entry.name, plain(&words));
    }
    let advice = if place.path.exists() {
        format!("attach it with --{what} {argument}")
    } else {
        format!("this is not there: bring it back, or give that data up with `forebay {what} discard {argument}`")
    };
    format!(
        "{state}: \"{}\", the newest data of {} may be in the {what} {place}: {advice}",
        entry.name,
        plain(&entry.identity().to_string()),
    )
}

fn print_table(all: &[Running]) {
    if all.is_empty() {
        print_line("nothing runs");
        return;
    }
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["NAME", "KIND", "ADDRESS", "STATE"]);
    for running in all {
        table.add_row(running.row());
    }
    print_line(&table.to_string());
}

/// How much is dirty, in few characters.
fn dirty(bytes: u64) -> String {
    if bytes == 0 { "clean".to_owned() } else { format!("{:#} dirty", ByteSize(bytes)) }
}

fn state(status: &Shown) -> String {
    let status = match status {
        Shown::Attachment(status) => status,
        Shown::Mount(status) => {
            return [&[overview::mount_in_a_word(status)][..], &status.troubles].concat().join(", ");
        }
        Shown::Daemon(status) => return daemon::in_a_word(status),
        Shown::Target(status) => {
            let count = status.server.sessions.len();
            let sessions = format!("{count} session{}", if count == 1 { "" } else { "s" });
            return [&[sessions][..], &status.troubles].concat().join(", ");
        }
    };
    let mut words: Vec<String> = status.remote.iter().map(|remote| remote.state.clone()).collect();
    words.extend(status.cache.as_ref().map(|cache| format!("{}, {}", cache.mode, dirty(cache.dirty_bytes))));
    words.extend(status.log.as_ref().map(|log| format!("log {}", dirty(log.dirty_bytes))));
    words.extend(status.detaching.as_ref().map(|detaching| match &detaching.waits_for {
        Some(target) => format!("being detached, waits for {target}"),
        None => "being detached".to_owned(),
    }));
    words.extend(status.troubles.iter().cloned());
    words.join(", ")
}
