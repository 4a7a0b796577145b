//! The table of operation codes: every command forebay knows, with the bits of its CDB that may be set.
//!
//! The usage map is the CDB USAGE DATA of REPORT SUPPORTED OPERATION CODES (SPC-4 6.30.3) and at the same time what
//! [`Cdb::parse`](super::Cdb::parse) holds a CDB against: a set bit that the map does not have is an invalid field.
//! Byte 0 and the service action carry their own value, as the standard asks.

use super::layout::Raw;
use super::parse;
use super::{Cdb, CdbError};

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Byte 0.
    pub operation_code: u8,
    /// The service action, for operation codes that have them.
    pub service_action: Option<u8>,
    /// The standard's name.
    pub name: &'static str,
    /// Bytes of the CDB.
    pub cdb_bytes: u8,
    usage: Raw,
    parse: fn(&Raw) -> Cdb,
}

impl Row {
    /// The bits that may be set, [`cdb_bytes`](Self::cdb_bytes) long.
    pub fn usage(&self) -> &[u8] {
        &self.usage[..usize::from(self.cdb_bytes)]
    }

    pub(super) fn parse(&self, raw: &Raw) -> Result<Cdb, CdbError> {
        // All bytes at once: every command comes through here. Byte 0 led to this row, and behind the CDB are zeroes.
        let reserved = u128::from_be_bytes(*raw) & !u128::from_be_bytes(self.usage);
        if reserved != 0 {
            let first = reserved.leading_zeros();
            return Err(CdbError::ReservedBit { byte: (first / 8) as u16, bit: 7 - (first % 8) as u8 });
        }
        Ok((self.parse)(raw))
    }
}

/// A row without service action. `usage` starts at byte 1; what it leaves out is zero, the control byte always is.
const fn row<const N: usize>(
    operation_code: u8,
    name: &'static str,
    cdb_bytes: u8,
    usage: [u8; N],
    parse: fn(&Raw) -> Cdb,
) -> Row {
    let mut whole = [0; 16];
    whole[0] = operation_code;
    let mut index = 0;
    while index < N {
        whole[index + 1] = usage[index];
        index += 1;
    }
    assert!(N < cdb_bytes as usize);
    Row { operation_code, service_action: None, name, cdb_bytes, usage: whole, parse }
}

/// A row with a service action in byte 1; `usage` starts at byte 2.
const fn row_of_action<const N: usize>(
    (operation_code, service_action): (u8, u8),
    name: &'static str,
    cdb_bytes: u8,
    usage: [u8; N],
    parse: fn(&Raw) -> Cdb,
) -> Row {
    let mut whole = [0; 16];
    whole[0] = operation_code;
    whole[1] = service_action;
    let mut index = 0;
    while index < N {
        whole[index + 2] = usage[index];
        index += 1;
    }
    assert!(N + 1 < cdb_bytes as usize);
    Row { operation_code, service_action: Some(service_action), name, cdb_bytes, usage: whole, parse }
}

impl Row {
    /// The same with flags of its own beside the service action in byte 1.
    const fn with_flags(mut self, flags: u8) -> Self {
        assert!(flags & 0x1f == 0, "the service action is there");
        self.usage[1] |= flags;
        self
    }
}

/// GROUP NUMBER: accepted, without effect.
const GROUP: u8 = 0x1f;
/// DPO and FUA of byte 1.
const DPO_FUA: u8 = 0x18;
/// DPO and BYTCHK of byte 1.
const DPO_BYTCHK: u8 = 0x16;

/// SYNC_NV and IMMED of byte 1. SYNC_NV would be content with a cache that keeps its data without power; a flush does
/// more.
const SYNC_NV_IMMED: u8 = 0x06;

