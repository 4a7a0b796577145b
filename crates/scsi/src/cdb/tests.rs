//! Golden CDBs, and both directions against each other.

use proptest::prelude::*;

use super::*;

fn hex(cdb: &Cdb) -> String {
    format!("{:?}", cdb.emit())
}

fn transfer(form: CdbForm, lba: u64, count: u32, is_dpo: bool, is_fua: bool) -> Transfer {
    Transfer { blocks: Blocks { form, lba, count }, is_dpo, is_fua }
}

/// A command and its bytes.
type Golden = (Cdb, &'static str);

/// Checks that each command is emitted as its bytes, and parsed from them.
fn hold(golden: &[Golden]) {
    for (cdb, expected) in golden {
        assert_eq!(hex(cdb), *expected, "{cdb:?}");
        assert_eq!(Cdb::parse(&cdb.emit()), Ok(*cdb));
    }
}

#[test]
fn golden_bytes_of_what_a_unit_is() {
    hold(&[
        (Cdb::TestUnitReady, "000000000000"),
        (Cdb::RequestSense { is_descriptor: true, allocation_length: 252 }, "03010000fc00"),
        (Cdb::Inquiry { is_vpd: true, page: 0x83, allocation_length: 0x1234 }, "120183123400"),
        (Cdb::ReportLuns { select_report: 2, allocation_length: 0x10000 }, "a00002000000000100000000"),
        (Cdb::ReadCapacity10, "25000000000000000000"),
        (Cdb::ReadCapacity16 { allocation_length: 32 }, "9e100000000000000000000000200000"),
        (Cdb::GetLbaStatus { lba: 0x0102, allocation_length: 24 }, "9e120000000000000102000000180000"),
    ]);
}

#[test]
fn golden_bytes_of_commands_on_blocks() {
    hold(&[
        (Cdb::Read(transfer(CdbForm::Six, 0x1f_ffff, 256, false, false)), "081fffff0000"),
        (Cdb::Read(transfer(CdbForm::Ten, 0x0102_0304, 8, true, true)), "28180102030400000800"),
        (Cdb::Write(transfer(CdbForm::Ten, 1, 0xffff, false, true)), "2a080000000100ffff00"),
        (Cdb::Read(transfer(CdbForm::Twelve, 1, 0x10000, false, false)), "a80000000001000100000000"),
        (Cdb::Write(transfer(CdbForm::Sixteen, 1 << 32, 2, true, false)), "8a100000000100000000000000020000"),
        (Cdb::Verify(Verification { blocks: Blocks::new(5, 1), is_dpo: true, byte_check: 3 }), "2f160000000500000100"),
        (
            Cdb::WriteAndVerify(Verification { blocks: Blocks::sixteen(5, 1), is_dpo: false, byte_check: 1 }),
            "8e020000000000000005000000010000",
        ),
        (
            Cdb::WriteSame(WriteSame {
                blocks: Blocks::sixteen(9, 16),
                is_anchor: false,
                is_unmap: true,
                has_no_data_out: true,
            }),
            "93090000000000000009000000100000",
        ),
        (
            Cdb::CompareAndWrite { lba: 7, block_count: 1, is_dpo: false, is_fua: true },
            "89080000000000000007000000010000",
        ),
        (Cdb::Unmap { is_anchor: false, parameter_list_length: 24 }, "42000000000000001800"),
        (Cdb::SynchronizeCache(CacheRange { blocks: Blocks::new(0, 0), is_immediate: true }), "35020000000000000000"),
        (Cdb::OrWrite(transfer(CdbForm::Sixteen, 2, 3, false, true)), "8b080000000000000002000000030000"),
        (
            Cdb::WriteAtomic(WriteAtomic { lba: 16, block_count: 8, boundary: 4, is_dpo: true, is_fua: false }),
            "9c100000000000000010000400080000",
        ),
        (
            Cdb::Sanitize(Sanitize {
                service_action: 2,
                is_immediate: true,
                is_unrestricted_exit: true,
                parameter_list_length: 0,
            }),
            "48a20000000000000000",
        ),
    ]);
}

#[test]
fn golden_bytes_of_pages_and_of_the_medium() {
    hold(&[
        (
            Cdb::ModeSense(ModeSense {
                form: CdbForm::Six,
                is_long_lba_accepted: false,
                is_block_descriptor_disabled: true,
                page_control: 1,
                page: 0x08,
                subpage: 0xff,
                allocation_length: 255,
            }),
            "1a0848ffff00",
        ),
        (
            Cdb::ModeSelect(ModeSelect {
                form: CdbForm::Ten,
                is_page_format: true,
                is_save: true,
                parameter_list_length: 28,
            }),
            "55110000000000001c00",
        ),
        (
            Cdb::StartStopUnit(StartStopUnit {
                is_immediate: true,
                power_condition: 0,
                is_no_flush: false,
                is_load_eject: true,
                is_start: true,
            }),
            "1b0100000300",
        ),
        (Cdb::PreventAllowMediumRemoval { prevent: 1 }, "1e0000000100"),
        (
            Cdb::ReadDefectData(ReadDefectData {
                form: CdbForm::Ten,
                is_primary: true,
                is_grown: false,
                format: 5,
                first_index: 0,
                allocation_length: 8,
            }),
            "37001500000000000800",
        ),
        (
            Cdb::ReadDefectData(ReadDefectData {
                form: CdbForm::Twelve,
                is_primary: false,
                is_grown: true,
                format: 0,
                first_index: 1,
                allocation_length: 8,
            }),
            "b70800000001000000080000",
        ),
        (
            Cdb::LogSense(LogSense {
                is_save: false,
                page_control: 1,
                page: 0x2f,
                subpage: 0,
                first_parameter: 0,
                allocation_length: 64,
            }),
            "4d006f00000000004000",
        ),
    ]);
}

#[test]
fn golden_bytes_of_reservations_and_of_what_is_supported() {
    hold(&[
        (Cdb::PersistentReserveIn { service_action: 2, allocation_length: 8 }, "5e020000000000000800"),
        (
            Cdb::PersistentReserveOut { service_action: 1, scope: 0, kind: 5, parameter_list_length: 24 },
            "5f010500000000001800",
        ),
        (
            Cdb::ReportSupportedOperationCodes {
                has_timeouts: true,
                reporting_options: 2,
                operation_code: 0x9e,
                service_action: 0x10,
                allocation_length: 0xffff,
            },
            "a30c829e00100000ffff0000",
        ),
        (Cdb::ReportTargetPortGroups { is_extended: true, allocation_length: 256 }, "a32a00000000000001000000"),
        (
            Cdb::ReportSupportedTaskManagementFunctions { is_extended: true, allocation_length: 16 },
            "a30d80000000000000100000",
        ),
    ]);
}

#[test]
fn golden_bytes_of_copies() {
    hold(&[
        (Cdb::ExtendedCopy { parameter_list_length: 76 }, "830000000000000000000000004c0000"),
        (
            Cdb::ReceiveCopyResults { service_action: 3, list_identifier: 7, allocation_length: 1024 },
            "84030700000000000000000004000000",
        ),
    ]);
}

#[test]
fn golden_bytes_of_forebay_s_own_commands() {
    hold(&[
        (
            Cdb::ChangeMarkIn {
                service_action: 1,
                slot: 0x0203,
                first_range: 0x0405_0607,
                allocation_length: 0x08090a,
            },
            "c10102030405060708090a00",
        ),
        (Cdb::ChangeMarkOut { service_action: 2, parameter_list_length: 40 }, "c20200000000000000002800"),
        (
            Cdb::SharingIn { service_action: 0, first: 0x0203_0405_0607_0809, allocation_length: 0x0a0b_0c0d },
            "c30002030405060708090a0b0c0d0000",
        ),
        (
            Cdb::SharingOut { service_action: 11, client: 0x0203_0405_0607_0809, parameter_list_length: 8 },
            "c40b0203040506070809000000080000",
        ),
    ]);
}

#[test]
fn a_cdb_padded_to_sixteen_bytes_is_the_same_command() {
    let mut padded = [0xff; 16];
    padded[..10].copy_from_slice(&[0x28, 0, 0, 0, 0, 1, 0, 0, 8, 0]);
    assert_eq!(Cdb::parse(&padded), Ok(Cdb::Read(transfer(CdbForm::Ten, 1, 8, false, false))));
}

/// RDPROTECT without protection information (SBC-3 5.9), NACA without ACA (SAM-5 5.2), a reserved byte.
#[test]
fn bits_that_mean_nothing_here_are_invalid_fields() {
    for (byte, value, bit) in [(1, 0x20, 5), (1, 0x80, 7), (9, 0x04, 2), (6, 0x20, 5)] {
        let mut cdb = [0x28, 0, 0, 0, 0, 1, 0, 0, 8, 0];
        cdb[byte] |= value;
        let error = CdbError::ReservedBit { byte: byte as u16, bit };
        assert_eq!(Cdb::parse(&cdb), Err(error));
        assert_eq!(error.sense(), Sense::INVALID_FIELD_IN_CDB.at_bit(byte as u16, bit));
    }
}

#[test]
fn short_and_unknown_cdbs_are_refused() {
    assert_eq!(Cdb::parse(&[]), Err(CdbError::TooShort));
    assert_eq!(Cdb::parse(&[0x28, 0, 0]), Err(CdbError::TooShort));
    assert_eq!(Cdb::parse(&[0x9e]), Err(CdbError::UnknownServiceAction { operation_code: 0x9e, service_action: 0 }));
    assert_eq!(Cdb::parse(&[0x85; 16]), Err(CdbError::UnknownOperationCode(0x85)));
    assert!(CdbError::UnknownOperationCode(0x85).sense().is_same_condition(&Sense::INVALID_OPERATION_CODE));
}

proptest! {
    /// A CDB that is accepted is emitted as it came, but for the fields that are accepted without
    /// effect.
    #[test]
    fn what_is_parsed_is_emitted(row in 0..table::ROWS.len(), noise in any::<[u8; 16]>()) {
        let row = &table::ROWS[row];
        let mut raw = noise;
        for (byte, usage) in raw.iter_mut().zip(row.usage()) {
            *byte &= usage;
        }
        raw[0] = row.operation_code;
        raw[1] |= row.service_action.unwrap_or(0);
        let cdb = Cdb::parse(&raw[..usize::from(row.cdb_bytes)]).expect("only allowed bits are set");
        let emitted = cdb.emit();
        prop_assert_eq!(Cdb::parse(&emitted), Ok(cdb));
        let padded = cdb.emit_padded();
        prop_assert!(padded.starts_with(&emitted) && padded[emitted.len()..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
        let _ = Cdb::parse(&bytes);
    }
}
