//! Commands that read properties of the unit, checked as iscsi-test-cu checks them.

mod common;

use std::sync::Arc;

use common::{BLOCK_COUNT, Target, identity, memory};
use logical_unit::{Command, LogicalUnit, LogicalUnitOptions, MemoryChanges};
use scsi::capacity::Capacity;
use scsi::cdb::{CdbForm, ModeSelect, ModeSense, table};
use scsi::inquiry::{Peripheral, StandardInquiry};
use scsi::mode::{self, Caching, page};
use scsi::vpd::{self, BlockLimits, Designator, LogicalBlockProvisioning};
use scsi::{Cdb, Sense, TaskAttribute, report_luns};

fn inquiry(allocation_length: u16) -> Cdb {
    Cdb::Inquiry { is_vpd: false, page: 0, allocation_length }
}

fn vital(page: u8) -> Cdb {
    Cdb::Inquiry { is_vpd: true, page, allocation_length: 255 }
}

/// libiscsi Inquiry.Standard and Inquiry.AllocLength.
#[test]
fn standard_inquiry_data_is_whole_and_cut_where_asked() {
    let target = Target::new();
    let whole = target.data(inquiry(512));
    assert_eq!(whole.len(), 96);
    assert_eq!(usize::from(whole[4]), whole.len() - 5);
    let data = StandardInquiry::parse(&whole).unwrap();
    assert_eq!((data.vendor.as_str(), data.version, data.peripheral), ("FOREBAY", 6, Peripheral::Disk));
    assert!(data.version_descriptors.contains(&0x0460) && data.version_descriptors.contains(&0x04c0));
    for allocation_length in 0..=255 {
        let expected = &whole[..whole.len().min(usize::from(allocation_length))];
        assert_eq!(target.data(inquiry(allocation_length)), expected);
    }
}

/// libiscsi Inquiry.EVPD: a page code without EVPD.
#[test]
fn a_page_code_without_evpd_is_an_invalid_field() {
    let cdb = Cdb::Inquiry { is_vpd: false, page: 1, allocation_length: 255 };
    Target::new().refuses(cdb, &[], Sense::INVALID_FIELD_IN_CDB);
    Target::new().refuses(vital(0xc9), &[], Sense::INVALID_FIELD_IN_CDB);
}

/// libiscsi Inquiry.SupportedVPD, MandatoryVPDSBC and the sorted page codes.
#[test]
fn every_supported_page_is_there_and_they_ascend() {
    let target = Target::new();
    let page = target.data(vital(0x00));
    let codes = vpd::body(0x00, &page).unwrap();
    assert_eq!(codes, [0x00, 0x80, 0x83, 0x86, 0x87, 0x8f, 0xb0, 0xb1, 0xb2]);
    for &code in codes {
        let page = target.data(vital(code));
        assert_eq!((page[1], usize::from(page[3])), (code, page.len() - 4));
    }
}

#[test]
fn names_come_from_the_device() {
    let target = Target::new();
    assert_eq!(vpd::parse_unit_serial_number(&target.data(vital(0x80))), Ok(identity().serial));
    let names = vpd::parse_device_identification(&target.data(vital(0x83))).unwrap();
    assert!(matches!(names[0], Designator::Naa(name) if name >> 60 == 3), "{names:?}");
    assert_eq!(names[1], Designator::T10Vendor("FOREBAY 5eria1".into()));
    assert_eq!(names, vpd::parse_device_identification(&Target::new().data(vital(0x83))).unwrap());
}

/// libiscsi Inquiry.BlockLimits.
#[test]
fn block_limits_are_sane_and_agree_with_provisioning() {
    let target = Target::new();
    let limits = BlockLimits::parse(&target.data(vital(0xb0))).unwrap();
    assert_eq!(limits.transfer_blocks_max, (16 << 20) / 512);
    assert!(limits.is_write_same_zero_refused && limits.write_same_blocks_max > 0);
    assert_eq!(limits.atomic_blocks_max, 0, "nothing was promised");
    assert!(limits.unmap_blocks_max > 0 && limits.unmap_blocks_max <= 1 << 20);
    assert!(limits.unmap_descriptors_max > 0);
    let provisioning = LogicalBlockProvisioning::parse(&target.data(vital(0xb2))).unwrap();
    assert!(provisioning.has_unmap && provisioning.unmapped_reads_zeroes);

    let thick = Target::with(memory(), LogicalUnitOptions { is_thin: false, ..LogicalUnitOptions::default() });
    let limits = BlockLimits::parse(&thick.data(vital(0xb0))).unwrap();
    assert_eq!((limits.unmap_blocks_max, limits.unmap_descriptors_max), (0, 0));
    assert!(!thick.data(vital(0x00)).contains(&0xb2));
    assert!(!LogicalBlockProvisioning::parse(&thick.data(vital(0xb2))).unwrap().has_unmap);
}

