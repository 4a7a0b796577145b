//! Commands that wait: overlapping ranges, ordered tasks, task management, dropped executions, device events.

mod common;

use std::sync::{Arc, Mutex};

use base::executor::Executor;
use block::{Buffer, Completion, Device, ErrorKind, Event, EventHub, EventReceiver, Geometry, Identity, Request};
use common::{BLOCK_BYTES, GatedDevice, Target, memory, transfer};
use logical_unit::limits::TASKS_MAX;
use logical_unit::{Execution, LogicalUnitOptions, Outcome};
use scsi::cdb::Blocks;
use scsi::{Cdb, Sense, Status, TaskAttribute, TaskManagementFunction, TaskManagementOutcome};

fn gated() -> (Arc<GatedDevice>, Target) {
    let device = GatedDevice::new();
    let target = Target::with(Arc::clone(&device) as _, LogicalUnitOptions::default());
    (device, target)
}

fn write(target: &Target, lba: u64, byte: u8, tag: u64) -> Execution {
    let cdb = Cdb::Write(transfer(Blocks::new(lba, 1))).emit();
    target.start(cdb, Buffer::copy_of(&[byte; BLOCK_BYTES]), TaskAttribute::Simple, tag)
}

fn read(target: &Target, lba: u64, attribute: TaskAttribute, tag: u64) -> Execution {
    target.start(Cdb::Read(transfer(Blocks::new(lba, 1))).emit(), Buffer::empty(), attribute, tag)
}

/// Runs an execution in the background; the slot gets its outcome.
fn spawn(executor: &mut Executor, execution: Execution) -> Arc<Mutex<Option<Outcome>>> {
    let slot = Arc::new(Mutex::new(None));
    let place = Arc::clone(&slot);
    executor.spawn(async move {
        let outcome = execution.await;
        *place.lock().unwrap() = Some(outcome);
    });
    slot
}

fn status(slot: &Mutex<Option<Outcome>>) -> Option<Status> {
    slot.lock().unwrap().as_ref().map(|outcome| outcome.status)
}

#[test]
fn overlapping_commands_run_in_the_order_they_came() {
    let (device, target) = gated();
    let mut executor = Executor::in_order();
    let outcomes = [
        spawn(&mut executor, write(&target, 0, 1, 1)),
        spawn(&mut executor, write(&target, 0, 2, 2)),
        spawn(&mut executor, read(&target, 0, TaskAttribute::Simple, 3)),
        spawn(&mut executor, write(&target, 9, 9, 4)),
    ];
    executor.run_until_stalled();
    assert_eq!(device.waiting_count(), 2, "the first write and the one elsewhere");
    while device.waiting_count() > 0 {
        device.release();
        executor.run_until_stalled();
    }
    assert!(outcomes.iter().all(|outcome| status(outcome) == Some(Status::Good)));
    let read = outcomes[2].lock().unwrap().take().expect("it is done");
    assert_eq!(&read.data_in[..], [2; BLOCK_BYTES]);
}

/// SAM-5 5.3.1: TASK SET FULL, and nothing of the command is carried out. Others go on.
#[test]
fn a_full_task_set_takes_nothing_more() {
    let (device, target) = gated();
    let mut executor = Executor::in_order();
    let count = TASKS_MAX as u64 / 2;
    let taken: Vec<_> = (0..count).map(|tag| spawn(&mut executor, write(&target, 0, 1, tag))).collect();
    executor.run_until_stalled();
    let refused = spawn(&mut executor, write(&target, 9, 9, 99_999));
    executor.run_until_stalled();
    assert_eq!(status(&refused), Some(Status::TaskSetFull), "a host has half");
    let other = target.other("other,i,0x1,target,t,0x1");
    let others = spawn(&mut executor, write(&other, 7, 7, 1));
    executor.run_until_stalled();
    assert_eq!(status(&others), None, "another one is taken");
    device.release();
    executor.run_until_stalled();
    assert_eq!(status(&taken[0]), Some(Status::Good));
    let late = spawn(&mut executor, write(&target, 9, 9, 100_000));
    executor.run_until_stalled();
    assert_eq!(status(&late), None, "there is room for one more");
    while device.waiting_count() > 0 {
        device.release();
        executor.run_until_stalled();
    }
    assert!(taken.iter().chain([&late]).all(|outcome| status(outcome) == Some(Status::Good)));
}

