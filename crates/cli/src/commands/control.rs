//! `detach`, `clean`, `set`: what the control socket of a running process does for them.

use serde_json::Value;
use stack::control::{Request, call};
use stack::paths::{Paths, check_name};
use stack::settings::find;
use stack::settings::table::Setting;
use stack::status::{self, Left, Report, Shown};
use stack::{Error, Failure, Result};

use crate::arguments::{Clean, Detach, Set};
use crate::output::{plain, print_line, progress_bar};

/// `forebay detach`.
pub async fn detach(arguments: Detach) -> Result<()> {
    let request = Request::Detach { keep_dirty: arguments.keep_dirty, remove_cache: arguments.remove_cache };
    let left: Left = status::read(&call_with_progress(&arguments.name, &request).await?)?;
    let name = &arguments.name;
    print_line(&match left.dirty_bytes {
        None => format!("{name}: stopped"),
        Some(0) if left.is_target_silent == Some(true) => {
            format!(
                "{name}: detached, without a word to its target, which does not answer; all that it acknowledged is \
                 durable"
            )
        }
        Some(0) => format!("{name}: detached"),
        Some(bytes) => format!("{name}: detached; {bytes} bytes stay dirty in its cache or write log"),
    });
    Ok(())
}

/// `forebay clean`.
pub async fn clean(arguments: Clean) -> Result<()> {
    let left: Left = status::read(&call_with_progress(&arguments.name, &Request::Clean).await?)?;
    print_line(&format!("{}: {} bytes dirty", arguments.name, left.dirty_bytes.unwrap_or_default()));
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
    let status: Shown = status::read(&status)?;
    let is_known = |key: &str| match &status {
        Shown::Target(target) => target.settings.contains_key(key),
        Shown::Attachment(_) | Shown::Mount(_) => find(key).is_ok_and(Setting::is_live),
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
    let answer = call(&paths.control_socket(name), request, |report| match report {
        Report::Waits { pid: None, .. } if keeps_dirty => {}
        Report::Waits { waits_for, .. } if *waits_for == waited_for => {}
        Report::Waits { waits_for, dirty_bytes, pid } => {
            waited_for.clone_from(waits_for);
            let target = plain(waits_for);
            let advice = match pid {
                None => format!("`forebay detach {name} --keep-dirty` leaves them and ends it at once"),
                Some(pid) => format!("`kill {pid}` ends it at once, without them"),
            };
            bar.suspend(|| eprintln!("{name}: {dirty_bytes} bytes are dirty, and {target} is waited for; {advice}"));
        }
        Report::Cleaned { lines_done, lines_total } => {
            bar.set_length(*lines_total);
            bar.set_position(*lines_done);
        }
        Report::Destaged { bytes_done, bytes_total } => {
            bar.set_length(*bytes_total);
            bar.set_position(*bytes_done);
        }
    })
    .await;
    bar.finish_and_clear();
    answer
}
