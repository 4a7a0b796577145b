//! Workload generators, trace replay and their reports.
