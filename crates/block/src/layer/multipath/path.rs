//! A path, its access state, and the policy that chooses among paths.

use std::str::FromStr;

/// Which of several equally good paths takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The first.
    Failover,
    /// Each in turn.
    RoundRobin,
}

impl Policy {
    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failover => "failover",
            Self::RoundRobin => "round-robin",
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Self::Failover, Self::RoundRobin].into_iter().find(|policy| policy.as_str() == text);
        found.ok_or_else(|| format!("\"{text}\" is no policy of paths: failover or round-robin"))
    }
}

/// How a path reaches the unit (SPC-4 5.15.2, asymmetric access states), the best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Active/optimized, or not reported.
    #[default]
    Optimized,
    /// Active/non-optimized.
    NonOptimized,
    /// Standby, unavailable, offline or in transition: commands that move data are refused.
    None,
}

impl Access {
    /// Its name in `status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::None => "none",
        }
    }
}

/// One path as `status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Whether it answers, according to its events.
    pub is_online: bool,
    /// Its access state.
    pub access: Access,
    /// Requests given to it so far.
    pub request_count: u64,
    /// Changes with unknown outcome on this path, which may still land.
    pub doubt_count: usize,
}
