//! Changes by other hosts while a LUN was out of reach: read when it is back, before anything is
//! written there.

mod support;

use std::sync::Arc;
use std::time::Duration;

use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, ByteRange, Device, Event};
use initiator::{InitiatorOptions, RemoteLun};
use iscsi::pdu::Isid;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, MemoryChanges};
use support::{IQN, World, identity};
use target::{Target, TargetServer, TargetServerOptions};

const MIB: u64 = 1 << 20;
const ID: [u8; 16] = [9; 16];

fn host(world: &World, number: u32) -> InitiatorOptions {
    InitiatorOptions {
        isid: Some(Isid::random_format(number, 1)),
        initiator_name: format!("iqn.2026-01.io.forebay:host{number}"),
        ..world.options()
    }
}

fn serve(world: &mut World) {
    let server = server(world);
    world.network.set_server(Some(server));
}

fn server(world: &mut World) -> TargetServer {
    let device = Arc::new(MemoryDevice::new(16 * MIB, identity("marked")));
    let options = LogicalUnitOptions { change_store: Some(Arc::new(MemoryChanges)), ..LogicalUnitOptions::default() };
    let unit = LogicalUnit::new(device, options);
    world.workers.spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    let clock = Arc::new(world.clock.clone());
    TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), clock)
}

fn write(world: &mut World, lun: &Arc<RemoteLun>, offset: u64) {
    let write = lun.write(offset, Buffer::zeroed(4096), false);
    world.run(write).unwrap();
}

macro_rules! call {
    ($world:expr, $lun:expr, $method:ident($($argument:expr),*)) => {{
        let lun = Arc::clone(&$lun);
        $world.run(async move { lun.$method($($argument),*).await })
    }};
}

fn ranges(world: &mut World, lun: &Arc<RemoteLun>) -> Vec<ByteRange> {
    let slot = call!(world, lun, marks()).unwrap()[0].slot;
    call!(world, lun, changes(slot)).unwrap().ranges
}

fn range(first: u64, count: u64) -> ByteRange {
    ByteRange { offset: first * MIB, length: count * MIB }
}

#[test]
fn a_mark_tells_what_others_wrote_and_is_taken_again_after_a_lost_session() {
    let mut world = World::new(1);
    serve(&mut world);
    let (one, two) = (world.connect(host(&world, 1)).unwrap(), world.connect(host(&world, 2)).unwrap());
    assert_eq!(one.change_mark_support().map(|support| support.range_bytes), Some(1 << 20));
    call!(world, one, take_mark(ID, 5)).unwrap();
    assert_eq!(ranges(&mut world, &one), [range(0, 16)], "a mark is made with everything changed");
    let sequence = call!(world, one, marks()).unwrap()[0].sequence;
    assert!(!call!(world, one, clear_mark(ID, 5, sequence + 1)).unwrap());
    assert!(call!(world, one, clear_mark(ID, 5, sequence)).unwrap());
    write(&mut world, &one, 0);
    assert_eq!(ranges(&mut world, &one), [], "what the holder writes is its own");
    write(&mut world, &two, 3 * MIB);
    assert_eq!(ranges(&mut world, &one), [range(3, 1)]);
    assert!(call!(world, two, marks()).unwrap().is_empty(), "marks are their initiator's");

    // The session is lost, another host writes, and the session comes back: the change is
    // published, the mark taken again.
    let events = one.subscribe();
    world.network.cut();
    write(&mut world, &two, 7 * MIB);
    write(&mut world, &one, 11 * MIB);
    assert!(one.status().session_count > 1);
    world.pass(Duration::from_secs(1));
    let mut told = Vec::new();
    while let Some(event) = events.try_receive() {
        if let Event::Invalidated(range) = event {
            told.push(range);
        }
    }
    assert_eq!(told, [range(3, 1), range(7, 1)]);
    assert_eq!(one.status().changed_by_others_bytes, 2 * MIB);
    assert_eq!(ranges(&mut world, &one), [range(3, 1), range(7, 1)], "its own write after that is not there");
    call!(world, one, forget_mark(ID)).unwrap();
    assert!(call!(world, one, marks()).unwrap().is_empty());
}

