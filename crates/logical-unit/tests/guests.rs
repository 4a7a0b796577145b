//! A nexus that may only read a logical unit takes nothing from those that may write it.

mod common;

use std::sync::Arc;

use base::executor::block_on;
use block::Buffer;
use common::{BLOCK_BYTES, GatedDevice, Target, transfer};
use logical_unit::{LogicalUnitOptions, LunMap, Mapping, MemoryChanges, NexusId};
use scsi::cdb::{Blocks, StartStopUnit};
use scsi::change_mark::{Parameters, action_in, action_out, parse_marks};
use scsi::{Cdb, Sense, Status, TaskAttribute, TaskManagementFunction, TaskManagementOutcome, sharing};

/// An owner, and a guest that sees the same unit through another map and may only read it.
fn owner_and_guest() -> (Arc<GatedDevice>, Target, Target) {
    let device = GatedDevice::new();
    let options = LogicalUnitOptions {
        is_removable: true,
        change_store: Some(Arc::new(MemoryChanges)),
        ..LogicalUnitOptions::default()
    };
    let owner = Target::with(Arc::clone(&device) as _, options);
    let map = LunMap::new();
    map.replace(&[Mapping { lun: 0, unit: owner.map.get(0).expect("it is there"), is_read_only: true }]);
    let guest = Target { map, nexus: NexusId::new("guest,i,0x2 target,t,0x1") };
    guest.map.add_nexus(&guest.nexus);
    assert_eq!(guest.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
    (device, owner, guest)
}

#[test]
fn a_guest_cannot_take_the_unit_from_its_owner() {
    let (_device, owner, guest) = owner_and_guest();
    let stop = StartStopUnit {
        is_immediate: false,
        power_condition: 0,
        is_no_flush: false,
        is_load_eject: false,
        is_start: false,
    };
    let mode_select = [0x15, 0x10, 0, 0, 16, 0];
    let mut write_protect = vec![0; 4];
    write_protect.extend([0x0a, 10, 0x02, 0, 0x08, 0, 0, 0, 0, 0, 0, 0]);
    // REGISTER, RESERVE, PREEMPT.
    for (service_action, list) in [(0, [0u8; 24]), (1, [0; 24]), (4, [0; 24])] {
        let cdb = Cdb::PersistentReserveOut { service_action, scope: 0, kind: 3, parameter_list_length: 24 };
        guest.refuses(cdb, &list, Sense::WRITE_PROTECTED);
    }
    guest.refuses(Cdb::Reserve6, &[], Sense::WRITE_PROTECTED);
    for (service_action, length) in
        [(sharing::action_out::LOCK, 40), (sharing::action_out::BEGIN, 16), (sharing::action_out::FENCE, 8)]
    {
        let cdb = Cdb::SharingOut { service_action, client: 0, parameter_list_length: length };
        guest.refuses(cdb, &vec![0; length as usize], Sense::WRITE_PROTECTED);
    }
    guest.refuses(Cdb::StartStopUnit(stop), &[], Sense::WRITE_PROTECTED);
    guest.refuses(Cdb::PreventAllowMediumRemoval { prevent: 1 }, &[], Sense::WRITE_PROTECTED);
    let outcome = guest.run_bytes(&mode_select, &write_protect);
    assert!(outcome.sense.is_some_and(|sense| sense.is_same_condition(&Sense::WRITE_PROTECTED)), "{outcome:?}");
    guest.good(Cdb::Release6, &[]);
    assert_eq!(owner.sense(Cdb::TestUnitReady), None);
}

/// A reset by a guest ends its own tasks, and is not reported to other nexuses.
#[test]
fn a_guests_resets_reach_only_its_own_tasks() {
    use TaskManagementFunction as Function;
    for function in
        [Function::ClearTaskSet, Function::LogicalUnitReset, Function::TargetWarmReset, Function::TargetColdReset]
    {
        let (device, owner, guest) = owner_and_guest();
        owner.good(Cdb::Reserve6, &[]);
        let cdb = Cdb::Write(transfer(Blocks::new(0, 1))).emit();
        let writing = owner.start(cdb, Buffer::copy_of(&[7; BLOCK_BYTES]), TaskAttribute::Simple, 9);
        let response = block_on(guest.map.task_management(&guest.nexus, function, Some(0), None));
        assert_eq!(response, TaskManagementOutcome::FunctionComplete);
        device.release();
        assert_eq!(block_on(writing).status, scsi::Status::Good, "{function:?} leaves the owner's write");
        assert_eq!(owner.sense(Cdb::TestUnitReady), None, "{function:?} is no news to the owner");
        guest.refuses_with_conflict();
    }
}

impl Target {
    /// The owner's reservation still stands.
    fn refuses_with_conflict(&self) {
        let outcome = self.run(Cdb::Read(transfer(Blocks::new(0, 1))), &[]);
        assert_eq!(outcome.status, scsi::Status::ReservationConflict);
    }
}

fn take(target: &Target, id: u8) -> Status {
    let cdb = Cdb::ChangeMarkOut { service_action: action_out::TAKE, parameter_list_length: 40 };
    target.run(cdb, &Parameters { id: [id; 16], token: 1, sequence: 0 }.emit()).status
}

fn mark_ids(target: &Target) -> Vec<u8> {
    let cdb =
        Cdb::ChangeMarkIn { service_action: action_in::REPORT_MARKS, slot: 0, first_range: 0, allocation_length: 4096 };
    parse_marks(&target.data(cdb)).unwrap().iter().map(|mark| mark.id[0]).collect()
}

/// Without its mark the owner could not attach again with its dirty data.
#[test]
fn a_guest_that_takes_all_the_marks_it_can_leaves_the_owner_its_own() {
    let (_device, owner, guest) = owner_and_guest();
    assert_eq!(take(&owner, 1), Status::Good);
    let name = owner.nexus.clone();
    owner.map.remove_nexus(&name);
    let taken = (100..200).filter(|&id| take(&guest, id) == Status::Good).count();
    assert_eq!(taken, 2, "its share");
    owner.map.add_nexus(&name);
    assert_eq!(owner.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
    assert_eq!(mark_ids(&owner), [1]);
    assert_eq!(take(&owner, 2), Status::Good, "and there is room for another");
}
