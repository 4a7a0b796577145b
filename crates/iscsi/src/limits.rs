//! The bounds of this crate.
