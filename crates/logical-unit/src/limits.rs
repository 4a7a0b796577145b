//! The bounds of this crate.

use std::time::Duration;

use base::limits::BUFFER_BYTES_MAX;
use scsi::extended_copy::{Limits, SEGMENT_BYTES, TARGET_BYTES};

/// Largest read or write of one command, in bytes, whatever the device would take: half the largest buffer, because
/// COMPARE AND WRITE carries its blocks twice.
pub const TRANSFER_BYTES_MAX: u32 = (BUFFER_BYTES_MAX / 2) as u32;

/// Transfer that is announced as optimal, in bytes: past this the round trip no longer matters on any link we know.
pub const TRANSFER_BYTES_OPTIMAL: u32 = 1 << 20;

/// Largest read that is one request of the device, and largest write where the device answers at
/// once. Hosts ask for no more, and it is copied in some 100 us.
pub const WHOLE_TRANSFER_BYTES_MAX: u64 = TRANSFER_BYTES_OPTIMAL as u64;

/// Bytes of a longer read or write, VERIFY or WRITE SAME that are copied at a time where the device
/// answers at once: 20 us, with the allocation.
pub const PIECE_BYTES: u64 = 64 << 10;
const _: () = assert!(PIECE_BYTES.is_multiple_of(base::limits::BUFFER_ALIGNMENT as u64));
const _: () = assert!(WHOLE_TRANSFER_BYTES_MAX.is_multiple_of(base::limits::BUFFER_ALIGNMENT as u64));

/// Bytes that the pool of read buffers lends, unless the options bring one. The buffers go to
/// initiators, which may be slow to take them; a transport bounds them for each session and in
/// total. This bound only stops a transport that has none.
pub const READ_BUFFER_BYTES_DEFAULT: usize = 2 << 30;

/// Bytes of buffers for the commands' own use (repeating a block, overwriting, comparing). No
/// initiator can hold them: they come back as fast as the devices work. When all are lent, commands
/// wait in line.
pub const WORK_BUFFER_BYTES: usize = 64 << 20;

/// Bytes of buffers for copies: sixteen of their pieces.
pub const COPY_BUFFER_BYTES: usize = 16 << 20;

/// Most blocks of one COMPARE AND WRITE: all its CDB can say.
pub const COMPARE_AND_WRITE_BLOCKS_MAX: u32 = 255;

/// Most blocks of one UNMAP. Conformance tests accept a million as sane; it is half a gigabyte of
/// 512-byte blocks.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

/// Most descriptors of one UNMAP: one page of them.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Ranges that an UNMAP discards before it yields: each takes a microsecond or two in memory that
/// holds no data.
pub const UNMAP_PIECE_RANGES: usize = 8;

/// Most blocks of one WRITE SAME: the most of the ten-byte form, so that both forms accept the
/// same. It bounds the work for a block that is not zeroes; UNMAP clears more at once.
pub const WRITE_SAME_BLOCKS_MAX: u64 = u16::MAX as u64;

/// Bytes written at a time by a WRITE SAME that is not zeroes, on a device that does not answer at
/// once.
pub const WRITE_SAME_PIECE_BYTES: usize = 1 << 20;

/// Runs listed by one GET LBA STATUS answer.
pub const LBA_STATUS_DESCRIPTORS_MAX: usize = 256;

/// Shortest time of a SANITIZE where there is a clock, whatever the size of the medium. An observer
/// looks every few seconds (the conformance suite after three, and again after resetting everything
/// and a second more), and must be able to see it, also on a busy machine. Sanitizing is rare.
pub const SANITIZE_DURATION_MIN: Duration = Duration::from_secs(10);

/// Bytes wiped at a time by SANITIZE BLOCK ERASE, and between two steps of its progress.
pub const SANITIZE_ERASE_BYTES: u64 = 1 << 30;

