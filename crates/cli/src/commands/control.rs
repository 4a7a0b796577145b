//! `detach`, `clean`, `set`: what the control socket of a running process does for them.

use serde_json::Value;
use stack::control::{Request, call};
use stack::paths::{Paths, check_name};
use stack::settings::find;
use stack::settings::table::Setting;
use stack::{Error, Failure, Result};

use crate::arguments::{Clean, Detach, Set};
use crate::output::{plain, print_line, progress_bar};

/// `forebay detach`.
pub async fn detach(arguments: Detach) -> Result<()> {
    let request = Request::Detach { keep_dirty: arguments.keep_dirty, remove_cache: arguments.remove_cache };
    let answer = call_with_progress(&arguments.name, &request).await?;
    let name = &arguments.name;
    print_line(&match answer["dirty_bytes"].as_u64() {
        None => format!("{name}: stopped"),
        Some(0) if answer["is_target_silent"] == true => {
            format!(
                "{name}: detached, without a word to its target, which does not answer; all that it acknowledged is durable"
            )
        }
        Some(0) => format!("{name}: detached"),
        Some(bytes) => format!("{name}: detached; {bytes} bytes stay dirty in its cache or write log"),
    });
    Ok(())
}

/// `forebay clean`.
pub async fn clean(arguments: Clean) -> Result<()> {
    let answer = call_with_progress(&arguments.name, &Request::Clean).await?;
    print_line(&format!("{}: {} bytes dirty", arguments.name, answer["dirty_bytes"]));
    Ok(())
}

/// `forebay set`.
pub async fn set(arguments: Set) -> Result<()> {
    let settings = arguments.settings.iter().map(|setting| key_and_value(setting)).collect::<Result<Vec<_>>>()?;
    check_keys(&arguments.name, &settings).await?;
    for (key, value) in &settings {
        let request = Request::Set { key: (*key).to_owned(), value: (*value).to_owned() };
        call_with_progress(&arguments.name, &request).await?;
        print_line(&format!("{}: {key}={value}", arguments.name));
    }
    Ok(())
}

/// The two sides of `KEY=VALUE`.
///
/// # Errors
/// `Usage` when it has only one.
pub(super) fn key_and_value(setting: &str) -> Result<(&str, &str)> {
    setting.split_once('=').ok_or_else(|| Error::new(Failure::Usage, format!("\"{setting}\" is no KEY=VALUE")))
}

/// Refuses all settings when one of them is none, before any is changed.
async fn check_keys(name: &str, settings: &[(&str, &str)]) -> Result<()> {
    check_name(name)?;
    if settings.len() < 2 {
        // What there is to say of one says the process.
        return Ok(());
    }
    let status = call(&Paths::from_environment()?.control_socket(name), &Request::Status, |_| {}).await?;
    let is_known = |key: &str| match status["settings"].as_object() {
        Some(of_target) if status["kind"] == "target" => of_target.contains_key(key),
        _ => find(key).is_ok_and(Setting::is_live),
    };
    match settings.iter().find(|(key, _)| !is_known(key)) {
        None => Ok(()),
        Some((key, _)) => {
            Err(Error::new(Failure::Usage, format!("\"{key}\" is no setting of \"{name}\": nothing was changed")))
        }
    }
}

/// Asks the process `name`, showing how far it has come.
///
/// # Errors
/// `NotFound` when nothing runs under that name; the process's own error.
pub async fn call_with_progress(name: &str, request: &Request) -> Result<Value> {
    check_name(name)?;
    let paths = Paths::from_environment()?;
    let bar = progress_bar(&format!("cleaning {name}"), 0);
    let mut waited_for = String::new();
    // Who keeps what is dirty waits for a moment only, and has said all there is to say.
    let keeps_dirty = matches!(request, Request::Detach { keep_dirty: true, .. });
    let answer = call(&paths.control_socket(name), request, |report| {
        if let Some(target) = report["waits_for"].as_str().filter(|target| !keeps_dirty && **target != *waited_for) {
            waited_for = target.to_owned();
            bar.suspend(|| {
                eprintln!(
                    "{name}: {} bytes are dirty, and {} is waited for; `forebay detach {name} --keep-dirty` leaves them and ends it at once",
                    report["dirty_bytes"],
                    plain(target)
                );
            });
        }
        if let (Some(done), Some(total)) = (report["lines_done"].as_u64(), report["lines_total"].as_u64()) {
            bar.set_length(total);
            bar.set_position(done);
        }
    })
    .await;
    bar.finish_and_clear();
    answer
}
