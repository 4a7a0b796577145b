//! The bounds of this crate.

use std::time::Duration;

use base::limits::BUFFER_BYTES_MAX;
use scsi::extended_copy::{Limits, SEGMENT_BYTES, TARGET_BYTES};

/// Largest read or write of one command, in bytes, whatever the device would take: half the largest buffer, because COMPARE AND WRITE
/// carries its blocks twice.
pub const TRANSFER_BYTES_MAX: u32 = (BUFFER_BYTES_MAX / 2) as u32;

/// Transfer that is announced as optimal, in bytes: past this the round trip no longer matters on any link we know.
pub const TRANSFER_BYTES_OPTIMAL: u32 = 1 << 20;

/// Bytes a pool of read buffers lends when the options do not bring their own.
pub const READ_BUFFER_BYTES_DEFAULT: usize = 64 << 20;

/// Most blocks of one COMPARE AND WRITE: all its CDB can say.
pub const COMPARE_AND_WRITE_BLOCKS_MAX: u32 = 255;

/// Most blocks of one UNMAP. A million is what conformance tests take for sane, and half a gigabyte of 512-byte blocks.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

/// Most descriptors of one UNMAP: one page of them.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Most blocks of one WRITE SAME: what the ten-byte form can say, so that both forms take the same. Bounded work for one that is not
/// zeroes; whoever wants to clear more at once has UNMAP.
pub const WRITE_SAME_BLOCKS_MAX: u64 = u16::MAX as u64;

/// Bytes written at a time by a WRITE SAME that is not zeroes.
pub const WRITE_SAME_PIECE_BYTES: usize = 1 << 20;

/// Runs listed by one GET LBA STATUS answer.
pub const LBA_STATUS_DESCRIPTORS_MAX: usize = 256;

/// Shortest time a SANITIZE takes where there is a clock, whatever the size of the medium. Who watches one looks every few seconds (the
/// conformance suite after three, and again after resetting everything), and must be able to see it; nobody sanitizes often.
pub const SANITIZE_DURATION_MIN: Duration = Duration::from_secs(6);

/// Bytes wiped at a time by SANITIZE BLOCK ERASE, and between two steps of its progress.
pub const SANITIZE_ERASE_BYTES: u64 = 1 << 30;

/// Bytes overwritten at a time by SANITIZE OVERWRITE.
pub const SANITIZE_PIECE_BYTES: usize = 1 << 20;

/// EXTENDED COPY: as much as hosts send in one list, in segments of what 16 bits of blocks can say; copies run one after another, and
/// several lists at once are not limited but by the task set. The list has room for one descriptor of each kind more than may be
/// there, so that one too many can be told from a list that is too long.
pub const COPY_LIMITS: Limits = Limits {
    targets_max: 8,
    segments_max: 64,
    list_bytes_max: (9 * TARGET_BYTES + 65 * SEGMENT_BYTES) as u32,
    segment_bytes_max: u16::MAX as u32 * 512,
    copies_max: 255,
};

/// Bytes copied at a time by EXTENDED COPY.
pub const COPY_PIECE_BYTES: u64 = 1 << 20;

/// Results of EXTENDED COPY kept per logical unit for who asks later. When full, the oldest gives way.
pub const COPY_RESULTS_MAX: usize = 64;

/// Registrations of persistent reservations per logical unit. When full: INSUFFICIENT REGISTRATION RESOURCES.
pub const REGISTRATIONS_MAX: usize = 256;

/// Unit attentions waiting per I_T nexus; each condition waits once, so the named ones fit. When full, the oldest gives way.
pub const UNIT_ATTENTIONS_MAX: usize = 16;

/// Tasks under way per logical unit. When full: TASK SET FULL.
pub const TASKS_MAX: usize = 4096;

const _: () = assert!(TRANSFER_BYTES_OPTIMAL <= TRANSFER_BYTES_MAX);
const _: () = assert!(UNMAP_DESCRIPTORS_MAX as usize <= scsi::unmap::DESCRIPTORS_MAX);
const _: () = assert!(WRITE_SAME_PIECE_BYTES <= TRANSFER_BYTES_MAX as usize);
const _: () = assert!(SANITIZE_PIECE_BYTES <= TRANSFER_BYTES_MAX as usize);
const _: () = assert!(COPY_PIECE_BYTES <= TRANSFER_BYTES_MAX as u64);
