//! The lease of a host that shares a LUN: a renewal that is not carried out is sent again, one that is stuck goes by
//! another connection, and nobody waits for ever for a lease that does not come.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::Clock as _;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, Device, Error, ErrorKind};
use initiator::{InitiatorOptions, RemoteLun, State};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, SharingOptions};
use scsi::sharing::{Message, MessageBody, Support, action_out};
use scsi::{Cdb, Sense, vpd};
use support::scripted::{Disk, Reaction, Reply, Scripted};
use support::{IQN, World, identity};
use target::{Target, TargetServer, TargetServerOptions};

const CLIENT: u64 = 1 << 32 | 1;
const LEASE: Duration = Duration::from_secs(10);
const REPLACEMENT: Duration = Duration::from_secs(60);
const BUSY: u8 = 8;

fn support(lease_ms: u32) -> Support {
    Support {
        is_paper_profile: false,
        locks_max: 64,
        lease_ms,
        callback_ms: 10_000,
        callback_ms_max: 60_000,
        hold_ms_min: 20,
        block_bytes: 4096,
        untaken_max: 4096,
        prefetch_registers: true,
        withholds: false,
    }
}

/// What the target of a test does.
struct Orders {
    /// The lease that the unit says it grants, and the one that it grants, in milliseconds.
    leases: (u32, u32),
    /// How many orders have come.
    count: AtomicU32,
    messages: AtomicU32,
    /// The answer to each renewal; none for *done*.
    renewal: Mutex<Box<dyn FnMut() -> Option<Reply> + Send>>,
}

impl Orders {
    fn react(&self, disk: &Disk, cdb: &Cdb) -> Reaction {
        match *cdb {
            Cdb::Inquiry { is_vpd: true, page: vpd::page::SUPPORTED_PAGES, .. } => {
                Reaction::Answer(Reply::data(vpd::emit_supported_pages(&[0, vpd::page::SHARING])))
            }
            Cdb::Inquiry { is_vpd: true, page: vpd::page::SHARING, .. } => {
                Reaction::Answer(Reply::data(support(self.leases.0).emit()))
            }
            Cdb::SharingOut { service_action: action_out::REGISTER, .. } => {
                self.count.fetch_add(1, Ordering::Relaxed);
                let key = *disk.data_out.first_chunk().unwrap();
                let body = MessageBody::Registered { lease_ms: self.leases.1, grace_ms: 0, key, proof: [9; 32] };
                let number = 1 + u64::from(self.messages.fetch_add(1, Ordering::Relaxed));
                Reaction::Tell(Box::new(std::iter::once(Message { lun: 0, client: CLIENT, number, body })))
            }
            Cdb::SharingOut { service_action: action_out::RENEW, .. } => {
                self.count.fetch_add(1, Ordering::Relaxed);
                Reaction::Answer(self.renewal.lock().unwrap()().or(Reply::data(Vec::new())))
            }
            Cdb::SharingOut { .. } => Reaction::Answer(Reply::data(Vec::new())),
            _ => Reaction::Proper,
        }
    }
}

/// A target of a unit with these leases, and an attachment to it.
fn attached(leases: (u32, u32)) -> (World, Scripted, Arc<Orders>, Result<Arc<RemoteLun>, Error>) {
    let mut world = World::new(1);
    let target = Scripted::new(&world);
    let (count, messages) = (AtomicU32::new(0), AtomicU32::new(0));
    let orders = Arc::new(Orders { leases, count, messages, renewal: Mutex::new(Box::new(|| None)) });
    let script = Arc::clone(&orders);
    target.tell(move |disk, cdb| script.react(disk, cdb));
    let options = InitiatorOptions { is_shared: true, replacement_timeout: REPLACEMENT, ..world.options() };
    let attached = world.run(initiator::connect(options, Arc::new(target.clone())));
    let lun = attached.map(|(lun, driver)| {
        world.executor.spawn(driver);
        lun
    });
    (world, target, orders, lun)
}

fn joined(world: &mut World, lun: &Arc<RemoteLun>) -> Result<(), Error> {
    let lun = Arc::clone(lun);
    world.run(async move { lun.joined().await })
}

fn read(world: &mut World, lun: &Arc<RemoteLun>) -> Result<(), Error> {
    let read = lun.read(0, Buffer::zeroed(512));
    world.run(read).map(drop)
}

