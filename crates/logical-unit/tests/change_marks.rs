//! Change marks through commands: every command that changes the medium is recorded before it is
//! executed.

mod common;

use std::sync::{Arc, Mutex};

use block::completion::SlotSender;
use block::memory::MemoryDevice;
use block::{Buffer, Completion, Device, EventReceiver, Geometry, Identity, Operation, Request, Response};
use common::changing::{BLOCKS_PER_MIB, MIB, NOT_CHANGING, SIZE, changing, name};
use common::{BLOCK_BYTES, GatedDevice, Target, transfer};
use futures_util::FutureExt;
use logical_unit::change_marks::{ChangeStore, MarkUpdate, Saving};
use logical_unit::{LogicalUnitOptions, MemoryChanges};
use scsi::cdb::table::ROWS;
use scsi::cdb::{Blocks, Sanitize};
use scsi::change_mark::{
    Changes, ContentId, Parameters, Run, Support, action_in, action_out, parse_content, parse_marks,
};
use scsi::extended_copy::{Segment, emit_list};
use scsi::sanitize::Overwrite;
use scsi::{Cdb, CdbBytes, Sense, Status, TaskAttribute};

const ID: [u8; 16] = [7; 16];

/// An event, kept in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happened {
    Recorded,
    Changed,
    Flushed,
}

type Journal = Arc<Mutex<Vec<Happened>>>;

struct JournalStore(Journal);

impl ChangeStore for JournalStore {
    fn save(&self, updates: Vec<MarkUpdate>) -> Saving {
        let journal = Arc::clone(&self.0);
        Box::pin(async move {
            if updates.iter().any(|update| matches!(update, MarkUpdate::Part { .. })) {
                journal.lock().unwrap().push(Happened::Recorded);
            }
            Ok(())
        })
    }
}

/// A device that records the changes of the medium.
struct JournalDevice {
    below: MemoryDevice,
    journal: Journal,
}

impl Device for JournalDevice {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn subscribe(&self) -> EventReceiver {
        self.below.subscribe()
    }

    fn submit(&self, request: Request) -> Completion {
        let happened = match request.operation {
            Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Discard { .. } => {
                Some(Happened::Changed)
            }
            Operation::Flush => Some(Happened::Flushed),
            Operation::Read { .. } | Operation::Extents { .. } => None,
        };
        self.journal.lock().unwrap().extend(happened);
        self.below.submit(request)
    }
}

fn target(journal: &Journal) -> Target {
    let identity = Identity { target: "memory".into(), unit: "disk".into(), serial: "5eria1".into() };
    let device = JournalDevice { below: MemoryDevice::new(SIZE, identity), journal: Arc::clone(journal) };
    let options = LogicalUnitOptions {
        change_store: Some(Arc::new(JournalStore(Arc::clone(journal)))),
        atomic_bytes_max: 1 << 20,
        ..LogicalUnitOptions::default()
    };
    Target::with(Arc::new(device), options)
}

fn out(action: u8, id: [u8; 16], token: u64, sequence: u64) -> (Cdb, [u8; 40]) {
    let cdb = Cdb::ChangeMarkOut { service_action: action, parameter_list_length: 40 };
    (cdb, Parameters { id, token, sequence }.emit())
}