/// Nobody needs it, whatever the target says, and nobody clears it.
#[test]
fn a_mark_that_could_not_be_forgotten_is_not_taken_again_after_a_lost_session() {
    let mut world = World::new(4);
    let server = server(&mut world);
    world.network.set_server(Some(server.clone()));
    let options = InitiatorOptions { replacement_timeout: Duration::from_secs(5), ..host(&world, 1) };
    let one = world.connect(options).unwrap();
    call!(world, one, take_mark(ID, 5)).unwrap();
    world.network.set_server(None);
    world.network.cut();
    call!(world, one, forget_mark(ID)).unwrap_err();
    world.network.set_server(Some(server));
    let events = one.subscribe();
    while one.status().state != initiator::State::Online {
        world.pass(Duration::from_secs(1));
    }
    let told = std::iter::from_fn(|| events.try_receive()).filter(|event| matches!(event, Event::Invalidated(_)));
    assert_eq!(told.count(), 0);
    assert_eq!(one.status().changed_by_others_bytes, 0);
}

/// A target that forgot the mark cannot say which copies are old: all are void.
#[test]
fn a_mark_that_is_not_known_any_more_makes_everything_void() {
    let mut world = World::new(2);
    serve(&mut world);
    let one = world.connect(host(&world, 1)).unwrap();
    call!(world, one, take_mark(ID, 5)).unwrap();
    let sequence = call!(world, one, marks()).unwrap()[0].sequence;
    assert!(call!(world, one, clear_mark(ID, 5, sequence)).unwrap());
    let events = one.subscribe();
    // The same LUN, of a target that lost its marks.
    serve(&mut world);
    world.network.cut();
    world.pass(Duration::from_secs(2));
    let mut told = Vec::new();
    while let Some(event) = events.try_receive() {
        told.extend(match event {
            Event::Invalidated(range) => Some(range),
            _ => None,
        });
    }
    assert_eq!(told, [range(0, 16)]);
}

/// The session is lost while the mark gets another token: either token is accepted, and the mark
/// has the new one afterwards.
#[test]
fn a_session_that_is_lost_while_a_mark_gets_another_token_knows_it_by_either() {
    for is_given in [false, true] {
        let mut world = World::new(4);
        serve(&mut world);
        let one = world.connect(host(&world, 1)).unwrap();
        call!(world, one, take_mark(ID, 5)).unwrap();
        let sequence = call!(world, one, marks()).unwrap()[0].sequence;
        assert!(call!(world, one, clear_mark(ID, 5, sequence)).unwrap());
        let events = one.subscribe();
        one.expect_token(ID, 6);
        if is_given {
            call!(world, one, renew_mark(ID, 6)).unwrap();
        }
        world.network.cut();
        world.pass(Duration::from_secs(2));
        assert!(one.status().session_count > 1);
        let told = std::iter::from_fn(|| events.try_receive()).any(|event| matches!(event, Event::Invalidated(_)));
        assert!(!told, "nobody changed anything");
        assert_eq!(call!(world, one, marks()).unwrap()[0].token, 6);
        one.settle_token(ID, 6);
        assert_eq!(ranges(&mut world, &one), []);
    }
}

#[test]
fn a_target_without_marks_says_so() {
    let mut world = World::new(3);
    world.serve(Arc::new(MemoryDevice::new(MIB, identity("plain"))));
    let one = world.connect(host(&world, 1)).unwrap();
    assert_eq!(one.change_mark_support(), None);
    assert_eq!(call!(world, one, take_mark(ID, 1)).unwrap_err().kind(), block::ErrorKind::Unsupported);
}
