//! `make bench-marks`: what change marks cost a write of 4 KiB in the device server alone, without a network.
//!
//! | measurement | the unit has |
//! |---|---|
//! | without a mark | a store for marks and no mark |
//! | recorded | a mark that nobody holds, in which every range is recorded |
//! | just cleared | the same mark after a CLEAR: the first write into a range is recorded before it is executed |
//!
//! Both units lie on one device in RAM, every write goes to a random place. The store keeps marks in RAM: what is
//! measured of a recording is the processor time, and not the durable write that it takes with a file. Rounds are
//! interleaved, and every other one goes backwards, so that whatever else the machine does meets all alike. Medians of
//! the rounds are printed, with the smallest and the largest; a difference is that of two measurements of one round.

#![forbid(unsafe_code)]

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base::buffer::Buffer;
use base::random::Random;
use block::memory::MemoryDevice;
use block::{Identity, SharedDevice};
use clap::Parser;
use clock::TokioClock;
use futures_util::FutureExt;
use logical_unit::change_marks::{MarkUpdate, Saving, range_bytes_for};
use logical_unit::{ChangeStore, Command, LogicalUnit, LogicalUnitOptions, LunMap, MemoryChanges, NexusId, Outcome};
use scsi::cdb::{Blocks, Transfer};
use scsi::change_mark::{Parameters, action_in, action_out, parse_marks};
use scsi::{Cdb, Status, TaskAttribute};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LUN_BYTES: u64 = 256 << 20;
const BLOCK_BYTES: u64 = 512;
const WRITE_BYTES: u64 = 4096;
/// Processor time of a whole 4 KiB write through the target over a network (`docs/measurements/target.md`).
const WHOLE_WRITE_NS: f64 = 4000.0;
const WRITER: &str = "iqn.2026-11.io.forebay:writer,i,0x1 target,t,0x1";
const HOLDER: &str = "iqn.2026-11.io.forebay:holder,i,0x1 target,t,0x1";
const ID: [u8; 16] = [7; 16];

/// Measures what change marks cost a write.
#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 1001)]
    rounds: u64,
    /// Writes of one measurement
    #[arg(long, default_value_t = 3000)]
    writes: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let identity = Identity { target: "bench".into(), unit: "marks".into(), serial: "1".into() };
    let device: SharedDevice = Arc::new(MemoryDevice::new(LUN_BYTES, identity));
    let (plain, marked) = (Unit::new(&device)?, Unit::new(&device)?);
    let mut random = Random::new(7);
    // Memory is there before it is measured.
    plain.write_all(WRITE_BYTES)?;
    let [mut without, mut recorded, mut cleared, mut recordings] = [const { Vec::new() }; 4];
    for round in 0..arguments.rounds {
        let is_backwards = round % 2 == 1;
        if !is_backwards {
            without.push(plain.time(arguments.writes, &mut random)?);
        }
        marked.clear()?;
        let before = marked.recordings.load(Ordering::Relaxed);
        cleared.push(marked.time(arguments.writes, &mut random)?);
        recordings.push((marked.recordings.load(Ordering::Relaxed) - before) as f64);
        marked.write_all(u64::from(range_bytes_for(LUN_BYTES)))?;
        recorded.push(marked.time(arguments.writes, &mut random)?);
        if is_backwards {
            without.push(plain.time(arguments.writes, &mut random)?);
        }
    }
    println!("{} rounds of {} writes of {WRITE_BYTES} bytes each", arguments.rounds, arguments.writes);
    let whole = print("without a mark, ns a write", &without);
    print("recorded, ns a write", &recorded);
    print("just cleared, ns a write", &cleared);
    let more = |of: &[f64]| -> Vec<f64> { of.iter().zip(&without).map(|(with, without)| with - without).collect() };
    for (name, more) in [("recorded", more(&recorded)), ("just cleared", more(&cleared))] {
        let more = print(&format!("{name}: more than without, ns a write"), &more);
        println!(
            "  {:.1} % of the {whole:.0} ns of the device server, {:.1} % of the {WHOLE_WRITE_NS:.0} ns of a write \
             through the target (1 % is {:.0} ns)",
            100.0 * more / whole,
            100.0 * more / WHOLE_WRITE_NS,
            WHOLE_WRITE_NS / 100.0
        );
    }
    print("recordings after a CLEAR", &recordings);
    let writes = arguments.writes as f64;
    let phases = cleared.iter().zip(&recorded).zip(&recordings);
    let of_one: Vec<f64> = phases.map(|((cleared, recorded), count)| (cleared - recorded) * writes / count).collect();
    print("a recording, beside what makes it durable, ns", &of_one);
    Ok(())
}

