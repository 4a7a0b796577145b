//! Copies on a shared unit that wait for another host: meanwhile other copies, and all who have no task yet, have their
//! turn.

mod common;

use std::sync::Arc;

use block::BufferPool;
use block::memory::MemoryDevice;
use common::changing::name;
use common::shared_unit::{Started, World, lock, options};
use common::{BLOCK_BYTES, GatedDevice, identity, memory, transfer};
use logical_unit::limits::TASKS_MAX;
use logical_unit::{LogicalUnit, LogicalUnitOptions, NexusId};
use scsi::cdb::Blocks;
use scsi::extended_copy::{Segment, emit_list};
use scsi::sharing::{MessageBody, Mode, Resource};
use scsi::{Cdb, Sense, Status, TaskAttribute};

/// Where a host reads what it keeps: another page than what is copied beside it.
const KEPT: u64 = 1024;
/// Blocks of a page, which is what hosts keep.
const PAGE: u16 = 8;

/// A shared unit whose copies have one buffer together.
fn world(device: block::SharedDevice) -> World {
    let shared = LogicalUnitOptions {
        sharing: Some(options()),
        copy_buffers: BufferPool::new(1),
        ..LogicalUnitOptions::default()
    };
    World::with_options(device, shared)
}

/// A copy of one page of the unit.
fn copy(world: &mut World, nexus: &NexusId, (from, to): (u64, u64)) -> Started {
    let segment = Segment { source: 0, destination: 0, block_count: PAGE, source_lba: from, destination_lba: to };
    let list = emit_list(None, &[(name(&common::Target::new()), BLOCK_BYTES as u32)], &[segment]);
    world.start(nexus, Cdb::ExtendedCopy { parameter_list_length: list.len() as u32 }, &list)
}

#[test]
fn a_copy_that_waits_for_another_host_keeps_no_other_copy_waiting() {
    for is_source in [false, true] {
        let mut world = world(memory());
        let reader = world.client("reader", 1);
        let (one, two) = (world.nexus("one"), world.nexus("two"));
        world.read(&reader.0, KEPT).good();
        // Behind this change whoever reads these blocks waits.
        let change = is_source.then(|| world.write(&two, KEPT, 0x5a));
        let waiting = copy(&mut world, &one, if is_source { (KEPT, 0) } else { (0, KEPT) });
        assert!(!waiting.is_over());
        let other = copy(&mut world, &two, (64, 128));
        assert!(other.is_over(), "source {is_source}: another copy waits for a host that it has nothing to do with");
        other.good();
        let callback = world.purge(&reader.0);
        world.acknowledge(&reader, callback);
        waiting.good();
        if let Some(change) = change {
            change.good();
            assert!(world.read(&one, 0).outcome().data_in.iter().all(|&byte| byte == 0x5a));
        }
    }
}

#[test]
fn copies_in_both_directions_of_blocks_that_another_host_keeps_end() {
    let mut world = world(memory());
    let reader = world.client("reader", 1);
    let (one, two) = (world.nexus("one"), world.nexus("two"));
    world.read(&reader.0, 0).good();
    world.read(&reader.0, KEPT).good();
    let copies = [copy(&mut world, &one, (0, KEPT)), copy(&mut world, &two, (KEPT, 0))];
    assert!(copies.iter().all(|copy| !copy.is_over()));
    for _ in 0..2 {
        for (_, body) in world.messages(&reader.0) {
            let MessageBody::Purge { callback, .. } = body else { panic!("{body:?}") };
            world.acknowledge(&reader, callback);
        }
    }
    assert!(copies.iter().all(Started::is_over), "they wait for each other");
    copies.iter().for_each(Started::good);
}

/// It has its buffer, and waits for the device, when the first host comes that keeps copies.
#[test]
fn a_copy_that_came_before_anybody_shared_the_unit_waits_for_who_does() {
    let device = GatedDevice::new();
    let mut world = world(device.clone());
    let (one, two) = (world.nexus("one"), world.nexus("two"));
    let early = copy(&mut world, &one, (0, KEPT));
    assert_eq!(device.waiting_count(), 1, "it reads");
    let reader = world.client("reader", 1);
    let read = world.read(&reader.0, KEPT);
    let release_all = |world: &mut World| {
        while device.waiting_count() > 0 {
            device.release();
            world.settle();
        }
    };
    release_all(&mut world);
    read.good();
    assert!(!early.is_over(), "the reader keeps what it would change");
    let other = copy(&mut world, &two, (64, 128));
    release_all(&mut world);
    other.good();
    let callback = world.purge(&reader.0);
    world.acknowledge(&reader, callback);
    release_all(&mut world);
    early.good();
}