/// libiscsi ReadCapacity10.Simple, ReadCapacity16.Simple, Alloclen, PI, Support.
#[test]
fn capacity_in_both_forms() {
    let target = Target::new();
    let ten = Capacity::parse_10(&target.data(Cdb::ReadCapacity10)).unwrap().expect("it is small");
    let bytes = target.data(Cdb::ReadCapacity16 { allocation_length: 96 });
    let sixteen = Capacity::parse_16(&bytes).unwrap();
    assert_eq!((ten.last_lba, ten.block_bytes), (BLOCK_COUNT - 1, 512));
    assert_eq!((sixteen.last_lba, sixteen.physical_block_exponent, sixteen.is_thin), (BLOCK_COUNT - 1, 0, true));
    assert_eq!(bytes[12], 0);
    for allocation_length in 0..16 {
        assert_eq!(target.data(Cdb::ReadCapacity16 { allocation_length }).len(), allocation_length as usize);
    }
}

fn mode_sense(page_control: u8, page: u8) -> ModeSense {
    ModeSense {
        form: CdbForm::Six,
        is_long_lba_accepted: false,
        is_block_descriptor_disabled: false,
        page_control,
        page,
        subpage: 0,
        allocation_length: 255,
    }
}

/// libiscsi ModeSense6.AllPages, and the DPOFUA and WP bits every test looks at first.
#[test]
fn all_mode_pages_come_with_the_bits_that_matter() {
    let target = Target::new();
    let bytes = target.data(Cdb::ModeSense(mode_sense(0, page::ALL)));
    assert_eq!(usize::from(bytes[0]), bytes.len() - 1);
    let (header, pages) = mode::parse(CdbForm::Six, &bytes).unwrap();
    assert!(header.has_dpo_fua && !header.is_write_protected);
    assert_eq!(header.block_descriptor.map(|descriptor| descriptor.block_count), Some(BLOCK_COUNT));
    let codes: Vec<u8> = mode::pages(pages).map(|page| page.unwrap().code).collect();
    assert_eq!(codes, [0x01, 0x08, 0x0a, 0x1c]);
    let caching = mode::pages(pages).flatten().find(|page| page.code == page::CACHING).unwrap();
    assert_eq!(Caching::parse(caching.bytes).map(|page| page.is_write_cache_enabled), Ok(false));

    let read_only = Target::with(memory(), LogicalUnitOptions { is_read_only: true, ..LogicalUnitOptions::default() });
    let bytes = read_only.data(Cdb::ModeSense(mode_sense(0, page::ALL)));
    assert!(mode::parse(CdbForm::Six, &bytes).unwrap().0.is_write_protected);
}

#[test]
fn a_cache_that_is_not_volatile_cannot_be_switched_and_nothing_is_saved() {
    let target = Target::new();
    let bytes = target.data(Cdb::ModeSense(mode_sense(1, page::CACHING)));
    let (_, pages) = mode::parse(CdbForm::Six, &bytes).unwrap();
    assert!(pages[2..].iter().all(|&byte| byte == 0));
    target.refuses(Cdb::ModeSense(mode_sense(3, page::CACHING)), &[], Sense::SAVING_NOT_SUPPORTED);
    target.refuses(Cdb::ModeSense(mode_sense(0, 0x2b)), &[], Sense::INVALID_FIELD_IN_CDB);
}

