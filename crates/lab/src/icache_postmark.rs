//! *A Caching Strategy to Improve iSCSI Performance*, figure 4: PostMark's transactions a second by block size, with a
//! small pool of files and a large one, over iSCSI and with the write log.
//!
//! The program is Debian's, on ext2 mounted `-o sync`, which takes a loop device, nbdfuse and a memory cgroup:
//! `postmark.sh` puts them together, and `make bench-postmark` runs the same script with whole seconds compared instead
//! of rates. The figure is a drawing; the paper's text says what it gained, 53 to 78 %, and so its bars stand at our
//! rate without the log and that much more.

use std::process::{Command, Stdio};

use crate::error::LabError;
use crate::outcome::Found;
use crate::outcome::{Row, Span};
use crate::stage::{Scale, Stage};

const SCRIPT: &str = include_str!("postmark.sh");

/// Pools of the paper (3.3.1): files, and transactions.
const LOADS: [(u32, u32); 2] = [(1000, 50_000), (20_000, 100_000)];
/// Of the quick form.
const LOADS_QUICK: [(u32, u32); 1] = [(50, 100)];
/// The paper's block sizes (3.3.1) in bytes.
const BLOCKS: [u32; 4] = [512, 1024, 2048, 4096];
const BLOCKS_QUICK: [u32; 2] = [512, 4096];
/// PostMark's default sizes of files, which the paper left as they are.
const FILE_BYTES: &str = "500 10000";
/// The paper's gain: 53 to 78 %.
const GAIN: Span = Span::between(1.53, 1.78);

/// Transactions a second of one run.
struct Rate {
    system: String,
    files: u32,
    transactions: u32,
    block: u32,
    per_second: f64,
}

impl Rate {
    /// `result: SYSTEM FILES TRANSACTIONS BLOCK MILLISECONDS RATE`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("result: ")?.split_whitespace();
        let system = words.next()?.to_owned();
        let mut number = || words.next()?.parse::<u32>().ok();
        let (files, transactions, block, _milliseconds) = (number()?, number()?, number()?, number()?);
        Some(Self { system, files, transactions, block, per_second: number()?.into() })
    }
}

/// Figure 4.
pub(crate) fn throughput(stage: &Stage, scale: Scale) -> Result<Found, LabError> {
    let (loads, blocks): (&[_], &[_]) = match scale {
        Scale::Full => (&LOADS, &BLOCKS),
        Scale::Quick => (&LOADS_QUICK, &BLOCKS_QUICK),
    };
    let block_of = |(files, transactions): &(u32, u32)| {
        blocks.iter().map(|block| format!("{files}:{transactions}:{block}")).collect::<Vec<_>>()
    };
    let output = run(stage, &loads.iter().flat_map(block_of).collect::<Vec<_>>())?;
    let rates: Vec<Rate> = output.lines().filter_map(Rate::parse).collect();
    if rates.len() != 2 * loads.len() * blocks.len() {
        return Err(LabError::Other(format!("PostMark did not say what it measured:\n{output}")));
    }
    Ok(found(&rates, output.lines().next().unwrap_or_default()))
}

fn found(rates: &[Rate], stage: &str) -> Found {
    let mut notes = vec![
        "PostMark 1.51 with its default sizes of files (500 to 10,000 bytes), blocks read and written past the C \
         library's buffer, in a memory cgroup of 128 MB, on ext2 mounted -o sync, on a loop device over nbdfuse"
            .to_owned(),
        format!(
            "the demo's disk and link, 10 times as fast, so that it ends: {stage}; the log, of 256 MiB, durability \
             log, is on this machine's disk"
        ),
        "the paper's bars: our rate without the log and 53 to 78 % more; the LUN gets the rest after the run"
            .to_owned(),
    ];
    let mut rows = Vec::new();
    for (system, series) in [("plain", "iSCSI"), ("log", "with the log")] {
        for rate in rates.iter().filter(|rate| rate.system == system) {
            let is_same = |other: &&Rate| (other.files, other.block) == (rate.files, rate.block);
            let plain =
                rates.iter().filter(is_same).find(|other| other.system == "plain").map(|other| other.per_second);
            let paper =
                plain.filter(|_| system == "log").map(|plain| Span::between(plain * GAIN.from, plain * GAIN.to));
            if let (Some(plain), true) = (plain, paper.is_some()) {
                notes.push(format!(
                    "{} files, blocks of {} bytes: {:.2} x as many transactions a second as without the log (the \
                     paper: 1.53 to 1.78)",
                    rate.files,
                    rate.block,
                    rate.per_second / plain.max(1.0)
                ));
            }
            rows.push(Row {
                panel: format!("{} files, {} transactions", rate.files, rate.transactions),
                series: series.to_owned(),
                at: rate.block.into(),
                paper,
                ours: rate.per_second,
                client_cpu_us: None,
                server_cpu_us: None,
            });
        }
    }
    (rows, notes)
}

/// What the script prints.
fn run(stage: &Stage, loads: &[String]) -> Result<String, LabError> {
    let script = stage.directory().join("postmark.sh");
    let failed = |error: std::io::Error| LabError::Run("bash".to_owned(), error);
    std::fs::write(&script, SCRIPT).map_err(failed)?;
    let mut command = Command::new("bash");
    command.arg(&script).args(loads).stdin(Stdio::null());
    command.env("FOREBAY_BIN", stage.program()).env("FOLDER", stage.directory().join("postmark"));
    command.env("FILE_BYTES", FILE_BYTES).env("SYSTEMS", "plain log").env_remove("LOG_OPTIONS").env_remove("SCALE");
    let output = command.output().map_err(failed)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(LabError::Other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_gain_stands_beside_the_rate_without_the_log() {
        let output = ["result: plain 1000 50000 512 9000 100", "result: log 1000 50000 512 3000 300", "resulting: log"];
        let rates: Vec<Rate> = output.iter().filter_map(|line| Rate::parse(line)).collect();
        let (rows, notes) = found(&rates, "disk");
        let seen: Vec<_> = rows.iter().map(|row| (row.series.as_str(), row.at, row.paper, row.ours)).collect();
        let gained = Span::between(153.0, 178.0);
        assert_eq!(seen, [("iSCSI", 512.0, None, 100.0), ("with the log", 512.0, Some(gained), 300.0)]);
        assert!(notes.iter().any(|note| note.contains("3.00 x")), "{notes:?}");
        assert!(Rate::parse("result: plain 1000 50000 512 9000").is_none());
    }
}
