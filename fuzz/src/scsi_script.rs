//! Commands for logical units: of any bytes, or of a known operation code with addresses that are mostly inside.

use scsi::cdb::table::ROWS;

use crate::input::Input;

/// One command, or another thing that happens to logical units.
#[derive(Clone, Debug)]
pub struct Step {
    /// Which initiator.
    pub nexus: u8,
    /// Which LUN; one more than there are is possible.
    pub lun: u8,
    /// Task attribute, or from 0xf0 on a task management function.
    pub attribute: u8,
    /// Bytes of data-out above or below what the CDB asks for.
    pub data_out_delta: i8,
    /// The CDB.
    pub cdb: Vec<u8>,
    /// What data-out begins with; it is repeated.
    pub data_out: Vec<u8>,
}

/// In the first byte: the row of the table of operation codes that the CDB is made to fit.
const IS_FITTED: u8 = 0x80;
const STEPS_MAX: usize = 64;

impl Step {
    fn parse(input: &mut Input<'_>) -> Self {
        let row = input.byte();
        let place = input.byte();
        let attribute = input.byte();
        let data_out_delta = i8::from_be_bytes(input.array());
        let mut cdb = input.counted_short().to_vec();
        if row & IS_FITTED != 0 {
            cdb = fitted(usize::from(row & !IS_FITTED), &cdb);
        }
        let data_out = input.counted_short().to_vec();
        Self { nexus: place & 3, lun: place >> 2 & 3, attribute, data_out_delta, cdb, data_out }
    }

    /// Appends it, with its CDB taken as it is.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let place = self.nexus & 3 | (self.lun & 3) << 2;
        out.extend_from_slice(&[0, place, self.attribute]);
        out.extend_from_slice(&self.data_out_delta.to_be_bytes());
        for bytes in [&self.cdb, &self.data_out] {
            out.push(u8::try_from(bytes.len()).expect("seeds are small"));
            out.extend_from_slice(bytes);
        }
    }
}

/// The steps that `bytes` are.
pub fn parse(bytes: &[u8]) -> Vec<Step> {
    let mut input = Input::new(bytes);
    let mut steps = Vec::new();
    while !input.is_empty() && steps.len() < STEPS_MAX {
        steps.push(Step::parse(&mut input));
    }
    steps
}

/// `bytes` as a CDB of that row: reserved bits are clear, and the upper bytes of addresses and counts as well.
fn fitted(row: usize, bytes: &[u8]) -> Vec<u8> {
    let row = &ROWS[row % ROWS.len()];
    let mut cdb = vec![0; usize::from(row.cdb_bytes)];
    for (byte, from) in cdb.iter_mut().zip(bytes) {
        *byte = *from;
    }
    cdb[0] = row.operation_code;
    cdb.iter_mut().zip(row.usage()).skip(1).for_each(|(byte, usage)| *byte &= usage);
    // The usage map shows the service action, too.
    if let Some(action) = row.service_action {
        cdb[1] = cdb[1] & 0xe0 | action;
    }
    let high_bytes: &[usize] = match row.cdb_bytes {
        10 => &[2, 3, 7],
        12 => &[2, 3, 6, 7],
        16 => &[2, 3, 4, 5, 6, 7, 10, 11],
        _ => &[],
    };
    high_bytes.iter().for_each(|&at| cdb[at] = 0);
    cdb
}

/// Appends a command to a seed.
pub fn emit_step(nexus: u8, lun: u8, cdb: &[u8], data_out: &[u8], out: &mut Vec<u8>) {
    let (cdb, data_out) = (cdb.to_vec(), data_out.to_vec());
    Step { nexus, lun, attribute: 1, data_out_delta: 0, cdb, data_out }.emit(out);
}
