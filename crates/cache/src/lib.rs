//! Crash-safe set-associative block cache.