/// The lease is over, as of a target that was stopped, and then one renewal is answered BUSY.
#[test]
fn a_renewal_that_one_busy_answers_is_sent_again_also_when_no_lease_lasts() {
    let (mut world, _, orders, lun) = attached((10_000, 10_000));
    let lun = lun.unwrap();
    joined(&mut world, &lun).unwrap();
    let until = world.clock.now() + LEASE;
    let (clock, mut is_told) = (world.clock.clone(), false);
    *orders.renewal.lock().unwrap() = Box::new(move || {
        let is_stopped = clock.now() < until;
        let is_busy = is_stopped || !std::mem::replace(&mut is_told, true);
        is_busy.then(|| Reply { status: BUSY, ..Reply::default() })
    });
    world.pass(LEASE + Duration::from_secs(2));
    assert!(lun.status().sharing.unwrap().is_alive);
    read(&mut world, &lun).unwrap();
    assert_eq!(lun.status().session_count, 1);
}

#[test]
fn renewals_that_are_never_carried_out_are_few_and_requests_end_in_time_and_say_why() {
    let unknown = Reply::sense(Sense::SHARING_UNKNOWN_CLIENT).unwrap();
    for answer in [Reply { status: BUSY, ..Reply::default() }, unknown] {
        let (mut world, _, orders, lun) = attached((10_000, 10_000));
        let lun = lun.unwrap();
        joined(&mut world, &lun).unwrap();
        *orders.renewal.lock().unwrap() = Box::new(move || Some(answer.clone()));
        world.pass(LEASE);
        let (before, began) = (orders.count.load(Ordering::Relaxed), world.clock.now());
        let error = read(&mut world, &lun).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("lease"), "{error}");
        let time = world.clock.now().since(began);
        assert!(time >= REPLACEMENT && time < REPLACEMENT + Duration::from_secs(2), "{time:?}");
        let sent = orders.count.load(Ordering::Relaxed) - before;
        assert!(sent < 200, "{sent} orders in {time:?}");
        let status = lun.status();
        assert!(status.last_error.is_some_and(|words| words.contains("lease")));
        assert_eq!(status.sharing.unwrap().lives, 1);
        *orders.renewal.lock().unwrap() = Box::new(|| None);
        world.pass(Duration::from_secs(10));
        read(&mut world, &lun).unwrap();
    }
}

/// Whether the unit says so before, or grants less than it says.
#[test]
fn a_lease_that_is_too_short_to_be_of_use_is_refused_with_words_and_asked_for_seldom() {
    let (_, _, _, lun) = attached((100, 100));
    let error = lun.err().unwrap();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("a lease of 100 ms"), "{error}");
    for lease_ms in [0, 1, 999] {
        let (mut world, target, orders, lun) = attached((10_000, lease_ms));
        let lun = lun.unwrap();
        let error = joined(&mut world, &lun).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("lease of"), "{error}");
        read(&mut world, &lun).unwrap_err();
        world.pass(Duration::from_secs(60));
        let (sessions, count) = (target.disk().session_count, orders.count.load(Ordering::Relaxed));
        assert!(sessions < 60 && count < 100, "{sessions} sessions, {count} orders");
        assert!(!lun.copies().unwrap().may_use());
        assert!(lun.status().last_error.is_some());
    }
}

/// A session of two connections, of which the one that carries the renewals carries nothing any more, and pings find it
/// out too late.
#[test]
fn a_renewal_that_is_stuck_on_one_connection_goes_by_another_and_the_lease_goes_on() {
    for frozen in [0, 1] {
        let mut world = World::new(1);
        let clock = Arc::new(world.clock.clone());
        let device = Arc::new(MemoryDevice::new(1 << 20, identity("shared")));
        let options = LogicalUnitOptions {
            sharing: Some(SharingOptions::default()),
            clock: Some(clock.clone()),
            ..LogicalUnitOptions::default()
        };
        let unit = LogicalUnit::new(device, options);
        world.workers.spawn(unit.run());
        let luns = LunMap::new();
        luns.insert(0, unit);
        let server = TargetServer::with_clock(vec![Target::new(IQN, luns)], TargetServerOptions::default(), clock);
        world.network.set_server(Some(server));
        let options =
            InitiatorOptions { is_shared: true, connections: 2, keepalive_interval: Duration::ZERO, ..world.options() };
        let lun = world.connect(options).unwrap();
        world.pass(Duration::from_secs(1));
        assert_eq!(lun.status().connections, 2);
        joined(&mut world, &lun).unwrap();
        world.network.freeze_one(frozen);
        for _ in 0..60 {
            world.pass(Duration::from_secs(1));
            let status = lun.status();
            assert!(status.sharing.is_some_and(|sharing| sharing.is_alive), "at {:?}", world.clock.now());
            assert_eq!((status.state, status.session_count), (State::Online, 1));
        }
    }
}
