//! Commands about the unit as a whole, and those that read before they write: ORWRITE, WRITE ATOMIC, SANITIZE, EXTENDED
//! COPY, MODE SELECT, target port groups, logs and defects.

mod common;

use std::sync::Arc;

use base::executor::Executor;
use block::memory::MemoryDevice;
use common::{BLOCK_BYTES, BLOCK_COUNT, Target, identity, memory, transfer};
use logical_unit::change_marks::Saving;
use logical_unit::{LogicalUnit, LogicalUnitOptions, ReservationStore, SavedReservations};
use proptest::prelude::*;
use scsi::cdb::table::ROWS;
use scsi::cdb::{Blocks, CdbForm, LogSense, ModeSelect, ModeSense, ReadDefectData, Sanitize, WriteAtomic};
use scsi::extended_copy::{CopyStatus, ExtendedCopyState, Segment, emit_list};
use scsi::mode::{self, Caching, Control, page};
use scsi::persistent_reservation::{MoveParameters, OutParameters};
use scsi::sanitize::{Overwrite, action};
use scsi::vpd::{BlockLimits, Designator};
use scsi::{Cdb, Sense, SenseKey, Status, TaskAttribute, TaskManagementFunction, vpd};

fn vital(page: u8) -> Cdb {
    Cdb::Inquiry { is_vpd: true, page, allocation_length: 1024 }
}

/// libiscsi OrWrite.Verify.
#[test]
fn or_write_sets_bits_and_clears_none() {
    let target = Target::new();
    target.write(3, &[0x0f; 2 * BLOCK_BYTES]);
    let blocks = Blocks::sixteen(3, 2);
    target.good(Cdb::OrWrite(transfer(blocks)), &[0xa0; 2 * BLOCK_BYTES]);
    assert_eq!(target.read(3, 2), [0xaf; 2 * BLOCK_BYTES]);
    assert_eq!(target.read(5, 1), [0; BLOCK_BYTES]);
    target.refuses(Cdb::OrWrite(transfer(Blocks::sixteen(BLOCK_COUNT, 1))), &[0; BLOCK_BYTES], Sense::LBA_OUT_OF_RANGE);
}

/// libiscsi WriteAtomic16.VPD: bounded, aligned, and not supported where the device promises
/// nothing.
#[test]
fn write_atomic_is_what_the_device_promises() {
    let write = |lba, block_count, boundary| {
        Cdb::WriteAtomic(WriteAtomic { lba, block_count, boundary, is_dpo: false, is_fua: false })
    };
    Target::new().refuses(write(0, 8, 0), &[1; 8 * BLOCK_BYTES], Sense::INVALID_OPERATION_CODE);
    let options = LogicalUnitOptions { atomic_bytes_max: 10_000, ..LogicalUnitOptions::default() };
    let target = Target::with(memory(), options);
    let limits = BlockLimits::parse(&target.data(vital(0xb0))).unwrap();
    let told = (limits.atomic_blocks_max, limits.atomic_alignment_blocks, limits.atomic_granularity_blocks);
    assert_eq!(told, (16, 8, 8));
    target.good(write(8, 16, 0), &[7; 16 * BLOCK_BYTES]);
    assert_eq!(target.read(8, 16), [7; 16 * BLOCK_BYTES]);
    target.good(write(8, 0, 0), &[]);
    for (lba, count, boundary) in [(1, 8, 0), (0, 1, 0), (0, 24, 0), (0, 8, 8)] {
        let data = vec![0; usize::from(count) * BLOCK_BYTES];
        target.refuses(write(lba, count, boundary), &data, Sense::INVALID_FIELD_IN_CDB);
    }
    target.refuses(write(0, 16, 0), &[0; 8 * BLOCK_BYTES], Sense::INVALID_FIELD_IN_INFORMATION_UNIT);
}

