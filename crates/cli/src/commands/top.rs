//! `top`: the load of all attachments, again each second.
//!
//! Rates are what lies between two looks at the totals of `forebay status`; the processes keep
//! nothing for it. One that does not answer has a row that says so, and keeps no other waiting.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use cache::LoadTotals;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::{Value, json};
use stack::Result;
use stack::control::{Presence, look as look_at};
use stack::limits::STATUS_TIME_MAX;
use stack::paths::Paths;
use stack::time::seconds_since_1970;

use crate::arguments::Top;
use crate::output::{plain, print_json, prints_line};

/// Pause between two looks: as often as a person reads a table.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a terminal does before each table: the cursor goes to the first line, and all below is cleared
/// (ECMA-48, CUP and ED).
const CLEARED: &str = "\u{1b}[H\u{1b}[2J";

const COLUMNS: [&str; 12] = [
    "NAME",
    "STATE",
    "READ/S",
    "WRITE/S",
    "READ B/S",
    "WRITE B/S",
    "LATENCY",
    "HITS",
    "DIRTY",
    "AGE",
    "DESTAGE B/S",
    "CONN",
];

/// `forebay top`.
pub async fn run(arguments: Top) -> Result<()> {
    let paths = Paths::to_ask_what_runs()?;
    paths.check_runtime()?;
    let mut before = look(&paths).await;
    loop {
        tokio::time::sleep(INTERVAL).await;
        let now = look(&paths).await;
        let rows: Vec<Row> = now.iter().map(|(name, seen)| Row::between(name, before.get(name), seen)).collect();
        if arguments.once {
            match arguments.json {
                true => print_json(&json!({ "attachments": rows })),
                false => drop(prints_line(&table(&rows))),
            }
            return Ok(());
        }
        let is_read = match arguments.json {
            true => prints_line(&json!({ "attachments": rows }).to_string()),
            false if stdout().is_terminal() => prints_line(&format!("{CLEARED}{}", table(&rows))),
            false => prints_line(&format!("{}\n", table(&rows))),
        };
        if !is_read {
            return Ok(());
        }
        before = now;
    }
}

/// What one look found of an attachment.
enum Seen {
    /// Its status, and when it came.
    Answered(Box<Value>, Instant),
    /// Why there is none.
    Silent(String),
}

/// All attachments by their names.
async fn look(paths: &Paths) -> BTreeMap<String, Seen> {
    let names = paths.control_names();
    let looks = names.iter().map(async |name| {
        let socket = paths.control_socket(name);
        match tokio::time::timeout(STATUS_TIME_MAX, look_at(&socket)).await {
            Ok(Ok(Presence::Answers(status))) if status["kind"] == "attachment" => {
                Some(Seen::Answered(Box::new(status), Instant::now()))
            }
            Ok(Ok(Presence::Silent { error, .. })) => Some(Seen::Silent(error.to_string())),
            // Another kind of process, or one that has ended.
            Ok(_) => None,
            Err(_) => Some(Seen::Silent(format!("\"{name}\" does not answer: `forebay status {name}` says why"))),
        }
    });
    let found = join_all(looks).await;
    names.into_iter().zip(found).filter_map(|(name, seen)| seen.map(|seen| (name, seen))).collect()
}

/// The totals of an attachment, since the start of its process.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    reads: u64,
    writes: u64,
    read_bytes: u64,
    written_bytes: u64,
    destaged_bytes: u64,
    /// Of its cache.
    load: Option<LoadTotals>,
}

impl Totals {
    fn of(status: &Value) -> Self {
        let kinds: std::collections::BTreeSet<&str> =
            status["fronts"].as_array().into_iter().flatten().filter_map(|front| front["kind"].as_str()).collect();
        let sum = |operation: &str, count: &str| -> u64 {
            kinds.iter().filter_map(|kind| status[*kind][operation][count].as_u64()).sum()
        };
        let (cache, log) = (&status["cache"], &status["log"]);
        // What leaves the log goes through the cache, where there are both.
        let destaged_bytes = log["destaged_bytes"].as_u64().unwrap_or_else(|| {
            let number = |key: &str| cache[key].as_u64().unwrap_or_default();
            number("cleaned_lines").saturating_mul(number("line_bytes"))
        });
        Self {
            reads: sum("read", "requests"),
            writes: sum("write", "requests"),
            read_bytes: sum("read", "bytes"),
            written_bytes: sum("write", "bytes"),
            destaged_bytes,
            load: serde_json::from_value(cache["load"].clone()).ok(),
        }
    }
}

