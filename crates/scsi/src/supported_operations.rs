//! Data of REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 6.35 and 6.36).

use crate::cdb::table::Row;

/// A timeouts descriptor without timeouts: both zero (SPC-4 6.35.4).
const TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// All commands. `has_timeouts` is RCTD.
pub fn emit_all<'a>(rows: impl Iterator<Item = &'a Row>, has_timeouts: bool) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for row in rows {
        let service_action = u16::from(row.service_action.unwrap_or(0));
        let flags = if has_timeouts { 0x02 } else { 0 } | u8::from(row.service_action.is_some());
        bytes.extend([row.operation_code, 0]);
        bytes.extend(service_action.to_be_bytes());
        bytes.extend([0, flags, 0, row.cdb_bytes]);
        if has_timeouts {
            bytes.extend(TIMEOUTS);
        }
    }
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// One command, or that it is not supported.
pub fn emit_one(row: Option<&Row>, has_timeouts: bool) -> Vec<u8> {
    let Some(row) = row else { return vec![0, 0x01, 0, 0] };
    let mut bytes = vec![0, if has_timeouts { 0x83 } else { 0x03 }, 0, row.cdb_bytes];
    bytes.extend(row.usage());
    if has_timeouts {
        bytes.extend(TIMEOUTS);
    }
    bytes
}

/// ABORT TASK, ABORT TASK SET, CLEAR TASK SET and LOGICAL UNIT RESET; `is_extended` is REPD.
pub fn emit_task_management(is_extended: bool) -> Vec<u8> {
    let mut bytes = vec![0xd8, 0, 0, 0];
    if is_extended {
        bytes[3] = 0x0c;
        bytes.resize(16, 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::table;

    #[test]
    fn golden_bytes() {
        let read_10 = table::find(0x28, 0).ok();
        let usage = [0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0];
        assert_eq!(emit_one(read_10, false), [&[0, 3, 0, 10][..], &usage].concat());
        assert_eq!(emit_one(read_10, true), [&[0, 0x83, 0, 10][..], &usage, &TIMEOUTS].concat());
        assert_eq!(emit_one(None, true), [0, 1, 0, 0]);
        let capacity = table::find(0x9e, 0x10).ok();
        assert_eq!(emit_all(capacity.into_iter(), false), [0, 0, 0, 8, 0x9e, 0, 0, 0x10, 0, 1, 0, 16]);
        assert_eq!(emit_all(read_10.into_iter(), true)[..12], [0, 0, 0, 20, 0x28, 0, 0, 0, 0, 2, 0, 10]);
        assert_eq!(emit_task_management(false), [0xd8, 0, 0, 0]);
        assert_eq!(emit_task_management(true).len(), 16);
    }

    #[test]
    fn every_row_is_listed() {
        let bytes = emit_all(table::ROWS.iter(), true);
        assert_eq!(bytes.len(), 4 + table::ROWS.len() * 20);
    }
}