#[test]
fn a_list_of_another_length_or_with_a_reserved_byte_set_is_refused_as_such() {
    let target = target(&Journal::default());
    for action in [action_out::TAKE, action_out::CLEAR, action_out::FORGET, action_out::NAME_CONTENT] {
        let (cdb, list) = out(action, [1; 16], 7, 0);
        for length in [0, 39, 41] {
            let list = [&list[..], &[0]].concat();
            let cdb = Cdb::ChangeMarkOut { service_action: action, parameter_list_length: length };
            target.refuses(cdb, &list[..length as usize], Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        for reserved in 32..40 {
            let mut list = list;
            list[reserved] = 1;
            target.refuses(cdb, &list, Sense::INVALID_FIELD_IN_PARAMETER_LIST);
        }
    }
    assert_eq!((report_marks(&target), content(&target)), (Vec::new(), None), "nothing was done");
}

fn take(target: &Target, id: [u8; 16], token: u64) {
    let (cdb, list) = out(action_out::TAKE, id, token, 0);
    target.good(cdb, &list);
}

fn report_marks(target: &Target) -> Vec<scsi::change_mark::Mark> {
    let cdb =
        Cdb::ChangeMarkIn { service_action: action_in::REPORT_MARKS, slot: 0, first_range: 0, allocation_length: 4096 };
    parse_marks(&target.data(cdb)).unwrap()
}

fn changes(target: &Target, slot: u16) -> Changes {
    let cdb =
        Cdb::ChangeMarkIn { service_action: action_in::REPORT_CHANGES, slot, first_range: 0, allocation_length: 4096 };
    Changes::parse(&target.data(cdb)).unwrap()
}

fn content(target: &Target) -> Option<ContentId> {
    let cdb =
        Cdb::ChangeMarkIn { service_action: action_in::REPORT_CONTENT, slot: 0, first_range: 0, allocation_length: 20 };
    parse_content(&target.data(cdb)).unwrap()
}

/// With the id that it proposes, of which nothing is heeded. Returns the one that the content has then.
fn name_content(target: &Target, proposed: ContentId) -> Option<ContentId> {
    let (cdb, list) = out(action_out::NAME_CONTENT, proposed, 0, 0);
    target.good(cdb, &list);
    content(target)
}

fn clear(target: &Target) {
    let mark = report_marks(target)[0];
    let (cdb, list) = out(action_out::CLEAR, mark.id, mark.token, mark.sequence);
    target.good(cdb, &list);
}

#[test]
fn no_command_that_changes_the_medium_escapes_the_marks() {
    for row in ROWS {
        let code = (row.operation_code, row.service_action);
        let journal = Journal::default();
        let holder = target(&journal);
        take(&holder, ID, 1);
        clear(&holder);
        let other = holder.other("other,i,0x2 target,t,0x1");
        let Some((cdb, data_out, run)) = changing(code, &other) else {
            assert!(NOT_CHANGING.contains(&code), "{}: does it change the medium? Say it in this test", row.name);
            continue;
        };
        assert!(!NOT_CHANGING.contains(&code), "{} is here twice", row.name);
        assert_eq!(cdb.code(), code, "{}", row.name);
        journal.lock().unwrap().clear();
        other.good(cdb, &data_out);
        let happened = journal.lock().unwrap().clone();
        assert_eq!(happened.first(), Some(&Happened::Recorded), "{}: {happened:?}", row.name);
        assert!(happened.contains(&Happened::Changed), "{} changed nothing: this test shows nothing", row.name);
        assert_eq!(changes(&holder, 0).runs, [run], "{}", row.name);

        // A range that is recorded already, and the holder's own change, cost no durable write.
        for writer in [&other, &holder] {
            journal.lock().unwrap().clear();
            if let Some((cdb, data_out, _)) = changing(code, writer) {
                writer.good(cdb, &data_out);
            }
            assert!(!journal.lock().unwrap().contains(&Happened::Recorded), "{}", row.name);
        }
        clear(&holder);
        if let Some((cdb, data_out, _)) = changing(code, &holder) {
            journal.lock().unwrap().clear();
            holder.good(cdb, &data_out);
        }
        let is_copy = row.operation_code == 0x83;
        assert!(!journal.lock().unwrap().contains(&Happened::Recorded), "{} by the holder", row.name);
        assert!(is_copy || changes(&holder, 0).runs.is_empty(), "{} by the holder", row.name);

        for writer in [&other, &holder] {
            assert!(name_content(&holder, ID).is_some());
            assert!(content(&other).is_some());
            if let Some((cdb, data_out, _)) = changing(code, writer) {
                writer.good(cdb, &data_out);
            }
            assert_eq!(content(&other), None, "{}", row.name);
        }
    }
}

/// Nobody holds what no command has done: it is by others, also while the only nexus holds the mark.
#[test]
fn what_changes_without_a_command_is_recorded_in_marks_that_all_who_are_there_hold() {
    let holder = target(&Journal::default());
    take(&holder, ID, 1);
    clear(&holder);
    assert_eq!(changes(&holder, 0).runs, []);
    let unit = holder.map.get(0).unwrap();
    unit.note_all_changed().now_or_never().unwrap().unwrap();
    assert_eq!(changes(&holder, 0).runs, [Run { first: 0, count: (SIZE / MIB) as u32 }]);
}

#[test]
fn a_mark_is_cleared_behind_a_flush_of_the_unit() {
    let journal = Journal::default();
    let holder = target(&journal);
    take(&holder, ID, 1);
    journal.lock().unwrap().clear();
    clear(&holder);
    assert_eq!(*journal.lock().unwrap(), [Happened::Flushed, Happened::Recorded]);
}

/// A power loss of the target must not undo what the id names. The first flush goes while others go on.
#[test]
fn a_content_gets_its_id_behind_flushes_of_the_unit_and_keeps_it() {
    let journal = Journal::default();
    let one = target(&journal);
    let other = one.other("other,i,0x2 target,t,0x1");
    assert_eq!(content(&one), None);
    let id = name_content(&one, ID);
    assert!(id.is_some());
    assert_eq!(*journal.lock().unwrap(), [Happened::Flushed, Happened::Flushed, Happened::Recorded]);
    journal.lock().unwrap().clear();
    assert_eq!((name_content(&other, [8; 16]), journal.lock().unwrap().len()), (id, 0), "it has one");
    let (cdb, list) = out(action_out::CLEAR, id.unwrap(), 0, 0);
    assert_eq!(one.run(cdb, &list).sense, Some(Sense::COMMAND_SEQUENCE_ERROR), "it is no mark of anybody");
}

/// Else a host that may only read would say of changed content that it is what it was.
#[test]
fn nobody_can_give_a_content_the_id_of_another_one() {
    let (one, reader) = (target(&Journal::default()), "reader,i,0x2 target,t,0x1");
    let reader = one.other(reader);
    let mut given: Vec<ContentId> = Vec::new();
    let proposals = |given: &[ContentId]| [&[[0; 16], [0xff; 16], ID][..], given].concat();
    for _ in 0..3 {
        for proposed in proposals(&given) {
            let id = name_content(&reader, proposed).unwrap();
            assert!(id != proposed && !given.contains(&id), "{id:?} again");
            given.push(id);
            one.good(Cdb::Write(transfer(Blocks::new(0, 1))), &[0x5a; BLOCK_BYTES]);
            assert_eq!(content(&reader), None);
        }
    }
}

/// Each would flush, and the second would give another id to what has one by then.
#[test]
fn of_two_who_name_the_content_at_once_the_second_finds_that_it_has_an_id() {
    let identity = Identity { target: "memory".into(), unit: "disk".into(), serial: "5eria1".into() };
    let device = Arc::new(SlowFlushDevice { below: MemoryDevice::new(SIZE, identity), flushes: Mutex::default() });
    let options = LogicalUnitOptions { change_store: Some(Arc::new(MemoryChanges)), ..LogicalUnitOptions::default() };
    let one = Target::with(Arc::clone(&device) as _, options);
    let name = || {
        let (cdb, list) = out(action_out::NAME_CONTENT, ID, 0, 0);
        one.start(CdbBytes::new(&cdb.emit()).unwrap(), Buffer::copy_of(&list), TaskAttribute::Simple, 1)
    };
    let (mut first, mut second) = (name(), name());
    assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
    assert_eq!(device.flush_count(), 1, "the second waits for its turn");
    device.end_flush();
    assert!((&mut first).now_or_never().is_none());
    device.end_flush();
    for naming in [first, second] {
        assert_eq!(naming.now_or_never().map(|outcome| outcome.status), Some(Status::Good));
    }
    assert!(content(&one).is_some() && device.flush_count() == 0);
}

/// A write that is recorded and not executed yet would be named before it changes anything.
#[test]
fn a_content_gets_its_id_when_no_command_stands_between_its_recording_and_its_execution() {
    let device = GatedDevice::new();
    let options = LogicalUnitOptions { change_store: Some(Arc::new(MemoryChanges)), ..LogicalUnitOptions::default() };
    let one = Target::with(device.clone(), options);
    let start = |cdb: Cdb, data_out: &[u8]| {
        let bytes = CdbBytes::new(&cdb.emit()).unwrap();
        one.start(bytes, Buffer::copy_of(data_out), TaskAttribute::Simple, 1)
    };
    let write = || start(Cdb::Write(transfer(Blocks::new(0, 1))), &[0x5a; BLOCK_BYTES]);
    let mut first = write();
    assert!((&mut first).now_or_never().is_none() && device.waiting_count() == 1);
    let (cdb, list) = out(action_out::NAME_CONTENT, ID, 0, 0);
    let mut naming = start(cdb, &list);
    assert!((&mut naming).now_or_never().is_none(), "until the write is done");
    assert_eq!(content(&one), None);
    device.release();
    assert_eq!(first.now_or_never().map(|outcome| outcome.status), Some(Status::Good));
    assert_eq!(naming.now_or_never().map(|outcome| outcome.status), Some(Status::Good));
    assert!(content(&one).is_some());
    let mut second = write();
    assert!((&mut second).now_or_never().is_none() && device.waiting_count() == 1);
    assert_eq!(content(&one), None, "before it is carried out");
    device.release();
}

/// What was written before the last flush and not on the medium yet would be named.
#[test]
fn others_go_on_until_the_last_flush_before_a_content_gets_its_id() {
    let identity = Identity { target: "memory".into(), unit: "disk".into(), serial: "5eria1".into() };
    let device = Arc::new(SlowFlushDevice { below: MemoryDevice::new(SIZE, identity), flushes: Mutex::default() });
    let options = LogicalUnitOptions { change_store: Some(Arc::new(MemoryChanges)), ..LogicalUnitOptions::default() };
    let one = Target::with(Arc::clone(&device) as _, options);
    let start = |cdb: Cdb, data_out: &[u8]| {
        let bytes = CdbBytes::new(&cdb.emit()).unwrap();
        one.start(bytes, Buffer::copy_of(data_out), TaskAttribute::Simple, 1)
    };
    let write = || start(Cdb::Write(transfer(Blocks::new(0, 1))), &[0x5a; BLOCK_BYTES]);
    let (cdb, list) = out(action_out::NAME_CONTENT, ID, 0, 0);
    let mut naming = start(cdb, &list);
    assert!((&mut naming).now_or_never().is_none() && device.flush_count() == 1);
    assert_eq!(write().now_or_never().map(|outcome| outcome.status), Some(Status::Good));
    device.end_flush();
    assert!((&mut naming).now_or_never().is_none() && device.flush_count() == 1);
    let mut late = write();
    assert!((&mut late).now_or_never().is_none(), "it comes after");
    device.end_flush();
    assert_eq!(naming.now_or_never().map(|outcome| outcome.status), Some(Status::Good));
    assert!(content(&one).is_some());
    assert_eq!(late.now_or_never().map(|outcome| outcome.status), Some(Status::Good));
    assert_eq!(content(&one), None);
}

/// A write that is recorded and not executed yet would be cleared before it changes anything.
#[test]
fn a_mark_is_cleared_when_no_command_stands_between_its_recording_and_its_execution() {
    let device = GatedDevice::new();
    let options = LogicalUnitOptions { change_store: Some(Arc::new(MemoryChanges)), ..LogicalUnitOptions::default() };
    let holder = Target::with(device.clone(), options);
    let other = holder.other("other,i,0x2 target,t,0x1");
    take(&holder, ID, 1);
    let start = |target: &Target, cdb: Cdb, data_out: &[u8]| {
        let bytes = CdbBytes::new(&cdb.emit()).unwrap();
        target.start(bytes, Buffer::copy_of(data_out), TaskAttribute::Simple, 1)
    };
    let mark = report_marks(&holder)[0];
    let (cdb, list) = out(action_out::CLEAR, ID, 1, mark.sequence);
    let write = Cdb::Write(transfer(Blocks::new(0, 1)));
    let mut writing = start(&other, write, &[0x5a; BLOCK_BYTES]);
    assert!((&mut writing).now_or_never().is_none());
    assert_eq!(device.waiting_count(), 1, "the write is under way");
    let mut clearing = start(&holder, cdb, &list);
    assert!((&mut clearing).now_or_never().is_none(), "nothing is forgotten before the write has ended");
    device.release();
    assert_eq!((&mut writing).now_or_never().map(|outcome| outcome.status), Some(Status::Good));
    assert_eq!((&mut clearing).now_or_never().map(|outcome| outcome.status), Some(Status::Good));
}

/// A disk whose flushes take until the test ends them.
struct SlowFlushDevice {
    below: MemoryDevice,
    flushes: Mutex<Vec<SlotSender>>,
}

impl SlowFlushDevice {
    fn flush_count(&self) -> usize {
        self.flushes.lock().unwrap().len()
    }

    fn end_flush(&self) {
        let sender = self.flushes.lock().unwrap().remove(0);
        sender.complete(Response::done(Buffer::empty()));
    }
}

impl Device for SlowFlushDevice {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn subscribe(&self) -> EventReceiver {
        self.below.subscribe()
    }

    fn submit(&self, request: Request) -> Completion {
        if !matches!(request.operation, Operation::Flush) {
            return self.below.submit(request);
        }
        let (completion, sender) = Completion::slot();
        self.flushes.lock().unwrap().push(sender);
        completion
    }
}

/// Any nexus that sees the unit may clear a mark of its own, as often as it likes.
#[test]
fn others_go_on_while_a_mark_is_cleared_and_a_clear_that_is_refused_disturbs_nobody() {
    let identity = Identity { target: "memory".into(), unit: "disk".into(), serial: "5eria1".into() };
    let device = Arc::new(SlowFlushDevice { below: MemoryDevice::new(SIZE, identity), flushes: Mutex::default() });
    let options = LogicalUnitOptions { change_store: Some(Arc::new(MemoryChanges)), ..LogicalUnitOptions::default() };
    let holder = Target::with(Arc::clone(&device) as _, options);
    let other = holder.other("other,i,0x2 target,t,0x1");
    take(&holder, ID, 1);
    let start = |target: &Target, cdb: Cdb, data_out: &[u8]| {
        let bytes = CdbBytes::new(&cdb.emit()).unwrap();
        target.start(bytes, Buffer::copy_of(data_out), TaskAttribute::Simple, 1)
    };
    let clear = |sequence| {
        let (cdb, list) = out(action_out::CLEAR, ID, 1, sequence);
        start(&holder, cdb, &list)
    };
    let sequence = report_marks(&holder)[0].sequence;
    let refused = clear(sequence + 1).now_or_never().expect("it waits for nothing");
    let is_old = |sense: Sense| sense.is_same_condition(&Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    assert!(refused.sense.is_some_and(is_old));
    assert_eq!(device.flush_count(), 0);

    let (mut first, mut second) = (clear(sequence), clear(sequence));
    assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
    assert_eq!(device.flush_count(), 1, "one after another");
    let write = start(&other, Cdb::Write(transfer(Blocks::new(5 * BLOCKS_PER_MIB, 1))), &[0x5a; BLOCK_BYTES]);
    assert_eq!(write.now_or_never().map(|outcome| outcome.status), Some(Status::Good), "while the disk flushes");
    device.end_flush();
    assert_eq!((&mut first).now_or_never().map(|outcome| outcome.status), Some(Status::Good));
    assert!((&mut second).now_or_never().and_then(|outcome| outcome.sense).is_some_and(is_old));
    assert_eq!(device.flush_count(), 0);
    assert_eq!(changes(&holder, 0).runs, [Run { first: 5, count: 1 }], "what was written meanwhile");
}

/// A copy is recorded in the unit it writes to.
#[test]
fn a_copy_to_another_unit_is_recorded_there() {
    let identity = |unit: &str| Identity { target: "memory".into(), unit: unit.into(), serial: unit.into() };
    let options =
        || LogicalUnitOptions { change_store: Some(Arc::new(MemoryChanges)), ..LogicalUnitOptions::default() };
    let device = |unit: &str| Arc::new(MemoryDevice::new(SIZE, identity(unit)));
    let first = Target::with(device("source"), options());
    let source = first.other("other,i,0x2 target,t,0x1");
    first.map.remove_nexus(&first.nexus);
    let holder = Target::with(device("destination"), options());
    take(&holder, ID, 1);
    clear(&holder);
    source.map.insert(1, holder.map.get(0).unwrap());
    assert_eq!(source.sense(Cdb::TestUnitReady), Some(Sense::REPORTED_LUNS_CHANGED));
    let targets = [(name(&source), BLOCK_BYTES as u32), (name(&holder), BLOCK_BYTES as u32)];
    let segment = Segment { source: 0, destination: 1, block_count: 4, source_lba: 0, destination_lba: 3 * 2048 };
    let list = emit_list(None, &targets, &[segment]);
    source.good(Cdb::ExtendedCopy { parameter_list_length: list.len() as u32 }, &list);
    assert_eq!(changes(&holder, 0).runs, [Run { first: 3, count: 1 }]);
}

#[test]
fn a_unit_says_whether_it_keeps_marks() {
    let page = Cdb::Inquiry { is_vpd: true, page: 0xc0, allocation_length: 255 };
    let target = target(&Journal::default());
    let support = Support { marks_max: 16, range_bytes: MIB as u32 };
    assert_eq!(Support::parse(&target.data(page)), Ok(Some(support)));
    let pages = target.data(Cdb::Inquiry { is_vpd: true, page: 0, allocation_length: 255 });
    assert_eq!(pages.last(), Some(&0xc0));
    let plain = Target::new();
    plain.refuses(page, &[], Sense::INVALID_FIELD_IN_CDB);
    let (cdb, list) = out(action_out::TAKE, ID, 1, 0);
    plain.refuses(cdb, &list, Sense::INVALID_OPERATION_CODE);
    let pages = plain.data(Cdb::Inquiry { is_vpd: true, page: 0, allocation_length: 255 });
    assert_ne!(pages.last(), Some(&0xc0));
}

#[test]
fn marks_are_made_with_everything_changed_and_belong_to_their_initiator() {
    let holder = target(&Journal::default());
    take(&holder, ID, 1);
    let all = Run { first: 0, count: (SIZE / MIB) as u32 };
    let told = changes(&holder, 0);
    assert_eq!((told.runs, told.range_count, told.token), (vec![all], SIZE / MIB, 1));
    let other = holder.other("other,i,0x2 target,t,0x1");
    assert_eq!(report_marks(&other), []);
    let ask = |slot| Cdb::ChangeMarkIn {
        service_action: action_in::REPORT_CHANGES,
        slot,
        first_range: 0,
        allocation_length: 64,
    };
    other.refuses(ask(0), &[], Sense::INVALID_FIELD_IN_CDB);
    holder.refuses(ask(1), &[], Sense::INVALID_FIELD_IN_CDB);
    for action in [action_out::CLEAR, action_out::FORGET] {
        let (cdb, list) = out(action, ID, 1, report_marks(&holder)[0].sequence);
        let outcome = other.run(cdb, &list);
        match action {
            action_out::CLEAR => assert_eq!(outcome.sense, Some(Sense::COMMAND_SEQUENCE_ERROR)),
            _ => assert_eq!(outcome.status, Status::Good, "one that is not there, for this name"),
        }
    }
    assert_eq!(report_marks(&holder).len(), 1);
    let (cdb, list) = out(action_out::CLEAR, ID, 1, 4711);
    holder.refuses(cdb, &list, Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    let (cdb, _) = out(action_out::TAKE, ID, 1, 0);
    holder.refuses(cdb, &[0; 39], Sense::INVALID_FIELD_IN_INFORMATION_UNIT);
    let (cdb, list) = out(action_out::FORGET, ID, 1, 0);
    holder.good(cdb, &list);
    assert_eq!(report_marks(&holder), []);
}

/// The sense of a command that came before a sanitize and waits for a write: it ends like every command that
/// a sanitize finds waiting (SBC-4 4.11.3).
fn is_found_waiting_by_a_sanitize(waiting: impl FnOnce(&Target) -> (Cdb, [u8; 40])) -> Option<Sense> {
    let device = GatedDevice::new();
    let options = LogicalUnitOptions { change_store: Some(Arc::new(MemoryChanges)), ..LogicalUnitOptions::default() };
    let holder = Target::with(device.clone(), options);
    let other = holder.other("other,i,0x2 target,t,0x1");
    take(&holder, ID, 1);
    let start = |target: &Target, cdb: Cdb, data_out: &[u8]| {
        let bytes = CdbBytes::new(&cdb.emit()).unwrap();
        target.start(bytes, Buffer::copy_of(data_out), TaskAttribute::Simple, 1)
    };
    let (cdb, list) = waiting(&holder);
    let mut writing = start(&other, Cdb::Write(transfer(Blocks::new(0, 1))), &[0x5a; BLOCK_BYTES]);
    assert!((&mut writing).now_or_never().is_none());
    let mut waiting = start(&holder, cdb, &list);
    assert!((&mut waiting).now_or_never().is_none(), "it waits for the write");
    let pattern = Overwrite { count: 1, is_inverting: false, pattern: vec![0xa5; 4] }.emit();
    let sanitize = Sanitize {
        service_action: scsi::sanitize::action::OVERWRITE,
        is_immediate: true,
        is_unrestricted_exit: false,
        parameter_list_length: pattern.len() as u16,
    };
    other.good(Cdb::Sanitize(sanitize), &pattern);
    device.release();
    assert_eq!((&mut writing).now_or_never().map(|outcome| outcome.status), Some(Status::Good));
    (&mut waiting).now_or_never().and_then(|outcome| outcome.sense)
}

#[test]
fn a_clear_that_a_sanitize_finds_waiting_forgets_nothing() {
    let clear = |holder: &Target| out(action_out::CLEAR, ID, 1, report_marks(holder)[0].sequence);
    let sense = is_found_waiting_by_a_sanitize(clear);
    assert!(sense.is_some_and(|sense| sense.is_same_condition(&Sense::SANITIZE_IN_PROGRESS)), "{sense:?}");
}

#[test]
fn what_a_sanitize_is_changing_gets_no_id() {
    let sense = is_found_waiting_by_a_sanitize(|_| out(action_out::NAME_CONTENT, ID, 0, 0));
    assert!(sense.is_some_and(|sense| sense.is_same_condition(&Sense::SANITIZE_IN_PROGRESS)), "{sense:?}");
}
