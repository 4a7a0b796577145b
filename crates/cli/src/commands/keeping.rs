//! What `attach --persist` and `detach` do with the files of the daemon's attachments.

use std::path::PathBuf;
use std::time::Duration;

use daemon::end::failure;
use daemon::end_note::EndNotes;
use daemon::files::{file_of, read_directory};
use daemon::persist;
use daemon::sameness::{differences, other_units};
use serde_json::Value;
use stack::attach::AttachConfig;
use stack::control::{ControlRequest, Presence, call, look};
use stack::paths::{Paths, check_name, configuration_directory};
use stack::settings::Settings;
use stack::status;
use stack::status::daemon::{DaemonStatus, FilesRead, KeptStatus};
use stack::{Error, Failure, Result};

use super::daemon::socket;
use super::signal;
use crate::output::print_line;

/// Pause between two looks at an attachment that starts: short for a person.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The daemon of this host, if one runs.
///
/// # Errors
/// When it stands still.
async fn running_daemon(paths: &Paths) -> Result<Option<DaemonStatus>> {
    match look(&socket(paths)).await? {
        Presence::Absent => Ok(None),
        Presence::Silent { error, .. } => Err(error),
        Presence::Answers(said) => status::read(&said).map(Some),
    }
}

/// The directory of the files.
fn directory_of(daemon: Option<&DaemonStatus>) -> Result<PathBuf> {
    daemon.map_or_else(configuration_directory, |daemon| Ok(daemon.directory.clone()))
}

async fn ask(paths: &Paths, request: &ControlRequest) -> Result<Value> {
    call(&socket(paths), request, |_| {}).await
}

/// `forebay attach --persist`: writes the file, and has the daemon attach it, if one runs. What is
/// refused for good is not kept.
///
/// # Errors
/// `InUse` for a name under which something else runs.
pub(super) async fn persist(urls: &str, settings: &Settings, paths: &Paths) -> Result<()> {
    // From here on a signal ends the waiting alone: it leaves no file half written, and none of which no daemon knows.
    let signal = signal::termination()?;
    let daemon = running_daemon(paths).await?;
    check_name_is_its(urls, settings, paths).await?;
    let (file, name) = persist::write(&directory_of(daemon.as_ref())?, urls, settings, paths)?;
    // Another attachment had this name, and was detached.
    EndNotes::open(paths)?.remove(&name);
    if daemon.is_none() {
        print_line(&format!("{name}: kept in {}; a daemon attaches it, and none runs now", file.display()));
        return Ok(());
    }
    let read: FilesRead = status::read(&ask(paths, &ControlRequest::Reload).await?)?;
    if let Some(refused) = read.files_refused.into_iter().find(|refused| refused.file == file) {
        persist::remove(&file)?;
        return Err(Error::new(Failure::Usage, refused.why));
    }
    let kept = tokio::select! {
        kept = until_settled(&name, paths) => kept?,
        () = signal => {
            let message = format!("ended by a signal; {name} is kept in {}, and starts", file.display());
            return Err(Error::new(Failure::Other, message));
        }
    };
    let why = kept.why.clone().unwrap_or_default();
    match kept.state.as_str() {
        "running" => {
            let said = ask_attachment(&name, paths).await?;
            let addresses = said["address"].as_str().unwrap_or_default();
            addresses.split(' ').for_each(|address| print_line(&format!("ready: {address}")));
        }
        "failed" => {
            persist::remove(&file)?;
            ask(paths, &ControlRequest::Reload).await?;
            let failure = kept.exit_code.and_then(failure).unwrap_or(Failure::Other);
            return Err(Error::new(failure, why).advise("; nothing is kept of it"));
        }
        state => print_line(&format!("{name}: kept in {}, and {state}: {why}", file.display())),
    }
    Ok(())
}

