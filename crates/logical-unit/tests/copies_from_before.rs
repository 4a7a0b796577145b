//! Copies that a client has from an earlier life (`docs/protocol/sharing.md`): PRE-FETCH registers
//! them, and no change is lost between the report of a change mark and the registration.

mod common;

use std::sync::Arc;

use block::memory::MemoryDevice;
use common::changing::{BLOCKS_PER_MIB, MIB};
use common::shared_unit::{LEASE, World, options};
use common::{BLOCK_BYTES, identity, memory};
use logical_unit::{MemoryChanges, NexusId};
use scsi::cdb::{Blocks, CacheRange};
use scsi::change_mark::{Changes, Parameters, Run, action_in, action_out, parse_marks};
use scsi::sharing::{self, MessageBody, ReportRecord};
use scsi::{Cdb, Sense};

const ID: [u8; 16] = [7; 16];

fn prefetch(lba: u64, count: u32) -> Cdb {
    Cdb::Prefetch(CacheRange { blocks: Blocks::new(lba, count), is_immediate: true })
}

fn world() -> World {
    let device = Arc::new(MemoryDevice::new(16 * MIB, identity()));
    World::with_marks(device, options(), Some(Arc::<MemoryChanges>::default()))
}

fn take(world: &mut World, nexus: &NexusId) {
    tell(world, nexus, action_out::TAKE, 0);
}

fn clear(world: &mut World, nexus: &NexusId) {
    let sequence = report(world, nexus).sequence;
    tell(world, nexus, action_out::CLEAR, sequence);
}

fn tell(world: &mut World, nexus: &NexusId, service_action: u8, sequence: u64) {
    let list = Parameters { id: ID, token: 1, sequence }.emit();
    let cdb = Cdb::ChangeMarkOut { service_action, parameter_list_length: list.len() as u32 };
    assert_eq!(world.run(nexus, cdb, &list).sense, None);
}

/// Reads the mark's changes.
fn report(world: &mut World, nexus: &NexusId) -> Changes {
    let ask =
        |service_action, slot| Cdb::ChangeMarkIn { service_action, slot, first_range: 0, allocation_length: 4096 };
    let marks = parse_marks(&world.run(nexus, ask(action_in::REPORT_MARKS, 0), &[]).data_in).unwrap();
    let slot = marks.iter().find(|mark| mark.id == ID).expect("it was taken").slot;
    Changes::parse(&world.run(nexus, ask(action_in::REPORT_CHANGES, slot), &[]).data_in).unwrap()
}

fn registrations(world: &mut World, nexus: &NexusId) -> u64 {
    let counts = world.report(nexus).into_iter().filter_map(|record| match record {
        ReportRecord::Client { registrations, .. } => Some(registrations),
        _ => None,
    });
    counts.sum()
}

#[test]
fn what_a_client_prefetches_is_asked_back_and_moves_no_data() {
    let mut world = World::new();
    let host = world.client("host", 1);
    let stock = world.nexus("stock");
    let asked = world.run(&host.0, prefetch(16, 8), &[]);
    assert_eq!((asked.sense, asked.data_in.len()), (None, 0));
    assert_eq!(registrations(&mut world, &host.0), 1);
    world.write(&stock, 0, 1).good();
    let change = world.write(&stock, 16, 1);
    let callback = world.purge(&host.0);
    assert!(!change.is_over());
    world.acknowledge(&host, callback);
    change.good();
    assert_eq!(registrations(&mut world, &host.0), 0);
}

/// A count of zero names all blocks to the end, as in the standard.
#[test]
fn no_blocks_are_all_of_them_to_the_end() {
    let mut world = World::new();
    let host = world.client("host", 1);
    let stock = world.nexus("stock");
    assert_eq!(world.run(&host.0, prefetch(1024, 0), &[]).sense, None);
    world.write(&stock, 1023, 1).good();
    assert!(!world.write(&stock, 2047, 1).is_over());
    assert!(world.run(&host.0, prefetch(2047, 2), &[]).sense.is_some(), "beyond the end");
}

#[test]
fn what_a_stock_initiator_prefetches_registers_nothing_and_waits_for_nobody() {
    let mut world = World::new();
    let (host, other) = (world.client("host", 1), world.client("other", 2));
    let (stock, writer) = (world.nexus("stock"), world.nexus("writer"));
    world.read(&host.0, 0).good();
    let change = world.write(&writer, 0, 1);
    assert!(!change.is_over());
    assert_eq!(world.run(&stock, prefetch(0, 1), &[]).sense, None);
    assert_eq!(registrations(&mut world, &other.0), 1, "of the host alone");
}

#[test]
fn a_fenced_client_is_told_so_and_not_that_its_copies_are_registered() {
    let mut world = World::new();
    let host = world.client("host", 1);
    world.advance(LEASE);
    world.advance(LEASE);
    assert!(world.run(&host.0, prefetch(0, 1), &[]).sense.unwrap().is_same_condition(&Sense::SHARING_FENCED));
}

