//! What is set for the sharing of one logical unit.

use std::time::Duration;

use crate::identity::BootEpoch;
use crate::limits::{self, Limits};
use crate::mode::Mode;
use crate::resource::GroupSize;

/// What the two ends do with grants and commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    /// Every grant is kept until it is called back, and a command has as many blocks as it likes.
    #[default]
    Usual,
    /// As the paper has it, to be measured against: only `M_S` is kept, locks are asked for one by one, and a command
    /// has one block.
    Paper,
}

impl Profile {
    /// Whether a client keeps a lock of its own that nothing uses.
    pub fn keeps(self, mode: Mode) -> bool {
        self == Self::Usual || mode == Mode::M_S
    }

    /// Most blocks of one command; none for as many as there are.
    pub fn blocks_of_command_max(self) -> Option<u64> {
        (self == Self::Paper).then_some(1)
    }
}

/// Sizes and times of the sharing of one logical unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// What is done with grants and commands.
    pub profile: Profile,
    /// Blocks of the logical unit.
    pub block_count: u64,
    /// Blocks of a block group.
    pub group_size: GroupSize,
    /// How long grants of a silent client stand.
    pub lease: Duration,
    /// How long a client has to answer a callback that it does not defer.
    pub callback_time: Duration,
    /// By how much a deferral moves that.
    pub deferral_step: Duration,
    /// How long a callback can be deferred at most.
    pub callback_time_max: Duration,
    /// How long a lock is held before it is called back.
    pub hold_time_min: Duration,
    /// Bounds of tables.
    pub limits: Limits,
}

impl Settings {
    /// The usual ones.
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

    /// The paper's: nothing is held longer for having been granted just now.
    pub fn paper(block_count: u64, group_size: GroupSize) -> Self {
        Self {
            profile: Profile::Paper,
            hold_time_min: Duration::ZERO,
            limits: Limits { batch_max: 1, ..Limits::default() },
            ..Self::new(block_count, group_size)
        }
    }
}

/// What a target knows durably when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Start {
    /// This start.
    pub boot_epoch: BootEpoch,
    /// The earliest start whose clients may still reclaim what they held: the last one whose grace period ended.
    /// Nothing that they held was given to others since.
    pub reclaimable_from: BootEpoch,
    /// The longest lease of the starts before; none when nobody can hold anything of them.
    pub longest_lease: Option<Duration>,
    /// Whether a client of them may have held ranges of the unit alone, with writes that only it has.
    pub may_lack_writes: bool,
}

impl Start {
    /// The first start of all.
    pub fn first() -> Self {
        Self { boot_epoch: BootEpoch(1), reclaimable_from: BootEpoch(1), longest_lease: None, may_lack_writes: false }
    }
}
