//! `make bench-fairness`: how much of its speed a modest client keeps beside others that send all
//! they can.
//!
//! The good client reads 4 KiB at a time, one read under way, as fast as it can. In each round it is alone, then beside
//! two processes that only spin, which is what the loss of processor time alone costs on this machine, then beside two
//! unfair clients, each a process of its own. The target has a processor to itself, and the clients another: what is
//! measured is how the target shares its work out, and not how the system does. The unfair clients are nice by default:
//! on machines of their own they would take no processor from the good one. Medians of the rounds are printed, with the
//! least and the largest share, and how long the target takes to end at SIGTERM while the attack goes on; for attacks
//! whose PDUs are made once, also how many of their commands were answered.

#![forbid(unsafe_code)]

mod attack;
mod flood;

use std::error::Error;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::buffer::Buffer;
use base::random::Random;
use block::device::DeviceExt;
use clap::{Parser, ValueEnum};
use initiator::{InitiatorOptions, TcpConnector};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use tests::Process;
use tokio::runtime::Builder;

use attack::Attack;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const IQN: &str = "iqn.2026-11.io.forebay:bench";
const BLOCK_BYTES: usize = 512;
const READ_BYTES: u64 = 4096;
const LUN_BYTES: u64 = 512 << 20;
/// Bytes of the range that the good client reads.
const READ_RANGE_BYTES: u64 = 32 << 20;
const ATTACKERS: usize = 2;
/// Time for an attack to get going.
const RAMP: Duration = Duration::from_millis(400);