/// Bytes overwritten at a time by SANITIZE OVERWRITE.
pub const SANITIZE_PIECE_BYTES: usize = 1 << 20;

/// EXTENDED COPY: as much as hosts send in one list, in segments of what 16 bits of blocks can
/// express. Copies run one after another; only the task set limits how many lists there are at
/// once. One descriptor of each kind more than allowed fits, so that one too many differs from a
/// list that is too long.
pub const COPY_LIMITS: Limits = Limits {
    targets_max: 8,
    segments_max: 64,
    list_bytes_max: (9 * TARGET_BYTES + 65 * SEGMENT_BYTES) as u32,
    segment_bytes_max: u16::MAX as u32 * 512,
    copies_max: 255,
};

/// Bytes copied at a time by EXTENDED COPY, on devices that do not answer at once.
pub const COPY_PIECE_BYTES: u64 = 1 << 20;

/// The same where the devices answer at once, or other commands are under way: half as much as for
/// other commands, since each byte is moved twice.
pub const COPY_SMALL_PIECE_BYTES: u64 = PIECE_BYTES / 2;

/// Results of EXTENDED COPY kept per logical unit for RECEIVE COPY RESULTS. When full, the oldest
/// is dropped.
pub const COPY_RESULTS_MAX: usize = 64;

/// Change marks per logical unit: a cache and a log for each of some hosts. When full, a mark that
/// no nexus holds is dropped: that of a read-only name, else of the name with most marks; of these
/// the one that was held longest ago.
pub const CHANGE_MARKS_MAX: usize = 16;

/// Marks of one initiator name: two attachments with cache and log. A further mark replaces one of
/// its own.
pub const CHANGE_MARKS_PER_NAME: usize = 4;

/// Marks of all read-only names together: they have no dirty data to lose, only clean lines to read
/// again.
pub const CHANGE_MARKS_OF_READERS: usize = 4;

/// Marks of one read-only name: two attachments with a cache, which leaves as many to others.
pub const CHANGE_MARKS_PER_READER: usize = 2;
const _: () = assert!(CHANGE_MARKS_PER_READER < CHANGE_MARKS_OF_READERS);
const _: () = assert!(CHANGE_MARKS_OF_READERS + CHANGE_MARKS_PER_NAME < CHANGE_MARKS_MAX);

/// The marks of one initiator name cost others at most one in this many parts of the time: once for
/// taking them, and once for clearing them and recording anew what was cleared. A host does either
/// a few times when it attaches or comes back.
pub const MARK_COST_PART: u32 = 10;

/// Cost that may be open before TAKE or CLEAR has to wait: half a second of saving, enough for a
/// hundred attachments to a fast disk or a few to a slow one.
pub const MARK_COST_CREDIT: Duration = Duration::from_secs(5);

/// Greatest open cost, so that a host which waits to clear its mark waits for at most ten seconds.
pub const MARK_COST_DEBT_MAX: Duration = Duration::from_secs(15);
const _: () = assert!(MARK_COST_CREDIT.as_nanos() < MARK_COST_DEBT_MAX.as_nanos());

/// Accounts whose costs are remembered, by name and purpose. When full, the one with the least open
/// cost is forgotten.
pub const MARK_COSTS_MAX: usize = 64;

/// Ranges of a unit at most, for change marks: 128 KiB of bits per mark, and 1 MiB ranges up to a tebibyte.
pub const CHANGE_RANGES_MAX: usize = 1 << 20;

/// Words of a mark's bitmap that are made durable at once: with 64 bytes before them, a page.
pub const MARK_PART_WORDS: usize = 504;

/// Parts of a mark's bitmap.
pub const MARK_PARTS: usize = CHANGE_RANGES_MAX.div_ceil(MARK_PART_WORDS * 64);

/// Runs reported by one REPORT CHANGES: 128 KiB of them. For more the initiator asks again.
pub const CHANGE_RUNS_MAX: usize = 16384;

