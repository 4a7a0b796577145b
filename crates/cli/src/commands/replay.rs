//! `replay`: a recorded trace, every read checked against what was written.
//!
//! ```text
//!   survey: every line read, what it wants said ─► does it fit? may it overwrite? ─► replay ─► what was written is read back
//!      └ --dry-run ends here                         └ nothing is written before      └ SIGINT: what was done so far is said
//! ```

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::units::ByteSize;
use block::Geometry;
use cache::RequestStatus;
use indicatif::ProgressBar;
use serde_json::json;
use stack::status::stores::CacheSummary;
use stack::{Error, Failure, Result};
use workload::ledger::InitialContent;
use workload::replay::{ReplayError, ReplayPlan, Replayed, check_blocks, check_end, replay};
use workload::report::{rate_in_words, time_in_words};
use workload::trace::input::{Input, unpack};
use workload::trace::survey::{Rebase, Survey};
use workload::trace::{Options, Record, TraceError, TraceReader};
use workload::verify::{VerifyError, verify_all};

use super::signal;
use super::subject::Subject;
use crate::arguments::Replay;
use crate::output::{print_json, print_line, progress_bar};
use crate::settings_arguments::settings;

/// `forebay replay`.
pub async fn run(arguments: Replay) -> Result<()> {
    let trace = Trace::open(&arguments)?;
    let survey = trace.survey()?;
    if arguments.dry_run {
        print_survey(&arguments, &survey);
        return Ok(());
    }
    let name = arguments.subject.as_deref().unwrap_or_default();
    let subject = Subject::open(name, &settings(&arguments.login, &arguments.arrange)?).await?;
    let rebase = trace.fit(&survey, &subject.device.geometry(), arguments.rebase)?;
    if !survey.is_read_only() {
        subject.confirm_overwrite(arguments.allow_data_loss).await?;
    }
    let stop = stop_at_signal()?;
    let cache_before = subject.cache_status().await?;
    // The earlier content of the device is not known: only data that the replay wrote is checked.
    let plan = ReplayPlan {
        depth: arguments.depth,
        pace: arguments.pace,
        initial: InitialContent::Unknown,
        ..ReplayPlan::default()
    };
    let bar = progress_bar("replaying", survey.requests);
    let records = trace.records(rebase)?;
    let replayed = replay(records, subject.device.clone(), subject.clock.clone(), plan, |finished| {
        bar.set_position(finished);
        goes_on(&stop)
    })
    .await
    .map_err(|error| trace.failure(error))?;
    bar.finish_and_clear();
    let cache_after = subject.cache_status().await?;
    let hits = cache_before.zip(cache_after).map(|(before, after)| Hits::between(&before, &after));
    let is_verified = !replayed.was_stopped && verify(&subject, &replayed, &stop).await?;
    print(&arguments, &replayed, hits.as_ref(), is_verified, survey.other_commands);
    if is_verified { Ok(()) } else { Err(Error::new(Failure::Other, "interrupted")) }
}

/// The flag that the first signal sets. The second signal ends the process at once, even while a
/// device does not answer.
fn stop_at_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (first, noted) = (signal::termination_or_hangup()?, Arc::clone(&stop));
    let waiting = async move {
        first.await;
        noted.store(true, Ordering::Relaxed);
        if let Ok(second) = signal::termination() {
            second.await;
            std::process::exit(i32::from(Failure::Other.exit_code()));
        }
    };
    tokio::spawn(base::background::named("replay-signals", waiting));
    Ok(stop)
}