fn sanitize(service_action: u8, length: usize) -> Cdb {
    Cdb::Sanitize(Sanitize {
        service_action,
        is_immediate: false,
        is_unrestricted_exit: false,
        parameter_list_length: length as u16,
    })
}

/// libiscsi Sanitize.Overwrite and Sanitize.BlockErase.
#[test]
fn sanitize_leaves_nothing() {
    let target = Target::new();
    target.write(BLOCK_COUNT - 2, &[9; 2 * BLOCK_BYTES]);
    let list = Overwrite { is_inverting: true, count: 2, pattern: vec![0xf0, 0x01] }.emit();
    target.good(sanitize(action::OVERWRITE, list.len()), &list);
    let expected: Vec<u8> = [0x0f, 0xfe].repeat(BLOCK_BYTES);
    assert_eq!(target.read(0, 2), expected);
    assert_eq!(target.read(BLOCK_COUNT - 2, 2), expected, "the second pass inverts");
    target.good(sanitize(action::BLOCK_ERASE, 0), &[]);
    assert!(target.read(0, BLOCK_COUNT as u32).iter().all(|&byte| byte == 0));
    let status = scsi::lba_status::parse(&target.data(Cdb::GetLbaStatus { lba: 0, allocation_length: 256 })).unwrap();
    assert!(status.iter().all(|run| run.provisioning == scsi::lba_status::Provisioning::Deallocated));
    for wrong in [0, 4, BLOCK_BYTES + 5] {
        target.refuses(sanitize(action::OVERWRITE, wrong), &vec![1; wrong], Sense::INVALID_FIELD_IN_CDB);
    }
    target.refuses(sanitize(action::OVERWRITE, 5), &[0, 0, 0, 1, 0], Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    target.refuses(sanitize(action::BLOCK_ERASE, 8), &[0; 8], Sense::INVALID_FIELD_IN_CDB);
    target.good(sanitize(action::EXIT_FAILURE_MODE, 0), &[]);
    let thick = Target::with(memory(), LogicalUnitOptions { is_thin: false, ..LogicalUnitOptions::default() });
    thick.refuses(sanitize(action::BLOCK_ERASE, 0), &[], Sense::INVALID_FIELD_IN_CDB);
}

/// libiscsi Sanitize.Reset: nothing stops it, and commands that are not exempt are refused with its
/// progress.
#[test]
fn a_sanitize_goes_on_whoever_is_reset() {
    let mut executor = Executor::in_order();
    let options = LogicalUnitOptions { clock: Some(Arc::new(executor.clock())), ..LogicalUnitOptions::default() };
    let target = Target::with(memory(), options);
    executor.spawn(target.map.get(0).unwrap().run());
    let list = Overwrite { is_inverting: false, count: 1, pattern: vec![1] }.emit();
    let cdb = sanitize(action::OVERWRITE, list.len()).emit();
    let mut waiting = target.start(cdb, block::Buffer::copy_of(&list), TaskAttribute::Simple, 9);
    assert!(waiting.try_take().is_none());
    let in_progress = |sense: Option<Sense>| {
        let sense = sense.expect("it is not ready");
        assert!(sense.is_same_condition(&Sense::SANITIZE_IN_PROGRESS) && sense.progress.is_some(), "{sense}");
    };
    in_progress(target.sense(Cdb::TestUnitReady));
    in_progress(target.sense(Cdb::Read(transfer(Blocks::new(0, 1)))));
    in_progress(target.sense(sanitize(action::BLOCK_ERASE, 0)));
    target.data(vital(0x00));
    let requested = target.data(Cdb::RequestSense { is_descriptor: false, allocation_length: 252 });
    in_progress(Sense::parse(&requested).ok());
    // The response to the abort does not wait for the end of the wiping.
    let function = TaskManagementFunction::AbortTask;
    let managed = target.map.task_management(&target.nexus, function, Some(0), Some(9));
    let (_, outcome) = base::executor::block_on(futures_util::future::join(managed, waiting));
    assert!(outcome.is_silent);
    for function in [TaskManagementFunction::LogicalUnitReset, TaskManagementFunction::TargetWarmReset] {
        drop(target.map.task_management(&target.nexus, function, Some(0), None));
    }
    assert_eq!(target.sense(Cdb::TestUnitReady), Some(Sense::BUS_DEVICE_RESET));
    in_progress(target.sense(Cdb::TestUnitReady));
    executor.run();
    target.good(Cdb::TestUnitReady, &[]);
    assert_eq!(target.read(0, 1), [1; BLOCK_BYTES]);
}

fn naa(target: &Target, lun: u64) -> u64 {
    let unit = target.map.get(lun).unwrap();
    let command = logical_unit::Command {
        cdb: Ok(vital(0x83)),
        data_out: block::Buffer::empty(),
        data_in_bytes_max: 4096,
        attribute: TaskAttribute::Simple,
        task_tag: 1,
    };
    drop(unit);
    let outcome = base::executor::block_on(target.map.execute(&target.nexus, lun, command));
    let names = vpd::parse_device_identification(&outcome.data_in).unwrap();
    match names[0] {
        Designator::Naa(name) => name,
        ref other => panic!("{other:?}"),
    }
}

/// libiscsi ExtendedCopy.Simple and ReceiveCopyResults.CopyStatus; and from one unit to another.
#[test]
fn extended_copy_copies_within_and_between_units() {
    let target = Target::new();
    let other = MemoryDevice::new(1 << 20, block::Identity { serial: "other".into(), ..identity() });
    target.map.insert(1, LogicalUnit::new(Arc::new(other), LogicalUnitOptions::default()));
    target.sense(Cdb::TestUnitReady);
    let names = [(naa(&target, 0), 512), (naa(&target, 1), 512)];
    assert_ne!(names[0], names[1]);
    target.write(0, &[5; 8 * BLOCK_BYTES]);
    let segment = |source, destination, destination_lba| Segment {
        source,
        destination,
        block_count: 8,
        source_lba: 0,
        destination_lba,
    };
    let copy = |list: &[u8]| Cdb::ExtendedCopy { parameter_list_length: list.len() as u32 };
    let status = Cdb::ReceiveCopyResults { service_action: 0, list_identifier: 3, allocation_length: 1024 };
    target.refuses(status, &[], Sense::INVALID_FIELD_IN_CDB);
    let list = emit_list(Some(3), &names, &[segment(0, 0, 100), segment(0, 1, 7), segment(1, 0, 200)]);
    // LBA 0 of the other unit holds zeroes, so the third segment copies zeroes.
    target.write(200, &[1; 8 * BLOCK_BYTES]);
    target.good(copy(&list), &list);
    assert_eq!(target.read(100, 8), [5; 8 * BLOCK_BYTES]);
    assert_eq!(target.read(200, 7), [0; 7 * BLOCK_BYTES]);
    assert_eq!(target.read(207, 1), [5; BLOCK_BYTES], "block 7 came with the second segment");
    let expected = CopyStatus { state: ExtendedCopyState::Completed, segment_count: 3, written_bytes: 3 * 8 * 512 };
    assert_eq!(CopyStatus::parse(&target.data(status)), Ok(expected));
    let beyond = emit_list(None, &names, &[segment(0, 0, BLOCK_COUNT - 1)]);
    target.refuses(copy(&beyond), &beyond, Sense::COPY_ABORTED);
    let nowhere = emit_list(None, &names[..1], &[segment(0, 1, 0)]);
    target.refuses(copy(&nowhere), &nowhere, Sense::UNREACHABLE_COPY_TARGET);
    let unknown = emit_list(None, &[(1, 512)], &[segment(0, 0, 0)]);
    target.refuses(copy(&unknown), &unknown, Sense::UNREACHABLE_COPY_TARGET);
    target.good(copy(&[]), &[]);
    let parameters = Cdb::ReceiveCopyResults { service_action: 3, list_identifier: 0, allocation_length: 1024 };
    assert_eq!(target.data(parameters)[8..12], [0, 8, 0, 64]);
}

fn mode_sense(page: u8) -> Cdb {
    Cdb::ModeSense(ModeSense {
        form: CdbForm::Six,
        is_long_lba_accepted: false,
        is_block_descriptor_disabled: true,
        page_control: 0,
        page,
        subpage: 0,
        allocation_length: 255,
    })
}

fn select(page: &[u8]) -> (Cdb, Vec<u8>) {
    let list = [&[0, 0, 0, 0][..], page].concat();
    let cdb = Cdb::ModeSelect(ModeSelect {
        form: CdbForm::Six,
        is_page_format: true,
        is_save: false,
        parameter_list_length: list.len() as u16,
    });
    (cdb, list)
}

/// libiscsi ModeSense6.Control-SWP, Control-D_SENSE.
#[test]
fn software_write_protection_is_set_told_and_reset() {
    let target = Target::new();
    let other = target.other("other,i,0x2,target,t,0x1");
    let control = Control {
        has_descriptor_sense: true,
        is_reordering_unrestricted: true,
        is_write_protected: true,
        has_task_aborted_status: true,
    };
    let (cdb, list) = select(&control.emit());
    target.good(cdb, &list);
    target.good(cdb, &list);
    assert_eq!(other.sense(Cdb::TestUnitReady), Some(Sense::MODE_PARAMETERS_CHANGED));
    assert_eq!(other.sense(Cdb::TestUnitReady), None, "the second list changed nothing");
    let write = Cdb::Write(transfer(Blocks::new(0, 1)));
    target.refuses(write, &[0; BLOCK_BYTES], Sense::SOFTWARE_WRITE_PROTECTED);
    let data = target.data(mode_sense(page::CONTROL));
    let (header, pages) = mode::parse(CdbForm::Six, &data).unwrap();
    assert!(header.is_write_protected);
    assert_eq!(Control::parse(pages), Ok(control));
    assert_eq!(target.map.sense_bytes(0, &Sense::LBA_OUT_OF_RANGE)[0], 0x72);
    let (cdb, list) = select(&Control { has_task_aborted_status: false, ..control }.emit());
    target.refuses(cdb, &list, Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    drop(target.map.task_management(&target.nexus, TaskManagementFunction::LogicalUnitReset, Some(0), None));
    target.sense(Cdb::TestUnitReady);
    target.good(write, &[0; BLOCK_BYTES]);
    assert_eq!(target.map.sense_bytes(0, &Sense::LBA_OUT_OF_RANGE)[0], 0x70);
}

#[test]
fn a_volatile_cache_can_be_switched_off_and_on() {
    let geometry = block::Geometry { is_write_cache_volatile: true, ..block::Geometry::plain(1 << 20) };
    let device = Arc::new(MemoryDevice::with_geometry(geometry, identity()));
    let target = Target::with(device, LogicalUnitOptions::default());
    for is_write_cache_enabled in [false, true] {
        let caching = Caching { is_write_cache_enabled, is_read_cache_disabled: false };
        let (cdb, list) = select(&caching.emit());
        target.good(cdb, &list);
        let data = target.data(mode_sense(page::CACHING));
        let (_, pages) = mode::parse(CdbForm::Six, &data).unwrap();
        assert_eq!(Caching::parse(pages), Ok(caching));
    }
}

/// Page 83h names the port and its group; REPORT TARGET PORT GROUPS reports it as active/optimized.
#[test]
fn target_port_groups_are_the_portal_groups() {
    let target = Target::new().other("iqn.a,i,0x2,iqn.t,t,0x0003");
    let report = target.data(Cdb::ReportTargetPortGroups { is_extended: false, allocation_length: 64 });
    assert_eq!(report, [0, 0, 0, 12, 0, 1, 0, 3, 0, 0, 0, 1, 0, 0, 0, 1]);
    let page = target.data(vital(0x83));
    let port = [0x51, 0x94, 0, 4, 0, 0, 0, 1, 0x51, 0x95, 0, 4, 0, 0, 0, 3];
    assert!(page.windows(port.len()).any(|window| window == port));
    assert!(page.windows(14).any(|window| window == b"iqn.t,t,0x0003"));
    let inquiry = target.data(Cdb::Inquiry { is_vpd: false, page: 0, allocation_length: 96 });
    assert_eq!(inquiry[5] & 0x38, 0x18, "TPGS 01b and 3PC");
}

#[test]
fn there_are_no_defects_and_two_logs() {
    let target = Target::new();
    let defects = |form| {
        Cdb::ReadDefectData(ReadDefectData {
            form,
            is_primary: true,
            is_grown: true,
            format: 0,
            first_index: 0,
            allocation_length: 32,
        })
    };
    assert_eq!(target.data(defects(CdbForm::Ten)), [0, 0x18, 0, 0]);
    assert_eq!(target.data(defects(CdbForm::Twelve)), [0, 0x18, 0, 0, 0, 0, 0, 0]);
    let log = |page| {
        Cdb::LogSense(LogSense {
            is_save: false,
            page_control: 1,
            page,
            subpage: 0,
            first_parameter: 0,
            allocation_length: 255,
        })
    };
    let pages = target.data(log(0));
    for &page in &pages[4..] {
        assert_eq!(target.data(log(page))[0], page);
    }
    target.refuses(log(0x11), &[], Sense::INVALID_FIELD_IN_CDB);
}

/// A logical block larger than the device's.
#[test]
fn blocks_may_be_larger_than_the_devices() {
    let options = LogicalUnitOptions {
        logical_block_bytes: Some(4096),
        physical_block_bytes: Some(8192),
        ..LogicalUnitOptions::default()
    };
    let device = MemoryDevice::new((1 << 20) + 512, identity());
    let target = Target::with(Arc::new(device), options);
    let bytes = target.data(Cdb::ReadCapacity16 { allocation_length: 32 });
    let capacity = scsi::capacity::Capacity::parse_16(&bytes).unwrap();
    assert_eq!((capacity.last_lba, capacity.block_bytes, capacity.physical_block_exponent), (255, 4096, 1));
    target.good(Cdb::Write(transfer(Blocks::new(255, 1))), &[3; 4096]);
    assert_eq!(target.data(Cdb::Read(transfer(Blocks::new(255, 1)))), [3; 4096]);
    assert_eq!(
        target.sense(Cdb::Read(transfer(Blocks::new(256, 1)))).map(|sense| sense.key),
        Some(SenseKey::IllegalRequest)
    );
    assert_eq!(target.run(Cdb::TestUnitReady, &[]).status, Status::Good);
}

/// A store of reservations for the test.
#[derive(Default)]
struct Shelf(std::sync::Mutex<SavedReservations>);

impl ReservationStore for Shelf {
    fn save(&self, reservations: SavedReservations) -> Saving {
        *self.0.lock().unwrap() = reservations;
        Box::pin(std::future::ready(Ok(())))
    }
}

/// SPC-4 5.12.5, 5.12.7.3, 5.12.8: APTPL, SPEC_I_PT and REGISTER AND MOVE, from CDB to CDB.
#[test]
fn reservations_persist_name_others_and_move() {
    let shelf = Arc::new(Shelf::default());
    let start = || {
        let saved_reservations = shelf.0.lock().unwrap().clone();
        let options = LogicalUnitOptions {
            reservation_store: Some(shelf.clone()),
            saved_reservations,
            ..LogicalUnitOptions::default()
        };
        Target::with(memory(), options).other("a,i,0x1,t,t,0x1")
    };
    let out = |service_action, list: &[u8]| Cdb::PersistentReserveOut {
        service_action,
        scope: 0,
        kind: 1,
        parameter_list_length: list.len() as u32,
    };
    let inward = |service_action| Cdb::PersistentReserveIn { service_action, allocation_length: 1024 };
    let target = start();
    assert_eq!(target.data(inward(2))[2..4], [0x09, 0x80], "SIP_C and PTPL_C; PTPL_A is clear");
    let basic = |key, action_key, is_persistent, has_initiator_ports| {
        OutParameters { key, action_key, is_persistent, has_initiator_ports, ..OutParameters::default() }
            .emit()
            .to_vec()
    };
    let mut list = basic(0, 7, true, true);
    let port = MoveParameters {
        key: 0,
        action_key: 0,
        is_unregistering: false,
        is_persistent: false,
        target_port: 1,
        initiator_port: "b,i,0x2".into(),
    };
    list.extend(&port.emit()[20..]);
    target.good(out(0, &list), &list);
    let reserve = basic(7, 0, false, false);
    target.good(out(1, &reserve), &reserve);
    assert_eq!(target.data(inward(2))[3], 0x81, "PTPL_A");

    let target = start();
    let keys = scsi::persistent_reservation::parse_keys(&target.data(inward(0))).unwrap();
    assert_eq!(keys, (0, vec![7, 7]), "they outlived the unit; the generation begins anew");
    let other = target.other("b,i,0x2,t,t,0x1");
    let write = Cdb::Write(transfer(Blocks::new(0, 1)));
    assert_eq!(other.run(write, &[0; BLOCK_BYTES]).status, Status::ReservationConflict);
    let moved = MoveParameters { key: 7, action_key: 8, is_unregistering: true, is_persistent: true, ..port }.emit();
    target.good(out(7, &moved), &moved);
    other.good(write, &[0; BLOCK_BYTES]);
    assert_eq!(target.run(write, &[0; BLOCK_BYTES]).status, Status::ReservationConflict);
    for wrong in [basic(8, 9, false, true), basic(8, 9, false, false)[..23].to_vec()] {
        assert_eq!(other.run(out(0, &wrong), &wrong).status, Status::CheckCondition);
    }
    let keyless = Target::new();
    let list = basic(0, 7, true, false);
    keyless.refuses(out(0, &list), &list, Sense::INVALID_FIELD_IN_PARAMETER_LIST);
}

proptest! {
    /// Any CDB with any data-out ends, with sense data exactly when it is a CHECK CONDITION.
    #[test]
    fn every_command_ends(
        commands in proptest::collection::vec((0..ROWS.len(), any::<[u8; 16]>(), any::<u8>(), 0usize..3000), 1..12)
    ) {
        let options = LogicalUnitOptions { atomic_bytes_max: 1 << 20, ..LogicalUnitOptions::default() };
        let target = Target::with(memory(), options);
        for (index, noise, sparse, data_out_bytes) in commands {
            let row = &ROWS[index];
            let mut cdb = noise;
            // High bytes are cleared most of the time, so that addresses and lengths are often possible ones.
            cdb.iter_mut().enumerate().filter(|(at, _)| sparse >> (at % 8) & 1 == 1).for_each(|(_, byte)| *byte = 0);
            cdb.iter_mut().zip(row.usage()).for_each(|(byte, usage)| *byte &= usage);
            cdb[0] = row.operation_code;
            cdb[1] = cdb[1] & !0x1f | row.service_action.unwrap_or(cdb[1] & 0x1f);
            let data_out = vec![noise[3]; data_out_bytes];
            let outcome = target.run_bytes(&cdb[..usize::from(row.cdb_bytes)], &data_out);
            prop_assert_eq!(outcome.sense.is_some(), outcome.status == Status::CheckCondition);
        }
    }
}
