//! The content id of a LUN: one for all hosts, void from the first change on, and asked for again in each new session.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, ErrorKind, SharedDevice};
use initiator::{ContentGuard, InitiatorOptions, RemoteLun};
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

/// Serves the LUN anew, whose target keeps marks or not.
fn serve(world: &mut World, device: &SharedDevice, keeps_marks: bool) {
    let store = || Arc::new(MemoryChanges) as _;
    let options = LogicalUnitOptions { change_store: keeps_marks.then(store), ..LogicalUnitOptions::default() };
    let unit = LogicalUnit::new(Arc::clone(device), options);
    world.workers.spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    let clock = Arc::new(world.clock.clone());
    let server = TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), clock);
    world.network.set_server(Some(server));
}

fn disk() -> SharedDevice {
    Arc::new(MemoryDevice::new(16 * MIB, identity("named")))
}

fn write(world: &mut World, lun: &Arc<RemoteLun>) {
    let write = lun.write(0, Buffer::zeroed(4096), false);
    world.run(write).unwrap();
}

macro_rules! call {
    ($world:expr, $lun:expr, $method:ident($($argument:expr),*)) => {{
        let lun = Arc::clone(&$lun);
        $world.run(async move { lun.$method($($argument),*).await })
    }};
}

#[test]
fn a_content_has_one_id_for_all_hosts_until_one_of_them_changes_it() {
    let mut world = World::new(1);
    serve(&mut world, &disk(), true);
    let (one, two) = (world.connect(host(&world, 1)).unwrap(), world.connect(host(&world, 2)).unwrap());
    assert_eq!(call!(world, one, content_id()).unwrap(), None);
    call!(world, one, name_content(ID)).unwrap();
    call!(world, two, name_content([8; 16])).unwrap();
    for lun in [&one, &two] {
        assert_eq!(call!(world, lun, content_id()).unwrap(), Some(ID));
    }
    write(&mut world, &one);
    for lun in [&one, &two] {
        assert_eq!(call!(world, lun, content_id()).unwrap(), None);
    }
    call!(world, two, name_content([8; 16])).unwrap();
    assert_eq!(call!(world, one, content_id()).unwrap(), Some([8; 16]));
}

#[test]
fn a_target_without_marks_cannot_tell() {
    let mut world = World::new(2);
    serve(&mut world, &disk(), false);
    let one = world.connect(host(&world, 1)).unwrap();
    assert_eq!(call!(world, one, content_id()).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(call!(world, one, name_content(ID)).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// The target comes back with the same content, with none that it knows, and as one that cannot tell.
#[test]
fn a_new_session_hears_of_another_content_before_it_reads_anything() {
    let mut world = World::new(3);
    let disk = disk();
    serve(&mut world, &disk, true);
    let (one, two) = (world.connect(host(&world, 1)).unwrap(), world.connect(host(&world, 2)).unwrap());
    call!(world, one, name_content(ID)).unwrap();
    let told = Arc::<AtomicU32>::default();
    let telling = Arc::clone(&told);
    one.guard_content(ContentGuard::new(ID, move || {
        telling.fetch_add(1, Ordering::Relaxed);
    }));
    let told_at_the_next_read = |world: &mut World, sessions| {
        world.network.cut();
        let told = Arc::clone(&told);
        let lun = Arc::clone(&one);
        let read =
            world.run(async move { lun.read(0, Buffer::zeroed(4096)).await.map(|_| told.swap(0, Ordering::Relaxed)) });
        assert_eq!(one.status().session_count, sessions);
        read.unwrap()
    };
    assert_eq!(told_at_the_next_read(&mut world, 2), 0, "only the session was lost");
    write(&mut world, &two);
    assert_eq!(told_at_the_next_read(&mut world, 3), 1);
    serve(&mut world, &disk, true);
    assert_eq!(told_at_the_next_read(&mut world, 4), 1, "nothing is known of it");
    serve(&mut world, &disk, false);
    assert_eq!(told_at_the_next_read(&mut world, 5), 0, "it cannot tell");
    world.pass(Duration::from_secs(1));
}