fn goes_on(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Reads back what was written; `false` when it was interrupted.
async fn verify(subject: &Subject, replayed: &Replayed, stop: &AtomicBool) -> Result<bool> {
    let bar = progress_bar("reading back what was written", 1000);
    let verified = verify_all(&subject.device, &replayed.ledger, |share| {
        show(&bar, share);
        goes_on(stop)
    })
    .await;
    bar.finish_and_clear();
    match verified {
        Ok(_) => Ok(true),
        Err(VerifyError::Stopped) => Ok(false),
        Err(error) => Err(Error::new(Failure::VerificationFailed, error.to_string())),
    }
}

fn show(bar: &ProgressBar, share: f64) {
    bar.set_position((share * 1000.0) as u64);
}

/// A trace that can be read more than once.
struct Trace {
    name: String,
    file: File,
    options: Options,
    request_count: usize,
}

impl Trace {
    fn open(arguments: &Replay) -> Result<Self> {
        let is_standard_input = arguments.trace == Path::new("-");
        let name = if is_standard_input { "standard input".to_owned() } else { arguments.trace.display().to_string() };
        let cannot_open = |error: io::Error| Error::io(format!("cannot open the trace {name}"), &error);
        let file = if is_standard_input { kept(io::stdin().lock()) } else { File::open(&arguments.trace) };
        let mut file = file.map_err(cannot_open)?;
        // What cannot be read again, a pipe with a name, is kept like standard input.
        if file.rewind().is_err() {
            file = kept(&mut file).map_err(cannot_open)?;
        }
        let options = Options { format: arguments.format, source: arguments.source.clone(), ..Options::default() };
        let request_count = usize::try_from(arguments.requests.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        Ok(Self { name, file, options, request_count })
    }

    /// The trace, from its first line or record on.
    fn read(&self) -> Result<TraceReader<Input>> {
        let input = self.input().map_err(|error| Error::io(format!("cannot read the trace {}", self.name), &error))?;
        Ok(TraceReader::new(input, self.options.clone()))
    }

    fn input(&self) -> io::Result<Input> {
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        unpack(file)
    }

    fn records(
        &self,
        rebase: Option<Rebase>,
    ) -> Result<impl Iterator<Item = std::result::Result<Record, TraceError>> + use<>> {
        let place = move |record: Record| rebase.as_ref().map_or(record, |rebase| rebase.apply(record));
        Ok(self.read()?.take(self.request_count).map(move |record| record.map(&place)))
    }

    fn survey(&self) -> Result<Survey> {
        let mut reader = self.read()?;
        let mut survey =
            Survey::of(reader.by_ref().take(self.request_count)).map_err(|error| self.failure(error.into()))?;
        survey.other_commands = reader.other_commands();
        Ok(survey)
    }

    /// Refuses a device that the trace does not fit, before anything is written. Returns the map to
    /// the new places, where the trace is rebased.
    fn fit(&self, survey: &Survey, geometry: &Geometry, is_rebased: bool) -> Result<Option<Rebase>> {
        check_blocks(survey.finest, geometry).map_err(|error| self.failure(error))?;
        if !is_rebased {
            return check_end(survey.last, geometry).map(|()| None).map_err(|error| {
                let text = format!("{error}; the trace needs {}{}", bytes(survey.size_bytes), rebased_hint(survey));
                Error::new(Failure::Usage, format!("{}: {text}", self.name))
            });
        }
        match survey.rebased_size_bytes {
            Some(size_bytes) if size_bytes <= geometry.size_bytes => Ok(survey.rebase()),
            Some(size_bytes) => {
                let (needed, there) = (bytes(size_bytes), bytes(geometry.size_bytes));
                let text = format!("rebased, the trace still needs {needed}, and the device has {there}");
                Err(Error::new(Failure::Usage, format!("{}: {text}", self.name)))
            }
            None => {
                let text = "the trace touches too much to be rebased";
                Err(Error::new(Failure::Usage, format!("{}: {text}", self.name)))
            }
        }
    }

    fn failure(&self, error: ReplayError) -> Error {
        let failure = match &error {
            ReplayError::Plan
            | ReplayError::Trace(_)
            | ReplayError::OutOfRange { .. }
            | ReplayError::Misaligned { .. } => Failure::Usage,
            ReplayError::Mismatch(_) => Failure::VerificationFailed,
            _ => Failure::Other,
        };
        Error::new(failure, format!("{}: {error}", self.name))
    }
}

/// What `source` has to its end, in a file without a name.
fn kept(mut source: impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut source, &mut file)?;
    file.rewind()?;
    Ok(file)
}

/// A size for the `--size` of a disk, rounded up to MiB.
fn bytes(count: u64) -> ByteSize {
    ByteSize(count.next_multiple_of(1 << 20))
}

fn rebased_hint(survey: &Survey) -> String {
    let size_bytes = survey.rebased_size_bytes.filter(|&size_bytes| size_bytes < survey.size_bytes);
    size_bytes.map_or_else(String::new, |size_bytes| format!(", or {} with --rebase", bytes(size_bytes)))
}

fn print_survey(arguments: &Replay, survey: &Survey) {
    if arguments.json.json {
        print_json(&json!(survey));
        return;
    }
    print_line(&format!(
        "{} requests ({} reads, {} writes, {} flushes, {} discards) in {} s",
        survey.requests,
        survey.reads,
        survey.writes,
        survey.flushes,
        survey.discards,
        survey.duration.as_secs()
    ));
    print_other_commands(survey.other_commands);
    print_line(&format!("it needs a logical unit of {}{}", bytes(survey.size_bytes), rebased_hint(survey)));
}

/// Hits and misses of the cache, by line, and requests whose lines were all hits.
struct Hits {
    hits: u64,
    misses: u64,
    whole_requests: u64,
    other_requests: u64,
}

impl Hits {
    fn between(before: &CacheSummary, after: &CacheSummary) -> Self {
        let grown = |count: fn(&RequestStatus) -> u64| {
            let all = |cache: &CacheSummary| count(&cache.reads) + count(&cache.writes);
            all(after).saturating_sub(all(before))
        };
        Self {
            hits: grown(|requests| requests.tag_hits),
            misses: grown(|requests| requests.tag_misses),
            whole_requests: grown(|requests| requests.hits),
            other_requests: grown(|requests| requests.partial_hits + requests.misses),
        }
    }

    fn miss_ratio(&self) -> f64 {
        self.misses as f64 / (self.hits + self.misses).max(1) as f64
    }

    fn request_miss_ratio(&self) -> f64 {
        self.other_requests as f64 / (self.whole_requests + self.other_requests).max(1) as f64
    }
}

/// What of the trace is no request of the replay.
fn print_other_commands(other_commands: u64) {
    if other_commands > 0 {
        print_line(&format!(
            "{other_commands} SCSI commands of the trace were passed over, which neither read, write nor flush"
        ));
    }
}

fn print(arguments: &Replay, replayed: &Replayed, hits: Option<&Hits>, is_verified: bool, other_commands: u64) {
    let counts = &replayed.counts;
    let verified_bytes = is_verified.then(|| replayed.ledger.written_bytes());
    if arguments.json.json {
        print_json(&json!({
            "counts": counts,
            "measurement": replayed.measurement,
            "cache": hits.map(|hits| json!({
                "hits": hits.hits, "misses": hits.misses, "miss_ratio": hits.miss_ratio(),
                "whole_requests": hits.whole_requests, "other_requests": hits.other_requests,
                "request_miss_ratio": hits.request_miss_ratio(),
            })),
            "other_commands": other_commands,
            "was_stopped": replayed.was_stopped,
            "verified_bytes": verified_bytes,
        }));
        return;
    }
    print_line(&format!(
        "{} requests ({} reads, {} writes), {} block accesses; {} bytes read and {} bytes written",
        counts.requests, counts.reads, counts.writes, counts.block_accesses, counts.bytes_read, counts.bytes_written
    ));
    print_line(&format!(
        "{} requests a second, mean {}",
        rate_in_words(replayed.measurement.iops),
        time_in_words(replayed.measurement.latency_ns.mean)
    ));
    print_other_commands(other_commands);
    print_line(&checked_in_words(replayed, verified_bytes));
    if let Some(hits) = hits {
        print_line(&format!(
            "cache: {} line hits, {} line misses, miss ratio {:.4}; {} of {} requests were not served by it alone, \
             ratio {:.4}",
            hits.hits,
            hits.misses,
            hits.miss_ratio(),
            hits.other_requests,
            hits.whole_requests + hits.other_requests,
            hits.request_miss_ratio()
        ));
    }
}

/// Which part of the content was checked, in words.
fn checked_in_words(replayed: &Replayed, verified_bytes: Option<u64>) -> String {
    let counts = &replayed.counts;
    if counts.bytes_written == 0 {
        return "nothing was written, so no content was checked".to_owned();
    }
    let read = format!("{} of the bytes read had been written before, and were right", counts.bytes_read_checked);
    match verified_bytes {
        Some(verified) => format!("{read}; {verified} bytes written were read back at the end, and are right"),
        None => format!("{read}; what was written was not read back at the end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_replay_did_counts() {
        let status = |tag_hits: u64, tag_misses: u64| CacheSummary {
            reads: RequestStatus { tag_hits, tag_misses, hits: tag_hits / 2, partial_hits: 1, misses: tag_misses },
            writes: RequestStatus { tag_hits: 1, tag_misses: 2, ..RequestStatus::default() },
            ..CacheSummary::default()
        };
        let (before, after) = (status(10, 5), status(40, 15));
        let hits = Hits::between(&before, &after);
        assert_eq!((hits.hits, hits.misses), (30, 10));
        assert!((hits.miss_ratio() - 0.25).abs() < 1e-12);
        assert_eq!((hits.whole_requests, hits.other_requests), (15, 10));
        assert!((hits.request_miss_ratio() - 0.4).abs() < 1e-12);
    }
}