/// Registrations of persistent reservations per logical unit. When full: INSUFFICIENT REGISTRATION RESOURCES.
pub const REGISTRATIONS_MAX: usize = 256;

/// I_T nexuses that left, remembered per logical unit because they may have written what the device loses: many times
/// the hosts that share a unit. When full, the one that left first is forgotten, and learns of a loss by the unit
/// attention only. Those that are present are bounded as the sessions of the target are.
pub const WRITERS_REMEMBERED_MAX: usize = 1024;

/// Unit attentions pending per I_T nexus; each condition is pending once, so the named ones fit.
/// When full, the oldest is dropped.
pub const UNIT_ATTENTIONS_MAX: usize = 16;

/// Tasks under way per logical unit. When full: TASK SET FULL. Once half of the places are taken,
/// an initiator name gets no more than are left then: alone it has half, the whole windows of
/// sixteen sessions.
pub const TASKS_MAX: usize = 4096;

/// Tasks beyond those, one for each initiator name that has none: as many as a target has sessions by default, so that
/// no count of other names keeps one from its first.
pub const TASKS_RESERVED: usize = 1024;

/// Commands that wait at the gate of a shared unit or are under way there: one of each task, and one of each copy that
/// came to another unit, of which there are as many at most. So a task is not refused there that was taken.
pub const GATE_COMMANDS_MAX: usize = 2 * (TASKS_MAX + TASKS_RESERVED);

/// Bytes of the smallest block that copies of a shared unit are registered in: a page, which is what hosts cache.
pub const SHARED_BLOCK_BYTES: u32 = 4096;

/// Bytes of a block group of a shared unit as a whole. A host that delays writes asks once for as
/// much as it writes in a few milliseconds.
pub const SHARED_GROUP_BYTES: u64 = 1 << 20;

/// Locks of one LOCK of a shared unit. More are refused: a batch is decided at once, and the message that grants it is
/// one data segment of 2 KiB.
pub const SHARING_LOCKS_MAX: usize = 64;
const _: () = assert!(scsi::sharing::message::message_bytes_max(SHARING_LOCKS_MAX) + 2 <= 2048);

/// Looks at the clock per lease, by which the target notices that it was not run itself: often
/// enough that a pause which is just too short to be noticed does not cost a client its life when
/// one renewal was lost, too.
pub const LOOKS_PER_LEASE: u32 = 8;
const _: () = assert!(LOOKS_PER_LEASE > 2 * locks::limits::RENEWALS_PER_LEASE);

/// Records of one SHARING IN, REPORT: 192 KiB of them. For more the initiator asks again.
pub const SHARING_REPORT_RECORDS_MAX: usize = 4096;

/// Spans of lives of clients of a shared unit that have ended, as they are kept for the next start:
/// as many as clients that live beside them, four times. With more no client of before reclaims
/// anything after it.
pub const ENDED_SPANS_MAX: usize = 4 * locks::limits::CLIENTS_MAX;

/// Time between attempts to make the state of a shared unit durable: no lock is granted meanwhile,
/// and a device that fails is not asked all the time.
pub const SAVING_RETRY_INTERVAL: Duration = Duration::from_secs(1);

const _: () = assert!(TRANSFER_BYTES_OPTIMAL <= TRANSFER_BYTES_MAX);
const _: () = assert!(UNMAP_DESCRIPTORS_MAX as usize <= scsi::unmap::DESCRIPTORS_MAX);
const _: () = assert!(WRITE_SAME_PIECE_BYTES <= TRANSFER_BYTES_MAX as usize);
const _: () = assert!(SANITIZE_PIECE_BYTES <= TRANSFER_BYTES_MAX as usize);
const _: () = assert!(COPY_PIECE_BYTES <= TRANSFER_BYTES_MAX as u64);
const _: () = assert!(WORK_BUFFER_BYTES >= TRANSFER_BYTES_MAX as usize);
