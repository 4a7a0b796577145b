//! `docs/reference/status.md` names every key of the status of what runs, and none that is not there.
//!
//! A row's first cell names keys: whole, or beginning with a dot, which is then beside the one before it. Keys below
//! one of these are named in its second cell, or in the paragraph that begins with its name; or that says whose keys it
//! has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use tests::{Process, Target, World, tool};

/// Documented keys, with the words set as code that are said of each.
type Keys = BTreeMap<String, BTreeSet<String>>;

/// What the keys of a part of the page are below.
const PARTS: &[(&str, Option<&str>)] = &[
    ("## Of both", Some("")),
    ("## Of an attachment", Some("")),
    ("## Of a target", Some("")),
    ("## Of the daemon", Some("")),
    ("### A session", Some("sessions.")),
    ("### A connection", Some("connections.")),
    ("### A logical unit", Some("luns.")),
    ("### Kinds of failures", None),
    ("### Negotiated values", None),
];

/// These have keys of their own kind, which the page describes in words.
const DESCRIBED: &[&str] =
    &["remote.negotiated", "sessions.negotiated", "luns.errors", "settings", "logins_refused_by_status"];

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn documented() -> Keys {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/status.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let mut keys = Keys::new();
    let (mut below, mut paragraph) = (None, None);
    for line in page.lines() {
        if line.starts_with('#') {
            below = PARTS.iter().find(|(heading, _)| *heading == line).and_then(|(_, below)| *below);
        }
        let Some(below) = below else { continue };
        if let Some((names, meaning)) = line.strip_prefix("| ").and_then(|row| row.split_once(" | ")) {
            let mut last = String::new();
            for name in words(names) {
                last = match (name.strip_prefix('.'), last.rsplit_once('.')) {
                    (Some(sibling), Some((parent, _))) => format!("{parent}.{sibling}"),
                    (Some(sibling), None) => sibling.to_owned(),
                    (None, _) => format!("{below}{}", name.replace("[]", "")),
                };
                keys.entry(last.clone()).or_default().extend(words(meaning).map(plain));
            }
        } else if let Some((name, meaning)) = line.strip_prefix('`').and_then(|line| line.split_once("`: ")) {
            keys.get_mut(name).expect("a row comes before the paragraph").extend(words(meaning).map(plain));
            paragraph = Some(name);
        } else if let Some(name) = paragraph.filter(|_| !line.is_empty()) {
            keys.get_mut(name).expect("it has begun").extend(words(line).map(plain));
        } else {
            paragraph = None;
        }
    }
    assert!(keys.len() > 150, "keys are missing: {keys:#?}");
    keys
}

fn plain(word: &str) -> String {
    word.trim_start_matches('.').replace("[]", "")
}

/// Whether the page names this key, or keys below it.
fn is_named(keys: &Keys, path: &str) -> bool {
    let below = format!("{path}.");
    keys.contains_key(path) || keys.range(below.clone()..).next().is_some_and(|(key, _)| key.starts_with(&below))
}

/// Whether the page says what this key is, itself or as it says it of another one, which may refer to a third.
fn is_documented(keys: &Keys, path: &str, references: usize) -> bool {
    let is_said_above = |end: usize| {
        let (above, rest) = (&path[..end], &path[end + 1..]);
        let Some(said) = keys.get(above) else { return false };
        let is_as_another = |other: &String| {
            let there = format!("{other}.{rest}");
            other != above && is_named(keys, other) && is_documented(keys, &there, references - 1)
        };
        DESCRIBED.iter().any(|described| above.ends_with(described))
            || rest.split('.').all(|part| said.contains(part))
            || (references > 0 && said.iter().any(is_as_another))
    };
    is_named(keys, path) || path.match_indices('.').any(|(end, _)| is_said_above(end))
}

/// Every key of `value`, those of lists without their numbers.
fn collect(value: &Value, above: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
                found.insert(path.clone());
                collect(value, &path, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, above, found)),
        _ => {}
    }
}

/// One of each kind: with cache and log, of several paths, a stripe, and one that changes a file of its own.
fn attachments(world: &World, target: &Target) -> Vec<(&'static str, Process)> {
    let urls = [0, 1, 2, 3, 4].map(|lun| target.url(lun));
    let pair = |first: &str, second: &str| format!("{first},{second}");
    let start = |name: &'static str, options: &str| {
        let options = options.split(' ').map(str::to_owned);
        let arguments = ["attach".to_owned(), "--name".to_owned(), name.to_owned()].into_iter().chain(options);
        (name, world.start(arguments))
    };
    let stores = "--cache c --cache-size 8MiB --log l --log-size 16MiB";
    vec![
        start("stores", &format!("{} {stores}", urls[0])),
        start(
            "paths",
            &format!(
                "{} --as nbd:127.0.0.1:0 --as iscsi:0 --as fuse:{}",
                pair(&urls[1], &urls[1]),
                world.path("file").display()
            ),
        ),
        start("stripe", &format!("{} --stripe 64KiB", pair(&urls[2], &urls[3]))),
        start("difference", &format!("{} --difference d --difference-size 8MiB", urls[4])),
    ]
}

/// Of a daemon that keeps an attachment whose target is away, and a file with a mistake.
fn of_daemon() -> Value {
    let world = World::new();
    std::fs::create_dir(world.path("etc")).expect("the world can be written to");
    let url = "url = \"iscsi://127.0.0.1:1/iqn.2026-11.org.example:a/0\"\n";
    for (name, text) in [("away.toml", url), ("wrong.toml", "url = 1\n")] {
        std::fs::write(world.path("etc").join(name), text).expect("the world can be written to");
    }
    let daemon = world.start(["daemon", "--stop-attachments"]);
    let status = world.status("daemon");
    daemon.terminate().success();
    status
}

#[test]
fn the_page_of_the_status_names_every_key_and_none_that_is_not_there() {
    let world = World::new();
    let luns = [0, 1, 2, 3, 4].map(|lun| format!("{lun}=ram:16MiB"));
    let target = world.target(luns.iter().flat_map(|lun| ["--lun", lun]));
    let attachments = attachments(&world, &target);
    let keys = documented();
    let mut found = BTreeSet::new();
    for (name, _) in &attachments {
        let mut status = world.status(name);
        if name == &"stripe" {
            // It is used, so that the target has counts of its LUNs.
            let nbd = status["address"].as_str().expect("it has an address").to_owned();
            tool("qemu-io", ["-f", "raw", "-c", "write 0 64k", "-c", "read 0 128k", &nbd]);
            status = world.status(name);
        }
        collect(&status, "", &mut found);
    }
    collect(&of_daemon(), "", &mut found);
    let targets = world.run(["target", "status", "--json"]).json();
    collect(&targets, "", &mut found);
    let missing: Vec<_> = found.iter().filter(|path| !is_documented(&keys, path, 2)).collect();
    assert!(missing.is_empty(), "the page does not say what these are: {missing:#?}");
    let stale: Vec<_> = keys.keys().filter(|path| !found.contains(*path)).collect();
    assert!(stale.is_empty(), "nothing has these: {stale:#?}");
}
