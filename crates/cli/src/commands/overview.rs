//! The text of `status NAME`: a line for each part of an attachment, from the application down to
//! the LUN, then what the operator should look at. The JSON has all the numbers.

use std::path::PathBuf;

use base::units::ByteSize;
use stack::status::ShownAttachment;
use stack::status::fronts::FrontStatus;
use stack::status::members::{MemberStatus, PathStatus};
use stack::status::mount::{MountCounts, MountStatus};
use stack::status::remote::RemoteStatus;
use stack::status::stores::{CacheSummary, DifferenceStatus, LogSummary, StoreFreshness};

use crate::output::plain;

/// Lines of two columns.
pub fn lines(status: &ShownAttachment) -> Vec<String> {
    let paths = status.multipath.iter().flat_map(|multipath| &multipath.paths);
    let members = status.stripe.iter().flat_map(|stripe| &stripe.members);
    let mut rows = vec![
        ("attachment", format!("{}, process {}", status.name, status.pid)),
        ("address", status.fronts.address.clone()),
        ("logical unit", unit(status)),
        ("target", status.remote.as_ref().map_or_else(|| "-".to_owned(), remote)),
    ];
    rows.extend(paths.map(|path| ("path", path_of(path))));
    rows.extend(members.map(|member| ("stripe member", member_of(member))));
    rows.extend(status.cache.as_ref().map(|cache| ("cache", cache_of(status, cache))));
    rows.extend(status.log.as_ref().map(|log| ("write log", log_of(status, log))));
    rows.extend(status.difference.as_ref().map(|difference| ("difference", difference_of(status, difference))));
    rows.extend(status.fronts.fronts.iter().map(|front| ("front", front_of(front))));
    rows.extend(status.detaching.as_ref().map(|detaching| {
        let words = |target: &String| format!("yes; it waits for {target}");
        ("being detached", detaching.waits_for.as_ref().map_or_else(|| "yes".to_owned(), words))
    }));
    rows.extend(status.troubles.iter().map(|trouble| ("trouble", trouble.clone())));
    in_columns(rows)
}

/// The text of `status NAME` for a mount.
pub fn mount_lines(status: &MountStatus) -> Vec<String> {
    let MountCounts { commits, changed_blocks, cached_blocks, .. } = status.mount;
    let mut rows = vec![
        ("mount", format!("{}, process {}", status.name, status.pid)),
        ("directory", status.address.display().to_string()),
        ("source", format!("{}, {}", status.source, size(status.size_bytes))),
        ("state", mount_in_a_word(status)),
        ("commits", commits.to_string()),
        ("changed", format!("{changed_blocks} blocks")),
        ("cached", format!("{cached_blocks} blocks")),
    ];
    if let Some(there) = &status.remote {
        rows.insert(3, ("target", remote(there)));
    }
    rows.extend(status.troubles.iter().map(|trouble| ("trouble", trouble.clone())));
    in_columns(rows)
}

/// The state of a mount in one word or a few.
pub fn mount_in_a_word(status: &MountStatus) -> String {
    let mode = if status.is_read_only { "read-only" } else { "read-write" };
    match &status.remote {
        Some(remote) => format!("{}, {mode}", remote.state),
        None => mode.to_owned(),
    }
}