#[test]
fn device_errors_become_sense_data() {
    let (device, target) = gated();
    let mut executor = Executor::in_order();
    let outcome = spawn(&mut executor, read(&target, 7, TaskAttribute::Simple, 1));
    device.fail(ErrorKind::Media);
    executor.run_until_stalled();
    let sense = outcome.lock().unwrap().as_ref().and_then(|outcome| outcome.sense);
    assert_eq!(sense, Some(Sense::UNRECOVERED_READ_ERROR.with_information(7)));
}

/// SAM-5 8.9.3: an ordered task starts after all older ones and before all younger ones but the head of the queue.
#[test]
fn an_ordered_task_is_a_barrier() {
    let (device, target) = gated();
    let mut executor = Executor::in_order();
    let attributes = [TaskAttribute::Simple, TaskAttribute::Ordered, TaskAttribute::Simple, TaskAttribute::HeadOfQueue];
    let outcomes: Vec<_> =
        (0..4).map(|index| spawn(&mut executor, read(&target, index, attributes[index as usize], index))).collect();
    executor.run_until_stalled();
    assert_eq!(device.waiting_count(), 2, "the oldest and the head of the queue");
    device.release();
    executor.run_until_stalled();
    assert_eq!(device.waiting_count(), 1, "the ordered task waits for the head of the queue, too");
    for _ in 0..3 {
        assert_eq!(device.waiting_count(), 1);
        device.release();
        executor.run_until_stalled();
    }
    assert!(outcomes.iter().all(|outcome| status(outcome) == Some(Status::Good)));
}

#[test]
fn abort_task_waits_for_the_device_and_silences_the_task() {
    let (device, target) = gated();
    let mut executor = Executor::in_order();
    let aborted = spawn(&mut executor, write(&target, 0, 1, 11));
    let kept = spawn(&mut executor, write(&target, 5, 1, 12));
    let manage = |function, tag| target.map.task_management(&target.nexus, function, Some(0), tag);
    let response = Arc::new(Mutex::new(None));
    let (place, future) = (Arc::clone(&response), manage(TaskManagementFunction::AbortTask, Some(11)));
    executor.spawn(async move { *place.lock().unwrap() = Some(future.await) });
    executor.run_until_stalled();
    assert_eq!(*response.lock().unwrap(), None, "the write may still touch the medium");
    device.release();
    executor.run_until_stalled();
    assert_eq!(*response.lock().unwrap(), Some(TaskManagementOutcome::FunctionComplete));
    assert!(aborted.lock().unwrap().as_ref().is_some_and(|outcome| outcome.is_silent));
    device.release();
    executor.run_until_stalled();
    assert_eq!(status(&kept), Some(Status::Good));
    let unknown = manage(TaskManagementFunction::AbortTask, Some(11));
    assert_eq!(executor.block_on(unknown), TaskManagementOutcome::TaskDoesNotExist);
    let without_tag = manage(TaskManagementFunction::AbortTask, None);
    assert_eq!(executor.block_on(without_tag), TaskManagementOutcome::FunctionRejected);
    let elsewhere = target.map.task_management(&target.nexus, TaskManagementFunction::LogicalUnitReset, Some(9), None);
    assert_eq!(executor.block_on(elsewhere), TaskManagementOutcome::LunDoesNotExist);
}

#[test]
fn a_reset_ends_the_tasks_of_others_with_task_aborted_and_tells_everybody() {
    let (device, target) = gated();
    let other = target.other("other");
    let mut executor = Executor::in_order();
    target.good(Cdb::Reserve6, &[]);
    target.good(Cdb::Release6, &[]);
    other.good(Cdb::Reserve6, &[]);
    let theirs = spawn(&mut executor, write(&other, 0, 1, 1));
    let reset = target.map.task_management(&target.nexus, TaskManagementFunction::LogicalUnitReset, Some(0), None);
    device.release();
    executor.run_until_stalled();
    assert_eq!(executor.block_on(reset), TaskManagementOutcome::FunctionComplete);
    let outcome = theirs.lock().unwrap().take().expect("it has ended");
    assert_eq!((outcome.status, outcome.is_silent), (Status::TaskAborted, false));
    for side in [&target, &other] {
        assert_eq!(side.sense(Cdb::TestUnitReady), Some(Sense::BUS_DEVICE_RESET));
        side.good(Cdb::TestUnitReady, &[]);
    }
}

