//! The decisions of a seed about a world, and the faults that can be put into it.

use std::time::Duration;

use base::clock::Instant;
use base::random::Random;
use locks::limits::Limits;
use locks::resource::GroupSize;
use locks::settings::Settings;

/// Blocks of the unit: some are shared by registrations, some are under metadata locks, some under
/// locks of block groups.
pub const BLOCKS: u64 = 16;
/// Blocks that any host reads and writes.
pub const OPEN_BLOCKS: u64 = 6;
/// The first block that is locked in a group. Those before, from [`OPEN_BLOCKS`] on, are locked one
/// by one.
pub const GROUPED_FROM: u64 = 8;
const GROUP_BLOCKS: u64 = 4;

pub const LEASE: Duration = Duration::from_millis(900);

/// A deliberate fault of a client, of the target around its lock manager, or of its durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    PurgeAnsweredFirst,
    StaleDataKept,
    GenerationIgnored,
    OwnChangeUnnoticed,
    CopiesKeptOverStart,
    CopiesServedWithoutLease,
    LeaseCountedFromReply,
    ClockTooSlow,
    CopiesKeptWithoutLock,
    LockLeavesBeforeWrite,
    LockLeavesBeforeFlush,
    WriteRepeatedAfterFence,
    WriteRepeatedAfterLoss,
    FenceBeforeCommandsEnd,
    FenceWithoutFlush,
    FencedClientsWrite,
    StockWritesPassTheGate,
    ChangePassesBeforePurge,
    ReadsAreNotRegistered,
    GraceSkipped,
    StartsNotCounted,
    LeaseNotKept,
    RegisteredTwiceNotRenewed,
}

impl Fault {
    pub const ALL: [Self; 23] = [
        Self::PurgeAnsweredFirst,
        Self::StaleDataKept,
        Self::GenerationIgnored,
        Self::OwnChangeUnnoticed,
        Self::CopiesKeptOverStart,
        Self::CopiesServedWithoutLease,
        Self::LeaseCountedFromReply,
        Self::ClockTooSlow,
        Self::CopiesKeptWithoutLock,
        Self::LockLeavesBeforeWrite,
        Self::LockLeavesBeforeFlush,
        Self::WriteRepeatedAfterFence,
        Self::WriteRepeatedAfterLoss,
        Self::FenceBeforeCommandsEnd,
        Self::FenceWithoutFlush,
        Self::FencedClientsWrite,
        Self::StockWritesPassTheGate,
        Self::ChangePassesBeforePurge,
        Self::ReadsAreNotRegistered,
        Self::GraceSkipped,
        Self::StartsNotCounted,
        Self::LeaseNotKept,
        Self::RegisteredTwiceNotRenewed,
    ];
}

/// A disturbance of the world; the plan also says when it happens.
#[derive(Clone, Copy, Debug)]
pub enum Disturbance {
    /// The session of a host is lost.
    Cut(usize),
    /// A host freezes; its sent messages freeze with it, or not.
    Freeze { host: usize, time: Duration, holds_sent: bool },
    /// The target ends, perhaps with a loss of its disk's volatile data.
    Kill { is_power_loss: bool },
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub clients: usize,
    pub stock: usize,
    pub workers: usize,
    /// Operations of each worker.
    pub operations: u32,
    pub connections: usize,
    pub delay_max: Duration,
    pub disk_time_max: Duration,
    pub think_time_max: Duration,
    /// The share of writes under locks that are made durable at once. The others are flushed later.
    pub durable_share: f64,
    /// The share of answers to a registration that are lost with their session.
    pub registrations_cut: f64,
    /// The share of flushes whose host does not live to see them: it freezes for longer than its
    /// lease.
    pub unflushed_freezes: f64,
    /// The longest absence of a lost session and a killed target.
    pub away_max: Duration,
    pub settings: Settings,
    pub untaken_max: usize,
    /// Whether clients keep what they wrote.
    pub keeps_written: bool,
    pub disturbances: Vec<(Instant, Disturbance)>,
    /// The message with which its session is lost, by its number over all messages.
    pub cut_at: Option<u64>,
    /// The write of the target, to its store or to its disk, at which it ends, by its number over
    /// all; half of them land.
    pub kill_at: Option<u64>,
    /// A client that says that it dropped copies, and keeps them.
    pub liar: Option<usize>,
    pub fault: Option<Fault>,
}

