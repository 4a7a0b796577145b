//! Tokens distinguish a mark from others with its id, and a store from copies of it.

use store::Tokens;
use uuid::Uuid;

/// A random token of 64 bits.
pub(crate) fn draw_token() -> u64 {
    Uuid::new_v4().as_u64_pair().0 ^ Uuid::new_v4().as_u64_pair().1
}

/// The tokens of a store: for its opening, and for its close.
pub fn draw_tokens() -> Tokens {
    Tokens { in_use: draw_token(), closed: draw_token() }
}