/// All commands, ascending by operation code, then service action.
pub const ROWS: &[Row] = &[
    row(0x00, "TEST UNIT READY", 6, [], parse::test_unit_ready),
    row(0x03, "REQUEST SENSE", 6, [0x01, 0, 0, 0xff], parse::request_sense),
    row(0x08, "READ(6)", 6, [0x1f, 0xff, 0xff, 0xff], parse::read_6),
    row(0x0a, "WRITE(6)", 6, [0x1f, 0xff, 0xff, 0xff], parse::write_6),
    row(0x12, "INQUIRY", 6, [0x01, 0xff, 0xff, 0xff], parse::inquiry),
    row(0x15, "MODE SELECT(6)", 6, [0x11, 0, 0, 0xff], parse::mode_select_6),
    row(0x16, "RESERVE(6)", 6, [], parse::reserve_6),
    row(0x17, "RELEASE(6)", 6, [], parse::release_6),
    row(0x1a, "MODE SENSE(6)", 6, [0x08, 0xff, 0xff, 0xff], parse::mode_sense_6),
    row(0x1b, "START STOP UNIT", 6, [0x01, 0, 0x0f, 0xf7], parse::start_stop_unit),
    row(0x1e, "PREVENT ALLOW MEDIUM REMOVAL", 6, [0, 0, 0, 0x03], parse::prevent_allow_medium_removal),
    row(0x25, "READ CAPACITY(10)", 10, [], parse::read_capacity_10),
    row(0x28, "READ(10)", 10, [DPO_FUA, 0xff, 0xff, 0xff, 0xff, GROUP, 0xff, 0xff], parse::read_10),
    row(0x2a, "WRITE(10)", 10, [DPO_FUA, 0xff, 0xff, 0xff, 0xff, GROUP, 0xff, 0xff], parse::write_10),
    row(
        0x2e,
        "WRITE AND VERIFY(10)",
        10,
        [DPO_BYTCHK, 0xff, 0xff, 0xff, 0xff, GROUP, 0xff, 0xff],
        parse::write_and_verify_10,
    ),
    row(0x2f, "VERIFY(10)", 10, [DPO_BYTCHK, 0xff, 0xff, 0xff, 0xff, GROUP, 0xff, 0xff], parse::verify_10),
    row(0x34, "PRE-FETCH(10)", 10, [0x02, 0xff, 0xff, 0xff, 0xff, GROUP, 0xff, 0xff], parse::prefetch_10),
    row(
        0x35,
        "SYNCHRONIZE CACHE(10)",
        10,
        [SYNC_NV_IMMED, 0xff, 0xff, 0xff, 0xff, GROUP, 0xff, 0xff],
        parse::synchronize_cache_10,
    ),
    row(0x37, "READ DEFECT DATA(10)", 10, [0, 0x1f, 0, 0, 0, 0, 0xff, 0xff], parse::read_defect_data_10),
    row(0x41, "WRITE SAME(10)", 10, [0x18, 0xff, 0xff, 0xff, 0xff, GROUP, 0xff, 0xff], parse::write_same_10),
    row(0x42, "UNMAP", 10, [0x01, 0, 0, 0, 0, GROUP, 0xff, 0xff], parse::unmap),
    row_of_action((0x48, 1), "SANITIZE, OVERWRITE", 10, SANITIZE, parse::sanitize).with_flags(0xa0),
    row_of_action((0x48, 2), "SANITIZE, BLOCK ERASE", 10, SANITIZE, parse::sanitize).with_flags(0xa0),
    row_of_action((0x48, 0x1f), "SANITIZE, EXIT FAILURE MODE", 10, SANITIZE, parse::sanitize).with_flags(0xa0),
    row(0x4d, "LOG SENSE", 10, [0x01, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff], parse::log_sense),
    row(0x55, "MODE SELECT(10)", 10, [0x11, 0, 0, 0, 0, 0, 0xff, 0xff], parse::mode_select_10),
    row(0x5a, "MODE SENSE(10)", 10, [0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff], parse::mode_sense_10),
    row_of_action((0x5e, 0), "PERSISTENT RESERVE IN, READ KEYS", 10, RESERVE_IN, parse::persistent_reserve_in),
    row_of_action((0x5e, 1), "PERSISTENT RESERVE IN, READ RESERVATION", 10, RESERVE_IN, parse::persistent_reserve_in),
    row_of_action(
        (0x5e, 2),
        "PERSISTENT RESERVE IN, REPORT CAPABILITIES",
        10,
        RESERVE_IN,
        parse::persistent_reserve_in,
    ),
    row_of_action((0x5e, 3), "PERSISTENT RESERVE IN, READ FULL STATUS", 10, RESERVE_IN, parse::persistent_reserve_in),
    row_of_action((0x5f, 0), "PERSISTENT RESERVE OUT, REGISTER", 10, RESERVE_OUT, parse::persistent_reserve_out),
    row_of_action((0x5f, 1), "PERSISTENT RESERVE OUT, RESERVE", 10, RESERVE_OUT, parse::persistent_reserve_out),
    row_of_action((0x5f, 2), "PERSISTENT RESERVE OUT, RELEASE", 10, RESERVE_OUT, parse::persistent_reserve_out),
    row_of_action((0x5f, 3), "PERSISTENT RESERVE OUT, CLEAR", 10, RESERVE_OUT, parse::persistent_reserve_out),
    row_of_action((0x5f, 4), "PERSISTENT RESERVE OUT, PREEMPT", 10, RESERVE_OUT, parse::persistent_reserve_out),
    row_of_action(
        (0x5f, 5),
        "PERSISTENT RESERVE OUT, PREEMPT AND ABORT",
        10,
        RESERVE_OUT,
        parse::persistent_reserve_out,
    ),
    row_of_action(
        (0x5f, 6),
        "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY",
        10,
        RESERVE_OUT,
        parse::persistent_reserve_out,
    ),
    row_of_action(
        (0x5f, 7),
        "PERSISTENT RESERVE OUT, REGISTER AND MOVE",
        10,
        RESERVE_OUT,
        parse::persistent_reserve_out,
    ),
    row_of_action((0x83, 0), "EXTENDED COPY(LID1)", 16, LIST_AT_10, parse::extended_copy),
    row_of_action((0x84, 0), "RECEIVE COPY RESULTS, COPY STATUS(LID1)", 16, COPY_RESULTS, parse::receive_copy_results),
    row_of_action(
        (0x84, 3),
        "RECEIVE COPY RESULTS, OPERATING PARAMETERS",
        16,
        COPY_RESULTS,
        parse::receive_copy_results,
    ),
    row(0x88, "READ(16)", 16, long(DPO_FUA), parse::read_16),
    row(0x89, "COMPARE AND WRITE", 16, COMPARE_AND_WRITE, parse::compare_and_write),
    row(0x8a, "WRITE(16)", 16, long(DPO_FUA), parse::write_16),
    row(0x8b, "ORWRITE(16)", 16, long(DPO_FUA), parse::or_write),
    row(0x8e, "WRITE AND VERIFY(16)", 16, long(DPO_BYTCHK), parse::write_and_verify_16),
    row(0x8f, "VERIFY(16)", 16, long(DPO_BYTCHK), parse::verify_16),
    row(0x90, "PRE-FETCH(16)", 16, long(0x02), parse::prefetch_16),
    row(0x91, "SYNCHRONIZE CACHE(16)", 16, long(SYNC_NV_IMMED), parse::synchronize_cache_16),
    row(0x93, "WRITE SAME(16)", 16, long(0x19), parse::write_same_16),
    row(0x9c, "WRITE ATOMIC(16)", 16, long(DPO_FUA), parse::write_atomic),
    row_of_action(
        (0x9e, 0x10),
        "READ CAPACITY(16)",
        16,
        [0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        parse::read_capacity_16,
    ),
    row_of_action((0x9e, 0x12), "GET LBA STATUS", 16, [0xff; 12], parse::get_lba_status),
    row(0xa0, "REPORT LUNS", 12, [0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], parse::report_luns),
    row_of_action(
        (0xa3, 0x0a),
        "REPORT TARGET PORT GROUPS",
        12,
        [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        parse::report_target_port_groups,
    )
    .with_flags(0x20),
    row_of_action(
        (0xa3, 0x0c),
        "REPORT SUPPORTED OPERATION CODES",
        12,
        [0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        parse::report_supported_operation_codes,
    ),
    row_of_action(
        (0xa3, 0x0d),
        "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        12,
        [0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        parse::report_supported_task_management_functions,
    ),
    row(0xa8, "READ(12)", 12, twelve(DPO_FUA), parse::read_12),
    row(0xaa, "WRITE(12)", 12, twelve(DPO_FUA), parse::write_12),
    row(0xae, "WRITE AND VERIFY(12)", 12, twelve(DPO_BYTCHK), parse::write_and_verify_12),
    row(0xaf, "VERIFY(12)", 12, twelve(DPO_BYTCHK), parse::verify_12),
    row(
        0xb7,
        "READ DEFECT DATA(12)",
        12,
        [0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        parse::read_defect_data_12,
    ),
    row_of_action((0xc1, 0), "CHANGE MARK IN, REPORT MARKS", 12, REPORT_MARKS, parse::change_mark_in),
    row_of_action((0xc1, 1), "CHANGE MARK IN, REPORT CHANGES", 12, [0xff; 9], parse::change_mark_in),
    row_of_action((0xc1, 2), "CHANGE MARK IN, REPORT CONTENT", 12, REPORT_MARKS, parse::change_mark_in),
    row_of_action((0xc2, 0), "CHANGE MARK OUT, TAKE", 12, CHANGE_MARK_OUT, parse::change_mark_out),
    row_of_action((0xc2, 1), "CHANGE MARK OUT, CLEAR", 12, CHANGE_MARK_OUT, parse::change_mark_out),
    row_of_action((0xc2, 2), "CHANGE MARK OUT, FORGET", 12, CHANGE_MARK_OUT, parse::change_mark_out),
    row_of_action((0xc2, 3), "CHANGE MARK OUT, NAME CONTENT", 12, CHANGE_MARK_OUT, parse::change_mark_out),
    row_of_action((0xc3, 0), "SHARING IN, REPORT", 16, [0xff; 12], parse::sharing_in),
    row_of_action((0xc4, 0), "SHARING OUT, REGISTER", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 1), "SHARING OUT, RENEW", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 2), "SHARING OUT, LEAVE", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 3), "SHARING OUT, LOCK", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 4), "SHARING OUT, UNLOCK", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 5), "SHARING OUT, ACKNOWLEDGE", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 6), "SHARING OUT, BEGIN", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 7), "SHARING OUT, END", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 8), "SHARING OUT, OPEN", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 9), "SHARING OUT, CLOSE", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 0x0a), "SHARING OUT, FENCE", 16, [0xff; 12], parse::sharing_out),
    row_of_action((0xc4, 0x0b), "SHARING OUT, CANCEL", 16, [0xff; 12], parse::sharing_out),
];