/// The second report contains it: the change was executed, and so recorded, before the registration
/// was answered.
#[test]
fn a_change_between_the_report_and_the_registration_is_in_the_report_after_it() {
    let mut world = world();
    let host = world.client("host", 1);
    let stock = world.nexus("stock");
    take(&mut world, &host.0);
    clear(&mut world, &host.0);
    assert_eq!(report(&mut world, &host.0).runs, []);
    world.write(&stock, 3 * BLOCKS_PER_MIB, 1).good();
    assert_eq!(world.run(&host.0, prefetch(3 * BLOCKS_PER_MIB, 8), &[]).sense, None);
    assert_eq!(world.messages(&host.0), [], "it had no copy that anybody knew of");
    assert_eq!(report(&mut world, &host.0).runs, [Run { first: 3, count: 1 }]);
}

/// Each place where a change may be when the registration arrives: it waits for another host's
/// answer, or for this client's answer about the neighbouring blocks.
#[test]
fn a_registration_waits_behind_a_change_that_is_under_way_and_the_report_after_it_has_that() {
    let mut world = world();
    let (host, other) = (world.client("host", 1), world.client("other", 2));
    let stock = world.nexus("stock");
    take(&mut world, &host.0);
    clear(&mut world, &host.0);
    world.read(&other.0, 3 * BLOCKS_PER_MIB).good();
    let change = world.write(&stock, 3 * BLOCKS_PER_MIB, 1);
    let callback = world.purge(&other.0);
    assert_eq!(report(&mut world, &host.0).runs, [], "it is at the gate");
    let registering = world.start(&host.0, prefetch(3 * BLOCKS_PER_MIB, 8), &[]);
    assert!(!registering.is_over());
    world.acknowledge(&other, callback);
    change.good();
    registering.good();
    assert_eq!(report(&mut world, &host.0).runs, [Run { first: 3, count: 1 }]);
    // After it, this client is called back.
    let later = world.write(&stock, 3 * BLOCKS_PER_MIB, 2);
    let callback = world.purge(&host.0);
    assert!(!later.is_over());
    world.acknowledge(&host, callback);
    later.good();
}

/// A change from before the unit was shared holds its range, and has no place at the gate.
#[test]
fn a_registration_waits_for_a_change_that_came_before_anybody_shared_the_unit() {
    let device = common::GatedDevice::new();
    let mut world = World::with_marks(device.clone(), options(), Some(Arc::<MemoryChanges>::default()));
    let stock = world.nexus("stock");
    let change = world.write(&stock, 0, 1);
    assert_eq!(device.waiting_count(), 1);
    let host = world.client("host", 1);
    let registering = world.start(&host.0, prefetch(0, 8), &[]);
    assert!(!registering.is_over());
    device.release();
    world.settle();
    change.good();
    registering.good();
}

/// The changes that are cleared from the mark were reported to this client, which dropped its
/// copies, or were its own.
#[test]
fn what_is_forgotten_when_a_client_goes_was_told_it_and_what_comes_later_is_recorded() {
    let mut world = world();
    let host = world.client("host", 1);
    let stock = world.nexus("stock");
    take(&mut world, &host.0);
    world.read(&host.0, 3 * BLOCKS_PER_MIB).good();
    let change = world.write(&stock, 3 * BLOCKS_PER_MIB, 1);
    // The mark is cleared while a change waits for this client's answer.
    clear(&mut world, &host.0);
    assert_eq!(report(&mut world, &host.0).runs, []);
    let callback = world.purge(&host.0);
    world.acknowledge(&host, callback);
    change.good();
    assert_eq!(report(&mut world, &host.0).runs, [Run { first: 3, count: 1 }]);
    world.ordered(&host.0, host.1, &sharing::Parameters::Leave);
    world.luns.remove_nexus(&host.0);
    world.write(&stock, 5 * BLOCKS_PER_MIB, 1).good();
    let host = world.client("host", 2);
    take(&mut world, &host.0);
    assert_eq!(report(&mut world, &host.0).runs, [Run { first: 3, count: 1 }, Run { first: 5, count: 1 }]);
}

/// The answer would end the new registration, so it must come first.
#[test]
fn a_client_that_registers_what_it_was_just_asked_for_waits_for_its_own_answer() {
    let mut world = World::with(memory(), options());
    let host = world.client("host", 1);
    let stock = world.nexus("stock");
    world.read(&host.0, 0).good();
    let change = world.write(&stock, 0, 1);
    let registering = world.start(&host.0, prefetch(0, 8), &[]);
    let callback = match world.messages(&host.0)[..] {
        [(_, MessageBody::Purge { callback, .. })] => callback,
        ref other => panic!("{other:?}"),
    };
    assert!(!registering.is_over() && !change.is_over());
    world.acknowledge(&host, callback);
    change.good();
    registering.good();
    assert_eq!(world.read(&host.0, 0).outcome().data_in[..], [1; BLOCK_BYTES]);
}
