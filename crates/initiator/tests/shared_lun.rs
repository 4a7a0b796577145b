//! What hosts that share a LUN need besides reads and writes: compare and write, persistent
//! reservations, and reports of changes.

mod support;

use std::sync::Arc;
use std::time::Duration;

use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::memory::MemoryDevice;
use block::{Buffer, Device, ErrorKind, Event};
use initiator::{Compared, InitiatorOptions, RemoteLun, ReservationType};
use iscsi::pdu::Isid;
use support::{World, identity};

const KIND: ReservationType = ReservationType::WriteExclusiveRegistrantsOnly;

fn host(world: &World, number: u32) -> InitiatorOptions {
    InitiatorOptions {
        isid: Some(Isid::random_format(number, 1)),
        initiator_name: format!("iqn.2026-01.io.forebay:host{number}"),
        ..world.options()
    }
}

fn memory() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(1 << 20, identity("shared")))
}

/// Calls an asynchronous method of a LUN.
macro_rules! call {
    ($world:expr, $lun:expr, $method:ident($($argument:expr),*)) => {{
        let lun = Arc::clone(&$lun);
        $world.run(async move { lun.$method($($argument),*).await })
    }};
}

fn swap(world: &mut World, lun: &Arc<RemoteLun>, from: u8, to: u8) -> Result<Compared, block::Error> {
    call!(world, lun, compare_and_write(4096, &[from; 1024], &[to; 1024]))
}

fn read(world: &mut World, lun: &Arc<RemoteLun>) -> u8 {
    let read = lun.read(4096, Buffer::zeroed(1024));
    let bytes = world.run(read).unwrap();
    assert!(bytes.iter().all(|&byte| byte == bytes[0]));
    bytes[0]
}

#[test]
fn one_of_two_hosts_wins_a_compare_and_write() {
    let mut world = World::new(1);
    world.serve(memory());
    let (one, two) = (world.connect(host(&world, 1)).unwrap(), world.connect(host(&world, 2)).unwrap());
    assert_eq!(swap(&mut world, &one, 0, 1).unwrap(), Compared::Written);
    assert_eq!(swap(&mut world, &two, 0, 2).unwrap(), Compared::Different { at: Some(0) });
    assert_eq!(read(&mut world, &two), 1);
    for (offset, length, new_length) in
        [(4097, 512, 512), (0, 100, 100), (0, 0, 0), (1 << 20, 512, 512), (0, 512, 1024)]
    {
        let (expected, new) = (vec![0; length], vec![0; new_length]);
        let refused = call!(world, one, compare_and_write(offset, &expected, &new)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidRange);
    }
}

/// An older copy, written again after the power was lost, would undo it.
#[test]
fn a_compare_and_write_is_durable_and_no_replay_undoes_it() {
    for has_flushed in [false, true] {
        let mut world = World::new(2);
        let device = CrashLayer::new(1 << 20, 2);
        world.serve(Arc::new(device.clone()));
        let lun = world.connect(host(&world, 1)).unwrap();
        let write = lun.write(4096, Buffer::copy_of(&[7; 2048]), false);
        let lun_of_task = Arc::clone(&lun);
        // Issued together: they are carried out in their order.
        let swapping = async move { lun_of_task.compare_and_write(4096, &[7; 1024], &[8; 1024]).await };
        assert_eq!(world.run(swapping).unwrap(), Compared::Written);
        world.run(write).unwrap();
        assert_eq!(device.durable_bytes(4096, 1024), [8; 1024]);
        if has_flushed {
            let flush = lun.flush();
            world.run(flush).unwrap();
        }
        world.network.set_server(None);
        world.network.cut();
        let device = device.after_power_loss_as(Loss::All, &Power::new());
        world.serve(Arc::new(device.clone()));
        assert_eq!(read(&mut world, &lun), 8);
        let flush = lun.flush();
        world.run(flush).unwrap();
        assert_eq!(device.durable_bytes(4096, 2048), [[8; 1024], [7; 1024]].concat());
    }
}

