//! *A Caching Strategy to Improve iSCSI Performance*, figures 5a, 5b and 6, in virtual time.

use std::time::Duration;

use writelog::Status;
use writelog::reads::{ReadLatencies, ReadLatency};

use crate::error::LabError;
use crate::icache_model::{REQUESTS, Responses, System, mean, run, share_within, slowest};
use crate::outcome::Found;
use crate::outcome::{Row, Span};
use crate::stage::Scale;

/// Requests of the quick form: enough to fill a part of the log.
const REQUESTS_QUICK: u64 = 4000;

/// Response times of figure 5a are counted in classes of so many microseconds, up to this one ...
const CLASS_US: u64 = 500;
const CLASS_US_FINE_MAX: u64 = 16_000;
/// ... and in wider ones from there to beyond the paper's longest, 120 ms; the last class counts
/// all longer ones too.
const WIDE_CLASS_US: u64 = 8000;
const CLASS_US_MAX: u64 = 128_000;

/// Requests of one mean in figure 6.
const GROUP: usize = 1000;

/// The systems compared, by name.
const SYSTEMS: [(&str, System); 3] =
    [("disk alone", System::Plain), ("paper's profile", System::Paper), ("ours", System::Ours)];

/// Counts of clients: the paper's trace has one request at a time; several clients show overload.
const DEPTHS: [u64; 2] = [1, 8];

struct Ran {
    name: &'static str,
    system: System,
    depth: u64,
    responses: Responses,
    /// The log's status at the end.
    status: Option<Status>,
}

/// Figure 5b: the share of requests answered within a time.
pub(crate) fn shares(scale: Scale) -> Result<Found, LabError> {
    let ran = run_all(scale)?;
    let mut rows = Vec::new();
    for ran in &ran {
        for limit_us in [500, 1000, 2000, 4000, 8000, 16_000] {
            let share = 100.0 * share_within(&ran.responses.all, Duration::from_micros(limit_us));
            // Of one client, as in the paper: over 80 % within 1 ms with the log, some 10 % over 8 ms; without it 99 %
            // over 4 ms, 46 % over 8.
            let paper = match (ran.system, ran.depth, limit_us) {
                (System::Paper, 1, 1000) => Some(Span::between(80.0, 90.0)),
                (System::Paper, 1, 8000) => Some(Span::exactly(90.0)),
                (System::Plain, 1, 4000) => Some(Span::between(0.0, 1.0)),
                (System::Plain, 1, 8000) => Some(Span::exactly(54.0)),
                _ => None,
            };
            rows.push(row(ran, limit_us as f64 / 1000.0, paper, share));
        }
    }
    Ok((rows, notes(&ran)))
}

/// Figure 5a: how many requests took how long.
pub(crate) fn counts(scale: Scale) -> Result<Found, LabError> {
    let ran = run_all(scale)?;
    let mut rows = Vec::new();
    for ran in &ran {
        let times = &ran.responses.all;
        for (from_us, to_us, at_us) in classes() {
            let count = times.iter().filter(|&&time_ns| (from_us..to_us).contains(&(time_ns / 1000))).count();
            rows.push(row(ran, at_us as f64 / 1000.0, None, count as f64));
        }
    }
    let mut notes = notes(&ran);
    notes.push(
        "classes of 0.5 ms up to 16 ms and of 8 ms from there to 128 ms; what took longer still is counted at 136 ms"
            .to_owned(),
    );
    Ok((rows, notes))
}

/// Classes of response times: from, up to, and where they are drawn, in microseconds.
fn classes() -> impl Iterator<Item = (u64, u64, u64)> {
    let fine = (0..CLASS_US_FINE_MAX).step_by(CLASS_US as usize).map(|from| (from, from + CLASS_US));
    let wide =
        (CLASS_US_FINE_MAX..CLASS_US_MAX).step_by(WIDE_CLASS_US as usize).map(|from| (from, from + WIDE_CLASS_US));
    let ends = fine.chain(wide).map(|(from, to)| (from, to, to));
    ends.chain([(CLASS_US_MAX, u64::MAX, CLASS_US_MAX + WIDE_CLASS_US)])
}