fn settings(random: &mut Random) -> Settings {
    let small = Limits { registrations_max: 3, ..Limits::default() };
    Settings {
        lease: LEASE,
        callback_time: LEASE,
        deferral_step: LEASE / 2,
        callback_time_max: LEASE * 4,
        hold_time_min: if random.chance(0.5) { Duration::ZERO } else { Duration::from_millis(20) },
        limits: if random.chance(0.2) { small } else { Limits::default() },
        ..Settings::new(BLOCKS, GroupSize::of_blocks(GROUP_BLOCKS).expect("it has blocks"))
    }
}

impl Plan {
    pub fn draw(random: &mut Random) -> Self {
        let (clients, stock) = (2 + random.below(4) as usize, random.below(3) as usize);
        let ms = |random: &mut Random, choices: [u64; 3]| Duration::from_millis(choices[random.below(3) as usize]);
        let (workers, operations) = (1 + random.below(2) as usize, 20 + random.below(80) as u32);
        let (delay_max, think_time_max) = (ms(random, [1, 20, 250]), ms(random, [20, 100, 400]));
        // About as long as the work takes.
        let span = (delay_max + think_time_max) * operations / workers as u32;
        let disturbances = (0..random.below(16)).map(|_| draw_disturbance(random, clients + stock, span)).collect();
        // The others seldom flush then.
        let dies_unflushed = random.chance(0.2);
        let registers_twice = random.chance(0.3);
        let away_max = if registers_twice { LEASE * 9 / 10 } else { ms(random, [50, 700, 2500]) };
        Self {
            clients,
            stock,
            workers,
            operations,
            connections: 1 + random.below(3) as usize,
            delay_max,
            disk_time_max: ms(random, [1, 10, 1500]),
            think_time_max,
            away_max,
            durable_share: if dies_unflushed { 0.9 } else { [0.1, 0.5, 0.9][random.below(3) as usize] },
            registrations_cut: if registers_twice { 0.5 } else { 0.0 },
            unflushed_freezes: if dies_unflushed { 0.3 } else { 0.0 },
            settings: settings(random),
            untaken_max: if random.chance(0.15) { 2 } else { 64 },
            keeps_written: random.chance(0.5),
            disturbances,
            cut_at: None,
            kill_at: None,
            liar: None,
            fault: None,
        }
    }

    /// A short plan without random disturbances.
    pub fn short(random: &mut Random) -> Self {
        let full = Self::draw(random);
        let limits = Limits::default();
        Self {
            clients: 2,
            stock: 1,
            workers: 1,
            operations: 10,
            registrations_cut: 0.0,
            unflushed_freezes: 0.0,
            delay_max: Duration::from_millis(20),
            disk_time_max: Duration::from_millis(10),
            think_time_max: Duration::from_millis(50),
            away_max: Duration::from_millis(700),
            untaken_max: 64,
            disturbances: Vec::new(),
            settings: Settings { limits, ..full.settings },
            ..full
        }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

fn draw_disturbance(random: &mut Random, hosts: usize, span: Duration) -> (Instant, Disturbance) {
    let at = Instant::START + Duration::from_nanos(random.below(span.as_nanos() as u64));
    let host = random.below(hosts as u64) as usize;
    let disturbance = match random.below(4) {
        0 | 1 => Disturbance::Cut(host),
        2 => {
            let time = Duration::from_millis(100 + random.below(2500));
            Disturbance::Freeze { host, time, holds_sent: random.chance(0.6) }
        }
        _ => Disturbance::Kill { is_power_loss: random.chance(0.6) },
    };
    (at, disturbance)
}
