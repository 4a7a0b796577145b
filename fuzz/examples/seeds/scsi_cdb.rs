//! SCSI commands: one of every row of the table, reservations, lengths that do not fit.

use fuzz::scsi_script;
use scsi::cdb::table::{ROWS, Row};

use crate::write;

pub fn write_seeds() {
    every_command();
    reservations();
    short_write();
}

/// A CDB of this row.
fn cdb_of(row: &Row) -> Vec<u8> {
    let mut cdb = vec![0; usize::from(row.cdb_bytes)];
    cdb[0] = row.operation_code;
    cdb[1] = row.service_action.unwrap_or(0);
    // One block, or room for as many bytes as the lists of UNMAP and PERSISTENT RESERVE OUT have.
    let length = if matches!(row.operation_code, 0x1a | 0x42 | 0x55 | 0x5a | 0x5e | 0x5f) { 24 } else { 1 };
    match row.cdb_bytes {
        6 => cdb[4] = length,
        10 => cdb[8] = length,
        12 => cdb[9] = 16,
        _ => cdb[13] = 1,
    }
    if matches!(row.operation_code, 0x1a | 0x5a) {
        cdb[2] = 0x3f;
    }
    cdb.iter_mut().zip(row.usage()).skip(2).for_each(|(byte, usage)| *byte &= usage);
    cdb
}

/// What goes out with it.
fn list_of(row: &Row) -> &'static [u8] {
    match row.operation_code {
        0x42 => &[0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0],
        0x5f => &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        _ => &[7],
    }
}

fn every_command() {
    let mut all = Vec::new();
    for row in ROWS {
        // The first command meets the unit attention of power on.
        let mut bytes = Vec::new();
        scsi_script::emit_step(0, 0, &[0; 6], &[], &mut bytes);
        scsi_script::emit_step(0, 0, &cdb_of(row), list_of(row), &mut bytes);
        let name: String = row.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        write("scsi_cdb", &name.to_ascii_lowercase(), &bytes);
        all.extend(bytes);
    }
    write("scsi_cdb", "all", &all);
}

fn reservations() {
    let mut reservations = Vec::new();
    let key = [[0; 8], *b"key one!"].concat();
    let mut out = |nexus: u8, action: u8, kind: u8, list: &[u8]| {
        let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
        scsi_script::emit_step(nexus, 0, &cdb, &[list, &[0; 8]].concat(), &mut reservations);
    };
    out(0, 6, 0, &key);
    out(0, 6, 0, &key);
    out(0, 1, 5, &[*b"key one!", [0; 8]].concat());
    out(1, 6, 0, &key);
    out(1, 4, 5, &[*b"key one!", *b"key one!"].concat());
    scsi_script::emit_step(1, 0, &[0x2a, 0, 0, 0, 0, 1, 0, 0, 1, 0], &[7], &mut reservations);
    write("scsi_cdb", "reservations", &reservations);
}

fn short_write() {
    let mut lengths = Vec::new();
    scsi_script::emit_step(0, 0, &[0; 6], &[], &mut lengths);
    scsi_script::Step {
        nexus: 0,
        lun: 0,
        attribute: 1,
        data_out_delta: -1,
        cdb: vec![0x2e, 2, 0, 0, 0, 0, 0, 0, 9, 0],
        data_out: vec![7, 8],
    }
    .emit(&mut lengths);
    write("scsi_cdb", "short_write_and_verify", &lengths);
}