/// Slot and first range have no meaning for it.
const REPORT_MARKS: [u8; 9] = [0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff];
const CHANGE_MARK_OUT: [u8; 9] = [0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff];

const SANITIZE: [u8; 7] = [0, 0, 0, 0, 0, 0xff, 0xff];
const LIST_AT_10: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
const COPY_RESULTS: [u8; 12] = [0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
const RESERVE_IN: [u8; 7] = [0, 0, 0, 0, 0, 0xff, 0xff];
const RESERVE_OUT: [u8; 7] = [0xff, 0, 0, 0xff, 0xff, 0xff, 0xff];
const COMPARE_AND_WRITE: [u8; 14] = [DPO_FUA, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, GROUP];

const fn long(flags: u8) -> [u8; 14] {
    [flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, GROUP]
}

const fn twelve(flags: u8) -> [u8; 10] {
    [flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, GROUP]
}

/// For each operation code the first of its rows, or `NONE`; so that finding a row costs one look.
const FIRST_ROW: [u8; 256] = {
    let mut first = [NONE; 256];
    let mut index = ROWS.len();
    while index > 0 {
        index -= 1;
        first[ROWS[index].operation_code as usize] = index as u8;
    }
    first
};
const NONE: u8 = 0xff;
const _: () = assert!(ROWS.len() < NONE as usize);

/// The rows of an operation code: none, one, or one per service action.
pub fn rows_of(operation_code: u8) -> &'static [Row] {
    let first = usize::from(FIRST_ROW[usize::from(operation_code)]);
    let rows = ROWS.get(first..).unwrap_or(&[]);
    let count = rows.iter().take_while(|row| row.operation_code == operation_code).count();
    &rows[..count]
}

