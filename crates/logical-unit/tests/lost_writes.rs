//! A device that lost what it had not made durable, and goes on: every initiator's next flush
//! reports that, once.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use base::clock::VirtualClock;
use base::executor::{Executor, block_on};
use block::completion::SlotSender;
use block::device::DeviceExt;
use block::layer::loss_record::LossRecordLayer;
use block::memory::MemoryDevice;
use block::{
    Buffer, Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, OperationKind, Request,
};
use common::{Target, memory};
use logical_unit::limits::WRITERS_REMEMBERED_MAX;
use logical_unit::{LogicalUnitOptions, NexusId};
use scsi::cdb::{Blocks, CacheRange};
use scsi::{Cdb, Sense, TaskAttribute, TaskManagementFunction};

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

/// A device whose flushes wait for the test, and which publishes no events.
#[derive(Default)]
struct Silent {
    below: Option<Arc<MemoryDevice>>,
    flushes: Mutex<Vec<(Request, SlotSender)>>,
}

impl Silent {
    /// Ends the oldest flush: with a loss, or well.
    fn end(&self, is_lost: bool) {
        let (request, sender) = self.flushes.lock().unwrap().remove(0);
        let below = self.below.as_ref().expect("it is made with one");
        sender.complete(if is_lost { request.fail(ErrorKind::Media) } else { block_on(below.submit(request)) });
    }
}

impl Device for Silent {
    fn geometry(&self) -> Geometry {
        let below = self.below.as_ref().expect("it is made with one");
        Geometry { is_write_cache_volatile: true, ..below.geometry() }
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&self, request: Request) -> Completion {
        if request.operation.kind() != OperationKind::Flush {
            return self.below.as_ref().expect("it is made with one").submit(request);
        }
        let (completion, sender) = Completion::slot();
        self.flushes.lock().unwrap().push((request, sender));
        completion
    }
}

/// The unit of a gateway, beside another front of the same device.
fn gateway() -> (Arc<Silent>, Arc<LossRecordLayer>, Target) {
    let silent = Arc::new(Silent { below: Some(memory()), ..Silent::default() });
    let layer = Arc::new(LossRecordLayer::new(silent.clone(), Arc::new(VirtualClock::new())));
    let losses = Some(Arc::clone(layer.losses()));
    let options = LogicalUnitOptions { tells_lost_writes: true, losses, ..LogicalUnitOptions::default() };
    (silent, layer.clone(), Target::with(layer, options))
}

/// A flush of an initiator. The sense data of its answer, once it is there.
fn begin_flush(executor: &mut Executor, of: &Target, tag: u64) -> Arc<Mutex<Option<Option<Sense>>>> {
    let execution = of.start(flush().emit(), Buffer::empty(), TaskAttribute::Simple, tag);
    let answer = Arc::new(Mutex::new(None));
    let place = Arc::clone(&answer);
    executor.spawn(async move {
        let outcome = execution.await;
        *place.lock().unwrap() = (!outcome.is_silent).then_some(outcome.sense);
    });
    executor.run_until_stalled();
    answer
}

/// A flush of an initiator that the device ends well.
fn flush_well(executor: &mut Executor, silent: &Silent, of: &Target) -> Option<Sense> {
    let answer = begin_flush(executor, of, 99);
    silent.end(false);
    executor.run_until_stalled();
    answer.lock().unwrap().take().expect("it is answered")
}

