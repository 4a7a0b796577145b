//! `locks`: the clients that share a logical unit, the locks they hold and wait for; and the
//! fencing of one.

use std::sync::Arc;

use base::clock::Clock;
use initiator::RemoteLun;
use scsi::sharing::report::ReportRecord;
use scsi::sharing::{Lock, Mode, Report, Resource};
use serde_json::{Value, json};
use stack::remote::{RemoteConfig, client_name};
use stack::time::system_clock;
use stack::{Error, Failure, Result};

use crate::arguments::{Locks, LocksCommand};
use crate::output::{print_json, print_line};
use crate::settings_arguments::{Given, LoginOptions, settings};

/// `forebay locks`.
pub async fn run(arguments: Locks) -> Result<()> {
    match (arguments.command, arguments.url) {
        (Some(LocksCommand::Fence { client, url, login }), _) => fence(&client, &url, &login).await,
        (None, Some(url)) => show(&url, &arguments.login, arguments.json.json).await,
        (None, None) => Err(Error::new(Failure::Usage, "there is no URL of a logical unit to ask")),
    }
}

async fn connect(url: &str, login: &Given<LoginOptions>) -> Result<Arc<RemoteLun>> {
    let clock: Arc<dyn Clock> = system_clock()?;
    let settings = settings(login, &Given::default())?;
    RemoteConfig { is_shared: true, ..RemoteConfig::of(url, &settings)? }.connect(&clock).await
}

async fn show(url: &str, login: &Given<LoginOptions>, as_json: bool) -> Result<()> {
    let remote = connect(url, login).await?;
    let report = remote.sharing_report().await;
    let own = remote.status().sharing.and_then(|sharing| sharing.client);
    remote.close().await?;
    // The session of this command is a client too; it is left out.
    let records: Vec<ReportRecord> = report?.into_iter().filter(|record| Some(client_of(record)) != own).collect();
    let names = Report::names(&records);
    let names_of = |record: &ReportRecord| {
        let client = client_of(record);
        names.iter().filter(|(of, _)| *of == client).map(|(_, name)| name.clone()).collect::<Vec<String>>()
    };
    if as_json {
        print_json(&Value::Array(records.iter().filter_map(|record| to_json(record, &names_of(record))).collect()));
    } else if records.is_empty() {
        print_line("nobody shares this logical unit");
    } else {
        records.iter().filter_map(|record| in_words(record, &names_of(record))).for_each(|line| print_line(&line));
    }
    Ok(())
}

async fn fence(client: &str, url: &str, login: &Given<LoginOptions>) -> Result<()> {
    let number = parse_client(client).ok_or_else(|| {
        Error::new(Failure::Usage, format!("\"{client}\" is no client: \"forebay locks URL\" lists them, like 3.12"))
    })?;
    let remote = connect(url, login).await?;
    let fenced = remote.fence_client(number).await;
    remote.close().await?;
    fenced?;
    print_line(&format!(
        "{client}: fenced; nothing that it sends has any effect any more, and what it holds passes on when its lease \
         is over"
    ));
    Ok(())
}

/// Parses a client id as it is printed: the target's start, a dot, and the registration in it.
fn parse_client(text: &str) -> Option<u64> {
    let (start, registration) = text.split_once('.')?;
    let (start, registration) = (start.parse::<u32>().ok()?, registration.parse::<u32>().ok()?);
    Some(u64::from(start) << 32 | u64::from(registration))
}

fn client_of(record: &ReportRecord) -> u64 {
    match *record {
        ReportRecord::Client { client, .. }
        | ReportRecord::Grant { client, .. }
        | ReportRecord::Waiting { client, .. }
        | ReportRecord::Callback { client, .. }
        | ReportRecord::Fenced { client }
        | ReportRecord::Name { client, .. } => client,
    }
}

/// `initiators` are the names of the client's initiator ports. `None` for a record that only
/// carries such a name.
fn to_json(record: &ReportRecord, initiators: &[String]) -> Option<Value> {
    let name = client_name(client_of(record));
    Some(match record {
        ReportRecord::Client { lease_left_ms, .. } if record.is_of_before() => json!({
            "kind": "clients_before", "reclaim_left_ms": lease_left_ms,
        }),
        ReportRecord::Client { is_being_fenced, lease_left_ms, registrations, untaken, .. } => json!({
            "kind": "client", "client": name, "initiators": initiators, "is_being_fenced": is_being_fenced,
            "lease_left_ms": lease_left_ms, "registrations": registrations, "untaken": untaken,
        }),
        ReportRecord::Grant { transaction, lock, .. } => json!({
            "kind": "grant", "client": name, "transaction": transaction, "resource": resource(lock), "mode": mode(lock),
        }),
        ReportRecord::Waiting { request, lock, .. } => json!({
            "kind": "waiting", "client": name, "request": request, "resource": resource(lock), "mode": mode(lock),
        }),
        ReportRecord::Callback { callback, deadline_left_ms, .. } => json!({
            "kind": "callback", "client": name, "callback": callback, "deadline_left_ms": deadline_left_ms,
        }),
        ReportRecord::Fenced { .. } => json!({ "kind": "fenced", "client": name, "initiators": initiators }),
        ReportRecord::Name { .. } => return None,
    })
}

