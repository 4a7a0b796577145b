//! The check of the superblock in `cache check` and `log check`; both kinds of store have one.

use std::fmt;

use stack::{Error, Failure, Result};
use store::superblock::Copies;

/// Refuses a superblock of whose two copies one is damaged. The next attach mends it, but other
/// blocks of its device may be damaged too.
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
