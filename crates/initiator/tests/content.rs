//! The content id of a LUN: one for all hosts, void from the first change on, and asked for again in each new session.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, ErrorKind, SharedDevice};
use initiator::{ContentAnswer, ContentGuard, ContentId, InitiatorOptions, RemoteLun, State};
use iscsi::pdu::Isid;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, MemoryChanges};
use scsi::change_mark::{action_in, content_id, emit_content};
use scsi::{Cdb, Sense, SenseKey};
use support::scripted::{Reaction, Reply, Scripted};
use support::{IQN, World, identity};
use target::{Target, TargetServer, TargetServerOptions};

const MIB: u64 = 1 << 20;

fn host(world: &World, number: u32) -> InitiatorOptions {
    InitiatorOptions {
        isid: Some(Isid::random_format(number, 1)),
        initiator_name: format!("iqn.2026-01.io.forebay:host{number}"),
        ..world.options()
    }
}

/// Serves the LUN anew, whose target keeps marks or not.
fn serve(world: &mut World, device: &SharedDevice, keeps_marks: bool) {
    let store = || Arc::new(MemoryChanges) as _;
    let options = LogicalUnitOptions { change_store: keeps_marks.then(store), ..LogicalUnitOptions::default() };
    let unit = LogicalUnit::new(Arc::clone(device), options);
    world.workers.spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    let clock = Arc::new(world.clock.clone());
    let server = TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), clock);
    world.network.set_server(Some(server));
}

fn disk() -> SharedDevice {
    Arc::new(MemoryDevice::new(16 * MIB, identity("named")))
}

fn write(world: &mut World, lun: &Arc<RemoteLun>) {
    let write = lun.write(0, Buffer::zeroed(4096), false);
    world.run(write).unwrap();
}

/// What the LUN's sessions hear of the content from now on.
fn guarded(lun: &RemoteLun, id: ContentId) -> Arc<Mutex<Vec<ContentAnswer>>> {
    let told = Arc::<Mutex<Vec<ContentAnswer>>>::default();
    let telling = Arc::clone(&told);
    lun.guard_content(ContentGuard::new(id, move |heard| telling.lock().unwrap().push(heard)));
    told
}

macro_rules! call {
    ($world:expr, $lun:expr, $method:ident($($argument:expr),*)) => {{
        let lun = Arc::clone(&$lun);
        $world.run(async move { lun.$method($($argument),*).await })
    }};
}

#[test]
fn a_content_has_one_id_for_all_hosts_until_one_of_them_changes_it() {
    let mut world = World::new(1);
    serve(&mut world, &disk(), true);
    let (one, two) = (world.connect(host(&world, 1)).unwrap(), world.connect(host(&world, 2)).unwrap());
    assert_eq!(call!(world, one, content_id()).unwrap(), None);
    call!(world, one, name_content()).unwrap();
    let first = call!(world, one, content_id()).unwrap();
    call!(world, two, name_content()).unwrap();
    for lun in [&one, &two] {
        assert_eq!((call!(world, lun, content_id()).unwrap(), first.is_some()), (first, true));
    }
    write(&mut world, &one);
    for lun in [&one, &two] {
        assert_eq!(call!(world, lun, content_id()).unwrap(), None);
    }
    call!(world, two, name_content()).unwrap();
    let second = call!(world, one, content_id()).unwrap();
    assert!(second.is_some() && second != first);
}

