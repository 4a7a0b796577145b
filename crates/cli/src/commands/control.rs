//! `detach`, `flush`, `clean`, `set`: commands to a running process, through its control socket.

use indicatif::ProgressBar;
use serde_json::Value;
use stack::control::{ControlRequest, call};
use stack::fronts;
use stack::paths::{Paths, check_name};
use stack::settings::setting::Setting;
use stack::settings::{Settings, find};
use stack::status::{self, Flushed, Left, Report, Shown};
use stack::{Error, Failure, Result};

use super::keeping;
use crate::arguments::{Clean, Detach, Flush, Set};
use crate::output::{plain, print_json, print_line, progress_bar};

/// `forebay detach`.
pub async fn detach(arguments: Detach) -> Result<()> {
    if arguments.forget && keeping::is_of_another(&arguments.name).await? {
        keeping::forget(&arguments.name).await?;
        let name = &arguments.name;
        print_line(&format!("{name}: what runs under this name is an attachment of another LUN, and goes on"));
        return Ok(());
    }
    match end(&arguments).await {
        // What has no process may still be the daemon's, and wait for its next start.
        Err(error) if error.failure() == Failure::NotFound => match arguments.forget {
            true => keeping::forget(&arguments.name).await,
            false => keeping::hold(&arguments.name, error).await,
        },
        Ok(()) if arguments.forget => keeping::forget(&arguments.name).await,
        ended => ended,
    }
}

/// Ends the process of an attachment, a mount or a target.
async fn end(arguments: &Detach) -> Result<()> {
    let request = ControlRequest::Detach { keep_dirty: arguments.keep_dirty, remove_cache: arguments.remove_cache };
    let left: Left = status::read(&call_with_progress(&arguments.name, &request).await?)?;
    let name = &arguments.name;
    if !left.in_use.is_empty() {
        let in_words = |used| plain(&fronts::in_words(used)).into_owned();
        let uses: Vec<String> = left.in_use.iter().map(in_words).collect();
        eprintln!(
            "{name}: it was still in use: {}; requests there fail from now on, and what was not written to it yet is \
             lost",
            uses.join(", ")
        );
    }
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

/// `forebay flush`.
pub async fn flush(arguments: Flush) -> Result<()> {
    let answer = call_with_progress(&arguments.name, &ControlRequest::Flush).await?;
    if arguments.json.json {
        print_json(&answer);
        return Ok(());
    }
    let Flushed { durable_in, dirty_bytes, .. } = status::read(&answer)?;
    let place = match durable_in.as_str() {
        "logical-unit" => "at its logical unit".to_owned(),
        "log" => "in its write log".to_owned(),
        other => format!("in its {}", plain(other)),
    };
    let dirty = match dirty_bytes {
        0 => String::new(),
        bytes => format!("; {bytes} bytes are dirty here, which `forebay clean {}` writes back", arguments.name),
    };
    print_line(&format!("{}: what was acknowledged is durable {place}{dirty}", arguments.name));
    Ok(())
}

/// `forebay clean`.
pub async fn clean(arguments: Clean) -> Result<()> {
    let left: Left = status::read(&call_with_progress(&arguments.name, &ControlRequest::Clean).await?)?;
    print_line(&format!("{}: {} bytes dirty", arguments.name, left.dirty_bytes.unwrap_or_default()));
    Ok(())
}

/// `forebay set`.
pub async fn set(arguments: Set) -> Result<()> {
    let settings = arguments.settings.iter().map(|setting| key_and_value(setting)).collect::<Result<Vec<_>>>()?;
    check_settings(&arguments.name, &settings).await?;
    for (key, value) in &settings {
        let request = ControlRequest::Set { key: (*key).to_owned(), value: (*value).to_owned() };
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

/// Refuses all settings when one of them is none, or has a value that it does not take, before any is changed.
async fn check_settings(name: &str, settings: &[(&str, &str)]) -> Result<()> {
    check_name(name)?;
    if settings.len() < 2 {
        // A single setting is checked by the process itself.
        return Ok(());
    }
    let status = call(&Paths::from_environment()?.control_socket(name), &ControlRequest::Status, |_| {}).await?;
    let status: Shown = status::read(&status)?;
    let is_known = |key: &str| match &status {
        Shown::Target(target) => target.settings.contains_key(key),
        Shown::Daemon(_) => false,
        Shown::Attachment(_) | Shown::Mount(_) => find(key).is_ok_and(Setting::is_live),
    };
    if let Some((key, _)) = settings.iter().find(|(key, _)| !is_known(key)) {
        let message = format!("\"{key}\" is no setting of \"{name}\": nothing was changed");
        return Err(Error::new(Failure::Usage, message));
    }
    if matches!(status, Shown::Attachment(_)) {
        for (key, value) in settings {
            Settings::of_running(key, value).map_err(|error| error.advise("; nothing was changed"))?;
        }
    }
    Ok(())
}

/// Sends `request` to the process `name`, and shows its progress.
///
/// # Errors
/// `NotFound` when nothing runs under that name; the error of the process itself.
pub async fn call_with_progress(name: &str, request: &ControlRequest) -> Result<Value> {
    check_name(name)?;
    let paths = Paths::from_environment()?;
    // A flush counts nothing, and a bar that stands at zero would say that it does.
    let (is_flush, bar) = match request {
        ControlRequest::Flush => (true, ProgressBar::hidden()),
        _ => (false, progress_bar(&format!("cleaning {name}"), 0)),
    };
    let mut said = None;
    // Who keeps what is dirty waits for a moment only, and has said all there is to say.
    let keeps_dirty = matches!(request, ControlRequest::Detach { keep_dirty: true, .. });
    let answer = call(&paths.control_socket(name), request, |report| match report {
        Report::Waits { pid: None, .. } if keeps_dirty => {}
        Report::Waits { waits_for, dirty_bytes, is_file_gone, pid } => {
            let now = Some((waits_for.clone(), *is_file_gone));
            if said != now {
                said = now;
                if is_flush {
                    eprintln!("{name}: {} is waited for", plain(waits_for));
                    return;
                }
                let advice = match (pid, is_file_gone) {
                    (Some(pid), _) => format!("`kill {pid}` ends it at once, without them"),
                    (None, false) => format!("`forebay detach {name} --keep-dirty` leaves them and ends it at once"),
                    (None, true) => "they cannot stay here, since the file that they are in was removed".to_owned(),
                };
                let target = plain(waits_for);
                bar.suspend(|| {
                    eprintln!("{name}: {dirty_bytes} bytes are dirty, and {target} is waited for; {advice}");
                });
            }
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
