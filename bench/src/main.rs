//! `make bench-target`: our target, tgt and the bare TCP loopback side by side in one run.
//!
//! Rounds are interleaved: every case runs against every server before the next case, and all cases
//! before the next round, so that other work of the machine affects all servers alike. The report
//! has the median over the rounds; the raw results are printed as they come and kept as JSON.
//!
//! | module | holds |
//! |---|---|
//! | `ceiling` | TCP loopback without any protocol work |
//! | `server` | our target and tgt as processes, and the processor time they take |
//! | `client` | the cases: iscsi-perf, qemu-img bench and our own client |
//! | `processor` | processor time |
//! | `report` | medians, ratios, the table, the JSON |

#![forbid(unsafe_code)]

mod ceiling;
mod client;
mod processor;
mod report;
mod server;

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;

use crate::client::Case;
use crate::report::{Measured, Report};
use crate::server::{Kind, Server};

/// An error ends the run: half a comparison is useless.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures our target, tgt and the TCP loopback side by side.
#[derive(Debug, Parser)]
struct Arguments {
    /// The forebay program
    #[arg(long, env = "FOREBAY_BIN", default_value = "target/release/forebay")]
    forebay: PathBuf,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of one measurement, about
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Processors of the servers, as taskset has them
    #[arg(long, default_value = "1")]
    server_cpus: String,
    /// Processors of the clients
    #[arg(long, default_value = "0")]
    client_cpus: String,
    /// Only cases whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Keep all results here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table here
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Inside: be the server of the loopback measurement
    #[arg(long, hide = true)]
    ceiling_server: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.ceiling_server {
        return ceiling::serve();
    }
    let stage = tempfile::tempdir()?;
    let kinds = [Kind::TgtAio, Kind::TgtReadWrite, Kind::Ours];
    let mut servers = Vec::new();
    for (index, kind) in kinds.into_iter().enumerate() {
        servers.push(Server::start(kind, index, &arguments.forebay, &arguments.server_cpus, stage.path())?);
    }
    let mut report = Report::new(&arguments);
    for round in 1..=arguments.rounds {
        for shape in ceiling::SHAPES.iter().filter(|shape| shape.name.contains(&arguments.only)) {
            let (rate, cpu_us) = ceiling::measure(shape, &arguments)?;
            println!("round {round}: {:<54} {rate:>9.0}/s {cpu_us:>7.2} us", shape.name);
            report.add_ceiling(shape.name, rate, cpu_us);
        }
        for case in client::CASES.iter().filter(|case| case.name.contains(&arguments.only)) {
            measure(case, round, &servers, &arguments, &mut report)?;
        }
    }
    print!("\n{}", report.table());
    if let Some(path) = &arguments.json {
        std::fs::write(path, report.json())?;
    }
    if let Some(path) = &arguments.markdown {
        std::fs::write(path, report.page())?;
    }
    Ok(())
}

/// One case against every server.
fn measure(
    case: &'static Case,
    round: usize,
    servers: &[Server],
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    for server in servers {
        server.offer_digests(case.has_digests)?;
        let before = (server.cpu_us()?, processor::of_ended_children_us()?);
        let operations = client::run(case, server, arguments)?;
        let cpu_us = (server.cpu_us()? - before.0) / operations.count;
        let client_cpu_us = (processor::of_ended_children_us()? - before.1) / operations.count;
        println!(
            "round {round}: {:<44} {:<9} {:>9.0}/s {cpu_us:>7.2} us, client {client_cpu_us:>6.2} us",
            case.name,
            server.kind.name(),
            operations.per_second
        );
        report.add(case, server.kind, Measured { rate: operations.per_second, cpu_us, client_cpu_us });
    }
    Ok(())
}
