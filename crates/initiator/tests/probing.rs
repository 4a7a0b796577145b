//! A report of the unit while its properties are read counts like one at any other time; what the
//! unit does not report decides nothing.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::{Buffer, Device, ErrorKind, Event};
use initiator::limits::REQUESTS_MAX;
use initiator::{InitiatorOptions, RemoteLun, State};
use scsi::change_mark::{Changes, Mark, Support, action_in, emit_marks};
use scsi::sharing::report::Report;
use scsi::vpd::emit_supported_pages;
use scsi::vpd::page::{CHANGE_MARKS, DEVICE_IDENTIFICATION, SUPPORTED_PAGES, UNIT_SERIAL_NUMBER};
use scsi::{Cdb, Sense, SenseKey, Status};
use support::World;
use support::scripted::{Reaction, Reply, Scripted};

/// Errors that pass.
const PASSING: [Sense; 4] = [
    Sense::ACCESS_STATE_IN_TRANSITION,
    Sense::INTERNAL_TARGET_FAILURE,
    Sense::COMMUNICATION_FAILURE,
    Sense { key: SenseKey::AbortedCommand, asc: 0x47, ascq: 0x03, ..Sense::NO_SENSE },
];

fn attach(world: &mut World) -> (Scripted, Arc<RemoteLun>) {
    attach_to(world, |_| Reaction::Proper)
}