/// # Errors
/// `InUse` when something runs under the name of the attachment that was started with something else: the daemon would
/// take the one for the other.
async fn check_name_is_its(urls: &str, settings: &Settings, paths: &Paths) -> Result<()> {
    let config = AttachConfig::of(urls, settings.clone(), paths)?.stack;
    check_name(&config.name)?;
    let status = match look(&paths.control_socket(&config.name)).await? {
        Presence::Absent => return Ok(()),
        Presence::Silent { error, .. } => return Err(error),
        Presence::Answers(status) => status,
    };
    let with = match differences(&config.start_status(), &status) {
        Some(keys) if keys.is_empty() => return Ok(()),
        Some(keys) => format!(", with another {}", keys.join(", ")),
        None => String::new(),
    };
    let name = &config.name;
    let message =
        format!("\"{name}\" is running already{with}: choose another --name, or `forebay detach {name}` first");
    Err(Error::new(Failure::InUse, message))
}

async fn ask_attachment(name: &str, paths: &Paths) -> Result<Value> {
    call(&paths.control_socket(name), &ControlRequest::Status, |_| {}).await
}

/// The attachment, once it serves or has ended.
async fn until_settled(name: &str, paths: &Paths) -> Result<KeptStatus> {
    loop {
        let daemon: DaemonStatus = status::read(&ask(paths, &ControlRequest::Status).await?)?;
        let kept = daemon.attachments.into_iter().find(|kept| kept.name == name);
        let gone = || Error::new(Failure::NotFound, format!("the file of \"{name}\" was removed meanwhile"));
        match kept.ok_or_else(gone)? {
            // It was detached before somebody wanted it again.
            kept if kept.state == "detached" => {
                ask(paths, &ControlRequest::Start { attachment: name.to_owned() }).await?;
            }
            kept if kept.state != "starting" => return Ok(kept),
            _ => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}

/// Whether an attachment of another logical unit runs under `name` than that of the file of `name`: it is not what
/// is to be forgotten.
///
/// # Errors
/// `NotFound` when something runs under `name`, and no file is of it; when that cannot be told.
pub(super) async fn is_of_another(name: &str) -> Result<bool> {
    check_name(name)?;
    let paths = Paths::from_environment()?;
    let Presence::Answers(status) = look(&paths.control_socket(name)).await? else { return Ok(false) };
    let daemon = running_daemon(&paths).await?;
    if let Some(kept) = daemon.iter().flat_map(|daemon| &daemon.attachments).find(|kept| kept.name == name) {
        return Ok(kept.state == "taken");
    }
    let directory = directory_of(daemon.as_ref())?;
    // What has no file is not to be forgotten, and not ended by that.
    let advice = format!("; \"{name}\" runs, and goes on: `forebay detach {name}` ends it");
    file_of(&directory, &paths, name).map_err(|error| error.advise(&advice))?;
    let seen = read_directory(&directory, &paths, |_| None)?;
    let file = seen.files.into_iter().find(|file| file.name == name);
    Ok(file.is_some_and(|file| other_units(&file.start, &status).is_some()))
}

/// `forebay detach --forget` of what has no process: its file is removed, and the daemon told.
pub(super) async fn forget(name: &str) -> Result<()> {
    // From here on a signal does not end this between the two.
    let _signal = signal::termination()?;
    let paths = Paths::from_environment()?;
    let daemon = running_daemon(&paths).await?;
    let kept = daemon.as_ref().and_then(|daemon| daemon.attachments.iter().find(|kept| kept.name == name));
    let file = match kept {
        Some(kept) => kept.file.clone(),
        None => file_of(&directory_of(daemon.as_ref())?, &paths, name)?,
    };
    persist::remove(&file)?;
    match daemon {
        Some(_) => drop(ask(&paths, &ControlRequest::Reload).await?),
        // Another attachment that gets this name is none that was detached.
        None => EndNotes::open(&paths)?.remove(name),
    }
    print_line(&format!("{name}: forgotten; {} is removed", file.display()));
    Ok(())
}

/// `forebay detach` of what has no process: the daemon, if it keeps it, does not start it any more.
///
/// # Errors
/// `absent` when no daemon keeps it.
pub(super) async fn hold(name: &str, absent: Error) -> Result<()> {
    let request = ControlRequest::Hold { attachment: name.to_owned() };
    match ask(&Paths::from_environment()?, &request).await {
        Ok(_) => {
            print_line(&format!("{name}: it was not attached, and `forebay daemon start {name}` alone starts it now"));
            Ok(())
        }
        Err(error) if error.failure() == Failure::InUse => Err(error),
        Err(_) => Err(absent),
    }
}
