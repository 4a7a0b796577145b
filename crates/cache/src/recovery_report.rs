//! The report of a recovery, made when a cache was opened.

use serde::Serialize;

/// What the recovery of an open found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveryReport {
    /// Whether it had been closed; otherwise its program had stopped in the middle.
    pub was_closed: bool,
    /// Log records replayed.
    pub log_records: u64,
    /// Bytes of these.
    pub log_bytes: u64,
    /// Entries in these.
    pub log_entries: u64,
    /// Writes whose data was compared with its checksum.
    pub writes_verified: u64,
    /// Of these, writes that had not landed, and therefore had not been acknowledged.
    pub writes_taken_back: u64,
    /// Lines with deferred data: it was in the log, and may not have been in its frames.
    pub deferred_lines: u64,
    /// Lines dirty after recovery.
    pub dirty_lines: u64,
    /// Of these, lines that the cache device cannot return.
    pub lost_lines: u64,
    /// Clean lines dropped because of a crash, of a table that is an older one, or of changes by
    /// other hosts meanwhile.
    pub clean_lines_dropped: u64,
    /// Whether the table of the closed cache is not the one that it was closed with: the newest slot of a page is gone.
    /// Nothing was dirty.
    pub is_table_older: bool,
}
