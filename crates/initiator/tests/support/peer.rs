//! The target's end of a connection, for tests: it logs in properly, and the test decides what it
//! sends.

use std::io::{self, IoSlice};

use base::serial::Serial32;
use block::Buffer;
use iscsi::framing::{DataSegment, Destination, Digests, Progress, ReceivedPdu, Receiver, TransmitQueue};
use iscsi::negotiation::{Negotiator, Offer};
use iscsi::pdu::{AdditionalHeaders, Bhs, Header, LoginRequest, LoginResponse, LoginStage, LoginStatus};
use iscsi::text::Keys;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// The target's end of a connection.
pub(crate) struct Peer {
    stream: DuplexStream,
    receiver: Receiver,
    transmit: TransmitQueue,
    stat_sn: Serial32,
    /// The portal group it says it is in.
    group: &'static str,
}

pub(crate) const WINDOW: (Serial32, Serial32) = (Serial32(1), Serial32(64));

impl Peer {
    pub(crate) fn new(stream: DuplexStream, group: &'static str) -> Self {
        let (receiver, transmit) = (Receiver::new(1 << 20), TransmitQueue::new(Digests::default()));
        Self { stream, receiver, transmit, stat_sn: Serial32(1), group }
    }

    pub(crate) async fn log_in(&mut self) -> io::Result<()> {
        let mut negotiator = Negotiator::target(Offer::target());
        loop {
            let pdu = self.receive().await?;
            let Ok(Bhs::LoginRequest(request)) = pdu.header.bhs else { panic!("a login begins with a login request") };
            let keys = Keys::parse(pdu.data.bytes()).unwrap();
            let mut answers = negotiator.handle(request.current_stage.into(), &keys).unwrap();
            if keys.get("AuthMethod").is_some() {
                answers.push("AuthMethod", "None");
                answers.push("TargetPortalGroupTag", self.group);
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

    /// Answers the first request of a login with a redirection.
    pub(crate) async fn redirect(&mut self, address: &str) -> io::Result<()> {
        let pdu = self.receive().await?;
        let Ok(Bhs::LoginRequest(request)) = pdu.header.bhs else { panic!("a login begins with a login request") };
        let status = LoginStatus::TARGET_MOVED_TEMPORARILY;
        let response = LoginResponse { transit_to: None, status, ..self.login_response(&request) };
        self.send(&response, format!("TargetAddress={address}\0").into_bytes()).await
    }

    /// The number of the next status, of which there is none yet.
    pub(crate) fn stat_sn(&self) -> Serial32 {
        self.stat_sn
    }

    pub(crate) fn next_stat_sn(&mut self) -> Serial32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.next();
        stat_sn
    }

    pub(crate) async fn send<H: Header>(&mut self, header: &H, data: Vec<u8>) -> io::Result<()> {
        self.transmit.push(header, &AdditionalHeaders::default(), DataSegment::from(data));
        let mut slices = [IoSlice::new(&[]); 8];
        let count = self.transmit.io_slices(&mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        self.transmit.handle_transmitted(bytes.len());
        self.stream.write_all(&bytes).await
    }

    pub(crate) async fn receive(&mut self) -> io::Result<ReceivedPdu> {
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