#[test]
fn a_target_without_marks_cannot_tell() {
    let mut world = World::new(2);
    serve(&mut world, &disk(), false);
    let one = world.connect(host(&world, 1)).unwrap();
    assert_eq!(call!(world, one, content_id()).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(call!(world, one, name_content()).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// The target comes back with the same content, with none that it knows, and as one that cannot tell.
#[test]
fn a_new_session_hears_of_another_content_before_it_reads_anything() {
    let mut world = World::new(3);
    let disk = disk();
    serve(&mut world, &disk, true);
    let (one, two) = (world.connect(host(&world, 1)).unwrap(), world.connect(host(&world, 2)).unwrap());
    call!(world, one, name_content()).unwrap();
    let id = call!(world, one, content_id()).unwrap().unwrap();
    let told = guarded(&one, id);
    let told_at_the_next_read = |world: &mut World, sessions| {
        world.network.cut();
        let told = Arc::clone(&told);
        let lun = Arc::clone(&one);
        let told = move |_| std::mem::take(&mut *told.lock().unwrap());
        let read = world.run(async move { lun.read(0, Buffer::zeroed(4096)).await.map(told) });
        assert_eq!(one.status().session_count, sessions);
        read.unwrap()
    };
    assert_eq!(told_at_the_next_read(&mut world, 2), [ContentAnswer::Same], "only the session was lost");
    write(&mut world, &two);
    assert_eq!(told_at_the_next_read(&mut world, 3), [ContentAnswer::Another]);
    serve(&mut world, &disk, true);
    assert_eq!(told_at_the_next_read(&mut world, 4), [ContentAnswer::Another], "nothing is known of it");
    serve(&mut world, &disk, false);
    assert_eq!(told_at_the_next_read(&mut world, 5), [ContentAnswer::Unsupported], "it cannot tell");
    world.pass(Duration::from_secs(1));
}

const TIME: Duration = Duration::from_secs(12);

/// A disk whose answers to REPORT CONTENT a test makes, and who is told of another content than `id`.
struct Answering {
    world: World,
    target: Scripted,
    lun: Arc<RemoteLun>,
    told: Arc<Mutex<Vec<ContentAnswer>>>,
}

impl Answering {
    fn new(id: [u8; 16]) -> Self {
        let mut world = World::new(4);
        let target = Scripted::new(&world);
        let options = InitiatorOptions { replacement_timeout: TIME, ..world.options() };
        let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
        world.executor.spawn(driver);
        let told = guarded(&lun, id);
        Self { world, target, lun, told }
    }

    /// From now on this is the answer.
    fn answer(&self, reply: &Option<Reply>) {
        let reply = reply.clone();
        self.target.tell(move |_, cdb| match cdb {
            Cdb::ChangeMarkIn { service_action: action_in::REPORT_CONTENT, .. } => Reaction::Answer(reply.clone()),
            _ => Reaction::Proper,
        });
    }

    /// The session is lost. The next one begins with this answer.
    fn lose_session(&mut self, reply: &Option<Reply>) {
        self.target.tell(|_, _| Reaction::Leave);
        let (lost, lun) = (self.lun.status().session_count, Arc::clone(&self.lun));
        self.world.executor.spawn(async move { drop(lun.read(0, Buffer::zeroed(512)).await) });
        while self.lun.status().state == State::Online {
            self.world.pass(Duration::from_millis(1));
        }
        assert_eq!(self.lun.status().session_count, lost);
        self.answer(reply);
    }

    fn read(&mut self) -> Result<(), ErrorKind> {
        let read = self.lun.read(4096, Buffer::zeroed(512));
        self.world.run(read).map(drop).map_err(|error| error.kind())
    }

    /// How often it heard of another content.
    fn told(&self) -> usize {
        self.told.lock().unwrap().iter().filter(|heard| **heard == ContentAnswer::Another).count()
    }
}

/// What cannot be asked says nothing of the content: requests wait, and fail as where the target is away.
#[test]
fn a_content_that_cannot_be_asked_for_is_asked_for_again_and_is_no_other_one() {
    let id = content_id([1; 16]);
    let same = Reply::data(emit_content(Some(id)));
    let wrong_length = |length: u32| Reply::data([&length.to_be_bytes()[..], &id].concat());
    let unasked = [
        Reply::sense(Sense::new(SenseKey::NotReady, 0x04, 0x02)),
        Reply::sense(Sense::new(SenseKey::NotReady, 0x04, 0x0b)),
        Reply::sense(Sense::new(SenseKey::AbortedCommand, 0, 0)),
        Reply::sense(Sense::UNRECOVERED_READ_ERROR),
        Reply::sense(Sense::new(SenseKey::HardwareError, 0x44, 0)),
        Reply::sense(Sense::LOGICAL_UNIT_NOT_SUPPORTED),
        wrong_length(8),
        wrong_length(u32::MAX),
        Reply::data(Vec::new()),
    ];
    for reply in &unasked {
        let mut at = Answering::new(id);
        at.lose_session(reply);
        at.world.pass(TIME / 4);
        assert_eq!((at.told(), at.lun.status().state), (0, State::Reconnecting), "{reply:?}");
        let why = at.lun.status().last_error.unwrap_or_default();
        assert!(why.contains("REPORT CONTENT") || why.contains("make no sense"), "{why}");
        at.answer(&same);
        assert_eq!((at.read(), at.told()), (Ok(()), 0), "{reply:?}");
        at.lose_session(reply);
        assert_eq!((at.read(), at.told()), (Err(ErrorKind::TimedOut), 0), "{reply:?}");
        at.answer(&same);
        at.world.pass(TIME);
        assert_eq!((at.read(), at.told()), (Ok(()), 0), "{reply:?}");
    }
    let cannot_tell = [Sense::INVALID_OPERATION_CODE, Sense::INVALID_FIELD_IN_CDB];
    let others = [Reply::data(emit_content(None)), Reply::data(emit_content(Some(content_id([2; 16]))))];
    let told_of = cannot_tell.map(|sense| (Reply::sense(sense), 0)).into_iter().chain(others.map(|reply| (reply, 1)));
    for (reply, told) in told_of {
        let mut at = Answering::new(id);
        at.lose_session(&reply);
        assert_eq!((at.read(), at.told()), (Ok(()), told), "{reply:?}");
    }
}

/// A target that is being configured has no such LUN for a while, and says so (25h): that is no answer to the question.
#[test]
fn a_session_in_which_the_unit_is_gone_when_it_is_asked_for_its_content_is_none() {
    let mut world = World::new(4);
    let target = Scripted::new(&world);
    let (lun, driver) = world.run(initiator::connect(world.options(), Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    let told = guarded(&lun, content_id([1; 16]));
    let mut questions = 0;
    target.tell(move |_, cdb| match cdb {
        Cdb::Write(_) if questions == 0 => Reaction::Leave,
        Cdb::ChangeMarkIn { service_action: action_in::REPORT_CONTENT, .. } => {
            questions += 1;
            Reaction::Answer(match questions {
                1 | 2 => Reply::sense(Sense::LOGICAL_UNIT_NOT_SUPPORTED),
                _ => Reply::data([&16_u32.to_be_bytes()[..], &[8; 16]].concat()),
            })
        }
        _ => Reaction::Proper,
    });
    let write = lun.write(0, Buffer::zeroed(4096), false);
    world.run(write).unwrap();
    assert_eq!(*told.lock().unwrap(), [ContentAnswer::Another], "what it says once it is there counts");
}
