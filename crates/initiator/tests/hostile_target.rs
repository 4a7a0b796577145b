//! Targets that log in properly and then misbehave: whoever connects gets an error in time, and holds little meanwhile.

mod support;

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use base::clock::{Clock, VirtualClock};
use base::serial::Serial32;
use block::completion::Workers;
use block::{Buffer, ErrorKind};
use initiator::{BoxedStream, Connecting, Connector, InitiatorOptions, discover};
use iscsi::framing::{DataSegment, Destination, Digests, Progress, ReceivedPdu, Receiver, TransmitQueue};
use iscsi::negotiation::{Negotiator, Offer};
use iscsi::pdu::{
    AdditionalHeaders, AsyncEvent, AsyncMessage, Bhs, Header, LoginRequest, LoginResponse, LoginStage, LoginStatus,
    NopIn, TargetTransferTag, TextResponse,
};
use iscsi::text::Keys;
use iscsi::url::Portal;
use support::World;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// What a target does once it is logged in.
#[derive(Clone, Copy, Debug)]
enum Misdeed {
    /// Answers each text request after a second, with nothing, and says that there is more.
    EndlessList,
    /// Says that it wants a logout, again and again, and answers nothing.
    Messages,
    /// Pings, again and again, and reads nothing.
    Pings,
}

/// Connects to a target that does this.
struct Misdoer {
    misdeed: Misdeed,
    clock: VirtualClock,
    workers: Workers,
}

impl Connector for Misdoer {
    fn connect(&self, _portal: &Portal) -> Connecting<'_> {
        let (near, far) = tokio::io::duplex(64 << 10);
        let peer = Peer {
            stream: far,
            receiver: Receiver::new(1 << 20),
            transmit: TransmitQueue::new(Digests::default()),
            stat_sn: Serial32(1),
        };
        let (misdeed, clock) = (self.misdeed, self.clock.clone());
        self.workers.spawn(async move {
            // The error is that the initiator has closed the connection.
            let _ = peer.run(misdeed, clock).await;
        });
        Box::pin(async move { Ok(Box::new(near) as BoxedStream) })
    }
}

/// The target's end of a connection.
struct Peer {
    stream: DuplexStream,
    receiver: Receiver,
    transmit: TransmitQueue,
    stat_sn: Serial32,
}

const WINDOW: (Serial32, Serial32) = (Serial32(1), Serial32(64));

impl Peer {
    async fn run(mut self, misdeed: Misdeed, clock: VirtualClock) -> io::Result<()> {
        self.log_in().await?;
        match misdeed {
            Misdeed::EndlessList => loop {
                let Ok(Bhs::TextRequest(request)) = self.receive().await?.header.bhs else { continue };
                clock.sleep(Duration::from_secs(1)).await;
                let response = TextResponse {
                    is_continued: false,
                    target_transfer_tag: TargetTransferTag::new(7),
                    lun: 0,
                    initiator_task_tag: request.initiator_task_tag,
                    stat_sn: self.next_stat_sn(),
                    exp_cmd_sn: WINDOW.0,
                    max_cmd_sn: WINDOW.1,
                };
                self.send(&response, Vec::new()).await?;
            },
            Misdeed::Messages => loop {
                let message = AsyncMessage {
                    event: AsyncEvent::ScsiAsyncEvent,
                    lun: 0,
                    stat_sn: self.next_stat_sn(),
                    exp_cmd_sn: WINDOW.0,
                    max_cmd_sn: WINDOW.1,
                };
                self.send(&message, vec![0; 64]).await?;
            },
            Misdeed::Pings => loop {
                let nop = NopIn {
                    lun: 0,
                    initiator_task_tag: None,
                    target_transfer_tag: TargetTransferTag::new(7),
                    stat_sn: self.stat_sn,
                    exp_cmd_sn: WINDOW.0,
                    max_cmd_sn: WINDOW.1,
                };
                self.send(&nop, Vec::new()).await?;
            },
        }
    }

    async fn log_in(&mut self) -> io::Result<()> {
        let mut negotiator = Negotiator::target(Offer::target());
        loop {
            let pdu = self.receive().await?;
            let Ok(Bhs::LoginRequest(request)) = pdu.header.bhs else { panic!("a login begins with a login request") };
            let keys = Keys::parse(pdu.data.bytes()).unwrap();
            let mut answers = negotiator.handle(request.current_stage.into(), &keys).unwrap();
            if keys.get("AuthMethod").is_some() {
                answers.push("AuthMethod", "None");
            } else {
                answers.append(negotiator.propose());
            }
            let response = self.login_response(&request);
            self.send(&response, answers.emit()).await?;
            if request.transit_to == Some(LoginStage::FullFeaturePhase) {
                return Ok(());
            }
        }
    }

    fn login_response(&mut self, request: &LoginRequest) -> LoginResponse {
        LoginResponse {
            is_continued: false,
            current_stage: request.current_stage,
            transit_to: request.transit_to,
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih: if request.transit_to == Some(LoginStage::FullFeaturePhase) { 9 } else { 0 },
            initiator_task_tag: request.initiator_task_tag,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: WINDOW.0,
            max_cmd_sn: WINDOW.1,
            status: LoginStatus::SUCCESS,
        }
    }

    fn next_stat_sn(&mut self) -> Serial32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.next();
        stat_sn
    }

    async fn send<H: Header>(&mut self, header: &H, data: Vec<u8>) -> io::Result<()> {
        self.transmit.push(header, &AdditionalHeaders::default(), DataSegment::from(data));
        let mut slices = [IoSlice::new(&[]); 8];
        let count = self.transmit.io_slices(&mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        self.transmit.handle_transmitted(bytes.len());
        self.stream.write_all(&bytes).await
    }

    async fn receive(&mut self) -> io::Result<ReceivedPdu> {
        loop {
            match self.receiver.poll().expect("an initiator that plays by the rules") {
                Progress::Pdu(pdu) => return Ok(pdu),
                Progress::NeedPlace => {
                    let length = self.receiver.pending_header().map_or(0, |header| header.data_segment_bytes);
                    self.receiver.place(Destination::Buffer { buffer: Buffer::zeroed(length), offset: 0 });
                }
                Progress::NeedBytes => {
                    let length = self.stream.read(self.receiver.receive_space()).await?;
                    if length == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.receiver.handle_received(length);
                }
            }
        }
    }
}

fn misdoer(world: &World, misdeed: Misdeed) -> Arc<Misdoer> {
    Arc::new(Misdoer { misdeed, clock: world.clock.clone(), workers: world.workers.clone() })
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
