//! What `cache check` and `log check` say of the superblock, which both kinds of store have.

use std::fmt;

use stack::{Error, Failure, Result};
use store::superblock::Copies;

/// Refuses one of whose two copies only the other is left: the next attach mends it, but nobody knows what else has
/// become of its device.
pub fn check(store: impl fmt::Display, copies: Copies) -> Result<()> {
    if !copies.is_one_damaged() {
        return Ok(());
    }
    let message = format!(
        "{store}: one of the two copies of its superblock is damaged ({copies}), and no other damage was found; the \
         next attach writes both again"
    );
    Err(Error::new(Failure::Mismatch, message))
}
