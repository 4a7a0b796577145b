//! A LUN that several hosts share: the target that serves it, a host of it, and what a host keeps and asks.

use std::sync::{Arc, Mutex};

use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, ByteRange, Device, Dropped, Keeper, SharedDevice};
use initiator::{InitiatorOptions, RemoteLun};
use iscsi::pdu::Isid;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, SharingOptions};
use target::{Target, TargetServer, TargetServerOptions};

use super::{IQN, World, identity};

/// The options of host `number`.
pub(crate) fn host(world: &World, number: u32) -> InitiatorOptions {
    InitiatorOptions {
        isid: Some(Isid::random_format(number, 1)),
        initiator_name: format!("iqn.2026-01.io.forebay:host{number}"),
        is_shared: true,
        ..world.options()
    }
}

pub(crate) fn memory() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(1 << 20, identity("shared")))
}

/// A target whose LUN may be shared, in the start of the target that `sharing` names. It knows of no other one.
pub(crate) fn serve(world: &mut World, device: SharedDevice, sharing: SharingOptions) {
    let clock = Arc::new(world.clock.clone());
    let options =
        LogicalUnitOptions { sharing: Some(sharing), clock: Some(clock.clone()), ..LogicalUnitOptions::default() };
    let unit = LogicalUnit::new(device, options);
    world.workers.spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    let server = TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), clock);
    world.network.set_server(Some(server));
}

/// Has `keeper` asked for copies of `lun` as long as it lives.
pub(crate) fn add_keeper<K: Keeper + 'static>(lun: &Arc<RemoteLun>, keeper: &Arc<K>) {
    let keeper: Arc<dyn Keeper> = keeper.clone();
    lun.copies().expect("it is shared").add_keeper(Arc::downgrade(&keeper));
}

/// A cache: the ranges that it was asked to drop.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Vec<ByteRange>>);

impl Keeper for Cache {
    fn revoke(&self, range: ByteRange) -> Dropped {
        self.0.lock().unwrap().push(range);
        Box::pin(async {})
    }
}

impl Cache {
    pub(crate) fn over(lun: &Arc<RemoteLun>) -> Arc<Self> {
        let cache = Arc::new(Self::default());
        add_keeper(lun, &cache);
        cache
    }

    pub(crate) fn dropped(&self) -> Vec<ByteRange> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// The first byte of a sector.
pub(crate) fn read(world: &mut World, lun: &Arc<RemoteLun>, offset: u64) -> u8 {
    let read = lun.read(offset, Buffer::zeroed(512));
    world.run(read).unwrap()[0]
}

/// A sector of `byte`.
pub(crate) fn write(world: &mut World, lun: &Arc<RemoteLun>, offset: u64, byte: u8) -> Result<(), block::Error> {
    let write = lun.write(offset, Buffer::copy_of(&[byte; 512]), false);
    world.run(write).map(drop)
}
