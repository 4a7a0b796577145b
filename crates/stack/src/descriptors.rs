//! The limit on open files and connections of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits::{METRICS_CONNECTIONS_MAX, TARGET_DESCRIPTORS, UNIT_DESCRIPTORS};

/// Raises the soft limit to what this many connections and logical units need, as far as the hard
/// limit allows.
pub(crate) fn allow(connections: u64, units: u64) {
    let needed = connections
        .saturating_add(units.saturating_mul(UNIT_DESCRIPTORS))
        .saturating_add(METRICS_CONNECTIONS_MAX as u64 + TARGET_DESCRIPTORS);
    let limit = getrlimit(Resource::Nofile);
    let raised = raised(&limit, needed);
    if let Some(current) = raised {
        // A limit that cannot be raised stays, and is reported below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum });
    }
    if let Some(current) = getrlimit(Resource::Nofile).current.filter(|&current| current < needed) {
        tracing::warn!(
            "{connections} connections and {units} logical units may need {needed} descriptors, and {current} are \
             allowed: raise the hard limit (`ulimit -Hn`, LimitNOFILE=), or lower `connections` in [limits]"
        );
    }
}

/// The new soft limit; `None` if it need not change.
fn raised(limit: &Rlimit, needed: u64) -> Option<u64> {
    let possible = limit.maximum.map_or(needed, |maximum| needed.min(maximum));
    limit.current.filter(|&current| current < possible).map(|_| possible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_what_is_needed_and_the_hard_one_allows() {
        let limit = |current, maximum| Rlimit { current, maximum };
        assert_eq!(raised(&limit(Some(300), Some(20_000)), 1500), Some(1500));
        assert_eq!(raised(&limit(Some(300), Some(1000)), 1500), Some(1000));
        assert_eq!(raised(&limit(Some(300), None), 1500), Some(1500));
        assert_eq!(raised(&limit(Some(2000), Some(20_000)), 1500), None);
        assert_eq!(raised(&limit(None, None), 1500), None);
    }
}