/// As [`to_json`].
fn in_words(record: &ReportRecord, initiators: &[String]) -> Option<String> {
    let name = client_name(client_of(record));
    let from = match initiators {
        [] => String::new(),
        some => format!(" ({})", some.join(" ")),
    };
    Some(match record {
        ReportRecord::Client { lease_left_ms, .. } if record.is_of_before() => {
            format!(
                "clients of before the target's start may come back; those that do within {lease_left_ms} ms claim \
                 back what they held"
            )
        }
        ReportRecord::Client { is_being_fenced, lease_left_ms, registrations, untaken, .. } => {
            let state = if *is_being_fenced { "is being fenced" } else { "lives" };
            format!(
                "client {name}{from} {state}: lease {lease_left_ms} ms, copies in {registrations} ranges, {untaken} \
                 messages not taken"
            )
        }
        ReportRecord::Grant { transaction: 0, lock, .. } => {
            format!("client {name} holds {} in {}", resource(lock), mode(lock))
        }
        ReportRecord::Grant { transaction, lock, .. } => {
            format!("client {name} holds {} in {} for transaction {transaction}", resource(lock), mode(lock))
        }
        ReportRecord::Waiting { lock, .. } => format!("client {name} waits for {} in {}", resource(lock), mode(lock)),
        ReportRecord::Callback { deadline_left_ms, .. } => {
            format!("client {name} is asked for something and has {deadline_left_ms} ms to answer")
        }
        ReportRecord::Fenced { .. } => format!("client {name}{from} was fenced"),
        ReportRecord::Name { .. } => return None,
    })
}

fn resource(lock: &Lock) -> String {
    match lock.resource {
        Resource::Metadata(block) => format!("metadata block {block}"),
        Resource::File(0) => "the logical unit".to_owned(),
        Resource::File(file) => format!("file {file}"),
        Resource::Group(0, group) => format!("group {group} of the logical unit"),
        Resource::Group(file, group) => format!("group {group} of file {file}"),
    }
}

fn mode(lock: &Lock) -> &'static str {
    match lock.mode {
        Some(Mode::MetadataShared) => "M_S",
        Some(Mode::MetadataExclusive) => "M_X",
        Some(Mode::IntentionShared) => "D_IS",
        Some(Mode::IntentionExclusive) => "D_IX",
        Some(Mode::Shared) => "D_S",
        Some(Mode::Exclusive) => "D_X",
        None => "nothing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_with_the_names_of_their_initiators() {
        let client = 3 << 32 | 12;
        let port = "iqn.2026-11.org.example:host,i,0x400001370000".to_owned();
        let lives =
            ReportRecord::Client { client, is_being_fenced: false, lease_left_ms: 5, registrations: 1, untaken: 0 };
        let words = in_words(&lives, std::slice::from_ref(&port)).unwrap();
        assert!(words.starts_with(&format!("client 3.12 ({port}) lives: lease 5 ms")), "{words}");
        let before = ReportRecord::Client {
            client: 2 << 32,
            is_being_fenced: false,
            lease_left_ms: 5,
            registrations: 0,
            untaken: 0,
        };
        let words = in_words(&before, &[]).unwrap();
        assert!(words.contains("may come back; those that do within 5 ms"), "{words}");
        assert_eq!(to_json(&before, &[]).unwrap(), json!({ "kind": "clients_before", "reclaim_left_ms": 5 }));
        let fenced = ReportRecord::Fenced { client };
        assert_eq!(in_words(&fenced, &[]).unwrap(), "client 3.12 was fenced");
        assert_eq!(to_json(&fenced, std::slice::from_ref(&port)).unwrap()["initiators"][0], port);
        let name = ReportRecord::name_lines(client, &port).next().unwrap();
        assert_eq!((in_words(&name, &[]), to_json(&name, &[])), (None, None));
    }

    #[test]
    fn a_client_reads_as_it_prints() {
        let client = 3 << 32 | 12;
        assert_eq!(client_name(client), "3.12");
        assert_eq!(parse_client("3.12"), Some(client));
        for none in ["", "3", "3.", "x.1", "3.4294967296"] {
            assert_eq!(parse_client(none), None, "{none}");
        }
    }
}