fn attach_to(
    world: &mut World,
    mut script: impl FnMut(&Cdb) -> Reaction + Send + 'static,
) -> (Scripted, Arc<RemoteLun>) {
    let target = Scripted::new(world);
    target.tell(move |_, cdb| script(cdb));
    let options = InitiatorOptions { replacement_timeout: Duration::from_secs(30), ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    (target, lun)
}

fn write(world: &mut World, lun: &RemoteLun, offset: u64, fill: u8) -> Result<Buffer, block::Error> {
    let writing = lun.write(offset, Buffer::copy_of(&[fill; 4096]), false);
    world.run(writing)
}

fn read(world: &mut World, lun: &RemoteLun, offset: u64) -> Result<Buffer, block::Error> {
    let reading = lun.read(offset, Buffer::zeroed(4096));
    world.run(reading)
}

fn flush(world: &mut World, lun: &RemoteLun) -> Result<(), block::Error> {
    let flushing = lun.flush();
    world.run(flushing)
}

/// Whether the tests' data is on the medium.
fn is_durable(target: &Scripted) -> bool {
    target.disk().durable(4096, 4096) == [7; 4096]
}

/// Ends the session at the next command of `lun`, which is a read.
fn lose_session(
    world: &mut World,
    target: &Scripted,
    lun: &RemoteLun,
    mut then: impl FnMut(&Cdb) -> Reaction + Send + 'static,
) {
    let mut is_lost = false;
    target.tell(move |_, cdb| match cdb {
        Cdb::Read(_) if !is_lost => {
            is_lost = true;
            Reaction::Leave
        }
        cdb if is_lost => then(cdb),
        _ => Reaction::Proper,
    });
    read(world, lun, 1 << 19).expect("a session that is lost is made again");
}

/// Answers a command with `sense` once, where it is one of those.
fn once(is_it: impl Fn(&Cdb) -> bool + Send + 'static, sense: Sense) -> impl FnMut(&Cdb) -> Reaction + Send + 'static {
    let mut left = 1;
    move |cdb| {
        if left == 0 || !is_it(cdb) {
            return Reaction::Proper;
        }
        left -= 1;
        Reaction::Answer(Reply::sense(sense))
    }
}

fn is_page(cdb: &Cdb, wanted: u8) -> bool {
    matches!(cdb, Cdb::Inquiry { is_vpd: true, page, .. } if *page == wanted)
}

/// The commands with which the unit's properties are read, each chosen in turn to bring a report.
const COMMANDS: [fn(&Cdb) -> bool; 5] = [
    |cdb| matches!(cdb, Cdb::TestUnitReady),
    |cdb| matches!(cdb, Cdb::Inquiry { is_vpd: false, .. }),
    |cdb| is_page(cdb, DEVICE_IDENTIFICATION),
    |cdb| matches!(cdb, Cdb::ReadCapacity16 { .. }),
    |cdb| matches!(cdb, Cdb::ModeSense(_)),
];

/// Lets the unit report a changed capacity, lose its cache while its properties are read, and
/// report that once.
fn lose_cache_while_asked(world: &mut World, target: &Scripted, lun: &RemoteLun, index: usize, news: Sense) {
    let (mut was_read, mut was_said) = (false, false);
    target.tell(move |disk, cdb| match cdb {
        Cdb::Read(_) if !was_read => {
            was_read = true;
            Reaction::Answer(Reply::sense(Sense::CAPACITY_CHANGED))
        }
        cdb if was_read && !was_said && COMMANDS[index](cdb) => {
            was_said = true;
            disk.lose_cache();
            Reaction::Answer(Reply::sense(news))
        }
        _ => Reaction::Proper,
    });
    read(world, lun, 0).unwrap();
}

#[test]
fn a_loss_that_the_unit_tells_while_it_is_asked_what_it_is_brings_a_replay() {
    let deferred = Sense { is_deferred: true, ..Sense::WRITE_ERROR };
    for news in [Sense::POWER_ON_OR_RESET, Sense::BUS_DEVICE_RESET, deferred] {
        for index in 0..COMMANDS.len() {
            let mut world = World::new(1);
            let (target, lun) = attach(&mut world);
            write(&mut world, &lun, 4096, 7).unwrap();
            lose_cache_while_asked(&mut world, &target, &lun, index, news);
            flush(&mut world, &lun).unwrap();
            assert!(is_durable(&target), "{news} to command {index}");
            assert_eq!(lun.status().session_count, 1, "{news} to command {index}");
        }
    }
}

/// Flushed data cannot be written again: the next flush reports it as lost.
#[test]
fn a_deferred_error_that_is_told_while_the_unit_is_asked_is_told_by_a_flush() {
    let mut world = World::new(2);
    let (target, lun) = attach(&mut world);
    let events = lun.subscribe();
    write(&mut world, &lun, 4096, 7).unwrap();
    flush(&mut world, &lun).unwrap();
    lose_cache_while_asked(&mut world, &target, &lun, 3, Sense { is_deferred: true, ..Sense::WRITE_ERROR });
    assert_eq!(flush(&mut world, &lun).unwrap_err().kind(), ErrorKind::Media);
    assert_eq!(events.try_receive(), Some(Event::WritesLost));
    flush(&mut world, &lun).expect("it is told once");
}

#[test]
fn a_unit_that_does_not_say_what_its_cache_is_has_a_volatile_one() {
    for sense in PASSING {
        for is_lasting in [false, true] {
            let mut world = World::new(3);
            let (target, lun) = attach(&mut world);
            let mut left = if is_lasting { u32::MAX } else { 2 };
            lose_session(&mut world, &target, &lun, move |cdb| match cdb {
                Cdb::ModeSense(_) if left > 0 => {
                    left -= 1;
                    Reaction::Answer(Reply::sense(sense))
                }
                _ => Reaction::Proper,
            });
            write(&mut world, &lun, 4096, 7).unwrap();
            flush(&mut world, &lun).unwrap();
            assert!(is_durable(&target), "{sense}, for ever: {is_lasting}");
        }
    }
}

#[test]
fn a_unit_that_has_no_mode_pages_has_no_volatile_cache() {
    let mut world = World::new(4);
    let (target, lun) = attach(&mut world);
    lose_session(&mut world, &target, &lun, |cdb| match cdb {
        Cdb::ModeSense(_) => Reaction::Answer(Reply::sense(Sense::INVALID_OPERATION_CODE)),
        _ => Reaction::Proper,
    });
    write(&mut world, &lun, 4096, 7).unwrap();
    assert_eq!(lun.status().retained_bytes, 0);
}

#[test]
fn a_name_that_a_unit_does_not_tell_for_a_while_is_asked_again() {
    for sense in PASSING {
        for page in [UNIT_SERIAL_NUMBER, DEVICE_IDENTIFICATION] {
            let mut world = World::new(5);
            let (target, lun) = attach(&mut world);
            write(&mut world, &lun, 4096, 7).unwrap();
            lose_session(&mut world, &target, &lun, once(move |cdb| is_page(cdb, page), sense));
            flush(&mut world, &lun).unwrap();
            assert_eq!(lun.status().state, State::Online, "{sense} to page {page:02x}h");
        }
    }
}

/// Longer than one reading of the unit's properties takes.
#[test]
fn a_name_that_a_unit_does_not_tell_for_long_is_waited_for() {
    let mut world = World::new(6);
    let (target, lun) = attach(&mut world);
    write(&mut world, &lun, 4096, 7).unwrap();
    let mut left = 20;
    lose_session(&mut world, &target, &lun, move |cdb| {
        if left == 0 || !is_page(cdb, UNIT_SERIAL_NUMBER) {
            return Reaction::Proper;
        }
        left -= 1;
        Reaction::Answer(Reply::sense(Sense::INTERNAL_TARGET_FAILURE))
    });
    flush(&mut world, &lun).unwrap();
    assert!(is_durable(&target));
}

/// Requests in blocks of one size would fail, or land elsewhere, in blocks of another size.
#[test]
fn a_unit_whose_blocks_have_another_size_is_not_written_to() {
    let mut world = World::new(7);
    let (target, lun) = attach(&mut world);
    let events = lun.subscribe();
    write(&mut world, &lun, 512, 7).unwrap();
    let mut is_lost = false;
    target.tell(move |disk, cdb| match cdb {
        Cdb::Read(_) if !is_lost => {
            is_lost = true;
            disk.lose_cache();
            disk.block_bytes = 4096;
            Reaction::Leave
        }
        Cdb::Write(_) => panic!("a write is at another place than it was"),
        _ => Reaction::Proper,
    });
    let error = read(&mut world, &lun, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.to_string().contains("512") && error.to_string().contains("4096"), "{error}");
    assert_eq!(flush(&mut world, &lun).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(lun.status().state, State::Replaced);
    assert!(std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::IdentityChanged));
    let closed = world.run(async move { lun.close().await });
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::OutcomeUnknown, "it is told that something may be lost");
}

/// A failed attempt at a session received the report.
#[test]
fn a_deferred_error_that_is_told_in_an_attempt_that_fails_is_told_by_a_flush() {
    let mut world = World::new(8);
    let (target, lun) = attach(&mut world);
    let events = lun.subscribe();
    write(&mut world, &lun, 4096, 7).unwrap();
    flush(&mut world, &lun).unwrap();
    let (mut was_told, mut was_left) = (false, false);
    lose_session(&mut world, &target, &lun, move |cdb| match cdb {
        Cdb::TestUnitReady if !was_told => {
            was_told = true;
            Reaction::Answer(Reply::sense(Sense { is_deferred: true, ..Sense::WRITE_ERROR }))
        }
        Cdb::ReadCapacity16 { .. } if !was_left => {
            was_left = true;
            Reaction::Leave
        }
        _ => Reaction::Proper,
    });
    assert_eq!(flush(&mut world, &lun).unwrap_err().kind(), ErrorKind::Media);
    assert!(std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::WritesLost));
    flush(&mut world, &lun).expect("it is told once");
}

