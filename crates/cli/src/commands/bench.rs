//! `bench`: closed loops of requests against a logical unit or an attachment.
//!
//! Jobs run on one thread, each with a session of its own on its own part of the device; their figures are added up.
//! Processor time is that of this process, and that of the process at the other end where it runs on this host, in
//! units of the clock tick (10 ms).

use std::fs;
use std::ops::ControlFlow;
use std::time::Duration;

use block::ByteRange;
use futures_util::future::try_join_all;
use serde_json::json;
use stack::{Error, Failure, Result};
use workload::closed_loop::{ClosedLoop, Ending, Limit, Plan};
use workload::generator::Pattern;
use workload::ledger::InitialContent;
use workload::measurement::{Measurement, Recorder};
use workload::report::{rate_in_words, time_in_words};

use super::subject::Subject;
use crate::arguments::Bench;
use crate::output::{print_json, print_line, progress_bar};
use crate::settings_arguments::settings;

/// `forebay bench`.
pub async fn run(arguments: Bench) -> Result<()> {
    let settings = settings(&arguments.login, &arguments.arrange)?;
    let subject = Subject::open_many(&arguments.subject, &settings, arguments.jobs).await?;
    if arguments.rw.writes() {
        subject.confirm_overwrite(arguments.allow_data_loss).await?;
    }
    let server_pid = arguments.server_pid.or(subject.server_pid);
    let server_cpu = || server_pid.and_then(process_cpu_time);
    let mut loops = loops(&arguments, &subject)?;
    let before = (cpu_time(), server_cpu());
    run_all(&arguments, &subject, &mut loops).await?;
    let after = (cpu_time(), server_cpu());
    let mut measurement = added_up(&loops);
    if measurement.operations > 0 {
        let per_operation = |cpu: Duration| cpu.as_secs_f64() * 1e6 / measurement.operations as f64;
        measurement.cpu_us_per_op.client = Some(per_operation(after.0.saturating_sub(before.0)));
        measurement.cpu_us_per_op.server =
            before.1.zip(after.1).map(|(before, after)| per_operation(after.saturating_sub(before)));
    }
    if arguments.json.json {
        print_json(&json!(measurement));
    } else {
        print_text(&arguments, &measurement);
    }
    Ok(())
}

/// Runs every job to its end; the bar follows the first.
async fn run_all(arguments: &Bench, subject: &Subject, loops: &mut [ClosedLoop]) -> Result<()> {
    let bar = progress_bar(arguments.rw.as_str(), 1000);
    let runs = loops.iter_mut().zip(&subject.devices).enumerate().map(|(job, (closed_loop, device))| {
        let bar = (job == 0).then_some(&bar);
        closed_loop.run(device.clone(), move |progress| {
            if let Some(bar) = bar {
                bar.set_position((progress.share * 1000.0) as u64);
            }
            ControlFlow::Continue(())
        })
    });
    let ran = try_join_all(runs).await;
    bar.finish_and_clear();
    for ending in ran.map_err(|error| Error::new(Failure::VerificationFailed, error.to_string()))? {
        if let Ending::DeviceFailed { error, .. } = ending {
            return Err(error.into());
        }
    }
    Ok(())
}

/// All jobs as one: they ran at the same time.
fn added_up(loops: &[ClosedLoop]) -> Measurement {
    let mut recorder = Recorder::new();
    let mut seconds = 0.0f64;
    for closed_loop in loops {
        recorder.merge(closed_loop.recorder());
        seconds = seconds.max(closed_loop.measurement().seconds);
    }
    recorder.measurement(Duration::from_secs_f64(seconds))
}

fn loops(arguments: &Bench, subject: &Subject) -> Result<Vec<ClosedLoop>> {
    let job_loop = |job| {
        let closed_loop = ClosedLoop::new(plan(arguments, subject, job)?, subject.clock.clone());
        closed_loop.map_err(|error| Error::new(Failure::Usage, error.to_string()))
    };
    (0..arguments.jobs).map(job_loop).collect()
}

/// The plan of `job`, on its part of the device.
fn plan(arguments: &Bench, subject: &Subject, job: u32) -> Result<Plan> {
    let size = subject.device.geometry().size_bytes;
    let length = arguments.footprint.map_or(size, |footprint| footprint.0.min(size));
    let block = u32::try_from(arguments.bs.0)
        .map_err(|_| Error::new(Failure::Usage, format!("--bs {} is larger than any request", arguments.bs)))?;
    let part = length / u64::from(arguments.jobs) / u64::from(block.max(1)) * u64::from(block);
    let footprint = match arguments.jobs {
        1 => ByteRange { offset: 0, length },
        _ => ByteRange { offset: part * u64::from(job), length: part },
    };
    let write_share = 1.0 - f64::from(arguments.read_percent) / 100.0;
    let mut profile = arguments.rw.profile(arguments.seed + u64::from(job), block, write_share, footprint);
    if let Some(theta) = arguments.zipf {
        if profile.pattern == Pattern::Sequential {
            let words = format!("--zipf is for random requests, and {} is sequential", arguments.rw);
            return Err(Error::new(Failure::Usage, words));
        }
        profile.pattern = Pattern::Zipf { theta };
    }
    Ok(Plan {
        profile,
        depth: arguments.depth,
        limit: arguments.requests.map_or(Limit::Time(arguments.seconds), Limit::Requests),
        verify: arguments.verify.then_some(InitialContent::Unknown),
        keep_series: false,
    })
}

/// CPU time of this process so far, user and system.
fn cpu_time() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec.unsigned_abs(), usage.tv_nsec.unsigned_abs() as u32)
}

/// CPU time of another process, user and system (proc(5), fields 14 and 15 of `stat`); `None` when it is gone.
fn process_cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the name, may hold anything; what follows its last parenthesis are numbers.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_secs_f64((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64))
}

fn print_text(arguments: &Bench, measurement: &workload::Measurement) {
    let latency = &measurement.latency_ns;
    print_line(&format!(
        "{} {} depth {}{}: {} IOPS, {:.1} MB/s",
        arguments.rw.as_str(),
        arguments.bs,
        arguments.depth,
        if arguments.jobs > 1 { format!(" in each of {} jobs", arguments.jobs) } else { String::new() },
        rate_in_words(measurement.iops),
        measurement.bytes_per_second / 1e6
    ));
    print_line(&format!(
        "latency: mean {}, p50 {}, p99 {}, p99.9 {}, max {}",
        time_in_words(latency.mean),
        time_in_words(latency.p50),
        time_in_words(latency.p99),
        time_in_words(latency.p999),
        time_in_words(latency.max)
    ));
    if let Some(cpu) = measurement.cpu_us_per_op.client {
        let server = measurement.cpu_us_per_op.server;
        let server = server.map_or_else(String::new, |cpu| format!(", of the one that serves: {cpu:.1} us"));
        print_line(&format!("CPU an operation, of this process: {cpu:.1} us{server}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_its_processor() {
        let until = cpu_time() + Duration::from_millis(30);
        while cpu_time() < until {}
        assert!(process_cpu_time(std::process::id()).is_some_and(|time| time >= Duration::from_millis(20)));
        assert_eq!(process_cpu_time(u32::MAX), None);
    }
}