#[test]
fn a_dropped_execution_is_finished_by_the_workers() {
    let (device, target) = gated();
    let mut executor = Executor::in_order();
    let unit = target.map.get(0).expect("it is there");
    executor.spawn(unit.run());
    drop(write(&target, 0, 1, 1));
    let second = spawn(&mut executor, write(&target, 0, 2, 2));
    executor.run_until_stalled();
    assert_eq!(device.waiting_count(), 1, "the dropped write still holds its range");
    device.release();
    executor.run_until_stalled();
    device.release();
    executor.run_until_stalled();
    assert_eq!(status(&second), Some(Status::Good));
}

#[test]
fn unit_attentions_come_before_everything_but_three_commands() {
    let target = Target::new();
    let other = Target { map: target.map.clone(), nexus: logical_unit::NexusId::new("other") };
    other.map.add_nexus(&other.nexus);
    other.good(Cdb::Inquiry { is_vpd: false, page: 0, allocation_length: 96 }, &[]);
    other.good(Cdb::ReportLuns { select_report: 0, allocation_length: 4096 }, &[]);
    // An invalid command also reports it.
    assert_eq!(other.run_bytes(&[0x85; 16], &[]).sense, Some(Sense::POWER_ON_OR_RESET));
    other.map.add_nexus(&other.nexus);
    let data = other.data(Cdb::RequestSense { is_descriptor: false, allocation_length: 252 });
    assert_eq!(Sense::parse(&data), Ok(Sense::POWER_ON_OR_RESET));
    other.good(Cdb::TestUnitReady, &[]);
    target.good(Cdb::TestUnitReady, &[]);
}

/// RESERVE(6) ends with its nexus (libiscsi Reserve6.Logout).
#[test]
fn a_lost_nexus_takes_its_reservation_with_it() {
    let target = Target::new();
    let other = target.other("other");
    target.good(Cdb::Reserve6, &[]);
    assert_eq!(other.run(Cdb::TestUnitReady, &[]).status, Status::ReservationConflict);
    target.map.remove_nexus(&target.nexus);
    other.good(Cdb::TestUnitReady, &[]);
}

/// A device that reports events on the test's order.
struct Telling {
    below: Arc<block::memory::MemoryDevice>,
    hub: EventHub,
}

impl Device for Telling {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.below.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.hub.subscribe()
    }
}

#[test]
fn events_of_the_device_become_unit_attentions() {
    let hub = EventHub::new();
    let device = Arc::new(Telling { below: memory(), hub: hub.clone() });
    let target = Target::with(device, LogicalUnitOptions::default());
    let mut executor = Executor::in_order();
    executor.spawn(target.map.get(0).expect("it is there").run());
    hub.publish(&Event::Resized(Geometry::plain(1 << 20)));
    hub.publish(&Event::Offline);
    executor.run_until_stalled();
    assert_eq!(target.sense(Cdb::TestUnitReady), Some(Sense::CAPACITY_CHANGED));
    assert_eq!(target.sense(Cdb::TestUnitReady), Some(Sense::COMMUNICATION_FAILURE));
    hub.publish(&Event::Back);
    hub.publish(&Event::WritesLost);
    executor.run_until_stalled();
    assert_eq!(target.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
    target.good(Cdb::TestUnitReady, &[]);
}

#[test]
fn a_device_that_lets_requests_wait_refuses_nothing_by_being_away() {
    let hub = EventHub::new();
    let device = Arc::new(Telling { below: memory(), hub: hub.clone() });
    let target = Target::with(device, LogicalUnitOptions { waits_for_device: true, ..LogicalUnitOptions::default() });
    hub.publish(&Event::Offline);
    target.good(Cdb::TestUnitReady, &[]);
}

/// Whatever the progress of the listening task: a SYNCHRONIZE CACHE after the loss must not end
/// well.
#[test]
fn what_the_device_has_said_counts_for_the_next_command() {
    let hub = EventHub::new();
    let device = Arc::new(Telling { below: memory(), hub: hub.clone() });
    let target = Target::with(device, LogicalUnitOptions::default());
    hub.publish(&Event::WritesLost);
    assert_eq!(target.sense(Cdb::TestUnitReady), Some(Sense::POWER_ON_OR_RESET));
}
