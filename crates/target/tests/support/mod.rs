//! An initiator made of framing and a script, and devices for it.
#![allow(dead_code, reason = "every test file takes what it needs of this")]

use std::sync::{Arc, Mutex};

use base::buffer::{Buffer, BufferPool};
use base::serial::Serial32;
use block::completion::SlotSender;
use block::memory::MemoryDevice;
use block::{Completion, Device, Geometry, Identity, Operation, Request, SharedDevice};
use iscsi::framing::{DataSegment, Destination, Digests, Progress, ReceivedPdu, Receiver, TransmitQueue};
use iscsi::pdu::*;
use iscsi::target::TargetPortal;
use iscsi::text::Keys;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use target::{Addresses, Target, TargetServer, TargetServerOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

pub mod endless;

pub const NAME: &str = "iqn.2026-01.io.example:disk";
pub const HOST: &str = "iqn.2026-01.io.example:host";
pub const READ_BUFFERS_BYTES: usize = 256 << 20;

pub fn ram_target(read_buffers: &BufferPool) -> Target {
    let identity = Identity { target: NAME.to_owned(), unit: "0".to_owned(), serial: "one".to_owned() };
    let options = LogicalUnitOptions { read_buffers: read_buffers.clone(), ..LogicalUnitOptions::default() };
    let luns = LunMap::new();
    luns.insert(0, LogicalUnit::new(Arc::new(MemoryDevice::new(64 << 20, identity)), options));
    Target::new(NAME, luns)
}

/// An initiator's end of a connection served over a stream in memory.
pub fn connect(server: &TargetServer) -> (Client<DuplexStream>, JoinHandle<iscsi::target::CloseReason>) {
    connect_from(server, "a test")
}

pub fn connect_from(
    server: &TargetServer,
    peer: &str,
) -> (Client<DuplexStream>, JoinHandle<iscsi::target::CloseReason>) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let server = server.clone();
    let addresses = Addresses { local: "127.0.0.1:3260".to_owned(), peer: peer.to_owned() };
    let serving = tokio::spawn(async move { server.serve_connection(theirs, addresses).await });
    (Client::new(ours), serving)
}