/// Measures how fair the target is.
#[derive(Debug, Parser)]
struct Arguments {
    /// The forebay program
    #[arg(long, env = "FOREBAY_BIN", default_value = "target/release/forebay")]
    forebay: PathBuf,
    /// Only these attacks
    #[arg(long, value_enum)]
    attack: Vec<Attack>,
    /// Processors of the target, as taskset has them
    #[arg(long, default_value = "1")]
    server_cpus: String,
    /// Processors of the clients
    #[arg(long, default_value = "0")]
    client_cpus: String,
    /// The good client reads the blocks that are attacked, and not others of the logical unit
    #[arg(long)]
    same_blocks: bool,
    /// The good client has a host of its own, as its address tells: it comes over IPv6
    #[arg(long)]
    own_host: bool,
    /// The clients are those of a gateway (`attach --as iscsi:PORT`) to the target, on the same processors
    #[arg(long, conflicts_with = "own_host")]
    gateway: bool,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of one measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// How nice the unfair clients are to processes of this machine
    #[arg(long, default_value_t = 19)]
    nice: u8,
    /// This process is an unfair client of this URL
    #[arg(long, hide = true)]
    url: Option<String>,
    /// Its number
    #[arg(long, hide = true, default_value_t = 0)]
    number: usize,
    /// This process only spins
    #[arg(long, hide = true)]
    spin: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.spin {
        loop {
            std::hint::spin_loop();
        }
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    if let (Some(url), [attack]) = (&arguments.url, &arguments.attack[..]) {
        return runtime.block_on(attack.run(url, arguments.number));
    }
    stay_on(&arguments.client_cpus)?;
    let all = if arguments.attack.is_empty() { Attack::value_variants() } else { &arguments.attack };
    for &attack in all {
        runtime.block_on(measure(&arguments, attack))?;
    }
    Ok(())
}

/// Keeps this process, and those that it starts, on these processors.
fn stay_on(cpus: &str) -> Result<()> {
    let own = std::process::id().to_string();
    let moved = Command::new("taskset").args(["-acp", cpus, &own]).stdout(Stdio::null()).status()?;
    if moved.success() { Ok(()) } else { Err("taskset failed".into()) }
}

/// The result of the good client in one phase.
struct Phase {
    /// Reads a second.
    rate: f64,
    /// Microseconds within which 99 of 100 reads were answered.
    p99: f64,
}

async fn measure(arguments: &Arguments, attack: Attack) -> Result<()> {
    let stage = tempfile::tempdir()?;
    let target = start_target(arguments, stage.path())?;
    let (_, port) = target.ready.rsplit_once(':').ok_or("a portal has a port")?;
    let url_at = |host| format!("iscsi://{host}:{port}/{IQN}/0");
    let (mut url, mut good_url) = (url_at("127.0.0.1"), url_at(if arguments.own_host { "[::1]" } else { "127.0.0.1" }));
    let gateway = arguments.gateway.then(|| start_gateway(arguments, stage.path(), &url)).transpose()?;
    if let Some(gateway) = &gateway {
        (url, good_url) = (gateway.ready.clone(), gateway.ready.clone());
    }
    let name = attack.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let (mut alone, mut spun, mut attacked) = (Vec::new(), Vec::new(), Vec::new());
    let (mut last, mut answered) = (Vec::new(), Vec::new());
    for round in 1..=arguments.rounds {
        alone.push(read(&good_url, arguments).await?);
        let spinning = start_all(|_| Ok(own_program(0)?.arg("--spin").spawn()?))?;
        spun.push(read(&good_url, arguments).await?);
        drop(spinning);
        last = start_all(|number| {
            let mut command = own_program(arguments.nice)?;
            command.args(["--attack", &name, "--url", &url, "--number", &number.to_string()]);
            let notes = File::create(notes_of(stage.path(), number))?;
            Ok(command.stdout(notes).stderr(Stdio::null()).spawn()?)
        })?;
        tokio::time::sleep(RAMP).await;
        attacked.push(read(&good_url, arguments).await?);
        if last.iter_mut().any(Attacker::has_ended) {
            return Err(format!("an unfair client ended by itself: {name}").into());
        }
        answered.extend(answers(stage.path())?);
        if round < arguments.rounds {
            last.clear();
        }
        let rates = [&alone, &spun, &attacked].map(|phases| phases.last().map_or(0.0, |phase| phase.rate));
        println!(
            "  {name}, round {round}: {:.0} alone, {:.0} beside two that spin, {:.0} attacked",
            rates[0], rates[1], rates[2]
        );
    }
    let ending = match gateway {
        Some(gateway) => end(gateway)?,
        None => end(target)?,
    };
    drop(last);
    report(&name, [&alone, &spun, &attacked], ending);
    if !answered.is_empty() {
        let rate = |which: fn(&Answered) -> f64| median(answered.iter().map(which).collect());
        let (all, refused) = (rate(|answered| answered.all), rate(|answered| answered.refused));
        println!(
            "  {name}: {all:.1} commands of the unfair clients were answered a second, {refused:.1} not with GOOD"
        );
    }
    Ok(())
}

/// Commands of all unfair clients that were answered in a second of one round.
struct Answered {
    all: f64,
    refused: f64,
}

/// Where an unfair client notes what it is answered.
fn notes_of(stage: &Path, number: usize) -> PathBuf {
    stage.join(format!("unfair{number}"))
}

/// What the unfair clients have noted last, if they note it.
fn answers(stage: &Path) -> Result<Option<Answered>> {
    let mut sum = Answered { all: 0.0, refused: 0.0 };
    for number in 1..=ATTACKERS {
        let notes = std::fs::read_to_string(notes_of(stage, number))?;
        let Some((all, refused)) = notes.lines().last().and_then(|note| note.split_once(' ')) else { return Ok(None) };
        (sum.all, sum.refused) = (sum.all + all.parse::<f64>()?, sum.refused + refused.parse::<f64>()?);
    }
    Ok(Some(sum))
}

fn report(name: &str, [alone, spun, attacked]: [&Vec<Phase>; 3], ending: Duration) {
    let rate = |phases: &[Phase]| median(phases.iter().map(|phase| phase.rate).collect());
    let p99 = |phases: &[Phase]| median(phases.iter().map(|phase| phase.p99).collect());
    let shares: Vec<f64> = attacked.iter().map(|phase| phase.rate / rate(alone)).collect();
    let (least, most) =
        shares.iter().fold((f64::INFINITY, 0.0), |(low, high), &share| (share.min(low), share.max(high)));
    println!(
        "{name}: keeps {:.2} of its rate ({least:.2} to {most:.2}; {:.2} beside two that spin), p99 {:.1} x its own \
         ({:.0} us; {:.1} x beside two that spin); the target ends in {:.1} s",
        rate(attacked) / rate(alone),
        rate(spun) / rate(alone),
        p99(attacked) / p99(alone),
        p99(attacked),
        p99(spun) / p99(alone),
        ending.as_secs_f64()
    );
}

fn start_target(arguments: &Arguments, stage: &Path) -> Result<Process> {
    let lun = format!("0=ram:{LUN_BYTES},shared");
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let portals = ["127.0.0.1", "[::1]"].map(|host| format!("--portal={host}:{port}"));
    let arguments_of_all = ["target", "serve", "--iqn", IQN, "--lun", &lun];
    start(arguments, stage, &[&arguments_of_all[..], &portals.each_ref().map(String::as_str)[..]].concat())
}

fn start_gateway(arguments: &Arguments, stage: &Path, url: &str) -> Result<Process> {
    start(arguments, stage, &["attach", url, "--name", "fairness", "--as", "iscsi:0"])
}

/// The program on the processors of the target.
fn start(arguments: &Arguments, stage: &Path, own: &[&str]) -> Result<Process> {
    let mut command = Command::new("taskset");
    command
        .args(["-c", &arguments.server_cpus])
        .arg(&arguments.forebay)
        .args(own)
        .env("FOREBAY_RUNTIME_DIR", stage.join("run"))
        .env("FOREBAY_STATE_DIR", stage.join("state"));
    Ok(Process::start(&mut command).map_err(|ended| ended.stderr)?)
}

/// The time from SIGTERM to the end of the target.
fn end(target: Process) -> Result<Duration> {
    let began = Instant::now();
    let id = Pid::from_raw(target.id() as i32).ok_or("a process has a number")?;
    kill_process(id, Signal::TERM)?;
    target.wait();
    Ok(began.elapsed())
}

/// A process of an attack; killed when dropped.
struct Attacker(Child);

impl Attacker {
    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_all(start: impl Fn(usize) -> Result<Child>) -> Result<Vec<Attacker>> {
    (1..=ATTACKERS).map(|number| start(number).map(Attacker)).collect()
}

fn own_program(nice: u8) -> Result<Command> {
    let mut command = Command::new("nice");
    command.args(["-n", &nice.to_string()]).arg(std::env::current_exe()?);
    Ok(command)
}

/// The good client: reads of random blocks, one after the other.
async fn read(url: &str, arguments: &Arguments) -> Result<Phase> {
    let url = url.parse()?;
    let initiator_name = "iqn.2026-11.io.forebay:good".to_owned();
    let options = InitiatorOptions { initiator_name, ..InitiatorOptions::for_url(&url) };
    let (lun, driver) = initiator::connect(options, Arc::new(TcpConnector)).await?;
    let driver = tokio::spawn(driver);
    let first = if arguments.same_blocks { 0 } else { LUN_BYTES / 2 };
    let (mut random, mut buffer, mut times) = (Random::new(7), Buffer::zeroed(READ_BYTES as usize), Vec::new());
    let began = Instant::now();
    let end = began + Duration::from_secs_f64(arguments.seconds);
    let mut now = began;
    while now < end {
        let offset = first + random.below(READ_RANGE_BYTES / READ_BYTES) * READ_BYTES;
        buffer = lun.read(offset, buffer).await?;
        let then = std::mem::replace(&mut now, Instant::now());
        times.push((now - then).as_secs_f64() * 1e6);
    }
    let rate = times.len() as f64 / (now - began).as_secs_f64();
    lun.close().await?;
    driver.await?;
    times.sort_by(f64::total_cmp);
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    Ok(Phase { rate, p99 })
}

/// The middle one, or what is between the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.get(values.len().saturating_sub(1) / 2..=values.len() / 2).unwrap_or_default();
    middle.iter().sum::<f64>() / middle.len() as f64
}
