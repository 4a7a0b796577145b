//! A LUN is removed and another one comes under its number while the session goes on: nothing of ours lands there.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, Device, Request, SharedDevice};
use initiator::{InitiatorOptions, RemoteLun, State};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use scsi::vpd::page::UNIT_SERIAL_NUMBER;
use scsi::{Cdb, Sense, vpd};
use support::scripted::{Reaction, Reply, Scripted};
use support::{IQN, World, identity};
use target::Target;

const BLOCK: usize = 4096;

/// Writes of one block each, all at once.
fn begin_writes(world: &mut World, lun: &Arc<RemoteLun>, count: u64) {
    for number in 0..count {
        let writing = lun.write(number * BLOCK as u64, Buffer::copy_of(&[7; BLOCK]), false);
        world.executor.spawn(async move { drop(writing.await) });
    }
}

/// The target sees no more than what was on the wire when it answered: what waits for its window has got no number yet.
#[test]
fn nothing_is_issued_to_a_number_without_a_unit_before_it_is_asked_what_is_there() {
    const WINDOW: usize = 64;
    for (sense, seed) in [(Sense::LOGICAL_UNIT_NOT_SUPPORTED, 1), (Sense::REPORTED_LUNS_CHANGED, 2)] {
        let mut world = World::new(seed);
        let target = Scripted::new(&world);
        let options = InitiatorOptions { queue_depth: 128, ..world.options() };
        let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
        world.executor.spawn(driver);
        let writes = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&writes);
        let mut is_asked = false;
        target.tell(move |_, cdb| match cdb {
            Cdb::Write(_) => {
                assert!(!is_asked, "{sense}: the unit is another one by now");
                let is_first = seen.fetch_add(1, Ordering::Relaxed) == 0;
                if is_first { Reaction::Answer(Reply::sense(sense)) } else { Reaction::Proper }
            }
            Cdb::Inquiry { page: UNIT_SERIAL_NUMBER, is_vpd: true, .. } => {
                is_asked = true;
                Reaction::Answer(Reply::data(vpd::emit_unit_serial_number("ANOTHER")))
            }
            _ => Reaction::Proper,
        });
        begin_writes(&mut world, &lun, 100);
        world.pass(Duration::from_secs(5));
        assert_eq!(lun.status().state, State::Replaced, "{sense}");
        let writes = writes.load(Ordering::Relaxed);
        assert!(writes <= WINDOW, "{sense}: {writes} writes");
    }
}

/// Two reloads, faster than an answer is on its way: what was under way when the other disk came is refused.
#[test]
fn what_is_under_way_when_another_disk_comes_under_the_number_does_not_land_there() {
    for seed in 0..4 {
        let mut world = World::new(seed);
        let (first, second) = (disk("first"), disk("second"));
        world.network.set_delay(Some((world.clock.clone(), Duration::from_millis(5))));
        let server = world.serve(Arc::clone(&first));
        let options = InitiatorOptions { queue_depth: 32, ..world.options() };
        let lun = world.connect(options).unwrap();
        begin_writes(&mut world, &lun, 512);
        world.pass(Duration::from_millis(12 + 3 * seed));
        assert!(has_any(&first), "writes are under way");
        server.set_targets(vec![Target::new(IQN, LunMap::new())]);
        if seed % 2 == 0 {
            world.pass(Duration::from_millis(2));
        }
        let unit = LogicalUnit::new(Arc::clone(&second), LogicalUnitOptions::default());
        world.workers.spawn(unit.run());
        let luns = LunMap::new();
        luns.insert(0, unit);
        server.set_targets(vec![Target::new(IQN, luns)]);
        world.pass(Duration::from_secs(5));
        assert_eq!(lun.status().state, State::Replaced);
        assert!(!has_any(&second), "seed {seed}");
    }
}

/// What asks for nothing, because a cache answers everything, hears of nothing: so the unit is asked now and then.
#[test]
fn an_idle_session_finds_out_that_another_disk_has_come() {
    let mut world = World::new(1);
    let (first, second) = (disk("first"), disk("second"));
    let server = world.serve(Arc::clone(&first));
    let interval = Duration::from_secs(3);
    let lun = world.connect(InitiatorOptions { keepalive_interval: interval, ..world.options() }).unwrap();
    world.pass(10 * interval);
    assert_eq!((lun.status().state, lun.status().session_count), (State::Online, 1));
    server.set_targets(vec![Target::new(IQN, LunMap::new())]);
    let luns = LunMap::new();
    luns.insert(0, LogicalUnit::new(second, LogicalUnitOptions::default()));
    server.set_targets(vec![Target::new(IQN, luns)]);
    world.pass(interval + Duration::from_secs(1));
    assert_eq!(lun.status().state, State::Replaced);
}

fn disk(serial: &str) -> SharedDevice {
    Arc::new(MemoryDevice::new(4 << 20, identity(serial)))
}

/// Whether any of our writes is on it.
fn has_any(device: &SharedDevice) -> bool {
    let all = device.submit(Request::read(0, Buffer::zeroed(4 << 20))).try_take().expect("memory answers at once");
    all.buffer.contains(&7)
}