pub struct Client<S> {
    pub stream: S,
    pub receiver: Receiver,
    pub cmd_sn: Serial32,
    /// The ExpStatSN of commands: fixed, unless a test changes it.
    pub exp_stat_sn: Serial32,
    pub cid: u16,
    /// The LUN field of its commands.
    pub lun: u64,
    pub initiator_name: &'static str,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            receiver: Receiver::new(1 << 20),
            cmd_sn: Serial32(1),
            exp_stat_sn: Serial32(0),
            cid: 0,
            lun: 0,
            initiator_name: HOST,
        }
    }

    pub async fn send<H: Header>(&mut self, header: &H, data: Vec<u8>) {
        let mut queue = TransmitQueue::new(Digests::default());
        queue.push(header, &AdditionalHeaders::default(), DataSegment::from(data));
        let mut slices = [std::io::IoSlice::new(&[]); 4];
        let count = queue.io_slices(&mut slices);
        for slice in &slices[..count] {
            self.stream.write_all(slice).await.expect("the target listens");
        }
    }

    /// The next PDU, or `None` when the target closed the connection.
    pub async fn receive(&mut self) -> Option<ReceivedPdu> {
        loop {
            match self.receiver.poll().expect("the target frames its PDUs") {
                Progress::Pdu(pdu) => return Some(pdu),
                Progress::NeedPlace => {
                    let length = self.receiver.pending_header().expect("it waits").data_segment_bytes;
                    self.receiver.place(Destination::Buffer { buffer: Buffer::zeroed(length), offset: 0 });
                }
                Progress::NeedBytes => match self.stream.read(self.receiver.receive_space()).await {
                    Ok(0) | Err(_) => return None,
                    Ok(length) => self.receiver.handle_received(length),
                },
            }
        }
    }

    pub async fn receive_bhs(&mut self) -> Bhs {
        let pdu = self.receive().await.expect("the target answers");
        pdu.header.bhs.expect("the target sends valid headers")
    }

    /// Sends one login request that asks for the full feature phase at once.
    pub async fn try_log_in(&mut self, isid: u32, tsih: u16, keys: &[(&str, &str)]) -> LoginResponse {
        let mut all = vec![("InitiatorName", self.initiator_name)];
        if keys.iter().any(|(key, _)| *key == "TargetName") {
            all.extend([("MaxRecvDataSegmentLength", "1048576"), ("MaxBurstLength", "1048576")]);
        }
        all.extend_from_slice(keys);
        self.request_login(isid, tsih, Some(LoginStage::FullFeaturePhase), &all).await;
        match self.receive_bhs().await {
            Bhs::LoginResponse(response) => response,
            other => panic!("{other:?} is not a login response"),
        }
    }

    /// A login request of the operational stage, with just these keys.
    pub async fn request_login(&mut self, isid: u32, tsih: u16, transit_to: Option<LoginStage>, keys: &[(&str, &str)]) {
        let request = LoginRequest {
            is_continued: false,
            current_stage: LoginStage::OperationalNegotiation,
            transit_to,
            version_max: 0,
            version_min: 0,
            isid: Isid::random_format(isid, 0),
            tsih,
            initiator_task_tag: tag(1),
            cid: self.cid,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
        };
        self.send(&request, keys.iter().copied().collect::<Keys>().emit()).await;
    }

    pub async fn log_in(&mut self, isid: u32) -> LoginResponse {
        let response = self.try_log_in(isid, 0, &[("TargetName", NAME)]).await;
        assert_eq!(response.status, LoginStatus::SUCCESS);
        response
    }

    pub async fn command(&mut self, number: u32, cdb: &[u8], write: Option<Vec<u8>>, expected: u32) {
        let mut bytes = [0; 16];
        bytes[..cdb.len()].copy_from_slice(cdb);
        let command = ScsiCommand {
            is_immediate: false,
            is_final: true,
            reads: write.is_none() && expected > 0,
            writes: write.is_some(),
            attribute: TaskAttribute::Simple,
            lun: self.lun,
            initiator_task_tag: tag(number),
            expected_data_transfer_length: expected,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb: bytes,
        };
        self.cmd_sn = self.cmd_sn.next();
        self.send(&command, write.unwrap_or_default()).await;
    }

    /// A ping whose echo has its data.
    pub fn ping(&self, is_immediate: bool) -> NopOut {
        NopOut {
            is_immediate,
            lun: 0,
            initiator_task_tag: Some(tag(7)),
            target_transfer_tag: None,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
        }
    }

    /// Takes the power-on unit attention.
    pub async fn settle(&mut self) {
        for number in 0..2 {
            self.command(number, &[0; 6], None, 0).await;
            self.receive().await.expect("TEST UNIT READY is answered");
        }
    }

    /// The next answer, which ends a command, with its data. The next command acknowledges it.
    pub async fn acknowledge(&mut self) -> Vec<u8> {
        let pdu = self.receive().await.expect("the target answers");
        self.exp_stat_sn = match pdu.header.bhs.expect("the target sends valid headers") {
            Bhs::ScsiResponse(response) => response.stat_sn,
            Bhs::DataIn(data) => data.status.expect("one PDU carries it all").stat_sn,
            other => panic!("{other:?} ends no command"),
        }
        .next();
        pdu.data.bytes().to_vec()
    }

    /// Key, ASC and ASCQ of a command that must end in CHECK CONDITION; zeroes for GOOD. The next command acknowledges
    /// its answer.
    pub async fn sense_of(&mut self, cdb: &[u8], write: Option<Vec<u8>>) -> (u8, u8, u8) {
        let expected = write.as_ref().map_or(0, Vec::len) as u32;
        self.command(40, cdb, write, expected).await;
        let (stat_sn, sense) = self.answered_with_sense().await;
        self.exp_stat_sn = stat_sn.next();
        sense
    }

    /// The same of the next answer, with its StatSN. The next command does not acknowledge it.
    pub async fn answered_with_sense(&mut self) -> (Serial32, (u8, u8, u8)) {
        let pdu = self.receive().await.expect("it is answered");
        let Ok(Bhs::ScsiResponse(response)) = pdu.header.bhs else { panic!("{:?}", pdu.header.bhs) };
        let sense = match pdu.data.bytes() {
            [] => (0, 0, 0),
            sense => (sense[2 + 2] & 0x0f, sense[2 + 12], sense[2 + 13]),
        };
        (response.stat_sn, sense)
    }

    pub async fn log_out(&mut self) {
        let request = LogoutRequest {
            is_immediate: true,
            reason: LogoutReason::CloseSession,
            initiator_task_tag: tag(77),
            cid: 0,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
        };
        self.send(&request, Vec::new()).await;
    }
}

