//! `status`: what runs on this host.

use std::path::Path;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use stack::control::{Presence, Request, call, look};
use stack::paths::{Paths, check_name};
use stack::registry::{Entry, Registry};
use stack::{Error, Failure, Result};

use super::{overview, target};
use crate::arguments::Status;
use crate::output::{plain, print_json, print_line};

/// `forebay status`.
pub async fn run(arguments: Status) -> Result<()> {
    let paths = Paths::from_environment()?;
    match arguments.name {
        Some(name) => {
            check_name(&name)?;
            let status = one(&paths, &name, arguments.wait.unwrap_or_default()).await?;
            match status["kind"].as_str() {
                _ if arguments.json.json => print_json(&status),
                Some("target") => target::print_status(&status),
                Some("mount") => overview::mount_lines(&status).iter().for_each(|line| print_line(line)),
                _ => overview::lines(&status).iter().for_each(|line| print_line(line)),
            }
        }
        None => {
            let all = everything(&paths).await?;
            let dirty = left_dirty(&paths, &all)?;
            if arguments.json.json {
                print_json(&json!({ "running": all, "dirty": dirty }));
            } else {
                print_table(&all);
                dirty.iter().for_each(|entry| print_line(&in_words(entry)));
            }
        }
    }
    Ok(())
}

/// Pause between looks at something that does not run yet: short for a person, rare for a processor.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The state of `name`, once it answers: who ends without an answer may have a successor.
async fn one(paths: &Paths, name: &str, wait: Duration) -> Result<Value> {
    let deadline = Instant::now() + wait;
    loop {
        let answer = call(&paths.control_socket(name), &Request::Status, |_| {}).await;
        match answer {
            Err(error) if is_absent(&error) && Instant::now() < deadline => {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            answer => return answer,
        }
    }
}

/// Whether nothing runs there, or what did is ending; a killed process leaves its socket behind.
fn is_absent(error: &Error) -> bool {
    matches!(error.failure(), Failure::NotFound | Failure::Unreachable)
}

/// All that runs; what does not answer with why, whatever the others say.
async fn everything(paths: &Paths) -> Result<Vec<Value>> {
    let names = paths.control_names();
    let looks = names.iter().map(async |name| match look(&paths.control_socket(name)).await? {
        Presence::Answers(status) => Ok(Some(status)),
        Presence::Silent { pid, error } => {
            Ok(Some(json!({ "name": name, "kind": null, "pid": pid, "silence": error.to_string() })))
        }
        Presence::Absent => Ok::<_, Error>(None),
    });
    Ok(try_join_all(looks).await?.into_iter().flatten().collect())
}

/// What the registry says of LUNs whose newest data may be here, and that nothing which runs has open.
fn left_dirty(paths: &Paths, running: &[Value]) -> Result<Vec<Entry>> {
    let is_open = |entry: &Entry| {
        running.iter().any(|status| {
            let is_at = |path: &str, offset: &str| {
                status[path].as_str().map(Path::new) == Some(&entry.cache) && status[offset].as_u64() == entry.offset
            };
            // One that does not answer may have it, and one that waits for its target will.
            let may_have = status["silence"].is_string() || status["lun"].is_null();
            (may_have && status["name"] == *entry.name)
                || is_at("cache_path", "cache_offset")
                || is_at("log_path", "log_offset")
        })
    };
    let mut left = Registry::open(paths)?.entries()?;
    left.retain(|entry| !is_open(entry));
    // A stripe has an entry for each of its parts.
    left.dedup_by(|one, other| one.place() == other.place());
    Ok(left)
}

fn in_words(entry: &Entry) -> String {
    let (what, place) = (entry.store.as_str(), entry.place());
    let state = if place.path.exists() { "" } else { ", which is not there" };
    format!(
        "not attached: \"{}\", the newest data of {} may be in the {what} {place}{state}: attach it with --{what} {}",
        entry.name,
        plain(&entry.identity().to_string()),
        place.argument(what)
    )
}

fn print_table(all: &[Value]) {
    if all.is_empty() {
        print_line("nothing runs");
        return;
    }
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["NAME", "KIND", "ADDRESS", "STATE"]);
    for status in all {
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        table.add_row([text("name"), text("kind"), text("address"), state(status)]);
    }
    print_line(&table.to_string());
}

fn state(status: &Value) -> String {
    if let Some(silence) = status["silence"].as_str() {
        return silence.to_owned();
    }
    if status["kind"] == "mount" {
        return overview::mount_in_a_word(status);
    }
    let Some(remote) = status["remote"]["state"].as_str() else {
        return format!("{} sessions", status["sessions"].as_array().map_or(0, Vec::len));
    };
    let (cache, log) = (&status["cache"], &status["log"]);
    let mut words = vec![remote.to_owned()];
    if let (Some(mode), Some(dirty)) = (cache["mode"].as_str(), cache["dirty_bytes"].as_u64()) {
        words.push(format!("{mode}, {dirty} bytes dirty"));
    }
    if let Some(dirty) = log["dirty_bytes"].as_u64() {
        words.push(format!("{dirty} bytes dirty in the log"));
    }
    match &status["detaching"] {
        Value::Null => {}
        detaching => words.push(match detaching["waits_for"].as_str() {
            Some(target) => format!("being detached, waits for {target}"),
            None => "being detached".to_owned(),
        }),
    }
    words.extend(status["troubles"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    words.join(", ")
}