/// The session in which it was heard ends before the unit is looked at to the end.
#[test]
fn a_deferred_error_that_is_told_as_a_session_ends_is_told_by_a_flush() {
    let mut world = World::new(12);
    let (target, lun) = attach(&mut world);
    let events = lun.subscribe();
    write(&mut world, &lun, 4096, 7).unwrap();
    flush(&mut world, &lun).unwrap();
    let (mut was_read, mut was_told, mut was_left) = (false, false, false);
    target.tell(move |_, cdb| match cdb {
        Cdb::Read(_) if !std::mem::replace(&mut was_read, true) => {
            Reaction::Answer(Reply::sense(Sense::CAPACITY_CHANGED))
        }
        Cdb::TestUnitReady if was_read && !std::mem::replace(&mut was_told, true) => {
            Reaction::Answer(Reply::sense(Sense { is_deferred: true, ..Sense::WRITE_ERROR }))
        }
        Cdb::ReadCapacity16 { .. } if was_told && !std::mem::replace(&mut was_left, true) => Reaction::Leave,
        _ => Reaction::Proper,
    });
    read(&mut world, &lun, 0).expect("a session that is lost is made again");
    assert_eq!(lun.status().session_count, 2);
    assert_eq!(flush(&mut world, &lun).unwrap_err().kind(), ErrorKind::Media);
    assert!(std::iter::from_fn(|| events.try_receive()).any(|event| event == Event::WritesLost));
    flush(&mut world, &lun).expect("it is told once");
}

