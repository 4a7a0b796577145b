//! `status`: what runs on this host.

use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};
use stack::control::{Request, call};
use stack::paths::{Paths, check_name};
use stack::{Error, Failure, Result};

use crate::arguments::Status;
use crate::output::{print_json, print_line};

/// `forebay status`.
pub async fn run(arguments: Status) -> Result<()> {
    let paths = Paths::from_environment()?;
    match arguments.name {
        Some(name) => {
            check_name(&name)?;
            print_json(&one(&paths, &name, arguments.wait.unwrap_or_default()).await?);
        }
        None => {
            let all = everything(&paths).await?;
            if arguments.json.json { print_json(&json!({ "running": all })) } else { print_table(&all) }
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

async fn everything(paths: &Paths) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for name in paths.control_names() {
        match call(&paths.control_socket(&name), &Request::Status, |_| {}).await {
            Ok(status) => all.push(status),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
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
    if log["failure"].is_string() {
        words.push("the log has failed".to_owned());
    }
    words.join(", ")
}
