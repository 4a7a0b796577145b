//! Which layers stand between an application and a LUN.

/// Which layers a stack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// A cache.
    Cache,
    /// A write log.
    Log,
    /// A write log that destages into a cache.
    LogOverCache,
    /// A difference from a LUN that stays as it is.
    Difference,
    /// The same, with a cache of the LUN.
    DifferenceOverCache,
}

impl Layers {
    /// Whether there is a cache.
    pub fn has_cache(self) -> bool {
        matches!(self, Self::Cache | Self::LogOverCache | Self::DifferenceOverCache)
    }

    /// Whether there is a write log.
    pub fn has_log(self) -> bool {
        matches!(self, Self::Log | Self::LogOverCache)
    }

    /// Whether the LUN stays as it is.
    pub fn has_difference(self) -> bool {
        matches!(self, Self::Difference | Self::DifferenceOverCache)
    }
}
