//! What `status NAME` says of an attachment to a person: a line for each part of it, from the application down to the LUN, and then what somebody
//! should look at. All the numbers are in the JSON.

use base::units::ByteSize;
use serde_json::Value;

use crate::output::plain;

/// Lines of two columns.
pub fn lines(status: &Value) -> Vec<String> {
    let mut rows = vec![
        ("attachment", format!("{}, process {}", text(&status["name"]), status["pid"])),
        ("address", text(&status["address"])),
        ("logical unit", unit(status)),
        ("target", remote(&status["remote"])),
    ];
    rows.extend(list(&status["multipath"]["paths"]).map(|path| ("path", path_of(path))));
    rows.extend(list(&status["stripe"]["members"]).map(|member| ("stripe member", member_of(member))));
    rows.extend(store(status, "cache").map(|words| ("cache", words)));
    rows.extend(store(status, "log").map(|words| ("write log", words)));
    rows.extend(difference(&status["difference"]).map(|words| ("difference", words)));
    rows.extend(list(&status["fronts"]).map(|front| ("front", front_of(front))));
    if !status["detaching"].is_null() {
        let target = status["detaching"]["waits_for"].as_str();
        let words = target.map_or_else(|| "yes".to_owned(), |target| format!("yes; it waits for {target}"));
        rows.push(("being detached", words));
    }
    rows.extend(list(&status["troubles"]).map(|trouble| ("trouble", text(trouble))));
    rows.into_iter().map(|(name, words)| format!("{name:<15} {}", plain(&words))).collect()
}

/// The same of a mount.
pub fn mount_lines(status: &Value) -> Vec<String> {
    let mount = &status["mount"];
    let mut rows = vec![
        ("mount", format!("{}, process {}", text(&status["name"]), status["pid"])),
        ("directory", text(&status["address"])),
        ("source", format!("{}, {}", text(&status["source"]), size(&status["size_bytes"]))),
        ("state", mount_in_a_word(status)),
        ("commits", number(&mount["commits"]).to_string()),
        ("changed", format!("{} blocks", number(&mount["changed_blocks"]))),
        ("cached", format!("{} blocks", number(&mount["cached_blocks"]))),
    ];
    if !status["remote"].is_null() {
        rows.insert(3, ("target", remote(&status["remote"])));
    }
    rows.into_iter().map(|(name, words)| format!("{name:<15} {}", plain(&words))).collect()
}

