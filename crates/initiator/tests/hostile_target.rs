//! Targets that log in properly and then misbehave: the initiator returns an error in time, and
//! uses little memory.

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::clock::{Clock, VirtualClock};
use base::serial::Serial32;
use block::completion::Workers;
use block::device::DeviceExt;
use block::{Buffer, Device, ErrorKind};
use initiator::{BoxedStream, Connecting, Connector, InitiatorOptions, discover};
use iscsi::pdu::{AsyncEvent, AsyncMessage, Bhs, DataIn, NopIn, TargetTransferTag, TextResponse};
use iscsi::url::Portal;
use scsi::sharing::{Message, MessageBody, Support, action_out};
use scsi::{Cdb, vpd};
use support::World;
use support::peer::{Peer, WINDOW};
use support::scripted::{Reaction, Reply, Scripted};
use tokio::io::{AsyncReadExt, DuplexStream};

/// What a target does once it is logged in.
#[derive(Clone, Copy, Debug)]
enum Misdeed {
    /// Answers each text request after a second, with nothing, and says that there is more.
    EndlessList,
    /// Says that it wants a logout, again and again, and answers nothing.
    Messages,
    /// Pings, again and again, and reads nothing.
    Pings,
    /// Answers the first command with data of no bytes, again and again, and with no status.
    EmptyData,
    /// Says at each login that the target is elsewhere.
    Redirections,
}

/// Connects to a target that does this.
struct Misdoer {
    misdeed: Misdeed,
    clock: VirtualClock,
    workers: Workers,
    connection_count: AtomicU64,
}

impl Connector for Misdoer {
    fn connect(&self, _portal: &Portal) -> Connecting<'_> {
        self.connection_count.fetch_add(1, Ordering::Relaxed);
        let (near, far) = tokio::io::duplex(64 << 10);
        let peer = Peer::new(far, "1");
        let (misdeed, clock) = (self.misdeed, self.clock.clone());
        self.workers.spawn(async move {
            // The error is that the initiator has closed the connection.
            let _ = run(peer, misdeed, clock).await;
        });
        Box::pin(async move { Ok(Box::new(near) as BoxedStream) })
    }
}

async fn run(mut peer: Peer, misdeed: Misdeed, clock: VirtualClock) -> io::Result<()> {
    if matches!(misdeed, Misdeed::Redirections) {
        return peer.redirect("10.0.0.2:3260").await;
    }
    peer.log_in().await?;
    match misdeed {
        Misdeed::Redirections => Ok(()),
        Misdeed::EndlessList => loop {
            let Ok(Bhs::TextRequest(request)) = peer.receive().await?.header.bhs else { continue };
            clock.sleep(Duration::from_secs(1)).await;
            let response = TextResponse {
                is_continued: false,
                target_transfer_tag: TargetTransferTag::new(7),
                lun: 0,
                initiator_task_tag: request.initiator_task_tag,
                stat_sn: peer.next_stat_sn(),
                exp_cmd_sn: WINDOW.0,
                max_cmd_sn: WINDOW.1,
            };
            peer.send(&response, Vec::new()).await?;
        },
        Misdeed::Messages => loop {
            let message = AsyncMessage {
                event: AsyncEvent::ScsiAsyncEvent,
                lun: 0,
                stat_sn: peer.next_stat_sn(),
                exp_cmd_sn: WINDOW.0,
                max_cmd_sn: WINDOW.1,
            };
            peer.send(&message, vec![0; 64]).await?;
        },
        Misdeed::Pings => loop {
            let nop = NopIn {
                lun: 0,
                initiator_task_tag: None,
                target_transfer_tag: TargetTransferTag::new(7),
                stat_sn: peer.stat_sn(),
                exp_cmd_sn: WINDOW.0,
                max_cmd_sn: WINDOW.1,
            };
            peer.send(&nop, Vec::new()).await?;
        },
        Misdeed::EmptyData => {
            let command = loop {
                if let Ok(Bhs::ScsiCommand(command)) = peer.receive().await?.header.bhs {
                    break command;
                }
            };
            let mut data_sn = Serial32(0);
            loop {
                clock.sleep(Duration::from_millis(10)).await;
                let data = DataIn {
                    is_final: false,
                    wants_acknowledgement: false,
                    status: None,
                    lun: 0,
                    initiator_task_tag: command.initiator_task_tag,
                    target_transfer_tag: None,
                    exp_cmd_sn: WINDOW.0,
                    max_cmd_sn: WINDOW.1,
                    data_sn,
                    buffer_offset: 0,
                };
                data_sn = data_sn.next();
                peer.send(&data, Vec::new()).await?;
            }
        }
    }
}