/// Figure 6: the mean of every 1000 requests, in the order of their answers.
pub(crate) fn groups(scale: Scale) -> Result<Found, LabError> {
    let ran = run_all(scale)?;
    let mut rows = Vec::new();
    for ran in &ran {
        let paper = match (ran.system, ran.depth) {
            (System::Plain, 1) => Some(Span::exactly(6.757)),
            (System::Paper, 1) => Some(Span::exactly(3.652)),
            _ => None,
        };
        for (index, group) in ran.responses.all.chunks(GROUP).enumerate() {
            // The paper gives the mean of all; it is drawn at the first group.
            let paper = paper.filter(|_| index == 0);
            rows.push(row(ran, (index + 1) as f64, paper, mean(group).as_secs_f64() * 1e3));
        }
    }
    Ok((rows, notes(&ran)))
}

fn run_all(scale: Scale) -> Result<Vec<Ran>, LabError> {
    let requests = match scale {
        Scale::Full => REQUESTS,
        Scale::Quick => REQUESTS_QUICK,
    };
    let run_one = |depth: u64, (name, system): (&'static str, System)| {
        let (responses, status) = run(system, depth, requests).map_err(LabError::Device)?;
        Ok(Ran { name, system, depth, responses, status })
    };
    DEPTHS.into_iter().flat_map(|depth| SYSTEMS.map(|system| run_one(depth, system))).collect()
}

fn row(ran: &Ran, at: f64, paper: Option<Span>, ours: f64) -> Row {
    let panel = panel(ran.depth);
    Row { panel, series: ran.name.to_owned(), at, paper, ours, client_cpu_us: None, server_cpu_us: None }
}

fn panel(depth: u64) -> String {
    if depth == 1 { "1 client".to_owned() } else { format!("{depth} clients") }
}

fn notes(ran: &[Ran]) -> Vec<String> {
    let mut notes = vec![
        "closed loop: requests of 2 KiB, 89 % writes, over 64 MiB with a Zipf skew of 0.9; the paper's trace is not \
         public".to_owned(),
        "models: disks of 7200 rpm (8.5 ms seek, half a turn, 20 MB/s, first come first served), 0.4 ms of link, 0.1 \
         ms of processor; a log of 20 MiB, 4 MiB of NVRAM"
            .to_owned(),
        "ours: destage order lba, what lies between near blocks is read and written along (256 KiB of it cost a seek), \
         batches of 2 MiB in RAM and up to 16 requests of up to 1 MiB under way besides, an age of up to a minute"
            .to_owned(),
    ];
    for Ran { name, depth, responses: Responses { all, writes, reads }, status, .. } in ran {
        let panel = panel(*depth);
        notes.push(format!(
            "{name}, {panel}: writes {:.2} % under 1 ms, mean {:.2?}, slowest {:.2?}; reads mean {:.1?}, slowest \
             {:.1?}; all mean {:.2?}",
            100.0 * share_within(writes, Duration::from_millis(1)),
            mean(writes),
            slowest(writes),
            mean(reads),
            slowest(reads),
            mean(all),
        ));
        if let Some(status) = status {
            notes.push(format!("{name}, {panel}: reads by where they were found: {}", places(&status.reads.latency)));
        }
    }
    notes
}

/// Reads by where their bytes were, and how long they took there, without the processor's time.
fn places(latencies: &ReadLatencies) -> String {
    let ReadLatencies { ram, log, origin, mixed } = latencies;
    let places = [("RAM", ram), ("the log", log), ("below", origin), ("several places", mixed)];
    let words = |(place, found): (&str, &ReadLatency)| {
        let milliseconds = |time_ns: Option<u64>| {
            time_ns.map_or_else(
                || "-".to_owned(),
                |time_ns| format!("{:.1} ms", Duration::from_nanos(time_ns).as_secs_f64() * 1e3),
            )
        };
        let (mean, p99, max) = (milliseconds(found.mean_ns), milliseconds(found.p99_ns), milliseconds(found.max_ns));
        format!("{place} {} (mean {mean}, 99 % within {p99}, slowest {max})", found.count)
    };
    places.map(words).join("; ")
}