#[test]
fn after_a_lost_session_the_outcome_is_unknown() {
    for is_reservation in [false, true] {
        let mut world = World::new(3);
        world.serve(memory());
        let lun = world.connect(host(&world, 1)).unwrap();
        let network = world.network.clone();
        network.freeze();
        let (calling, clock) = (Arc::clone(&lun), world.clock.clone());
        world.executor.spawn(async move {
            base::clock::Clock::sleep(&clock, Duration::from_secs(1)).await;
            network.cut();
        });
        let error = world.run(async move {
            match is_reservation {
                false => calling.compare_and_write(0, &[0; 512], &[1; 512]).await.map(drop),
                true => calling.register(0, 5, false).await,
            }
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        let keys = call!(world, lun, reservation_keys()).unwrap();
        assert!(keys.keys.is_empty(), "it never arrived, and was not issued again");
        let read = lun.read(0, Buffer::zeroed(512));
        assert_eq!(world.run(read).unwrap()[..], [0; 512]);
    }
}

#[test]
fn reservations_keep_others_out_and_can_be_taken_over() {
    let mut world = World::new(4);
    world.serve(memory());
    let (one, two) = (world.connect(host(&world, 1)).unwrap(), world.connect(host(&world, 2)).unwrap());
    call!(world, one, register(0, 11, false)).unwrap();
    call!(world, two, register_and_ignore(22, false)).unwrap();
    let keys = call!(world, two, reservation_keys()).unwrap();
    assert_eq!((keys.generation, keys.keys), (2, vec![11, 22]));
    assert_eq!(call!(world, one, reservation()).unwrap().held, None);
    call!(world, one, reserve(11, KIND)).unwrap();
    let held = call!(world, two, reservation()).unwrap().held.unwrap();
    assert_eq!((held.key, held.kind), (11, KIND));
    let wrong_key = call!(world, one, release(99, KIND)).unwrap_err();
    assert_eq!(wrong_key.kind(), ErrorKind::ReservationConflict);
    // Registered hosts may write; others may not.
    call!(world, two, register(22, 0, false)).unwrap();
    assert_eq!(swap(&mut world, &two, 0, 1).unwrap_err().kind(), ErrorKind::ReservationConflict);
    let write = two.write(0, Buffer::zeroed(512), false);
    assert_eq!(world.run(write).unwrap_err().kind(), ErrorKind::ReservationConflict);
    call!(world, two, register(0, 22, false)).unwrap();
    call!(world, two, preempt(22, 11, KIND, false)).unwrap();
    assert_eq!(call!(world, two, reservation()).unwrap().held.unwrap().key, 22);
    assert_eq!(call!(world, two, reservation_keys()).unwrap().keys, [22]);
    let write = one.write(0, Buffer::zeroed(512), false);
    assert_eq!(world.run(write).unwrap_err().kind(), ErrorKind::ReservationConflict);
    call!(world, two, release(22, KIND)).unwrap();
    assert_eq!(call!(world, two, reservation()).unwrap().held, None);
    call!(world, two, clear_reservations(22)).unwrap();
    assert!(call!(world, two, reservation_keys()).unwrap().keys.is_empty());
    let write = one.write(0, Buffer::zeroed(512), false);
    world.run(write).unwrap();
}

/// A reservation outlives its holder's session; the command that is issued again only reads.
#[test]
fn questions_are_asked_again_after_a_lost_session() {
    let mut world = World::new(5);
    world.serve(memory());
    let lun = world.connect(host(&world, 1)).unwrap();
    call!(world, lun, register(0, 11, false)).unwrap();
    call!(world, lun, reserve(11, KIND)).unwrap();
    world.network.freeze();
    let (asking, network, clock) = (Arc::clone(&lun), world.network.clone(), world.clock.clone());
    world.executor.spawn(async move {
        base::clock::Clock::sleep(&clock, Duration::from_secs(1)).await;
        network.cut();
    });
    let reservation = world.run(async move { asking.reservation().await }).unwrap();
    assert_eq!(reservation.held.map(|held| held.key), Some(11));
    assert_eq!(lun.status().session_count, 2);
}

/// A report that a raw command brings counts for all requests.
#[test]
fn a_unit_attention_that_a_raw_command_takes_is_heard() {
    let mut world = World::new(6);
    let device = support::Resizable::new(1 << 20);
    world.serve(device.clone());
    let lun = world.connect(world.options()).unwrap();
    let events = lun.subscribe();
    device.resize(2 << 20);
    world.executor.run_until_stalled();
    let answer = call!(world, lun, execute(&[0; 6], &[], 0)).unwrap();
    assert_eq!((answer.status, answer.sense[2] & 0x0f), (2, 6), "the caller sees it");
    world.pass(Duration::from_millis(1));
    assert!(matches!(events.try_receive(), Some(Event::Resized(geometry)) if geometry.size_bytes == 2 << 20));
    assert_eq!(lun.geometry().size_bytes, 2 << 20);
}

#[test]
fn a_list_of_luns_that_changed_is_an_event() {
    let mut world = World::new(7);
    let server = world.serve(memory());
    let lun = world.connect(world.options()).unwrap();
    let changes = lun.lun_list_changes();
    assert_eq!(*changes.borrow(), 0);
    let unit = logical_unit::LogicalUnit::new(memory(), logical_unit::LogicalUnitOptions::default());
    world.workers.spawn(unit.run());
    let targets = server.targets();
    targets[0].luns.insert(1, unit);
    server.set_targets(targets);
    world.executor.run_until_stalled();
    let read = lun.read(0, Buffer::zeroed(512));
    world.run(read).unwrap();
    assert_eq!(*changes.borrow(), 1, "told with the next command, which was issued again");
    assert_eq!(lun.status().session_count, 1);
}