fn misdoer(world: &World, misdeed: Misdeed) -> Arc<Misdoer> {
    let (clock, workers) = (world.clock.clone(), world.workers.clone());
    Arc::new(Misdoer { misdeed, clock, workers, connection_count: AtomicU64::new(0) })
}

#[test]
fn a_list_of_targets_that_does_not_end_is_given_up() {
    let mut world = World::new(1);
    let began = world.clock.now();
    let options = InitiatorOptions { command_timeout: Duration::from_secs(20), ..world.options() };
    let connector = misdoer(&world, Misdeed::EndlessList);
    let error = world.run(discover(options, connector)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(world.clock.now().since(began), Duration::from_secs(20));
}

#[test]
fn a_target_that_floods_whoever_looks_at_its_lun_is_left() {
    for misdeed in [Misdeed::Messages, Misdeed::Pings] {
        let mut world = World::new(2);
        let (options, connector) = (world.options(), misdoer(&world, misdeed));
        let error = world.run(initiator::connect(options, connector)).map(drop).unwrap_err();
        assert!(error.to_string().contains("protocol error"), "{misdeed:?}: {error}");
    }
}

#[test]
fn redirections_are_followed_a_few_times_and_no_more() {
    let mut world = World::new(5);
    let (options, connector) = (world.options(), misdoer(&world, Misdeed::Redirections));
    let connecting = initiator::connect(options, Arc::clone(&connector) as Arc<dyn Connector>);
    let error = world.run(connecting).map(drop).unwrap_err();
    assert!(error.to_string().contains("redirects in circles"), "{error}");
    assert_eq!(connector.connection_count.load(Ordering::Relaxed), 5, "the first one, and four that follow");
}

/// Signs of life are no progress: a command ends at its timeout, and its abort has a timeout of its
/// own.
#[test]
fn a_command_that_is_answered_with_empty_data_without_end_is_given_up_in_time() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let mut world = World::new(4);
    let began = world.clock.now();
    let options = InitiatorOptions { command_timeout: TIMEOUT, ..world.options() };
    let connector = misdoer(&world, Misdeed::EmptyData);
    let error = world.run(initiator::connect(options, connector)).map(drop).unwrap_err();
    let took = world.clock.now().since(began);
    assert!(took <= 4 * TIMEOUT, "{took:?}: {error}");
}

/// Each login succeeds, and no session is of use: requests end at their timeout, also those that
/// the target never flooded.
#[test]
fn requests_at_a_target_that_floods_every_session_end_in_their_time() {
    const TIME: Duration = Duration::from_secs(6);
    let mut world = World::new(6);
    let target = Scripted::new(&world);
    let options = InitiatorOptions {
        command_timeout: Duration::from_secs(3),
        keepalive_interval: Duration::from_secs(1),
        replacement_timeout: TIME,
        ..world.options()
    };
    let lun = world.run(initiator::connect(options, Arc::new(target.clone())));
    let (lun, driver) = lun.unwrap();
    world.executor.spawn(driver);
    target.tell(|_, cdb| match cdb {
        Cdb::Write(_) => Reaction::Flood,
        _ => Reaction::Proper,
    });
    let began = world.clock.now();
    // Two of each range: the later one waits for the earlier.
    let writes: Vec<_> =
        (0..8).map(|part| lun.write(part % 4 * (256 << 10), Buffer::zeroed(256 << 10), false)).collect();
    for write in writes {
        let kind = world.run(write).map(drop).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::OutcomeUnknown | ErrorKind::TimedOut), "{kind:?}");
    }
    let took = world.clock.now().since(began);
    assert!(took <= TIME + Duration::from_millis(100), "{took:?}");
    // Reconnecting goes on, and succeeds. An idle session counts as one of use.
    target.tell(|_, _| Reaction::Proper);
    world.pass(Duration::from_secs(10));
    let write = lun.write(0, Buffer::zeroed(512), false);
    world.run(write).unwrap();
    world.pass(Duration::from_secs(60));
    let mut is_left = false;
    target.tell(move |_, cdb| match cdb {
        Cdb::Write(_) if !std::mem::replace(&mut is_left, true) => Reaction::Flood,
        _ => Reaction::Proper,
    });
    let write = lun.write(0, Buffer::zeroed(256 << 10), false);
    world.run(write).expect("it has its whole time");
}