/// How a mount stands.
pub fn mount_in_a_word(status: &Value) -> String {
    let mode = if status["is_read_only"] == true { "read-only" } else { "read-write" };
    match status["remote"]["state"].as_str() {
        Some(remote) => format!("{remote}, {mode}"),
        None => mode.to_owned(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn size(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |bytes| format!("{:#}", ByteSize(bytes)))
}

fn unit(status: &Value) -> String {
    let lun = &status["lun"];
    if lun.is_null() {
        return "not found yet".to_owned();
    }
    let mode = if status["is_read_only"] == true { ", read-only" } else { "" };
    format!(
        "{} in blocks of {} bytes{mode}, serial {}, of {}",
        size(&status["size_bytes"]),
        status["logical_block_bytes"],
        text(&lun["serial"]),
        text(&lun["target"])
    )
}

fn remote(remote: &Value) -> String {
    let mut words = format!("{} at {}", text(&remote["state"]), text(&remote["portal"]));
    words += &format!(", connections: {}, commands under way: {}", remote["connections"], number(&remote["in_flight"]));
    if remote["state"] != "online"
        && let Some(error) = remote["last_error"].as_str()
    {
        words += &format!(": {error}");
    }
    if remote["state"] == "failing" {
        words += "; requests wait for it as long as `--set timeout.replacement=` says at attach, and fail then";
    }
    words
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn path_of(path: &Value) -> String {
    let state = if path["is_online"] == true { "online" } else { "away" };
    format!("{}: {state}, access {}, {} requests", text(&path["portal"]), text(&path["access"]), path["requests"])
}

fn member_of(member: &Value) -> String {
    let state = if member["is_online"] == true { "online" } else { "away" };
    format!("serial {}: {state}, {}", text(&member["lun"]["serial"]), size(&member["size_bytes"]))
}

/// The cache or the write log.
fn store(status: &Value, what: &str) -> Option<String> {
    let store = status[what].as_object()?;
    let of = |key: &str| store.get(key).unwrap_or(&Value::Null);
    let mode = of(if what == "cache" { "mode" } else { "durability" });
    let mut words =
        format!("{}, {}, {} dirty", text(&status[format!("{what}_path")]), text(mode), size(of("dirty_bytes")));
    if let Some(share) = of("share_used").as_f64() {
        words += &format!(", {:.0} % in use", share * 100.0);
    }
    let reads = ["hits", "partial_hits", "misses"].map(|kind| number(&of("reads")[kind]));
    let all: u64 = reads.iter().sum();
    if what == "cache" && all > 0 {
        words += &format!(", {:.1} % of the reads from it", 100.0 * reads[0] as f64 / all as f64);
    }
    let freshness = &status["freshness"][what];
    words += &match (freshness["state"].as_str(), freshness["changed_by_others_bytes"].as_u64()) {
        (Some("partly"), Some(bytes)) => format!("; others had changed {:#} at most", ByteSize(bytes)),
        (Some("cold"), _) if what == "cache" => "; it began without clean lines".to_owned(),
        _ => String::new(),
    };
    Some(words)
}

fn difference(difference: &Value) -> Option<String> {
    let used = difference["used_bytes"].as_u64()?;
    Some(format!("{:#} of {} in use", ByteSize(used), size(&difference["room_bytes"])))
}

fn front_of(front: &Value) -> String {
    let old = match number(&front["clients_outdated"]) {
        0 => String::new(),
        count => format!(", {count} of them know another size and have to connect anew"),
    };
    format!("{} at {}, clients: {}{old}", text(&front["kind"]), text(&front["place"]), number(&front["clients"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_there_is_said_and_nothing_else() {
        let status = json!({
            "name": "disk", "pid": 7, "address": "nbd+unix:///x", "size_bytes": 1 << 20, "logical_block_bytes": 512,
            "lun": { "target": "iqn.2026-11.org.example:\u{1b}a", "serial": "5" },
            "remote": { "state": "failing", "portal": "p:1", "connections": 0, "last_error": "it is gone" },
            "cache": { "mode": "write-back", "dirty_bytes": 4608, "reads": { "hits": 3, "partial_hits": 0, "misses": 1 } },
            "cache_path": "/c",
            "freshness": { "cache": { "state": "partly", "changed_by_others_bytes": 2 << 20 } },
            "fronts": [{ "kind": "nbd", "place": "unix:/x", "clients": 2, "clients_outdated": 1 }],
            "troubles": ["the cache was removed"],
        });
        let said = lines(&status);
        let expected = [
            "attachment      disk, process 7",
            "address         nbd+unix:///x",
            "logical unit    1MiB in blocks of 512 bytes, serial 5, of iqn.2026-11.org.example:\\u{1b}a",
            "target          failing at p:1, connections: 0, commands under way: 0: it is gone; requests wait for it as long as \
             `--set timeout.replacement=` says at attach, and fail then",
            "cache           /c, write-back, 4608 bytes dirty, 75.0 % of the reads from it; others had changed 2MiB at most",
            "front           nbd at unix:/x, clients: 2, 1 of them know another size and have to connect anew",
            "trouble         the cache was removed",
        ];
        assert_eq!(said, expected);
        let waiting = json!({ "name": "disk", "pid": 7, "lun": null, "detaching": { "waits_for": "p:1 (failing)" } });
        let said = lines(&waiting);
        assert!(said[2].ends_with("not found yet") && said[4].ends_with("yes; it waits for p:1 (failing)"), "{said:?}");
    }
}
