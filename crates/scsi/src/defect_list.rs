//! READ DEFECT DATA of a medium without defects (SBC-3 5.17, 5.18): a header and no descriptors.

use crate::cdb::{CdbForm, ReadDefectData};

/// The data: which lists were asked for, in which format, and that they are empty.
pub fn emit_empty(asked: &ReadDefectData) -> Vec<u8> {
    let flag = |is_set: bool, mask: u8| if is_set { mask } else { 0 };
    let flags = flag(asked.is_primary, 0x10) | flag(asked.is_grown, 0x08) | asked.format & 0x07;
    let bytes = if asked.form == CdbForm::Ten { 4 } else { 8 };
    let mut data = vec![0, flags];
    data.resize(bytes, 0);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let ten = ReadDefectData {
            form: CdbForm::Ten,
            is_primary: true,
            is_grown: true,
            format: 5,
            first_index: 0,
            allocation_length: 8,
        };
        assert_eq!(emit_empty(&ten), [0, 0x1d, 0, 0]);
        let twelve = ReadDefectData { form: CdbForm::Twelve, is_grown: false, ..ten };
        assert_eq!(emit_empty(&twelve), [0, 0x15, 0, 0, 0, 0, 0, 0]);
    }
}
