//! `daemon`: keeps the attachments of a directory of files, in the foreground; and commands to it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use daemon::NAME;
use daemon::config::DaemonConfig;
use daemon::daemon::Daemon as Running;
use stack::control::{ControlRequest, call};
use stack::paths::{Paths, configuration_directory};
use stack::status;
use stack::status::daemon::{DaemonStatus, FileChange, FilesRead, KeptStatus};
use stack::{Error, Result};

use super::signal;
use crate::arguments::{Daemon, DaemonCommand, DaemonStart, Json};
use crate::output::{plain, print_json, print_line, time_since};

/// `forebay daemon`.
pub async fn run(arguments: Daemon) -> Result<()> {
    match arguments.command {
        None => serve(arguments).await,
        Some(DaemonCommand::Reload(json)) => reload(json).await,
        Some(DaemonCommand::Start(arguments)) => start(arguments).await,
    }
}

async fn serve(arguments: Daemon) -> Result<()> {
    let paths = Paths::from_environment()?;
    let signal = signal::termination()?;
    let daemon = Running::start(config(arguments)?, &paths).await?;
    let again = async || match signal::termination() {
        Ok(signal) => signal.await,
        // It still ends when its attachments have.
        Err(_) => std::future::pending().await,
    };
    daemon.run(signal, again, |directory| print_line(&format!("ready: {}", directory.display()))).await
}

fn config(arguments: Daemon) -> Result<DaemonConfig> {
    let directory = match arguments.directory {
        Some(directory) => std::path::absolute(&directory).map_err(|error| Error::io(directory.display(), &error))?,
        None => configuration_directory()?,
    };
    let program = std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
    Ok(DaemonConfig {
        directory,
        stops_attachments: arguments.stop_attachments,
        program,
        arguments: logging(arguments.verbose, &arguments.log_format),
    })
}

/// The options by which an attachment logs as the daemon does.
fn logging(verbose: u8, format: &impl ValueEnum) -> Vec<OsString> {
    let format = format.to_possible_value().map(|value| format!("--log-format={}", value.get_name()));
    let verbose = std::iter::repeat_n("-v".to_owned(), verbose.into());
    format.into_iter().chain(verbose).map(OsString::from).collect()
}

/// The control socket of the daemon.
pub(super) fn socket(paths: &Paths) -> PathBuf {
    paths.control_socket(NAME)
}

async fn reload(json: Json) -> Result<()> {
    let answer = call(&socket(&Paths::from_environment()?), &ControlRequest::Reload, |_| {}).await?;
    if json.json {
        print_json(&answer);
        return Ok(());
    }
    let FilesRead { directory, added, removed, changed, files_refused } = status::read(&answer)?;
    print_line(&format!(
        "{}: {} attachments added, {} removed, {} changed",
        directory.display(),
        added.len(),
        removed.len(),
        changed.len()
    ));
    added.iter().for_each(|name| print_line(&format!("{name}: added")));
    removed.iter().for_each(|name| print_line(&format!("{name}: removed, is being detached")));
    changed.iter().for_each(|change| print_line(&format!("{}: {}", change.name, of_change(change))));
    files_refused.iter().for_each(|refused| print_line(&format!("wrong: {}", plain(&refused.why))));
    Ok(())
}

fn of_change(FileChange { set, needs_start, refused, .. }: &FileChange) -> String {
    let list = |what: &str, entries: &[String]| {
        (!entries.is_empty()).then(|| format!("{what} {}", plain(&entries.join(", "))))
    };
    let parts = [list("set", set), list("at its next start", needs_start), list("refused", refused)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "counts at its next start".to_owned() } else { parts.join("; ") }
}

async fn start(arguments: DaemonStart) -> Result<()> {
    let request = ControlRequest::Start { attachment: arguments.name.clone() };
    let answer = call(&socket(&Paths::from_environment()?), &request, |_| {}).await?;
    if arguments.json.json {
        print_json(&answer);
        return Ok(());
    }
    print_line(&format!("{}: {}", arguments.name, in_words(&status::read(&answer)?)));
    Ok(())
}

/// The state of the daemon for a person.
pub(super) fn lines(status: &DaemonStatus) -> Vec<String> {
    let own = format!("process {}, keeps the attachments of {}", status.pid, status.directory.display());
    let rows = std::iter::once((NAME.to_owned(), own));
    let rows = rows.chain(status.attachments.iter().map(|kept| (kept.name.clone(), in_words(kept))));
    let rows = rows.chain(status.files_refused.iter().map(|refused| ("wrong".to_owned(), refused.why.clone())));
    rows.map(|(name, words)| format!("{name:<15} {}", plain(&words))).collect()
}

