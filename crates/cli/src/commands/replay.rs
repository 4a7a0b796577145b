//! `replay`: a recorded trace, every read checked against what was written.

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;

use serde_json::{Value, json};
use stack::{Error, Failure, Result};
use workload::ledger::InitialContent;
use workload::replay::{ReplayError, ReplayPlan, Replayed, replay};
use workload::report::{rate_in_words, time_in_words};
use workload::trace::{Options, TraceReader};
use workload::verify::verify_all;

use super::subject::Subject;
use crate::arguments::Replay;
use crate::output::{print_json, print_line, progress_bar};

/// `forebay replay`.
pub async fn run(arguments: Replay) -> Result<()> {
    let name = arguments.trace.display().to_string();
    let file =
        File::open(&arguments.trace).map_err(|error| Error::io(format!("cannot open the trace {name}"), &error))?;
    let request_count = arguments.requests.unwrap_or(u64::MAX);
    let records = TraceReader::new(BufReader::new(file), Options::default())
        .take(usize::try_from(request_count).unwrap_or(usize::MAX));
    let subject = Subject::open(&arguments.subject, &arguments.arrange, &arguments.login).await?;
    subject.confirm_overwrite(arguments.allow_data_loss).await?;
    let cache_before = subject.cache_status().await?;
    // What was there before is nobody's: only what the replay wrote is checked.
    let plan = ReplayPlan { depth: arguments.depth, initial: InitialContent::Unknown, ..ReplayPlan::default() };
    let bar = progress_bar("replaying", request_count);
    let replayed = replay(records, subject.device.clone(), subject.clock.clone(), plan, |finished| {
        bar.set_position(finished);
        ControlFlow::Continue(())
    })
    .await
    .map_err(|error| failure(&name, error))?;
    bar.finish_and_clear();
    let cache_after = subject.cache_status().await?;
    let hits = cache_before.zip(cache_after).map(|(before, after)| Hits::between(&before, &after));
    let verified = verify_all(&subject.device, &replayed.ledger, |_| ControlFlow::Continue(()))
        .await
        .map_err(|error| Error::new(Failure::VerificationFailed, error.to_string()))?;
    print(&arguments, &replayed, hits.as_ref(), verified.bytes);
    Ok(())
}

fn failure(name: &str, error: ReplayError) -> Error {
    let failure = match &error {
        ReplayError::Plan | ReplayError::Trace(_) | ReplayError::OutOfRange { .. } | ReplayError::Misaligned { .. } => {
            Failure::Usage
        }
        ReplayError::Mismatch(_) => Failure::VerificationFailed,
        _ => Failure::Other,
    };
    Error::new(failure, format!("{name}: {error}"))
}

/// How often a 4 KiB block that a request touched was in the cache.
struct Hits {
    hits: u64,
    misses: u64,
}

impl Hits {
    fn between(before: &Value, after: &Value) -> Self {
        let grown = |key: &str| {
            let of = |status: &Value, kind: &str| status[kind][key].as_u64().unwrap_or(0);
            let count = |status: &Value| of(status, "reads") + of(status, "writes");
            count(after).saturating_sub(count(before))
        };
        Self { hits: grown("tag_hits"), misses: grown("tag_misses") }
    }

    fn miss_ratio(&self) -> f64 {
        self.misses as f64 / (self.hits + self.misses).max(1) as f64
    }
}

fn print(arguments: &Replay, replayed: &Replayed, hits: Option<&Hits>, verified_bytes: u64) {
    let counts = &replayed.counts;
    if arguments.json.json {
        print_json(&json!({
            "counts": counts,
            "measurement": replayed.measurement,
            "cache": hits.map(|hits| json!({
                "hits": hits.hits, "misses": hits.misses, "miss_ratio": hits.miss_ratio(),
            })),
            "verified_bytes": verified_bytes,
        }));
        return;
    }
    print_line(&format!(
        "{} requests ({} reads, {} writes), {} block accesses; {} bytes read and {} bytes written",
        counts.requests, counts.reads, counts.writes, counts.block_accesses, counts.bytes_read, counts.bytes_written
    ));
    print_line(&format!(
        "{} requests a second, mean {}, every read checked, {verified_bytes} bytes verified at the end",
        rate_in_words(replayed.measurement.iops),
        time_in_words(replayed.measurement.latency_ns.mean)
    ));
    if let Some(hits) = hits {
        print_line(&format!("cache: {} hits, {} misses, miss ratio {:.4}", hits.hits, hits.misses, hits.miss_ratio()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_replay_did_counts() {
        let status = |hits: u64, misses: u64| {
            json!({
                "reads": { "tag_hits": hits, "tag_misses": misses },
                "writes": { "tag_hits": 1, "tag_misses": 2 },
            })
        };
        let (before, after) = (status(10, 5), status(40, 15));
        let hits = Hits::between(&before, &after);
        assert_eq!((hits.hits, hits.misses), (30, 10));
        assert!((hits.miss_ratio() - 0.25).abs() < 1e-12);
    }
}