/// Prints the median, and gives it back.
fn print(name: &str, values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let median = at(sorted.len() / 2);
    println!("{name}: {median:.1} ({:.1} to {:.1})", at(0), at(sorted.len().saturating_sub(1)));
    median
}

/// Counts how often a change is recorded.
struct CountingStore(Arc<AtomicU64>);

impl ChangeStore for CountingStore {
    fn save(&self, updates: Vec<MarkUpdate>) -> Saving {
        self.0.fetch_add(1, Ordering::Relaxed);
        MemoryChanges.save(updates)
    }
}

/// A logical unit, and a nexus that writes it and holds no mark.
struct Unit {
    luns: LunMap,
    writer: NexusId,
    recordings: Arc<AtomicU64>,
}

impl Unit {
    fn new(device: &SharedDevice) -> Result<Self> {
        let recordings = Arc::new(AtomicU64::new(0));
        let options = LogicalUnitOptions {
            change_store: Some(Arc::new(CountingStore(Arc::clone(&recordings)))),
            clock: Some(Arc::new(TokioClock::new())),
            ..LogicalUnitOptions::default()
        };
        let luns = LunMap::new();
        luns.insert(0, LogicalUnit::new(Arc::clone(device), options));
        let unit = Self { luns, writer: NexusId::new(WRITER), recordings };
        unit.join(&unit.writer)?;
        Ok(unit)
    }

    /// A nexus comes, and takes its unit attention.
    fn join(&self, nexus: &NexusId) -> Result<()> {
        self.luns.add_nexus(nexus);
        at_once(self.start(nexus, Cdb::TestUnitReady, Buffer::empty()))?;
        Ok(())
    }

    fn start(&self, nexus: &NexusId, cdb: Cdb, data_out: Buffer) -> impl Future<Output = Outcome> {
        let attribute = TaskAttribute::Simple;
        let command = Command { cdb: Ok(cdb), data_out, data_in_bytes_max: 1 << 20, attribute, task_tag: 1 };
        self.luns.execute(nexus, 0, command)
    }

    fn good(&self, nexus: &NexusId, cdb: Cdb, data_out: Buffer) -> Result<Buffer> {
        let outcome = at_once(self.start(nexus, cdb, data_out))?;
        if outcome.status != Status::Good {
            return Err(format!("{cdb:?} ended with {:?}", outcome.status).into());
        }
        Ok(outcome.data_in)
    }

    /// Takes the mark, forgets what was recorded, and lets go.
    fn clear(&self) -> Result<()> {
        let holder = NexusId::new(HOLDER);
        self.join(&holder)?;
        let order = |service_action, sequence| {
            let list = Parameters { id: ID, token: 1, sequence }.emit();
            let cdb = Cdb::ChangeMarkOut { service_action, parameter_list_length: list.len() as u32 };
            self.good(&holder, cdb, Buffer::copy_of(&list))
        };
        order(action_out::TAKE, 0)?;
        let service_action = action_in::REPORT_MARKS;
        let report = Cdb::ChangeMarkIn { service_action, slot: 0, first_range: 0, allocation_length: 4096 };
        let marks = parse_marks(&self.good(&holder, report, Buffer::empty())?);
        let mark = *marks.iter().flatten().next().ok_or("the mark is there")?;
        order(action_out::CLEAR, mark.sequence)?;
        self.luns.remove_nexus(&holder);
        Ok(())
    }

    fn write(&self, offset: u64) -> Result<()> {
        let blocks = Blocks::sixteen(offset / BLOCK_BYTES, (WRITE_BYTES / BLOCK_BYTES) as u32);
        let cdb = Cdb::Write(Transfer { blocks, is_dpo: false, is_fua: false });
        self.good(&self.writer, cdb, Buffer::copy_of(&[7; WRITE_BYTES as usize]))?;
        Ok(())
    }

    /// One write at each multiple of `step`.
    fn write_all(&self, step: u64) -> Result<()> {
        (0..LUN_BYTES).step_by(step as usize).try_for_each(|offset| self.write(offset))
    }

    /// Nanoseconds of each of so many writes to random places.
    fn time(&self, writes: u64, random: &mut Random) -> Result<f64> {
        let began = Instant::now();
        for _ in 0..writes {
            self.write(random.below(LUN_BYTES / WRITE_BYTES) * WRITE_BYTES)?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e9 / writes as f64)
    }
}

/// What a command of a device in RAM ends with.
fn at_once(execution: impl Future<Output = Outcome>) -> Result<Outcome> {
    execution.now_or_never().ok_or_else(|| "a device in RAM does not wait".into())
}