#[test]
fn a_loss_that_another_front_was_told_of_is_told_to_every_initiator() {
    let (silent, layer, first) = gateway();
    let second = first.other("second,i,0x1 target,t,0x1");
    let mut executor = Executor::in_order();
    let other_front = layer.flush();
    silent.end(true);
    assert!(executor.block_on(other_front).is_err());
    for initiator in [&first, &second] {
        assert_eq!(initiator.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
        assert_eq!(flush_well(&mut executor, &silent, initiator), Some(Sense::WRITE_ERROR));
        assert_eq!(flush_well(&mut executor, &silent, initiator), None);
    }
    assert!(layer.losses().check_known().is_ok());
}

#[test]
fn a_loss_reported_by_a_flush_that_nobody_waits_for_is_told_to_every_initiator() {
    let (silent, layer, first) = gateway();
    let second = first.other("second,i,0x1 target,t,0x1");
    let mut executor = Executor::in_order();
    first.good(Cdb::SynchronizeCache(CacheRange { blocks: Blocks::new(0, 0), is_immediate: true }), &[]);
    silent.end(true);
    assert!(layer.losses().check_known().is_err(), "nobody was told");
    for initiator in [&second, &first] {
        assert_eq!(initiator.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
        assert_eq!(flush_well(&mut executor, &silent, initiator), Some(Sense::WRITE_ERROR));
        assert_eq!(flush_well(&mut executor, &silent, initiator), None);
    }
}

/// An initiator that waited too long for its flush aborts it, or comes back with a new session, and
/// flushes again.
#[test]
fn a_loss_reported_by_a_flush_whose_answer_is_not_sent_is_told_by_the_next() {
    for by in ["abort", "new session", "new session, and the unit goes on by itself"] {
        let (silent, _, first) = gateway();
        let second = first.other("second,i,0x1 target,t,0x1");
        let mut executor = Executor::in_order();
        let unit = first.map.get(0).unwrap();
        let answer = match by {
            "abort" => {
                let answer = begin_flush(&mut executor, &first, 7);
                let function = TaskManagementFunction::AbortTask;
                drop(first.map.task_management(&first.nexus, function, Some(0), Some(7)));
                answer
            }
            "new session" => {
                let answer = begin_flush(&mut executor, &first, 7);
                first.map.remove_nexus(&first.nexus);
                first.map.add_nexus(&first.nexus);
                answer
            }
            _ => {
                executor.spawn(unit.run());
                drop(first.start(flush().emit(), Buffer::empty(), TaskAttribute::Simple, 7));
                Arc::default()
            }
        };
        silent.end(true);
        executor.run_until_stalled();
        assert_eq!(*answer.lock().unwrap(), None, "{by}");
        for initiator in [&first, &second] {
            assert_eq!(initiator.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET), "{by}");
            assert_eq!(flush_well(&mut executor, &silent, initiator), Some(Sense::WRITE_ERROR), "{by}");
            assert_eq!(flush_well(&mut executor, &silent, initiator), None, "{by}");
        }
    }
}

/// Another front has the loss. Initiators try such a flush again, and take the next answer for the answer.
#[test]
fn a_flush_that_was_not_done_tells_nobody_of_an_earlier_loss() {
    for kind in [ErrorKind::TimedOut, ErrorKind::NoAccess, ErrorKind::Busy] {
        let (silent, layer, first) = gateway();
        let mut executor = Executor::in_order();
        let other_front = layer.flush();
        silent.end(true);
        assert!(executor.block_on(other_front).is_err());
        assert_eq!(first.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
        let answer = begin_flush(&mut executor, &first, 5);
        let (request, sender) = silent.flushes.lock().unwrap().remove(0);
        sender.complete(request.fail(kind));
        executor.run_until_stalled();
        assert!(answer.lock().unwrap().is_some(), "{kind:?}");
        let _ = first.sense(Cdb::TestUnitReady);
        let next = flush_well(&mut executor, &silent, &first);
        assert_eq!(next, Some(Sense::WRITE_ERROR), "{kind:?}");
    }
}

/// Its flushes may fail without end; the others must go on.
#[test]
fn an_initiator_whose_flushes_fail_disturbs_others_only_if_something_was_written() {
    let (silent, layer, first) = gateway();
    let second = first.other("second,i,0x1 target,t,0x1");
    let mut executor = Executor::in_order();
    for (round, (writes, attention)) in
        [(false, true), (false, false), (true, false), (true, false), (false, false)].into_iter().enumerate()
    {
        if writes {
            second.write(1, &[2; 512]);
        }
        let answer = begin_flush(&mut executor, &first, 7);
        silent.end(true);
        executor.run_until_stalled();
        let sense = answer.lock().unwrap().take().expect("it is answered").expect("it has failed");
        assert!(sense.is_same_condition(&Sense::WRITE_ERROR), "round {round}: {sense:?}");
        for initiator in [&first, &second] {
            let expected = attention.then_some(Sense::POWER_ON_OR_RESET);
            assert_eq!(initiator.sense(Cdb::TestUnitReady), expected, "round {round}");
        }
    }
    assert_eq!(layer.losses().count(), 3);
    // The first flush that ends well tells of all.
    let senses = |expected| assert_eq!([&first, &second].map(|of| of.sense(Cdb::TestUnitReady)), [expected; 2]);
    assert_eq!(flush_well(&mut executor, &silent, &second), Some(Sense::WRITE_ERROR));
    senses(Some(Sense::POWER_ON_OR_RESET));
    assert_eq!(flush_well(&mut executor, &silent, &first), Some(Sense::WRITE_ERROR));
    for initiator in [&first, &second] {
        assert_eq!(flush_well(&mut executor, &silent, initiator), None);
    }
    // Nothing was written in between.
    let answer = begin_flush(&mut executor, &first, 7);
    silent.end(true);
    executor.run_until_stalled();
    assert!(answer.lock().unwrap().take().expect("it is answered").is_some());
    senses(None);
    assert_eq!(flush_well(&mut executor, &silent, &second), None);
}

#[test]
fn whoever_comes_and_goes_an_initiator_that_is_here_is_told_that_its_writes_may_be_lost() {
    let (device, first) = target(true);
    let (here, gone) = (first.other("here,i,0x1 target,t,0x1"), first.other("gone,i,0x1 target,t,0x1"));
    gone.map.remove_nexus(&gone.nexus);
    for number in 0..WRITERS_REMEMBERED_MAX {
        let passing = NexusId::new(&format!("passing,i,{number} target,t,0x1"));
        first.map.add_nexus(&passing);
        first.map.remove_nexus(&passing);
    }
    device.fails_next.store(true, Ordering::Release);
    first.refuses(flush(), &[], Sense::WRITE_ERROR);
    gone.map.add_nexus(&gone.nexus);
    for initiator in [&here, &gone] {
        assert_eq!(initiator.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
    }
    here.refuses(flush(), &[], Sense::WRITE_ERROR);
    gone.good(flush(), &[]);
}
