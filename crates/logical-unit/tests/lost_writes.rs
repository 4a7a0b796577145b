//! A device that lost what it had not made durable, and goes on: every initiator's next flush
//! reports that, once.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::memory::MemoryDevice;
use block::{
    Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, OperationKind, Request,
};
use common::{Target, memory};
use logical_unit::LogicalUnitOptions;
use scsi::cdb::{Blocks, CacheRange};
use scsi::{Cdb, Sense};

/// A device that fails a flush on demand, and reports the loss of its cache.
struct Losing {
    below: Arc<MemoryDevice>,
    hub: EventHub,
    fails_next: AtomicBool,
}

impl Device for Losing {
    fn geometry(&self) -> Geometry {
        Geometry { is_write_cache_volatile: true, ..self.below.geometry() }
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let is_flush = request.operation.kind() == OperationKind::Flush;
        if is_flush && self.fails_next.swap(false, Ordering::AcqRel) {
            self.hub.publish(&Event::WritesLost);
            return Completion::ready(request.fail(ErrorKind::Media));
        }
        self.below.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.hub.subscribe()
    }
}

fn flush() -> Cdb {
    Cdb::SynchronizeCache(CacheRange { blocks: Blocks::new(0, 0), is_immediate: false })
}

fn target(tells_lost_writes: bool) -> (Arc<Losing>, Target) {
    let device = Arc::new(Losing { below: memory(), hub: EventHub::new(), fails_next: AtomicBool::new(false) });
    let options = LogicalUnitOptions { tells_lost_writes, ..LogicalUnitOptions::default() };
    (Arc::clone(&device), Target::with(device, options))
}

#[test]
fn every_initiator_is_told_once_that_what_it_wrote_may_be_lost() {
    let (device, first) = target(true);
    let (second, third) = (first.other("second,i,0x1 target,t,0x1"), first.other("third,i,0x1 target,t,0x1"));
    first.write(0, &[1; 512]);
    second.write(1, &[2; 512]);
    device.fails_next.store(true, Ordering::Release);
    first.refuses(flush(), &[], Sense::WRITE_ERROR);
    // A reinstated session does not write lost data again.
    third.map.remove_nexus(&third.nexus);
    third.map.add_nexus(&third.nexus);
    for initiator in [&first, &second, &third] {
        assert_eq!(initiator.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
    }
    first.good(flush(), &[]);
    for initiator in [&second, &third] {
        initiator.refuses(flush(), &[], Sense::WRITE_ERROR);
        initiator.good(flush(), &[]);
    }
}

/// Initiators that write again what a device lost learn of the loss by the unit attention, and need
/// no more.
#[test]
fn a_device_that_lost_writes_and_does_not_go_on_by_itself_fails_no_flush_of_others() {
    let (device, first) = target(false);
    let second = first.other("second,i,0x1 target,t,0x1");
    device.fails_next.store(true, Ordering::Release);
    first.refuses(flush(), &[], Sense::WRITE_ERROR);
    assert_eq!(second.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
    second.good(flush(), &[]);
}
