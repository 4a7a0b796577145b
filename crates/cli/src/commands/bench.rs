//! `bench`: a closed loop of requests against a logical unit or an attachment.

use std::ops::ControlFlow;
use std::time::Duration;

use block::ByteRange;
use serde_json::json;
use stack::{Error, Failure, Result};
use workload::closed_loop::{ClosedLoop, Ending, Limit, Plan};
use workload::ledger::InitialContent;
use workload::report::{rate_in_words, time_in_words};

use super::subject::Subject;
use crate::arguments::Bench;
use crate::output::{print_json, print_line, progress_bar};

/// `forebay bench`.
pub async fn run(arguments: Bench) -> Result<()> {
    let subject = Subject::open(&arguments.subject, &arguments.arrange, &arguments.login).await?;
    if arguments.rw.writes() {
        subject.confirm_overwrite(arguments.allow_data_loss).await?;
    }
    let mut closed_loop = ClosedLoop::new(plan(&arguments, &subject)?, subject.clock.clone())
        .map_err(|error| Error::new(Failure::Usage, error.to_string()))?;
    let bar = progress_bar(arguments.rw.as_str(), 1000);
    let cpu_before = cpu_time();
    let ending = closed_loop
        .run(subject.device.clone(), |progress| {
            bar.set_position((progress.share * 1000.0) as u64);
            ControlFlow::Continue(())
        })
        .await
        .map_err(|error| Error::new(Failure::VerificationFailed, error.to_string()))?;
    bar.finish_and_clear();
    if let Ending::DeviceFailed { error, .. } = ending {
        return Err(error.into());
    }
    let mut measurement = closed_loop.measurement();
    if measurement.operations > 0 {
        let cpu = cpu_time().saturating_sub(cpu_before);
        measurement.cpu_us_per_op.client = Some(cpu.as_secs_f64() * 1e6 / measurement.operations as f64);
    }
    if arguments.json.json {
        print_json(&json!(measurement));
    } else {
        print_text(&arguments, &measurement);
    }
    Ok(())
}

fn plan(arguments: &Bench, subject: &Subject) -> Result<Plan> {
    let size = subject.device.geometry().size_bytes;
    let length = arguments.footprint.map_or(size, |footprint| footprint.0.min(size));
    let block = u32::try_from(arguments.bs.0)
        .map_err(|_| Error::new(Failure::Usage, format!("--bs {} is larger than any request", arguments.bs)))?;
    let write_share = 1.0 - f64::from(arguments.read_percent) / 100.0;
    Ok(Plan {
        profile: arguments.rw.profile(arguments.seed, block, write_share, ByteRange { offset: 0, length }),
        depth: arguments.depth,
        limit: arguments.requests.map_or(Limit::Time(Duration::from_secs(arguments.seconds)), Limit::Requests),
        verify: arguments.verify.then_some(InitialContent::Unknown),
        keep_series: false,
    })
}

/// CPU time of this process so far, user and system.
fn cpu_time() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec.unsigned_abs(), usage.tv_nsec.unsigned_abs() as u32)
}

fn print_text(arguments: &Bench, measurement: &workload::Measurement) {
    let latency = &measurement.latency_ns;
    print_line(&format!(
        "{} {} depth {}: {} IOPS, {:.1} MB/s",
        arguments.rw.as_str(),
        arguments.bs,
        arguments.depth,
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
        print_line(&format!("CPU of this process: {cpu:.1} us an operation"));
    }
}
