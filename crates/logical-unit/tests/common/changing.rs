//! A command for every row of the table that changes the medium, and the rows that do not.

use scsi::Cdb;
use scsi::cdb::{Blocks, Sanitize, Verification, WriteAtomic, WriteSame};
use scsi::change_mark::Run;
use scsi::extended_copy::{Segment, emit_list};
use scsi::vpd::Designator;

use super::{BLOCK_BYTES, Target, transfer};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const BLOCKS_PER_MIB: u64 = MIB / BLOCK_BYTES as u64;
pub(crate) const SIZE: u64 = 64 * MIB;

/// A command for this row, and the range that it changes; `None` for a row that does not change the
/// medium.
pub(crate) fn changing(code: (u8, Option<u8>), other: &Target) -> Option<(Cdb, Vec<u8>, Run)> {
    let lba = 5 * BLOCKS_PER_MIB;
    let block = vec![0x5a; BLOCK_BYTES];
    let run = Run { first: 5, count: 1 };
    let of = |cdb: Cdb| Some((cdb, block.clone(), run));
    let (six, ten, twelve, sixteen) =
        (scsi::cdb::CdbForm::Six, scsi::cdb::CdbForm::Ten, scsi::cdb::CdbForm::Twelve, scsi::cdb::CdbForm::Sixteen);
    let blocks = |form| Blocks { form, lba, count: 1 };
    let write = |form| of(Cdb::Write(transfer(blocks(form))));
    let verified = |form| of(Cdb::WriteAndVerify(Verification { blocks: blocks(form), is_dpo: false, byte_check: 0 }));
    let same = |form| {
        of(Cdb::WriteSame(WriteSame {
            blocks: blocks(form),
            is_anchor: false,
            is_unmap: false,
            has_no_data_out: false,
        }))
    };
    let all = Run { first: 0, count: (SIZE / MIB) as u32 };
    let sanitize = |service_action, list: Vec<u8>| {
        let parameter_list_length = list.len() as u16;
        let sanitize =
            Sanitize { service_action, is_immediate: false, is_unrestricted_exit: false, parameter_list_length };
        Some((Cdb::Sanitize(sanitize), list, all))
    };
    match code {
        (0x0a, _) => write(six),
        (0x2a, _) => write(ten),
        (0xaa, _) => write(twelve),
        (0x8a, _) => write(sixteen),
        (0x2e, _) => verified(ten),
        (0xae, _) => verified(twelve),
        (0x8e, _) => verified(sixteen),
        (0x41, _) => same(ten),
        (0x93, _) => same(sixteen),
        (0x8b, _) => of(Cdb::OrWrite(transfer(blocks(sixteen)))),
        (0x9c, _) => {
            let write = WriteAtomic { lba, block_count: 8, boundary: 0, is_dpo: false, is_fua: false };
            Some((Cdb::WriteAtomic(write), block.repeat(8), run))
        }
        (0x89, _) => {
            let data = [other.read(lba, 1), block.clone()].concat();
            Some((Cdb::CompareAndWrite { lba, block_count: 1, is_dpo: false, is_fua: false }, data, run))
        }
        (0x42, _) => {
            let list = scsi::unmap::emit(&[
                scsi::unmap::Descriptor { lba, block_count: 8 },
                scsi::unmap::Descriptor { lba: lba + BLOCKS_PER_MIB, block_count: 8 },
            ]);
            let cdb = Cdb::Unmap { is_anchor: false, parameter_list_length: list.len() as u16 };
            Some((cdb, list, Run { first: 5, count: 2 }))
        }
        (0x48, Some(0x01)) => {
            let list = scsi::sanitize::Overwrite { is_inverting: false, count: 1, pattern: vec![1] }.emit();
            sanitize(0x01, list)
        }
        (0x48, Some(0x02)) => sanitize(0x02, Vec::new()),
        (0x83, Some(0)) => {
            let segment = Segment { source: 0, destination: 0, block_count: 1, source_lba: 0, destination_lba: lba };
            let list = emit_list(None, &[(name(other), BLOCK_BYTES as u32)], &[segment]);
            Some((Cdb::ExtendedCopy { parameter_list_length: list.len() as u32 }, list, run))
        }
        _ => None,
    }
}

/// The unit's name in a copy list.
pub(crate) fn name(target: &Target) -> u64 {
    let page = target.data(Cdb::Inquiry { is_vpd: true, page: 0x83, allocation_length: 4096 });
    match scsi::vpd::parse_device_identification(&page).unwrap().first() {
        Some(Designator::Naa(name)) => *name,
        other => panic!("{other:?}"),
    }
}

/// Rows that never change the medium, whatever their fields contain. A new row must be listed here
/// or get a command above.
pub(crate) const NOT_CHANGING: &[(u8, Option<u8>)] = &[
    (0x00, None),
    (0x03, None),
    (0x08, None),
    (0x12, None),
    (0x15, None),
    (0x16, None),
    (0x17, None),
    (0x1a, None),
    (0x1b, None),
    (0x1e, None),
    (0x25, None),
    (0x28, None),
    (0x2f, None),
    (0x34, None),
    (0x35, None),
    (0x37, None),
    (0x48, Some(0x1f)),
    (0x4d, None),
    (0x55, None),
    (0x5a, None),
    (0x5e, Some(0)),
    (0x5e, Some(1)),
    (0x5e, Some(2)),
    (0x5e, Some(3)),
    (0x5f, Some(0)),
    (0x5f, Some(1)),
    (0x5f, Some(2)),
    (0x5f, Some(3)),
    (0x5f, Some(4)),
    (0x5f, Some(5)),
    (0x5f, Some(6)),
    (0x5f, Some(7)),
    (0x84, Some(0)),
    (0x84, Some(3)),
    (0x88, None),
    (0x8f, None),
    (0x90, None),
    (0x91, None),
    (0x9e, Some(0x10)),
    (0x9e, Some(0x12)),
    (0xa0, None),
    (0xa3, Some(0x0a)),
    (0xa3, Some(0x0c)),
    (0xa3, Some(0x0d)),
    (0xa8, None),
    (0xaf, None),
    (0xb7, None),
    (0xc1, Some(0)),
    (0xc1, Some(1)),
    (0xc1, Some(2)),
    (0xc2, Some(0)),
    (0xc2, Some(1)),
    (0xc2, Some(2)),
    (0xc2, Some(3)),
    (0xc3, Some(0)),
    (0xc4, Some(0)),
    (0xc4, Some(1)),
    (0xc4, Some(2)),
    (0xc4, Some(3)),
    (0xc4, Some(4)),
    (0xc4, Some(5)),
    (0xc4, Some(6)),
    (0xc4, Some(7)),
    (0xc4, Some(8)),
    (0xc4, Some(9)),
    (0xc4, Some(10)),
    (0xc4, Some(11)),
];
