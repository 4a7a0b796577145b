//! The settings of sharing for one logical unit.

use std::time::Duration;

use crate::identity::BootEpoch;
use crate::limits::{self, Limits};
use crate::mode::Mode;
use crate::resource::GroupSize;

/// A profile: which grants a client caches, and how large a command may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    /// Every grant is kept until it is called back, and a command has any number of blocks.
    #[default]
    Usual,
    /// The paper's, as a base of measurements: only `M_S` is kept, locks are requested one by one,
    /// and a command has one block.
    Paper,
}

impl Profile {
    /// Whether a client keeps an unused lock of its own.
    pub fn keeps(self, mode: Mode) -> bool {
        self == Self::Usual || mode == Mode::M_S
    }

    /// Most blocks of one command; `None` for no limit.
    pub fn blocks_of_command_max(self) -> Option<u64> {
        (self == Self::Paper).then_some(1)
    }
}

/// Sizes and times of the sharing of one logical unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The profile of both ends.
    pub profile: Profile,
    /// Blocks of the logical unit.
    pub block_count: u64,
    /// Blocks of a block group.
    pub group_size: GroupSize,
    /// How long the grants of a silent client last.
    pub lease: Duration,
    /// Time for the answer to a callback that the client does not defer.
    pub callback_time: Duration,
    /// The time by which a deferral moves that deadline.
    pub deferral_step: Duration,
    /// Longest time by which a callback can be deferred.
    pub callback_time_max: Duration,
    /// Shortest time for which a lock is held before it is called back.
    pub hold_time_min: Duration,
    /// Bounds of tables.
    pub limits: Limits,
}

impl Settings {
    /// The default settings.
    pub fn new(block_count: u64, group_size: GroupSize) -> Self {
        Self {
            profile: Profile::Usual,
            block_count,
            group_size,
            lease: limits::LEASE,
            callback_time: limits::CALLBACK_TIME,
            deferral_step: limits::DEFERRAL_STEP,
            callback_time_max: limits::CALLBACK_TIME_MAX,
            hold_time_min: limits::HOLD_TIME_MIN,
            limits: Limits::default(),
        }
    }

    /// The paper's settings: a lock can be called back at once after it was granted.
    pub fn paper(block_count: u64, group_size: GroupSize) -> Self {
        Self {
            profile: Profile::Paper,
            hold_time_min: Duration::ZERO,
            limits: Limits { batch_max: 1, ..Limits::default() },
            ..Self::new(block_count, group_size)
        }
    }
}

/// The durable state with which a target starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Start {
    /// This start.
    pub boot_epoch: BootEpoch,
    /// The earliest start whose clients may still reclaim what they held: the last one whose grace
    /// period ended. Nothing that they held was granted to others since.
    pub reclaimable_from: BootEpoch,
    /// The longest lease of earlier starts; `None` when none of their clients can hold a lock.
    pub longest_lease: Option<Duration>,
    /// Whether one of their clients may have held ranges of the unit alone, with dirty data of
    /// them.
    pub may_lack_writes: bool,
}

impl Start {
    /// The first start of all.
    pub fn first() -> Self {
        Self { boot_epoch: BootEpoch(1), reclaimable_from: BootEpoch(1), longest_lease: None, may_lack_writes: false }
    }
}