#[test]
fn mode_select_takes_what_is_already_so() {
    let target = Target::new();
    let mut list = target.data(Cdb::ModeSense(mode_sense(0, page::CACHING)));
    list[0] = 0;
    let select = |list: &[u8]| {
        Cdb::ModeSelect(ModeSelect {
            form: CdbForm::Six,
            is_page_format: true,
            is_save: false,
            parameter_list_length: list.len() as u16,
        })
    };
    target.good(select(&list), &list);
    let mut enabled = list.clone();
    enabled[4 + 8 + 2] |= 0x04;
    target.refuses(select(&enabled), &enabled, Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    target.refuses(select(&list[..15]), &list[..15], Sense::PARAMETER_LIST_LENGTH_ERROR);
    target.good(select(&[]), &[]);
}

/// libiscsi ReportSupportedOpcodes.OneCommand and SERVACTV.
#[test]
fn every_operation_reports_itself() {
    let options = LogicalUnitOptions {
        atomic_bytes_max: 1 << 20,
        change_store: Some(Arc::new(MemoryChanges)),
        ..LogicalUnitOptions::default()
    };
    let target = Target::with(memory(), options);
    for row in table::ROWS {
        let ask = |reporting_options| Cdb::ReportSupportedOperationCodes {
            has_timeouts: false,
            reporting_options,
            operation_code: row.operation_code,
            service_action: u16::from(row.service_action.unwrap_or(0)),
            allocation_length: 65535,
        };
        let (right, wrong) = if row.service_action.is_some() { (2, 1) } else { (1, 2) };
        let bytes = target.data(ask(right));
        assert_eq!((bytes[1], &bytes[4..]), (3, row.usage()), "{}", row.name);
        target.refuses(ask(wrong), &[], Sense::INVALID_FIELD_IN_CDB);
        assert_eq!(target.data(ask(3)), bytes);
    }
    let all = Cdb::ReportSupportedOperationCodes {
        has_timeouts: true,
        reporting_options: 0,
        operation_code: 0,
        service_action: 0,
        allocation_length: 65535,
    };
    assert_eq!(target.data(all).len(), 4 + 20 * table::ROWS.len());
}

#[test]
fn absent_units_say_so() {
    let target = Target::new();
    let run = |cdb: Cdb| {
        let command = Command {
            cdb: Ok(cdb),
            data_out: block::Buffer::empty(),
            data_in_bytes_max: 4096,
            attribute: TaskAttribute::Simple,
            task_tag: 1,
        };
        target.map.execute(&target.nexus, 5, command).try_take().expect("nobody waits for nothing")
    };
    assert_eq!(run(inquiry(96)).data_in[0], 0x7f);
    assert_eq!(run(Cdb::TestUnitReady).sense, Some(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
    let data = run(Cdb::RequestSense { is_descriptor: false, allocation_length: 252 }).data_in;
    assert_eq!(Sense::parse(&data), Ok(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
    let luns = run(Cdb::ReportLuns { select_report: 0, allocation_length: 4096 }).data_in;
    assert_eq!(report_luns::parse(&luns), Ok(vec![0]));
}

/// SPC-4 6.33: all units, the well-known ones (none), or both; no other selection, and no
/// allocation length below 16 bytes.
#[test]
fn lists_of_units_in_every_form() {
    let target = Target::new();
    for (select_report, luns) in [(0x00, vec![0]), (0x01, vec![]), (0x02, vec![0])] {
        let data = target.data(Cdb::ReportLuns { select_report, allocation_length: 16 });
        assert_eq!(report_luns::parse(&data), Ok(luns), "{select_report:02x}h");
    }
    for select_report in [0x03, 0x10, 0x11, 0x12, 0xff] {
        let cdb = Cdb::ReportLuns { select_report, allocation_length: 16 };
        target.refuses(cdb, &[], Sense::INVALID_FIELD_IN_CDB);
    }
    target.refuses(Cdb::ReportLuns { select_report: 0, allocation_length: 15 }, &[], Sense::INVALID_FIELD_IN_CDB);
}

/// The pages that Linux 6.12 reads where page 00h lists them (drivers/scsi/scsi.c, sd.c): present,
/// and sane where Linux acts on them.
#[test]
fn the_pages_that_linux_reads_are_there() {
    let target = Target::new();
    let listed = target.data(vital(0x00))[4..].to_vec();
    for page in [0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2] {
        assert!(listed.contains(&page), "{page:02x}h");
        let data = target.data(vital(page));
        assert_eq!(
            usize::from(u16::from_be_bytes([data[2], data[3]])),
            data.len() - 4,
            "{page:02x}h says how long it is"
        );
    }
    // ATA information, zoned devices, concurrent positioning ranges: the unit has none of these
    // pages, and refuses them.
    for page in [0x89, 0xb6, 0xb9] {
        assert!(!listed.contains(&page));
        target.refuses(vital(page), &[], Sense::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn units_come_and_go_and_everybody_is_told() {
    let target = Target::new();
    target.map.insert(300, LogicalUnit::new(memory(), LogicalUnitOptions::default()));
    let cdb = Cdb::ReportLuns { select_report: 2, allocation_length: 4096 };
    assert_eq!(target.map.luns(), [0, 300]);
    assert_eq!(target.sense(Cdb::TestUnitReady), Some(Sense::REPORTED_LUNS_CHANGED));
    assert_eq!(report_luns::parse(&target.data(cdb)), Ok(vec![0, 300]));
    assert!(target.map.remove(300).is_some());
    // The initiator has read the list: no unit attention about it is left.
    assert_eq!(report_luns::parse(&target.data(cdb)), Ok(vec![0]));
    target.good(Cdb::TestUnitReady, &[]);
    assert!(target.map.remove(300).is_none());
}

#[test]
fn unknown_commands_are_invalid_operation_codes() {
    let outcome = Target::new().run_bytes(&[0x85; 16], &[]);
    assert_eq!(outcome.sense, Some(Sense::INVALID_OPERATION_CODE.at_byte(0)));
}