const MARK_ID: [u8; 16] = [9; 16];

/// A unit with a change mark, unchanged by other hosts.
fn marked(cdb: &Cdb) -> Reaction {
    let mark = Mark { id: MARK_ID, token: 5, sequence: 1, slot: 0, is_held_here: true, is_held_elsewhere: false };
    let changes = Changes { id: MARK_ID, token: 5, sequence: 1, range_count: 1, has_more: false, runs: Vec::new() };
    let data = match cdb {
        Cdb::ChangeMarkIn { service_action: action_in::REPORT_MARKS, .. } => emit_marks(&[mark]),
        Cdb::ChangeMarkIn { .. } => changes.emit(),
        Cdb::ChangeMarkOut { .. } => Vec::new(),
        cdb if is_page(cdb, SUPPORTED_PAGES) => emit_supported_pages(&[SUPPORTED_PAGES, CHANGE_MARKS]),
        cdb if is_page(cdb, CHANGE_MARKS) => Support { marks_max: 1, range_bytes: 1 << 20 }.emit(),
        _ => return Reaction::Proper,
    };
    Reaction::Answer(Reply::data(data))
}

/// The marks are the last thing that a new session reads.
#[test]
fn a_change_that_the_unit_tells_while_its_marks_are_taken_again_is_asked_for() {
    let is_asked = [
        |cdb: &Cdb| matches!(cdb, Cdb::ChangeMarkIn { service_action: action_in::REPORT_MARKS, .. }),
        |cdb: &Cdb| matches!(cdb, Cdb::ChangeMarkOut { .. }),
        |cdb: &Cdb| matches!(cdb, Cdb::ChangeMarkIn { service_action: action_in::REPORT_CHANGES, .. }),
    ];
    for (index, is_asked) in is_asked.into_iter().enumerate() {
        let mut world = World::new(9);
        let (target, lun) = attach_to(&mut world, marked);
        let taking = Arc::clone(&lun);
        world.run(async move { taking.take_mark(MARK_ID, 5).await }).unwrap();
        let (mut is_lost, mut was_said) = (false, false);
        target.tell(move |disk, cdb| match cdb {
            Cdb::Read(_) if !is_lost => {
                is_lost = true;
                Reaction::Leave
            }
            cdb if is_lost && !was_said && is_asked(cdb) => {
                was_said = true;
                disk.grow(2 << 20);
                Reaction::Answer(Reply::sense(Sense::CAPACITY_CHANGED))
            }
            cdb => marked(cdb),
        });
        read(&mut world, &lun, 0).expect("a session that is lost is made again");
        world.pass(Duration::from_secs(1));
        assert_eq!(lun.geometry().size_bytes, 2 << 20, "told at command {index}");
    }
}

/// Zeroes have no copies to count.
#[test]
fn zeroes_that_are_not_durable_are_counted() {
    let mut world = World::new(10);
    let (_target, lun) = attach(&mut world);
    let writing = lun.write_zeroes(4096, 8192, false, false);
    world.run(writing).unwrap();
    world.executor.run_until_stalled();
    assert_eq!((lun.status().retained_bytes, lun.status().retained_changes), (0, 1));
    flush(&mut world, &lun).unwrap();
    world.executor.run_until_stalled();
    assert_eq!(lun.status().retained_changes, 0);
}

/// The driver takes requests in at once: those that it has count, too.
#[test]
fn requests_beyond_a_bound_are_refused_while_the_unit_answers_nothing() {
    let mut world = World::new(11);
    let (target, lun) = attach(&mut world);
    target.tell(|_, _| Reaction::Answer(None));
    let mut waiting = Vec::new();
    for number in 0..REQUESTS_MAX as u64 {
        waiting.push(lun.read(number % 256 * 4096, Buffer::zeroed(512)));
        if number % 1000 == 0 {
            world.executor.run_until_stalled();
        }
    }
    world.executor.run_until_stalled();
    assert_eq!(read(&mut world, &lun, 0).unwrap_err().kind(), ErrorKind::Busy);
    // There is room again once some have ended.
    target.tell(|_, _| Reaction::Proper);
    waiting.into_iter().for_each(|reading| drop(world.run(reading)));
    read(&mut world, &lun, 0).expect("there is room");
}

