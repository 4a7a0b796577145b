//! A session whose target answers pings and aborts, and no command any more: a new one is made, which answers. A unit
//! that is only slow keeps its session.

mod support;

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::{Buffer, ErrorKind};
use initiator::{InitiatorOptions, RemoteLun};
use scsi::{Cdb, Sense, Status};
use support::World;
use support::scripted::{Reaction, Reply, Scripted};

const COMMAND_TIME: Duration = Duration::from_secs(3);
const TIME: Duration = Duration::from_secs(12);

fn attach(world: &mut World) -> (Scripted, Arc<RemoteLun>) {
    let target = Scripted::new(world);
    let options = InitiatorOptions {
        command_timeout: COMMAND_TIME,
        replacement_timeout: TIME,
        keepalive_interval: Duration::from_secs(1),
        ..world.options()
    };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    (target, lun)
}

/// What becomes of the commands of the first session, a number of reads at once.
#[test]
fn a_session_in_which_no_command_is_answered_any_more_is_made_anew() {
    let mute: fn() -> Reaction = || Reaction::Answer(None);
    for (what, reads, deed) in [
        ("no answers", 1, mute),
        ("no answers", 100, mute),
        ("a lost command", 1, || Reaction::Lose),
        // More than the window takes.
        ("a lost command", 100, || Reaction::Lose),
    ] {
        let mut world = World::new(1);
        let (target, lun) = attach(&mut world);
        target.tell(move |disk, _| if disk.session_count == 1 { deed() } else { Reaction::Proper });
        let began = world.clock.now();
        let reads: Vec<_> = (0..reads).map(|block| lun.read(block * 512, Buffer::zeroed(512))).collect();
        for read in reads {
            world.run(read).expect(what);
        }
        let took = world.clock.now().since(began);
        assert!(took <= 2 * COMMAND_TIME + Duration::from_secs(1), "{what}: {took:?}");
        assert_eq!(lun.status().session_count, 2, "{what}");
    }
}

/// Its medium takes longer than commands have; what needs no medium is answered.
#[test]
fn a_unit_that_is_only_slow_keeps_its_session() {
    for others in [false, true] {
        let mut world = World::new(2);
        let (target, lun) = attach(&mut world);
        target.tell(move |_, cdb| match cdb {
            Cdb::Read(_) => Reaction::Answer(None),
            // One that answers other commands need not answer this one.
            Cdb::TestUnitReady if others => Reaction::Answer(None),
            _ => Reaction::Proper,
        });
        let reading = lun.read(0, Buffer::zeroed(512));
        let began = world.clock.now();
        while others && world.clock.now().since(began) < TIME {
            let writing = lun.write(4096, Buffer::zeroed(512), false);
            world.run(writing).unwrap();
            world.pass(Duration::from_secs(1));
        }
        assert_eq!(world.run(reading).map(drop).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(lun.status().session_count, 1, "{others}");
    }
}

#[test]
fn a_unit_that_is_busy_keeps_its_session() {
    let mut world = World::new(3);
    let (target, lun) = attach(&mut world);
    target.tell(|_, _| Reaction::Answer(Some(Reply { status: Status::Busy.code(), ..Reply::default() })));
    let reading = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(reading).map(drop).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(lun.status().session_count, 1);
}

/// It is told once (SPC-4 5.14), with whatever command comes first.
#[test]
fn a_reset_that_a_slow_unit_reports_when_it_is_asked_whether_it_answers_counts() {
    let mut world = World::new(4);
    let (target, lun) = attach(&mut world);
    let writing = lun.write(0, Buffer::copy_of(&[7; 512]), false);
    world.run(writing).unwrap();
    let (mut is_slow, mut is_told) = (true, false);
    target.tell(move |disk, cdb| match cdb {
        Cdb::Read(_) if std::mem::replace(&mut is_slow, false) => Reaction::Answer(None),
        Cdb::TestUnitReady if !std::mem::replace(&mut is_told, true) => {
            disk.lose_cache();
            Reaction::Answer(Reply::sense(Sense::POWER_ON_OR_RESET))
        }
        _ => Reaction::Proper,
    });
    let reading = lun.read(0, Buffer::zeroed(512));
    assert_eq!(world.run(reading).unwrap()[..], [7; 512]);
    let status = lun.status();
    assert_eq!((status.session_count, status.writes_replayed, status.in_flight), (1, 1, 0));
}