/// A row of the table; what is not known is `None`.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Row {
    name: String,
    /// The state of its session in a word; `silent` of a process that does not answer.
    state: String,
    /// Why it is silent, in words.
    why: Option<String>,
    reads_per_second: Option<f64>,
    writes_per_second: Option<f64>,
    read_bytes_per_second: Option<f64>,
    written_bytes_per_second: Option<f64>,
    /// The mean response time of its cache.
    latency_ns: Option<f64>,
    /// Share of the reads that the cache served alone.
    hit_ratio: Option<f64>,
    dirty_bytes: Option<u64>,
    /// How long ago the oldest dirty data was written, at most.
    dirty_age_seconds: Option<f64>,
    destage_bytes_per_second: Option<f64>,
    /// TCP connections to its target.
    connections: Option<u64>,
    /// Applications at its fronts.
    clients: Option<u64>,
}

impl Row {
    fn between(name: &str, before: Option<&Seen>, now: &Seen) -> Self {
        match now {
            Seen::Silent(why) => {
                Self { name: name.to_owned(), state: "silent".to_owned(), why: Some(why.clone()), ..Self::default() }
            }
            Seen::Answered(status, at) => {
                let row = Self::at(name, status, seconds_since_1970());
                match before {
                    // Totals of another process are none to compare with.
                    Some(Seen::Answered(earlier, then)) if earlier["pid"] == status["pid"] => {
                        row.with_rates(&Totals::of(earlier), &Totals::of(status), at.duration_since(*then))
                    }
                    _ => row,
                }
            }
        }
    }

    /// What one look tells.
    fn at(name: &str, status: &Value, now: u64) -> Self {
        let (cache, log) = (&status["cache"], &status["log"]);
        let of_store = |key: &str| [cache, log].map(|store| store[key].as_u64());
        let dirty = of_store("dirty_bytes").into_iter().flatten().reduce(|one, other| one + other);
        let age_of_cache = cache["clean_at"].as_u64().map(|clean_at| now.saturating_sub(clean_at) as f64);
        let age_of_log = log["dirty_age_ns"].as_u64().map(|age| age as f64 * 1e-9);
        let ages = [(cache, age_of_cache), (log, age_of_log)];
        let is_dirty = |store: &Value| store["dirty_bytes"].as_u64() > Some(0);
        let ages = ages.into_iter().filter_map(|(store, age)| age.filter(|_| is_dirty(store)));
        let clients = status["fronts"].as_array();
        Self {
            name: name.to_owned(),
            state: status["remote"]["state"].as_str().unwrap_or("-").to_owned(),
            dirty_bytes: dirty,
            dirty_age_seconds: ages.reduce(f64::max),
            connections: status["remote"]["connections"].as_u64(),
            clients: clients.map(|fronts| fronts.iter().filter_map(|front| front["clients"].as_u64()).sum()),
            ..Self::default()
        }
    }

    fn with_rates(self, before: &Totals, now: &Totals, time: Duration) -> Self {
        let per_second = |count: fn(&Totals) -> u64| {
            let rate = count(now).saturating_sub(count(before)) as f64 / time.as_secs_f64();
            Some(rate).filter(|rate| rate.is_finite())
        };
        let of_cache = before.load.as_ref().zip(now.load.as_ref());
        let load = of_cache.and_then(|(before, now)| now.since(before));
        let served = load.map(|load| load.reads_per_second + load.writes_per_second).filter(|served| *served > 0.0);
        Self {
            reads_per_second: per_second(|it| it.reads),
            writes_per_second: per_second(|it| it.writes),
            read_bytes_per_second: per_second(|it| it.read_bytes),
            written_bytes_per_second: per_second(|it| it.written_bytes),
            destage_bytes_per_second: per_second(|it| it.destaged_bytes),
            // Requests in flight are arrivals times their time (Little's law).
            latency_ns: load.zip(served).map(|(load, served)| load.in_flight / served * 1e9),
            hit_ratio: load.and_then(|load| load.hit_ratio),
            ..self
        }
    }

    fn cells(&self) -> [String; COLUMNS.len()] {
        [
            plain(&self.name).into_owned(),
            plain(&self.state).into_owned(),
            shown(self.reads_per_second, count),
            shown(self.writes_per_second, count),
            shown(self.read_bytes_per_second, bytes),
            shown(self.written_bytes_per_second, bytes),
            shown(self.latency_ns, |ns| workload::report::time_in_words(Some(ns as u64))),
            shown(self.hit_ratio, |ratio| format!("{:.0} %", 100.0 * ratio)),
            shown(self.dirty_bytes, |dirty| bytes(dirty as f64)),
            shown(self.dirty_age_seconds, |age| format!("{age:.0} s")),
            shown(self.destage_bytes_per_second, bytes),
            shown(self.connections, |connections| connections.to_string()),
        ]
    }
}