/// A target that is under load may refuse what it answers at other times.
#[test]
fn a_unit_that_does_not_say_its_name_for_once_is_asked_again() {
    for page in [DEVICE_IDENTIFICATION, UNIT_SERIAL_NUMBER] {
        let mut world = World::new(41);
        let (target, lun) = attach(&mut world);
        write(&mut world, &lun, 4096, 7).expect("it is written");
        let asked = move |cdb: &Cdb| matches!(cdb, Cdb::Inquiry { is_vpd: true, page: asked, .. } if *asked == page);
        lose_session(&mut world, &target, &lun, once(asked, Sense::INVALID_FIELD_IN_CDB));
        assert_eq!(read(&mut world, &lun, 4096).expect("it is the same one")[..], [7; 4096]);
        flush(&mut world, &lun).expect("and takes what it had not kept");
        assert!(is_durable(&target));
        assert_ne!(lun.status().state, State::Replaced);
    }
}

/// The error names the target as the cause of the delay, not the initiator.
#[test]
fn a_unit_that_is_busy_without_end_is_said_to_be_busy() {
    let mut world = World::new(42);
    let target = Scripted::new(&world);
    target.tell(|_, _| Reaction::Answer(Some(Reply { status: Status::Busy.code(), ..Reply::default() })));
    // Longer than the attempts of one probe take.
    let options = InitiatorOptions { command_timeout: Duration::from_secs(600), ..world.options() };
    let connecting = initiator::connect(options, Arc::new(target));
    let error = world.run(connecting).map(drop).unwrap_err().to_string();
    assert!(error.contains("BUSY without end"), "{error}");
}

/// A unit attention is told once (SPC-4 5.14), so that one which never runs out of them is broken.
#[test]
fn a_unit_with_unit_attentions_without_end_is_given_up() {
    let mut world = World::new(43);
    let target = Scripted::new(&world);
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    target.tell(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET))
    });
    let connecting = initiator::connect(world.options(), Arc::new(target));
    let error = world.run(connecting).map(drop).unwrap_err().to_string();
    assert!(error.contains("unit attentions without end"), "{error}");
    assert_eq!(count.load(Ordering::Relaxed), 64);
}

/// Each answer says that there is more.
#[test]
fn a_report_of_who_shares_a_lun_has_so_many_answers_and_no_more() {
    let mut world = World::new(44);
    let (target, lun) = attach(&mut world);
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    target.tell(move |_, cdb| {
        let Cdb::SharingIn { first, .. } = *cdb else { return Reaction::Proper };
        counted.fetch_add(1, Ordering::Relaxed);
        let report = Report { records: Vec::new(), next: Some(first + 1) };
        Reaction::Answer(Reply::data(report.emit()))
    });
    let asking = Arc::clone(&lun);
    let records = world.run(async move { asking.sharing_report().await }).expect("what came is told");
    assert_eq!((records.len(), count.load(Ordering::Relaxed)), (0, 256));
}

/// Each answer comes within its own time; all together take longer than a request has.
#[test]
fn requests_have_their_time_while_a_session_that_goes_on_asks_its_unit_anew() {
    let mut world = World::new(13);
    let target = Scripted::new(&world);
    let options = InitiatorOptions { replacement_timeout: Duration::from_secs(8), ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    let (mut was_told, mut left) = (false, 50);
    target.tell(move |_, cdb| match cdb {
        Cdb::Write(_) if !std::mem::replace(&mut was_told, true) => {
            Reaction::Answer(Reply::sense(Sense::CAPACITY_CHANGED))
        }
        Cdb::TestUnitReady if was_told && left > 0 => {
            left -= 1;
            Reaction::Answer(Reply::sense(Sense::BECOMING_READY))
        }
        _ => Reaction::Proper,
    });
    for attempt in 0..2 {
        let began = world.clock.now();
        let error = write(&mut world, &lun, 4096, 7).unwrap_err();
        let waited = world.clock.now().since(began);
        assert!((8.0..8.1).contains(&waited.as_secs_f64()), "attempt {attempt}: {waited:?}: {error}");
    }
    // The unit answers after 25 s, within the time of the question and of this request.
    let error = read(&mut world, &lun, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    write(&mut world, &lun, 4096, 7).expect("the unit has said what it is");
    assert_eq!(lun.status().session_count, 1);
}