pub fn portal(text: &str) -> TargetPortal {
    TargetPortal { address: text.parse().unwrap(), group: 1 }
}

pub fn tag(value: u32) -> InitiatorTaskTag {
    InitiatorTaskTag::new(value).expect("not the reserved value")
}

/// READ(10) or WRITE(10) of 512-byte blocks.
pub fn cdb10(operation_code: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let [a, b, c, d] = lba.to_be_bytes();
    let [high, low] = blocks.to_be_bytes();
    [operation_code, 0, a, b, c, d, 0, high, low, 0]
}

/// A device whose writes wait until the test releases them.
pub struct HeldDevice {
    pub below: MemoryDevice,
    pub held: Mutex<Vec<(Request, SlotSender)>>,
}

impl HeldDevice {
    pub fn new(bytes: u64) -> Self {
        Self { below: MemoryDevice::new(bytes, Identity::default()), held: Mutex::default() }
    }

    pub fn release(&self) {
        for (request, sender) in self.held.lock().unwrap().drain(..) {
            sender.complete(self.below.submit(request).try_take().expect("memory answers at once"));
        }
    }
}

impl Device for HeldDevice {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if !matches!(request.operation, Operation::Write { .. }) {
            return self.below.submit(request);
        }
        let (completion, sender) = Completion::slot();
        self.held.lock().unwrap().push((request, sender));
        completion
    }
}

/// A server of a held device, a session on it, and a write of one block of sevens that the device holds.
pub async fn with_a_held_write() -> (Arc<HeldDevice>, TargetServer, Client<DuplexStream>) {
    with_a_held_write_at(TargetServerOptions::default()).await
}

/// The same at a server that is set up so.
pub async fn with_a_held_write_at(
    options: TargetServerOptions,
) -> (Arc<HeldDevice>, TargetServer, Client<DuplexStream>) {
    let device = Arc::new(HeldDevice::new(1 << 20));
    let luns = LunMap::new();
    luns.insert(0, LogicalUnit::new(Arc::clone(&device) as SharedDevice, LogicalUnitOptions::default()));
    let server = TargetServer::new(vec![Target::new(NAME, luns)], options);
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    client.command(5, &cdb10(0x2a, 0, 1), Some(vec![7; 512]), 512).await;
    while device.held.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    (device, server, client)
}

/// Lets all tasks run that need neither time nor another event.
pub async fn let_things_happen() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// A server on real sockets, and the way to stop it.
pub struct Listening {
    pub addresses: Vec<std::net::SocketAddr>,
    stop: tokio::sync::oneshot::Sender<()>,
    running: JoinHandle<std::io::Result<()>>,
}

impl Listening {
    pub fn start(server: &TargetServer) -> Self {
        let bound = server.bind().expect("port 0 is always free");
        let addresses = bound.addresses().to_vec();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(bound.run(async move {
            let _ = stopped.await;
        }));
        Self { addresses, stop, running }
    }

    pub async fn connect(&self, portal: usize) -> Client<TcpStream> {
        Client::new(TcpStream::connect(self.addresses[portal]).await.expect("it listens"))
    }

    pub async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.running.await.expect("it does not panic").expect("it ends well");
    }
}
