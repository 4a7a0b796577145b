//! A change belongs to the lock of the whole LUN under which it came: where that lock was lost meanwhile it is not
//! made, also where nothing keeps the loss in mind.

mod support;

use std::sync::Arc;
use std::time::Duration;

use block::device::DeviceExt;
use block::grants::Right;
use block::memory::MemoryDevice;
use block::{Buffer, ByteRange, Device, ErrorKind, Grants};
use initiator::{InitiatorOptions, RemoteLun};
use logical_unit::{LifeSecret, LogicalUnit, LogicalUnitOptions, LunMap, SavedSharing, SharingOptions};
use support::{IQN, World, identity};
use target::{Target, TargetServer, TargetServerOptions};

const BLOCK: ByteRange = ByteRange { offset: 4096, length: 4096 };

/// What the target keeps over its starts.
fn kept() -> SavedSharing {
    SavedSharing { secret: Some(LifeSecret::from_bytes([5; 32])), ..SavedSharing::default() }
}

fn serve(world: &mut World, device: &Arc<MemoryDevice>, saved: SavedSharing) {
    let clock = Arc::new(world.clock.clone());
    let sharing = Some(SharingOptions { saved: saved.next_start(), ..SharingOptions::default() });
    let options = LogicalUnitOptions { sharing, clock: Some(clock.clone()), ..LogicalUnitOptions::default() };
    let unit = LogicalUnit::new(device.clone(), options);
    world.workers.spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    let server = TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), clock);
    world.network.set_server(Some(server));
}

fn grants(lun: &RemoteLun) -> Grants {
    lun.copies().and_then(|copies| copies.grants().cloned()).expect("its target withholds")
}

/// The target starts again and takes no claims. The host has not asked for the lock again then, or waits for it.
#[test]
fn what_came_under_a_lock_that_was_lost_is_not_written_where_nothing_remembers_that() {
    for asks_again in [false, true] {
        let mut world = World::new(1);
        let device = Arc::new(MemoryDevice::new(1 << 20, identity("shared")));
        serve(&mut world, &device, kept());
        let options = InitiatorOptions { is_shared: true, holds_whole: true, ..world.options() };
        let lun = world.connect(options).unwrap();
        let locks = grants(&lun);
        world.run(async move { locks.acquire(BLOCK, Right::Change).await });
        world.network.set_server(None);
        world.network.cut();
        world.pass(Duration::from_millis(100));
        let late = lun.write(BLOCK.offset, Buffer::copy_of(&[7; 4096]), false);
        if asks_again {
            grants(&lun).want_for(BLOCK, Right::Change);
        }
        serve(&mut world, &device, SavedSharing { boot_epoch: 1, reclaimable_from: 1, ..kept() });
        let late = world.run(late).map(drop);
        assert_eq!(late.map_err(|error| error.kind()), Err(ErrorKind::Gone), "it asks again: {asks_again}");
        let found = world.run(device.read(BLOCK.offset, Buffer::zeroed(512))).unwrap();
        assert_eq!(found[0], 0, "it asks again: {asks_again}");
    }
}
