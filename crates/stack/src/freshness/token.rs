//! What a mark is told by from those of other stores that have its id.

use uuid::Uuid;

/// 64 bits that nobody had before.
pub(crate) fn draw_token() -> u64 {
    Uuid::new_v4().as_u64_pair().0 ^ Uuid::new_v4().as_u64_pair().1
}