fn shown<T>(value: Option<T>, in_words: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), in_words)
}

fn count(rate: f64) -> String {
    format!("{rate:.0}")
}

/// Bytes with three digits or so.
fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let steps = (0..units.len() - 1).take_while(|step| bytes >= 1024f64.powi(*step as i32 + 1)).count();
    let value = bytes / 1024f64.powi(steps as i32);
    let digits = if steps == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[steps])
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(COLUMNS);
    table.column_iter_mut().skip(2).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    for row in rows {
        table.add_row(row.cells());
    }
    if rows.is_empty() {
        return "no attachment runs".to_owned();
    }
    let why = rows.iter().filter_map(|row| row.why.as_deref());
    let lines: Vec<String> = std::iter::once(table.to_string()).chain(why.map(|why| plain(why).into_owned())).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pid: u32, requests: u64, served_ns: u64, open_ns: u64) -> Value {
        json!({
            "kind": "attachment", "pid": pid, "remote": { "state": "online", "connections": 2 },
            "fronts": [{ "kind": "nbd", "clients": 1 }, { "kind": "nbd", "clients": 2 }],
            "nbd": {
                "read": { "requests": requests, "bytes": 4096 * requests },
                "write": { "requests": 2 * requests, "bytes": 512 * requests },
            },
            "fuse": { "read": { "requests": 1_000_000 } },
            "cache": {
                "dirty_bytes": 3 << 20, "clean_at": 100, "cleaned_lines": requests, "line_bytes": 8192,
                "load": {
                    "open_ns": open_ns, "reads": requests, "read_hits": requests / 2, "writes": 0,
                    "served_ns": served_ns,
                },
            },
            "log": null,
        })
    }

    fn row(before: &Value, now: &Value) -> Row {
        let then = Instant::now();
        let at = |status: &Value, at| Seen::Answered(Box::new(status.clone()), at);
        Row::between("disk", Some(&at(before, then)), &at(now, then + Duration::from_secs(2)))
    }

    #[test]
    fn rates_are_what_lies_between_two_looks_of_one_process() {
        let (before, now) = (status(7, 100, 0, 1_000_000_000), status(7, 300, 40_000_000, 3_000_000_000));
        let row = row(&before, &now);
        let rates = [row.reads_per_second, row.writes_per_second, row.read_bytes_per_second];
        assert_eq!(rates, [Some(100.0), Some(200.0), Some(409_600.0)]);
        assert_eq!((row.written_bytes_per_second, row.destage_bytes_per_second), (Some(51_200.0), Some(819_200.0)));
        assert_eq!((row.latency_ns.map(f64::round), row.hit_ratio), (Some(200_000.0), Some(0.5)));
        assert_eq!((row.dirty_bytes, row.connections, row.clients), (Some(3 << 20), Some(2), Some(3)));
        let other = self::row(&before, &status(8, 300, 0, 1));
        assert_eq!((other.reads_per_second, other.latency_ns, other.state.as_str()), (None, None, "online"));
    }

    #[test]
    fn the_age_is_that_of_what_is_dirty_and_of_nothing_else() {
        let log = |dirty_bytes: u64| json!({ "log": { "dirty_bytes": dirty_bytes, "dirty_age_ns": 7_000_000_000u64 } });
        assert_eq!(Row::at("disk", &log(1), 0).dirty_age_seconds, Some(7.0));
        assert_eq!(Row::at("disk", &log(0), 0).dirty_age_seconds, None);
        assert_eq!(Row::at("disk", &status(7, 0, 0, 0), 160).dirty_age_seconds, Some(60.0));
        assert_eq!(Row::at("disk", &json!({}), 0).dirty_bytes, None);
    }

    #[test]
    fn a_table_has_a_line_for_each_and_dashes_for_what_is_not_known() {
        let silent = Row::between("web", None, &Seen::Silent("does not answer".into()));
        let table = table(&[row(&status(7, 0, 0, 1), &status(7, 10, 0, 2)), silent]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[1].contains("disk") && lines[1].contains("3.0 MiB"), "{table}");
        assert!(lines[2].contains("silent") && lines[2].trim_end().ends_with('-'), "{table}");
        assert_eq!(lines[3], "does not answer");
        assert_eq!([0.0, 1023.0, 1024.0, 2e8].map(bytes), ["0 B", "1023 B", "1.0 KiB", "191 MiB"]);
    }
}
