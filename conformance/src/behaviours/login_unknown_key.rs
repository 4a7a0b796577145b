//! A key that nobody knows is answered with NotUnderstood, and the login goes on.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.2";

/// A key that nobody knows is answered with NotUnderstood, and the login goes on.
pub fn run(bench: &Bench) -> Outcome {
    let wire = bench.log_in(&[("X-io.example.Unheard", "1")])?;
    same("X-io.example.Unheard", wire.answers.get("X-io.example.Unheard"), Some("NotUnderstood"))
}
