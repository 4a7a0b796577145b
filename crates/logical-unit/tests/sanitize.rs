//! A command that waits when a sanitize begins is refused with SANITIZE IN PROGRESS (SBC-4 4.11.3):
//! nothing is written after the wiping.

mod common;

use std::sync::{Arc, Mutex};

use base::executor::Executor;
use block::Buffer;
use common::{BLOCK_BYTES, BLOCK_COUNT, GatedDevice, Target, transfer};
use logical_unit::{LogicalUnitOptions, Outcome};
use scsi::cdb::{Blocks, Sanitize};
use scsi::extended_copy::{Segment, emit_list};
use scsi::sanitize::{Overwrite, action};
use scsi::vpd::{self, Designator};
use scsi::{Cdb, Sense, Status, TaskAttribute};

const OLD: u8 = 5;
const PATTERN: u8 = 1;

/// A unit over a device whose requests the test releases one by one, and whose blocks all hold
/// [`OLD`].
struct World {
    executor: Executor,
    device: Arc<GatedDevice>,
    target: Target,
}

type Answer = Arc<Mutex<Option<Outcome>>>;

impl World {
    fn new() -> Self {
        let (mut executor, device) = (Executor::in_order(), GatedDevice::new());
        let target = Target::with(Arc::clone(&device) as _, LogicalUnitOptions::default());
        executor.spawn(target.map.get(0).unwrap().run());
        let mut world = Self { executor, device, target };
        let fill = world.start(write(0, BLOCK_COUNT as u32), vec![OLD; BLOCK_COUNT as usize * BLOCK_BYTES]);
        world.let_all_go();
        assert_eq!(status_of(&fill), Status::Good);
        world
    }

    fn start(&mut self, cdb: Cdb, data_out: Vec<u8>) -> Answer {
        self.start_as(TaskAttribute::Simple, cdb, data_out)
    }

    fn start_as(&mut self, attribute: TaskAttribute, cdb: Cdb, data_out: Vec<u8>) -> Answer {
        let execution = self.target.start(cdb.emit(), Buffer::copy_of(&data_out), attribute, 1);
        let answer = Answer::default();
        let place = Arc::clone(&answer);
        self.executor.spawn(async move { *place.lock().unwrap() = Some(execution.await) });
        self.executor.run_until_stalled();
        answer
    }

    /// Starts a sanitize of all blocks; it waits for the requests that the device has.
    fn start_sanitize(&mut self) -> Answer {
        let list = Overwrite { is_inverting: false, count: 1, pattern: vec![PATTERN] }.emit();
        let cdb = Cdb::Sanitize(Sanitize {
            service_action: action::OVERWRITE,
            is_immediate: false,
            is_unrestricted_exit: false,
            parameter_list_length: list.len() as u16,
        });
        self.start(cdb, list)
    }

    fn let_one_go(&mut self) {
        self.device.release();
        self.executor.run_until_stalled();
    }

    fn let_all_go(&mut self) {
        while self.device.waiting_count() > 0 {
            self.let_one_go();
        }
    }

    fn content(&mut self) -> Vec<u8> {
        let answer = self.start(Cdb::Read(transfer(Blocks::new(0, BLOCK_COUNT as u32))), Vec::new());
        self.let_all_go();
        let outcome = answer.lock().unwrap().take().expect("everything was let go");
        outcome.data_in.to_vec()
    }

    fn naa(&self) -> u64 {
        let page = self.target.data(Cdb::Inquiry { is_vpd: true, page: 0x83, allocation_length: 4096 });
        let names = vpd::parse_device_identification(&page).unwrap();
        let found = names.iter().find_map(|name| match name {
            Designator::Naa(naa) => Some(*naa),
            _ => None,
        });
        found.expect("a unit has one")
    }
}

fn write(lba: u64, count: u32) -> Cdb {
    Cdb::Write(transfer(Blocks::new(lba, count)))
}

fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptor_bytes = (ranges.len() * 16) as u16;
    let mut list = [(descriptor_bytes + 6).to_be_bytes(), descriptor_bytes.to_be_bytes(), [0; 2], [0; 2]].concat();
    for (lba, count) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(count.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

fn status_of(answer: &Answer) -> Status {
    answer.lock().unwrap().as_ref().expect("it has ended").status
}

#[track_caller]
fn assert_told_of_sanitize(answer: &Answer) {
    let answer = answer.lock().unwrap();
    let sense = answer.as_ref().expect("it has ended").sense.expect("it was not carried out");
    assert!(sense.is_same_condition(&Sense::SANITIZE_IN_PROGRESS) && sense.progress.is_some(), "{sense}");
}

#[track_caller]
fn assert_wiped(world: &mut World) {
    let content = world.content();
    assert_eq!(content.iter().position(|&byte| byte != PATTERN), None, "something was written behind the wiping");
}

#[test]
fn an_unmap_does_not_go_on_with_its_next_range_behind_a_sanitize() {
    let mut world = World::new();
    let list = unmap_list(&[(0, 8), (64, 8)]);
    let unmap = world.start(Cdb::Unmap { is_anchor: false, parameter_list_length: list.len() as u16 }, list);
    assert_eq!(world.device.waiting_count(), 1, "the first range is under way");
    let sanitize = world.start_sanitize();
    world.let_all_go();
    assert_eq!(status_of(&sanitize), Status::Good);
    assert_told_of_sanitize(&unmap);
    assert_wiped(&mut world);
}

#[test]
fn a_copy_does_not_bring_back_what_it_had_read_before_a_sanitize() {
    let mut world = World::new();
    let segment = Segment { source: 0, destination: 0, block_count: 8, source_lba: 0, destination_lba: 64 };
    let list = emit_list(None, &[(world.naa(), BLOCK_BYTES as u32)], &[segment]);
    let copy = world.start(Cdb::ExtendedCopy { parameter_list_length: list.len() as u32 }, list);
    assert_eq!(world.device.waiting_count(), 1, "the read is under way");
    let sanitize = world.start_sanitize();
    world.let_all_go();
    assert_eq!(status_of(&sanitize), Status::Good);
    assert_told_of_sanitize(&copy);
    assert_wiped(&mut world);
}

#[test]
fn a_write_that_waits_its_turn_is_overtaken_by_a_sanitize_and_told_of_it() {
    for attribute in [TaskAttribute::Ordered, TaskAttribute::Simple] {
        let mut world = World::new();
        let older = world.start(write(0, 8), vec![7; 8 * BLOCK_BYTES]);
        let barrier = world.start_as(TaskAttribute::Ordered, write(32, 8), vec![7; 8 * BLOCK_BYTES]);
        let waiting = world.start_as(attribute, write(64, 8), vec![7; 8 * BLOCK_BYTES]);
        assert_eq!(world.device.waiting_count(), 1, "only the oldest is under way");
        let sanitize = world.start_sanitize();
        world.let_one_go();
        assert_eq!(status_of(&older), Status::Good, "the device had it before");
        assert_told_of_sanitize(&barrier);
        assert_told_of_sanitize(&waiting);
        assert!(sanitize.lock().unwrap().is_none(), "who waited is told at once");
        world.let_all_go();
        assert_eq!(status_of(&sanitize), Status::Good);
        assert_wiped(&mut world);
    }
}

/// After the sanitize commands run again.
#[test]
fn commands_that_come_after_a_sanitize_are_carried_out() {
    let mut world = World::new();
    world.start_sanitize();
    world.let_all_go();
    let after = world.start(write(0, 8), vec![7; 8 * BLOCK_BYTES]);
    world.let_all_go();
    assert_eq!(status_of(&after), Status::Good);
    assert_eq!(world.content()[..8 * BLOCK_BYTES], [7; 8 * BLOCK_BYTES]);
}

/// SAM-5 6.3.4: its tasks are ended, and the transport waits for none of them.
#[test]
fn a_write_that_waits_for_its_range_is_not_carried_out_for_a_nexus_that_is_gone() {
    let mut world = World::new();
    let other = world.target.other("other,i,0x1 target,t,0x1");
    let held = Blocks::new(0, 8);
    let first = other.start(
        Cdb::Write(transfer(held)).emit(),
        Buffer::copy_of(&[6; 8 * BLOCK_BYTES]),
        TaskAttribute::Simple,
        1,
    );
    world.start(write(0, 8), vec![7; 8 * BLOCK_BYTES]);
    assert_eq!(world.device.waiting_count(), 1, "the second waits for the first");
    world.target.map.remove_nexus(&world.target.nexus);
    world.let_all_go();
    drop(first);
    world.target = other;
    assert_eq!(world.content()[..8 * BLOCK_BYTES], [6; 8 * BLOCK_BYTES]);
}
