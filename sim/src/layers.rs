//! The layers between an application and a LUN.

use base::random::Random;

/// The layers of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// The LUN alone.
    None,
    /// A cache.
    Cache,
    /// A write log.
    Log,
    /// A write log that destages into a cache.
    LogOverCache,
    /// A difference from a LUN that is only read.
    Difference,
    /// The same, with a cache of the LUN.
    DifferenceOverCache,
}

impl Layers {
    /// Any layers with which the LUN is written to.
    pub fn draw(random: &mut Random) -> Self {
        Self::of(random.chance(0.5), random.chance(0.5))
    }

    fn of(has_cache: bool, has_log: bool) -> Self {
        match (has_cache, has_log) {
            (false, false) => Self::None,
            (true, false) => Self::Cache,
            (false, true) => Self::Log,
            (true, true) => Self::LogOverCache,
        }
    }

    /// The layers of both, where the LUN is written to with either.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self::of(self.has_cache() || others.has_cache(), self.has_log() || others.has_log())
    }

    /// Whether there is a cache.
    pub fn has_cache(self) -> bool {
        matches!(self, Self::Cache | Self::LogOverCache | Self::DifferenceOverCache)
    }

    /// Whether there is a write log.
    pub fn has_log(self) -> bool {
        matches!(self, Self::Log | Self::LogOverCache)
    }

    /// Whether the LUN is only read.
    pub fn has_difference(self) -> bool {
        matches!(self, Self::Difference | Self::DifferenceOverCache)
    }
}