/// What it was asked for it would remember.
#[test]
fn a_target_that_asks_for_copies_without_end_loses_its_session_and_the_copies() {
    const CLIENT: u64 = 1 << 32 | 1;
    let support = Support {
        is_paper_profile: false,
        locks_max: 64,
        lease_ms: 10_000,
        callback_ms: 10_000,
        callback_ms_max: 60_000,
        hold_ms_min: 20,
        block_bytes: 4096,
        untaken_max: 4096,
        prefetch_registers: true,
        withholds: true,
    };
    let message = |number, body| Message { lun: 0, client: CLIENT, number, body };
    let mut world = World::new(8);
    let target = Scripted::new(&world);
    target.tell(move |disk, cdb| match *cdb {
        Cdb::Inquiry { is_vpd: true, page: vpd::page::SUPPORTED_PAGES, .. } => {
            Reaction::Answer(Reply::data(vpd::emit_supported_pages(&[0, vpd::page::SHARING])))
        }
        Cdb::Inquiry { is_vpd: true, page: vpd::page::SHARING, .. } => Reaction::Answer(Reply::data(support.emit())),
        Cdb::SharingOut { service_action: action_out::REGISTER, .. } if disk.session_count == 1 => {
            let key = *disk.data_out.first_chunk().unwrap();
            let registered = MessageBody::Registered { lease_ms: 10_000, grace_ms: 0, key, proof: [9; 32] };
            let purge = |callback| MessageBody::Purge { callback, first_block: 0, block_count: 1, deadline_ms: 10_000 };
            let purges = (1..100_000).map(move |callback| message(1 + callback, purge(callback)));
            Reaction::Tell(Box::new(std::iter::once(message(1, registered)).chain(purges)))
        }
        Cdb::SharingOut { .. } => Reaction::Answer(None),
        _ => Reaction::Proper,
    });
    let options = InitiatorOptions { is_shared: true, command_timeout: Duration::from_secs(300), ..world.options() };
    let (lun, driver) = world.run(initiator::connect(options, Arc::new(target.clone()))).unwrap();
    world.executor.spawn(driver);
    world.pass(Duration::from_secs(1));
    assert_eq!(target.disk().session_count, 2);
    assert!(!lun.copies().unwrap().may_use());
    let purges = lun.status().sharing.unwrap().purges;
    assert!(purges < 70_000, "{purges}");
}

/// Nothing of an attempt that is dropped stays: the connection is closed at once.
#[test]
fn an_attempt_that_is_dropped_closes_its_connection() {
    let mut world = World::new(3);
    let (near, mut far) = tokio::io::duplex(64 << 10);
    let connector = Arc::new(Silent(std::sync::Mutex::new(Some(near))));
    let options = world.options();
    let attempt = async move {
        let mut attempt = Box::pin(initiator::connect(options, connector));
        let is_pending =
            std::future::poll_fn(|context| std::task::Poll::Ready(attempt.as_mut().poll(context).is_pending()));
        assert!(is_pending.await, "the target says nothing");
    };
    world.run(attempt);
    let began = world.clock.now();
    let said = world.run(async move {
        let mut said = Vec::new();
        far.read_to_end(&mut said).await.map(|length| length > 0)
    });
    assert!(said.unwrap(), "the login had begun");
    assert_eq!(world.clock.now(), began);
}

/// Accepts one connection and says nothing.
struct Silent(std::sync::Mutex<Option<DuplexStream>>);

impl Connector for Silent {
    fn connect(&self, _portal: &Portal) -> Connecting<'_> {
        let stream = self.0.lock().unwrap().take().ok_or(io::ErrorKind::ConnectionRefused);
        Box::pin(async move { Ok(Box::new(stream?) as BoxedStream) })
    }
}
