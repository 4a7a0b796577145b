//! Everything about a world that its seed decides, and the faults that can be put into it.

use std::time::Duration;

use base::clock::Instant;
use base::random::Random;
use locks::limits::Limits;
use locks::resource::GroupSize;
use locks::settings::Settings;

/// Blocks of the unit: some are shared by registrations, some under metadata locks, some under locks of block groups.
pub const BLOCKS: u64 = 16;
/// Blocks that anybody reads and writes.
pub const OPEN_BLOCKS: u64 = 6;
/// The first block that is locked in a group. Those before, from [`OPEN_BLOCKS`] on, are locked each by itself.
pub const GROUPED_FROM: u64 = 8;
const GROUP_BLOCKS: u64 = 4;

pub const LEASE: Duration = Duration::from_millis(900);

/// One thing done wrong, by a client, by the target around its lock manager, or by what it keeps.
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

/// What goes wrong in the world, and when.
#[derive(Clone, Copy, Debug)]
pub enum Mischief {
    /// The session of a host is lost.
    Cut(usize),
    /// A host stands still, and what it has sent waits with it, or not.
    Freeze { host: usize, time: Duration, holds_sent: bool },
    /// The target ends, perhaps with what its disk held volatile.
    Kill { is_power_loss: bool },
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub clients: usize,
    pub stock: usize,
    pub workers: usize,
    /// Of each worker.
    pub operations: u32,
    pub connections: usize,
    pub delay_max: Duration,
    pub disk_time_max: Duration,
    pub think_time_max: Duration,
    /// How many of the writes under locks are durable at once. The others are flushed.
    pub durable_share: f64,
    /// How many of the answers to a registration are lost with their session.
    pub registrations_cut: f64,
    /// How many of the flushes their host does not live to see: it freezes for longer than its lease.
    pub unflushed_freezes: f64,
    /// How long a lost session and a killed target are away.
    pub away_max: Duration,
    pub settings: Settings,
    pub untaken_max: usize,
    /// Whether clients keep what they wrote.
    pub keeps_written: bool,
    pub mischief: Vec<(Instant, Mischief)>,
    /// The message with which its session is lost, counted over all.
    pub cut_at: Option<u64>,
    /// The write of the target, to its store or to its disk, at which it ends, counted over all; half of them land.
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
        let mischief = (0..random.below(16)).map(|_| draw_mischief(random, clients + stock, span)).collect();
        // Others flush seldom, then.
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
            mischief,
            cut_at: None,
            kill_at: None,
            liar: None,
            fault: None,
        }
    }

    /// A short one in which nothing goes wrong by itself.
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
            mischief: Vec::new(),
            settings: Settings { limits, ..full.settings },
            ..full
        }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

fn draw_mischief(random: &mut Random, hosts: usize, span: Duration) -> (Instant, Mischief) {
    let at = Instant::START + Duration::from_nanos(random.below(span.as_nanos() as u64));
    let host = random.below(hosts as u64) as usize;
    let mischief = match random.below(4) {
        0 | 1 => Mischief::Cut(host),
        2 => {
            let time = Duration::from_millis(100 + random.below(2500));
            Mischief::Freeze { host, time, holds_sent: random.chance(0.6) }
        }
        _ => Mischief::Kill { is_power_loss: random.chance(0.6) },
    };
    (at, mischief)
}
