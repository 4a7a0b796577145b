//! Whether what the cache holds is still what the origin has, after a time in which nobody looked on.
//!
//! | the origin | clean sectors | dirty sectors |
//! |---|---|---|
//! | is unchanged | stay | stay |
//! | was changed in some ranges | go, in these ranges | in these ranges: both were changed, and open fails unless told otherwise |
//! | may have changed anywhere | go | stay: nobody says that others wrote there |
//!
//! What goes is gone *durably* before an open returns: from then on the caller may forget what has changed. Until then
//! it says it again. What others change while that goes on is said to the cache that is open, which does the same then.

use base::range::ByteRange;

/// What others did to the origin since the cache was open last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// Nothing: it is used by this host alone.
    #[default]
    Unchanged,
    /// They changed these bytes at most; in any order, they may overlap and lie beyond the end.
    Changed(Vec<ByteRange>),
    /// Nobody can tell.
    Unknown,
}