/// The row of an operation code, and of a service action where it has them.
///
/// # Errors
/// [`CdbError::UnknownOperationCode`] or [`CdbError::UnknownServiceAction`].
pub fn find(operation_code: u8, service_action: u8) -> Result<&'static Row, CdbError> {
    match rows_of(operation_code) {
        [] => Err(CdbError::UnknownOperationCode(operation_code)),
        [row] if row.service_action.is_none() => Ok(row),
        rows => rows
            .iter()
            .find(|row| row.service_action == Some(service_action))
            .ok_or(CdbError::UnknownServiceAction { operation_code, service_action }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_ascend_and_none_is_there_twice() {
        for pair in ROWS.windows(2) {
            let key = |row: &Row| (row.operation_code, row.service_action);
            assert!(key(&pair[0]) < key(&pair[1]), "{} and {}", pair[0].name, pair[1].name);
        }
    }

    #[test]
    fn lengths_follow_the_group_of_the_operation_code() {
        for row in ROWS {
            let expected = match row.operation_code >> 5 {
                // A vendor's are as long as the vendor says.
                6 if row.operation_code >= 0xc3 => 16,
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                _ => 12,
            };
            assert_eq!(row.cdb_bytes, expected, "{}", row.name);
            assert_eq!(row.usage().last(), Some(&0), "the control byte of {}", row.name);
            assert_eq!(row.usage()[0], row.operation_code);
        }
    }

    #[test]
    fn rows_are_found_by_code_and_action() {
        assert_eq!(find(0x28, 0x1f).map(|row| row.name), Ok("READ(10)"));
        assert_eq!(find(0x9e, 0x10).map(|row| row.name), Ok("READ CAPACITY(16)"));
        assert_eq!(find(0xff, 0).map(|row| row.name), Err(CdbError::UnknownOperationCode(0xff)));
        let unknown = CdbError::UnknownServiceAction { operation_code: 0x9e, service_action: 0 };
        assert_eq!(find(0x9e, 0).map(|row| row.name), Err(unknown));
    }
}
