//! The bounds of this crate.

/// Longest CDB: the 16 bytes of an iSCSI command header plus an extended CDB AHS (RFC 7143 11.2.2.3), and SPC-4's own
/// limit.
pub const CDB_BYTES_MAX: usize = 260;

/// CDB bytes held without an allocation: all of ours.
pub const CDB_BYTES_INLINE: usize = 16;

/// Largest logical unit number that the single-level flat addressing method can say (SAM-5 4.7.7.3): 14 bits.
pub const LUN_MAX: u64 = (1 << 14) - 1;

/// LUNs read from one REPORT LUNS answer: as many as can be addressed.
pub const REPORTED_LUNS_MAX: usize = LUN_MAX as usize + 1;

/// Longest sense data (SPC-4 4.5.1).
pub const SENSE_BYTES_MAX: usize = 252;

/// Marks read from one REPORT MARKS answer: what 16 bits of slots can say is far more than any target keeps.
pub const REPORTED_MARKS_MAX: usize = 1024;

/// Target port groups read from one answer: arrays have two to eight.
pub const TARGET_PORT_GROUPS_MAX: usize = 64;
