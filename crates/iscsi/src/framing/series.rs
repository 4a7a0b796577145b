//! PDUs that carry one buffer in pieces; each is made when its turn to be written comes.

use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;

use super::bound::Bound;
use crate::pdu::RawBhs;

/// The next header, and which part of the buffer goes with it.
type Heads = Box<dyn Iterator<Item = (RawBhs, Range<usize>)> + Send>;

/// A series of PDUs that are not made yet.
pub(super) struct Series {
    pub(super) buffer: Arc<Buffer>,
    pub(super) bound: Bound,
    heads: Heads,
    /// PDUs that are still to be made.
    pub(super) left: usize,
}

impl Series {
    pub(super) fn new((buffer, bound): (Arc<Buffer>, Bound), left: usize, heads: Heads) -> Self {
        Self { buffer, bound, heads, left }
    }

    /// The next PDU.
    pub(super) fn next(&mut self) -> Option<(RawBhs, Range<usize>)> {
        self.left = self.left.checked_sub(1)?;
        self.heads.next()
    }
}
