//! Builds a running stack from a configuration.