fn in_columns(rows: Vec<(&'static str, String)>) -> Vec<String> {
    rows.into_iter().map(|(name, words)| format!("{name:<15} {}", plain(&words))).collect()
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:#}", ByteSize(bytes)))
}

fn path_in_words(path: Option<&PathBuf>) -> String {
    path.map_or_else(|| "-".to_owned(), |path| path.display().to_string())
}

fn unit(status: &ShownAttachment) -> String {
    let Some(lun) = &status.lun else { return "not found yet".to_owned() };
    let mode = if status.is_read_only { ", read-only" } else { "" };
    format!(
        "{} in blocks of {} bytes{mode}, serial {}, of {}",
        size(status.size_bytes),
        status.logical_block_bytes,
        lun.serial,
        lun.target
    )
}

fn remote(remote: &RemoteStatus) -> String {
    let RemoteStatus { state, portal, connections, in_flight, .. } = remote;
    let mut words = format!("{state} at {portal}, connections: {connections}, commands under way: {in_flight}");
    if let Some(error) = remote.last_error.as_ref().filter(|_| state != "online") {
        words += &format!(": {error}");
    }
    if state == "failing" {
        words += "; requests wait for it as long as `--set timeout.replacement=` says at attach, and fail then";
    }
    words
}

fn path_of(path: &PathStatus) -> String {
    let state = if path.is_online { "online" } else { "away" };
    format!("{}: {state}, access {}, {} requests", path.portal, path.access, path.requests)
}

fn member_of(member: &MemberStatus) -> String {
    let state = if member.is_online { "online" } else { "away" };
    format!("serial {}: {state}, {}", member.lun.serial, size(Some(member.size_bytes)))
}

fn cache_of(status: &ShownAttachment, cache: &CacheSummary) -> String {
    let path = path_in_words(status.cache_path.as_ref());
    let mut words = format!("{path}, {}, {:#} dirty", cache.mode, ByteSize(cache.dirty_bytes));
    let hits = cache.reads.hits;
    let all = hits + cache.reads.partial_hits + cache.reads.misses;
    if all > 0 {
        words += &format!(", {:.1} % of the reads from it", 100.0 * hits as f64 / all as f64);
    }
    let freshness = status.freshness.cache.as_ref();
    if freshness.is_some_and(|freshness| freshness.state == "cold") {
        words += "; it began without clean lines";
    }
    words + &changed_by_others(freshness)
}

fn log_of(status: &ShownAttachment, log: &LogSummary) -> String {
    let (path, dirty) = (path_in_words(status.log_path.as_ref()), ByteSize(log.dirty_bytes));
    let share = log.share_used * 100.0;
    let words = format!("{path}, {}, {dirty:#} dirty, {share:.0} % in use", log.durability);
    words + &changed_by_others(status.freshness.log.as_ref())
}

fn changed_by_others(freshness: Option<&StoreFreshness>) -> String {
    let partly = freshness.filter(|freshness| freshness.state == "partly");
    let bytes = partly.and_then(|freshness| freshness.changed_by_others_bytes);
    bytes.map_or_else(String::new, |bytes| format!("; others had changed {:#} at most", ByteSize(bytes)))
}

fn difference_of(status: &ShownAttachment, difference: &DifferenceStatus) -> String {
    let words = format!("{:#} of {:#} in use", ByteSize(difference.used_bytes), ByteSize(difference.room_bytes));
    let base = status.freshness.difference.as_ref().filter(|base| matches!(base.state.as_str(), "changed" | "unknown"));
    base.map_or_else(|| words.clone(), |base| format!("{words}; {}", base.why))
}

fn front_of(front: &FrontStatus) -> String {
    let old = match front.clients_outdated {
        0 => String::new(),
        count => format!(", {count} of them know another size and have to connect anew"),
    };
    format!("{} at {}, clients: {}{old}", front.kind, front.place, front.clients)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stack::status;

    use super::*;

    #[test]
    fn what_is_there_is_said_and_nothing_else() {
        let status = json!({
            "name": "disk", "pid": 7, "address": "nbd+unix:///x", "size_bytes": 1 << 20, "logical_block_bytes": 512,
            "lun": { "target": "iqn.2026-11.org.example:\u{1b}a", "serial": "5" },
            "remote": { "state": "failing", "portal": "p:1", "connections": 0, "last_error": "it is gone" },
            "cache": {
                "mode": "write-back", "dirty_bytes": 4608,
                "reads": { "hits": 3, "partial_hits": 0, "misses": 1 },
            },
            "cache_path": "/c",
            "freshness": { "cache": { "state": "partly", "changed_by_others_bytes": 2 << 20 } },
            "fronts": [{ "kind": "nbd", "place": "unix:/x", "clients": 2, "clients_outdated": 1 }],
            "troubles": ["the cache was removed"],
        });
        let said = lines(&status::read(&status).unwrap());
        let expected = [
            "attachment      disk, process 7",
            "address         nbd+unix:///x",
            "logical unit    1MiB in blocks of 512 bytes, serial 5, of iqn.2026-11.org.example:\\u{1b}a",
            "target          failing at p:1, connections: 0, commands under way: 0: it is gone; requests wait for it \
             as long as `--set timeout.replacement=` says at attach, and fail then",
            "cache           /c, write-back, 4608 bytes dirty, 75.0 % of the reads from it; others had changed 2MiB at \
             most",
            "front           nbd at unix:/x, clients: 2, 1 of them know another size and have to connect anew",
            "trouble         the cache was removed",
        ];
        assert_eq!(said, expected);
        let over = |state: &str| {
            let status = json!({
                "difference": { "used_bytes": 65536, "room_bytes": 1 << 20 },
                "freshness": { "difference": { "state": state, "why": "the target does not tell" } },
            });
            lines(&status::read(&status).unwrap()).into_iter().find(|line| line.starts_with("difference")).unwrap()
        };
        assert_eq!(over("kept"), "difference      64KiB of 1MiB in use");
        assert_eq!(over("unknown"), "difference      64KiB of 1MiB in use; the target does not tell");
        let waiting = json!({ "name": "disk", "pid": 7, "lun": null, "detaching": { "waits_for": "p:1 (failing)" } });
        let said = lines(&status::read(&waiting).unwrap());
        assert!(said[2].ends_with("not found yet") && said[4].ends_with("yes; it waits for p:1 (failing)"), "{said:?}");
    }
}
