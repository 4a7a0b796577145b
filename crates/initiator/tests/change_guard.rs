//! A new session hears what others changed while there was none, and its user says whether this
//! host may still change the LUN.

mod support;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::{Buffer, ByteRange, Error, ErrorKind};
use initiator::{ChangeGuard, InitiatorOptions, RemoteLun, ReportedChanges};
use iscsi::pdu::Isid;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, MemoryChanges};
use support::{IQN, World};
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

/// A LUN that may lose what is not flushed.
fn serve(world: &mut World) {
    let options = LogicalUnitOptions { change_store: Some(Arc::new(MemoryChanges)), ..LogicalUnitOptions::default() };
    let unit = LogicalUnit::new(Arc::new(CrashLayer::new(16 * MIB, 1)), options);
    world.workers.spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    let clock = Arc::new(world.clock.clone());
    let server = TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), clock);
    world.network.set_server(Some(server));
}

fn write(world: &mut World, lun: &Arc<RemoteLun>, offset: u64, byte: u8) -> Result<(), Error> {
    let mut buffer = Buffer::zeroed(4096);
    buffer.fill(byte);
    let written = lun.write(offset, buffer, false);
    world.run(written).map(|_| ())
}

fn read(world: &mut World, lun: &Arc<RemoteLun>, offset: u64) -> u8 {
    let read = lun.read(offset, Buffer::zeroed(4096));
    world.run(read).unwrap()[0]
}

macro_rules! call {
    ($world:expr, $lun:expr, $method:ident($($argument:expr),*)) => {{
        let lun = Arc::clone(&$lun);
        $world.run(async move { lun.$method($($argument),*).await })
    }};
}

#[test]
fn neither_what_waits_nor_what_was_not_flushed_is_written_over_changes_by_others() {
    // Whether it is refused, else whether it was by others.
    for (is_refused, is_by_others) in [(false, false), (false, true), (true, true)] {
        let mut world = World::new(5);
        serve(&mut world);
        let (one, two) = (world.connect(host(&world, 1)).unwrap(), world.connect(host(&world, 2)).unwrap());
        call!(world, one, take_mark(ID, 5)).unwrap();
        let sequence = call!(world, one, marks()).unwrap()[0].sequence;
        assert!(call!(world, one, clear_mark(ID, 5, sequence)).unwrap());
        one.set_guard(ChangeGuard::new(Arc::new(OnceLock::new()), move |heard| {
            let changed = heard.ranges();
            assert_eq!((&changed[..], heard.unknown), (&[ByteRange { offset: 0, length: MIB }][..], None));
            let refusal = Error::new(ErrorKind::Unsupported, "others were here");
            let by_others = if is_by_others { changed } else { Vec::new() };
            Box::pin(async move { if is_refused { Err(refusal) } else { Ok(by_others) } })
        }));
        write(&mut world, &one, 0, 1).unwrap();
        assert!(one.status().retained_bytes > 0, "it may be lost");
        write(&mut world, &two, 0, 2).unwrap();
        assert_eq!(one.reported_changes(), [], "its session goes on");
        world.network.cut();
        world.pass(Duration::from_secs(2));
        assert_eq!(one.reported_changes(), [ByteRange { offset: 0, length: MIB }]);
        let (written, at_first) = (write(&mut world, &one, 4096, 3), read(&mut world, &two, 0));
        let after = read(&mut world, &one, 4096);
        match is_refused {
            true => {
                assert_eq!(written.unwrap_err().kind(), ErrorKind::Unsupported);
                assert_eq!((at_first, after), (2, 0), "reads go on");
                let flushed = call!(world, one, flush());
                assert_eq!(flushed.unwrap_err().kind(), ErrorKind::OutcomeUnknown, "it was acknowledged, and is lost");
            }
            false => {
                written.unwrap();
                assert_eq!((at_first, after), (if is_by_others { 2 } else { 1 }, 3));
                let flushed = call!(world, one, flush()).map_err(|error| error.kind());
                assert_eq!(flushed, if is_by_others { Err(ErrorKind::OutcomeUnknown) } else { Ok(()) });
                call!(world, one, flush()).unwrap();
            }
        }
    }
}

/// Two paths of one host, which hold one mark. The target recorded changes everywhere, or lost the mark: then the
/// path that comes first makes it anew, with everything changed, and the other one finds that.
#[test]
fn a_session_hears_whether_its_target_recorded_everything_or_knows_nothing() {
    let whole = ByteRange { offset: 0, length: 16 * MIB };
    for is_mark_lost in [false, true] {
        let mut world = World::new(6);
        serve(&mut world);
        let second = InitiatorOptions { isid: Some(Isid::random_format(1, 2)), ..host(&world, 1) };
        let paths = [host(&world, 1), second].map(|options| world.connect(options).unwrap());
        for path in &paths {
            call!(world, path, take_mark(ID, 5)).unwrap();
        }
        let sequence = call!(world, paths[0], marks()).unwrap()[0].sequence;
        assert!(call!(world, paths[0], clear_mark(ID, 5, sequence)).unwrap());
        let heard = Arc::<Mutex<Vec<ReportedChanges>>>::default();
        for path in &paths {
            let hearing = Arc::clone(&heard);
            path.set_guard(ChangeGuard::new(Arc::new(OnceLock::new()), move |changes| {
                let ranges = changes.ranges();
                hearing.lock().unwrap().push(changes);
                Box::pin(async { Ok(ranges) })
            }));
        }
        write(&mut world, &paths[1], 0, 1).unwrap();
        let recorded = match is_mark_lost {
            true => {
                serve(&mut world);
                Vec::new()
            }
            false => {
                let other = world.connect(host(&world, 2)).unwrap();
                (0..16).for_each(|range| write(&mut world, &other, range * MIB, 2).unwrap());
                vec![whole]
            }
        };
        world.network.cut();
        world.pass(Duration::from_secs(2));
        let heard = heard.lock().unwrap();
        let expected = ReportedChanges { recorded, unknown: is_mark_lost.then_some(whole), unreported: None };
        assert_eq!(*heard, [expected.clone(), expected], "{is_mark_lost}");
    }
}

/// What a session before it heard is over: it would take newer writes of this host for those of others.
#[test]
fn a_session_that_hears_of_no_changes_keeps_what_was_written_since_the_last_ones() {
    let mut world = World::new(5);
    serve(&mut world);
    let (one, two) = (world.connect(host(&world, 1)).unwrap(), world.connect(host(&world, 2)).unwrap());
    call!(world, one, take_mark(ID, 5)).unwrap();
    let clear = |world: &mut World| {
        let sequence = call!(world, one, marks()).unwrap()[0].sequence;
        assert!(call!(world, one, clear_mark(ID, 5, sequence)).unwrap());
    };
    clear(&mut world);
    one.set_guard(ChangeGuard::new(Arc::default(), |changed| Box::pin(async move { Ok(changed.ranges()) })));
    write(&mut world, &two, 0, 2).unwrap();
    // Else it would write that again.
    call!(world, two, flush()).unwrap();
    world.network.cut();
    world.pass(Duration::from_secs(2));
    assert_eq!(one.reported_changes(), [ByteRange { offset: 0, length: MIB }]);
    clear(&mut world);
    write(&mut world, &one, 0, 3).unwrap();
    assert!(one.status().retained_bytes > 0, "it may be lost");
    world.network.cut();
    world.pass(Duration::from_secs(2));
    assert_eq!(one.reported_changes(), []);
    call!(world, one, flush()).expect("it was written again");
    assert_eq!(read(&mut world, &two, 0), 3);
}
