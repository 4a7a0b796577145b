//! Whether the content of a cache is still that of the origin after a time in which the cache was
//! not open.
//!
//! | the origin | clean sectors | dirty sectors |
//! |---|---|---|
//! | is unchanged | stay | stay |
//! | was changed in some ranges | are dropped, in these ranges | open fails, unless `overwrites_changes` |
//! | may have changed anywhere | are dropped | stay: it is not known that others wrote there |
//! | may be older than the clean sectors, and was changed in some ranges | are dropped | likewise in these ranges |
//!
//! The drop is *durable* before an open returns: from then on the caller may forget the list of
//! changes. Until then the caller passes it again. Changes by other hosts during the open are
//! reported to the cache once it is open, which drops them in the same way.

use base::range::ByteRange;

/// Changes by other hosts to the origin since the cache was open last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// None: only this host uses the origin.
    #[default]
    Unchanged,
    /// At most in these ranges; in any order, they may overlap and lie beyond the end.
    Changed(Vec<ByteRange>),
    /// Not known.
    Unknown,
    /// At most in these ranges since the dirty data was written; clean copies may be newer than all
    /// of the origin.
    Outdated(Vec<ByteRange>),
}