/// Which units there are was looked up for its initiator when it came.
#[test]
fn a_copy_that_waits_for_its_turn_does_not_reach_a_unit_that_came_meanwhile() {
    let other = || Arc::new(MemoryDevice::new(1 << 20, block::Identity { unit: "other".to_owned(), ..identity() }));
    let names = [common::Target::new(), common::Target::with(other(), LogicalUnitOptions::default())];
    let names = names.map(|target| (name(&target), BLOCK_BYTES as u32));
    let segment = Segment { source: 0, destination: 1, block_count: PAGE, source_lba: 0, destination_lba: 0 };
    let list = emit_list(None, &names, &[segment]);
    for (comes_late, expected) in [(false, None), (true, Some(Sense::UNREACHABLE_COPY_TARGET))] {
        let (device, destination) = (GatedDevice::new(), other());
        let mut world = world(device.clone());
        let unit = LogicalUnit::new(Arc::clone(&destination) as block::SharedDevice, LogicalUnitOptions::default());
        if !comes_late {
            world.luns.insert(1, Arc::clone(&unit));
        }
        let one = world.nexus("one");
        let before = world.write(&one, 0, 7);
        let cdb = Cdb::ExtendedCopy { parameter_list_length: list.len() as u32 };
        let copy = world.start_as(&one, cdb, &list, TaskAttribute::Ordered);
        assert!(!copy.is_over(), "it waits for the write");
        if comes_late {
            world.luns.insert(1, unit);
        }
        while device.waiting_count() > 0 {
            device.release();
            world.settle();
        }
        before.good();
        assert_eq!(copy.sense(), expected);
        let read = block::Request::read(0, block::Buffer::zeroed(BLOCK_BYTES));
        let bytes = block::Device::submit(&*destination, read).try_take().expect("memory answers at once").buffer;
        assert_eq!(bytes[0], if comes_late { 0 } else { 7 });
    }
}

/// A unit whose first MiB one host keeps to itself.
fn held_world() -> World {
    let mut world = world(Arc::new(MemoryDevice::new(4 << 20, identity())));
    let holder = world.client("holder", 1);
    for (request, resource, mode) in
        [(1, Resource::File(0), Mode::IntentionExclusive), (2, Resource::Group(0, 0), Mode::Exclusive)]
    {
        world.ordered(&holder.0, holder.1, &lock(request, resource, mode));
    }
    let is_granted = |(_, body): &(u64, MessageBody)| matches!(body, MessageBody::Granted { .. });
    assert_eq!(world.messages(&holder.0).iter().filter(|message| is_granted(message)).count(), 2);
    world
}

/// What waits for a host that holds a range alone may take all tasks of the unit, and the gate still has room for who
/// comes then.
#[test]
fn who_has_no_task_reads_while_many_names_wait_with_all_tasks() {
    let mut world = held_world();
    let names: Vec<NexusId> = (0..40).map(|number| world.nexus(&format!("name{number}"))).collect();
    let newcomer = world.nexus("newcomer");
    let mut waiting = Vec::new();
    for name in &names {
        loop {
            let read = world.read(name, 0);
            if read.is_over() {
                assert_eq!(read.outcome().status, Status::TaskSetFull);
                break;
            }
            waiting.push(read);
        }
    }
    assert!(waiting.len() >= TASKS_MAX, "{} tasks", waiting.len());
    let elsewhere = Cdb::Read(transfer(Blocks::new(4096, 1)));
    for _ in 0..2 {
        world.start(&newcomer, elsewhere, &[]).good();
    }
    let _first = world.read(&newcomer, 0);
    let second = world.start(&newcomer, elsewhere, &[]);
    assert_eq!(second.outcome().status, Status::TaskSetFull, "it has one that waits");
}

/// Copies that come to other units are none of this one's tasks, and wait at its gate all the same.
#[test]
fn copies_of_other_units_leave_room_at_the_gate() {
    let mut world = held_world();
    for lun in 1..4 {
        let named = block::Identity { unit: format!("other{lun}"), ..identity() };
        let other = Arc::new(MemoryDevice::new(1 << 20, named));
        world.luns.insert(lun, LogicalUnit::new(other, LogicalUnitOptions::default()));
    }
    let (copier, reader) = (world.nexus("copier"), world.nexus("reader"));
    let segment = Segment { source: 0, destination: 0, block_count: PAGE, source_lba: 0, destination_lba: KEPT };
    let list = emit_list(None, &[(name(&common::Target::new()), BLOCK_BYTES as u32)], &[segment]);
    let cdb = Cdb::ExtendedCopy { parameter_list_length: list.len() as u32 };
    let mut waiting = Vec::new();
    for lun in 1..4 {
        world.start_at(lun, &copier, Cdb::TestUnitReady, &[]);
        let refused = loop {
            let started = world.start_at(lun, &copier, cdb, &list);
            if started.is_over() {
                break started.outcome().status;
            }
            waiting.push(started);
        };
        assert_eq!((refused, waiting.len()), (Status::TaskSetFull, TASKS_MAX / 2), "LUN {lun}");
    }
    world.start(&reader, Cdb::Read(transfer(Blocks::new(4096, 1))), &[]).good();
}