/// Counts of attachments by their states.
pub(super) fn in_a_word(status: &DaemonStatus) -> String {
    let count = |state: &str| status.attachments.iter().filter(|kept| kept.state == state).count();
    let states = ["running", "starting", "waiting", "failed", "taken", "detached", "detaching"];
    let counts = states.iter().map(|state| (count(state), (*state).to_owned()));
    let wrong = (status.files_refused.len(), "files wrong".to_owned());
    let words: Vec<String> =
        counts.chain([wrong]).filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if words.is_empty() { "no attachments".to_owned() } else { words.join(", ") }
}

fn in_words(kept: &KeptStatus) -> String {
    let why = kept.why.as_deref().unwrap_or_default();
    let wait = kept.wait_ms.unwrap_or_default().div_ceil(1000);
    let mut words = match kept.state.as_str() {
        "waiting" if kept.wait_ms.is_none() => format!("waiting: {why}"),
        "waiting" => format!("waiting, starts again in {wait} s: {why}"),
        "failed" => format!("failed for good: {why}; mend it, or `forebay daemon start {}` to try again", kept.name),
        "taken" => format!(
            "its name is taken: {why}; `forebay detach {0}` ends that one, and this is attached then, or give this \
             another name",
            kept.name
        ),
        "detached" => format!("detached; `forebay daemon start {}` attaches it again", kept.name),
        "detaching" if kept.wait_ms.is_some() => format!("detaching, tries again in {wait} s: {why}"),
        state => format!("{state} for {}", time_since(kept.since)),
    };
    if let Some(pid) = kept.pid {
        words += &format!(", process {pid}");
    }
    if kept.restarts > 0 {
        words += &format!(", restarts: {}", kept.restarts);
    }
    if kept.state == "running" && !why.is_empty() {
        words += &format!(", the last after: {why}");
    }
    if !kept.not_set.is_empty() {
        words += &format!("; not set yet, and tried again: {}", kept.not_set.join(", "));
    }
    if !kept.needs_start.is_empty() {
        words += &format!("; at its next start: {}", kept.needs_start.join(", "));
    }
    words
}

#[cfg(test)]
mod tests {
    use stack::status::daemon::FileRefused;
    use stack::time::seconds_since_1970;

    use super::*;
    use crate::arguments::LogFormat;

    #[test]
    fn each_is_said_with_what_to_do() {
        let kept = |name: &str, state: &str, why: Option<&str>| KeptStatus {
            name: name.into(),
            state: state.into(),
            why: why.map(str::to_owned),
            since: seconds_since_1970() - 90,
            ..KeptStatus::default()
        };
        let killed = Some("signal 9 ended its process");
        let status = DaemonStatus {
            name: NAME.into(),
            pid: 7,
            directory: "/etc/forebay".into(),
            attachments: vec![
                KeptStatus {
                    pid: Some(8),
                    restarts: 2,
                    needs_start: vec!["url".into()],
                    ..kept("a", "running", killed)
                },
                KeptStatus { wait_ms: Some(7001), ..kept("b", "waiting", killed) },
                kept("c", "failed", Some("\u{1b}")),
                kept("t", "taken", Some("an attachment of another runs under its name")),
                KeptStatus {
                    pid: Some(9),
                    not_set: vec!["cache.mode=write-through: it is not there yet".into()],
                    ..kept("u", "running", None)
                },
                kept("d", "detached", None),
            ],
            files_refused: vec![FileRefused { file: "e.toml".into(), why: "e.toml, line 3: x".into() }],
        };
        let expected = [
            "daemon          process 7, keeps the attachments of /etc/forebay",
            "a               running for 1 min 30 s, process 8, restarts: 2, the last after: signal 9 ended its \
             process; at its next start: url",
            "b               waiting, starts again in 8 s: signal 9 ended its process",
            "c               failed for good: \\u{1b}; mend it, or `forebay daemon start c` to try again",
            "t               its name is taken: an attachment of another runs under its name; `forebay detach t` ends \
             that one, and this is attached then, or give this another name",
            "u               running for 1 min 30 s, process 9; not set yet, and tried again: \
             cache.mode=write-through: it is not there yet",
            "d               detached; `forebay daemon start d` attaches it again",
            "wrong           e.toml, line 3: x",
        ];
        assert_eq!(lines(&status), expected);
        assert_eq!(in_a_word(&status), "2 running, 1 waiting, 1 failed, 1 taken, 1 detached, 1 files wrong");
        assert_eq!(in_a_word(&DaemonStatus::default()), "no attachments");
        let change = FileChange { set: vec!["a=1".into()], needs_start: vec!["url".into()], ..FileChange::default() };
        assert_eq!(of_change(&change), "set a=1; at its next start url");
    }

    #[test]
    fn an_attachment_logs_as_the_daemon_does() {
        assert_eq!(logging(2, &LogFormat::Json), ["--log-format=json", "-v", "-v"]);
    }
}
