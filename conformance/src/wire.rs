//! One connection: PDUs out, PDUs in, numbers.
//!
//! It keeps the numbers a good initiator would, and nothing else: behaviours break the rules themselves.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use base::buffer::Buffer;
use base::serial::Serial32;
use iscsi::framing::{DataSegment, Destination, Digests, Progress, ReceivedPdu, Receiver, TransmitQueue};
use iscsi::pdu::*;
use iscsi::text::Keys;

use crate::bench::name;
use crate::verdict::{Outcome, ensure, fail};

/// Time an answer may take.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which no answer is taken for none.
pub const SILENCE: Duration = Duration::from_millis(200);

/// Bytes of one data segment we receive when nothing else is said.
const SEGMENT_BYTES: u32 = 1 << 20;

/// Data-In PDUs with their data.
pub type Pieces = Vec<(DataIn, Vec<u8>)>;

/// A connection to the target.
pub struct Wire {
    stream: TcpStream,
    receiver: Receiver,
    digests: Digests,
    /// LUN field of commands.
    pub lun: u64,
    /// CmdSN of the next command.
    pub cmd_sn: Serial32,
    /// MaxCmdSN as last heard.
    pub max_cmd_sn: Serial32,
    /// ExpCmdSN as last heard.
    pub exp_cmd_sn: Serial32,
    /// ExpStatSN as it is sent; it follows what is received while `acknowledges`.
    pub exp_stat_sn: Serial32,
    /// Whether received responses are acknowledged with what is sent next.
    pub acknowledges: bool,
    /// Of the session.
    pub isid: Isid,
    /// Of the session.
    pub tsih: u16,
    /// Of this connection.
    pub cid: u16,
    /// What the target said during login.
    pub answers: Keys,
    tag_next: u32,
}

impl Wire {
    /// A connection that has said nothing yet.
    ///
    /// # Errors
    /// When nothing listens.
    pub fn connect(address: SocketAddr, lun: u64) -> Outcome<Self> {
        let stream = match TcpStream::connect_timeout(&address, ANSWER_TIMEOUT) {
            Ok(stream) => stream,
            Err(error) => return fail(format!("no connection to {address}: {error}")),
        };
        let _ = stream.set_nodelay(true);
        Ok(Self {
            stream,
            receiver: Receiver::new(SEGMENT_BYTES),
            digests: Digests::default(),
            lun,
            cmd_sn: Serial32(0x1000),
            max_cmd_sn: Serial32(0x1000),
            exp_cmd_sn: Serial32(0x1000),
            exp_stat_sn: Serial32(0),
            acknowledges: true,
            isid: Isid::random_format(0, 0),
            tsih: 0,
            cid: 0,
            answers: Keys::new(),
            tag_next: 0x100,
        })
    }

    /// The login is over: digests and numbers are as agreed.
    pub fn enter_full_feature_phase(&mut self, response: &LoginResponse, isid: Isid, cid: u16) {
        let has = |key: &str| self.answers.get(key) == Some("CRC32C");
        self.digests = Digests { header: has("HeaderDigest"), data: has("DataDigest") };
        self.receiver.set_parameters(self.digests, SEGMENT_BYTES);
        (self.isid, self.tsih, self.cid) = (isid, response.tsih, cid);
    }

    /// A value that was agreed, or the standard's default.
    pub fn number(&self, key: &str, default: u32) -> u32 {
        self.answers.get(key).and_then(|value| value.parse().ok()).unwrap_or(default)
    }

    /// A task tag not used before.
    pub fn fresh_tag(&mut self) -> InitiatorTaskTag {
        self.tag_next += 1;
        InitiatorTaskTag::new(self.tag_next).expect("tags are small")
    }

    /// Sends a PDU.
    pub fn send<H: Header>(&mut self, header: &H, data: Vec<u8>) -> Outcome {
        let bytes = self.bytes(header, data);
        self.send_bytes(&bytes)
    }

    /// A PDU's bytes, with digests as agreed.
    pub fn bytes<H: Header>(&self, header: &H, data: Vec<u8>) -> Vec<u8> {
        let mut queue = TransmitQueue::new(self.digests);
        queue.push(header, &AdditionalHeaders::default(), DataSegment::from(data));
        let mut slices = [IoSlice::new(&[]); 4];
        let count = queue.io_slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    /// Sends any bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Outcome {
        match self.stream.write_all(bytes) {
            Ok(()) => Ok(()),
            Err(error) => fail(format!("the target closed the connection: {error}")),
        }
    }

    /// The next PDU within `patience`: `Ok(None)` when none comes.
    fn receive_within(&mut self, patience: Duration) -> Outcome<Option<ReceivedPdu>> {
        let deadline = Instant::now() + patience;
        loop {
            match self.receiver.poll() {
                Err(error) => return fail(format!("the target's framing is lost: {error}")),
                Ok(Progress::Pdu(pdu)) => match self.note(&pdu)? {
                    true => return Ok(Some(pdu)),
                    false => continue,
                },
                Ok(Progress::NeedPlace) => {
                    let length = self.receiver.pending_header().map_or(0, |header| header.data_segment_bytes);
                    self.receiver.place(Destination::Buffer { buffer: Buffer::zeroed(length), offset: 0 });
                    continue;
                }
                Ok(Progress::NeedBytes) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let _ = self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))));
            match self.stream.read(self.receiver.receive_space()) {
                Ok(0) => return fail("the target closed the connection"),
                Ok(length) => self.receiver.handle_received(length),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(error) => return fail(format!("the target closed the connection: {error}")),
            }
        }
    }

    /// Takes note of numbers; false for a ping, which is answered.
    fn note(&mut self, pdu: &ReceivedPdu) -> Outcome<bool> {
        let raw = &pdu.header.raw;
        let word = |at: usize| Serial32(u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]));
        let Ok(bhs) = &pdu.header.bhs else { return fail(format!("the target sends an invalid header: {raw:02x?}")) };
        let has_status = match bhs {
            Bhs::DataIn(data) => data.status.is_some(),
            Bhs::ReadyToTransfer(_) => false,
            Bhs::NopIn(nop) => nop.initiator_task_tag.is_some(),
            _ => true,
        };
        (self.exp_cmd_sn, self.max_cmd_sn) = (word(28), word(32));
        if has_status && self.acknowledges && !word(24).is_before(self.exp_stat_sn) {
            self.exp_stat_sn = word(24).next();
        }
        let Bhs::NopIn(NopIn { initiator_task_tag: None, target_transfer_tag: Some(tag), lun, .. }) = bhs else {
            return Ok(true);
        };
        let answer = NopOut {
            is_immediate: true,
            lun: *lun,
            initiator_task_tag: None,
            target_transfer_tag: Some(*tag),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        self.send(&answer, Vec::new())?;
        Ok(false)
    }

    /// The next PDU.
    pub fn receive(&mut self) -> Outcome<ReceivedPdu> {
        match self.receive_within(ANSWER_TIMEOUT)? {
            Some(pdu) => Ok(pdu),
            None => fail("no answer comes"),
        }
    }

    /// The next PDU's header.
    pub fn receive_bhs(&mut self) -> Outcome<Bhs> {
        match self.receive()?.header.bhs {
            Ok(bhs) => Ok(bhs),
            Err(error) => fail(format!("the target sends {error}")),
        }
    }

    /// Nothing comes for a while, and the connection stays.
    pub fn expect_silence(&mut self) -> Outcome {
        match self.receive_within(SILENCE)? {
            None => Ok(()),
            Some(pdu) => fail(format!("nothing should come, and there is {:?}", pdu.header.bhs.as_ref().map(name))),
        }
    }

    /// The target closes the connection, whatever it says before.
    pub fn expect_close(&mut self) -> Outcome {
        for _ in 0..8 {
            match self.receive_within(ANSWER_TIMEOUT) {
                Err(_) => return Ok(()),
                Ok(None) => break,
                Ok(Some(_)) => {}
            }
        }
        fail("the target does not close the connection")
    }

    /// A Reject with this reason.
    pub fn expect_reject(&mut self, reason: RejectReason) -> Outcome {
        match self.receive_bhs()? {
            Bhs::Reject(reject) if reject.reason == reason => Ok(()),
            Bhs::Reject(reject) => fail(format!("the reject says {:?}, not {reason:?}", reject.reason)),
            other => fail(format!("a reject should come, and there is {}", name(&other))),
        }
    }

    /// A SCSI response of a task; its status.
    pub fn status(&mut self, tag: InitiatorTaskTag) -> Outcome<u8> {
        match self.receive_bhs()? {
            Bhs::ScsiResponse(ScsiResponse {
                response: ServiceResponse::CommandCompleted { status },
                initiator_task_tag,
                ..
            }) if initiator_task_tag == tag => Ok(status),
            other => fail(format!("a response of task {tag:?} should come, and there is {}", name(&other))),
        }
    }

    /// A SCSI response of a task with status GOOD.
    pub fn expect_good(&mut self, tag: InitiatorTaskTag) -> Outcome {
        let status = self.status(tag)?;
        ensure(status == 0, format!("the status is {status:02x}h, not GOOD"))
    }

    /// An R2T of a task.
    pub fn r2t(&mut self, tag: InitiatorTaskTag) -> Outcome<ReadyToTransfer> {
        match self.receive_bhs()? {
            Bhs::ReadyToTransfer(r2t) if r2t.initiator_task_tag == tag => Ok(r2t),
            other => fail(format!("an R2T should come, and there is {}", name(&other))),
        }
    }

    /// A task management response.
    pub fn management_outcome(&mut self) -> Outcome<TaskManagementOutcome> {
        match self.receive_bhs()? {
            Bhs::TaskManagementResponse(response) => Ok(response.outcome),
            other => fail(format!("a task management response should come, and there is {}", name(&other))),
        }
    }

    /// A login response with its keys.
    pub fn login_response(&mut self) -> Outcome<(LoginResponse, Keys)> {
        let pdu = self.receive()?;
        match (&pdu.header.bhs, Keys::parse(pdu.data.bytes())) {
            (Ok(Bhs::LoginResponse(response)), Ok(keys)) => Ok((*response, keys)),
            (Ok(Bhs::LoginResponse(_)), Err(error)) => fail(format!("the login response is no text: {error}")),
            (other, _) => fail(format!("a login response should come, and there is {other:?}")),
        }
    }

    /// Data-In PDUs of a task up to its response: each with its data, and the status.
    pub fn read_all(&mut self, tag: InitiatorTaskTag) -> Outcome<(Pieces, u8)> {
        let mut pieces = Vec::new();
        loop {
            let pdu = self.receive()?;
            match pdu.header.bhs {
                Ok(Bhs::DataIn(data)) if data.initiator_task_tag == tag => {
                    pieces.push((data, pdu.data.bytes().to_vec()));
                    if let Some(status) = data.status {
                        return Ok((pieces, status.status));
                    }
                }
                Ok(Bhs::ScsiResponse(ScsiResponse {
                    response: ServiceResponse::CommandCompleted { status }, ..
                })) => return Ok((pieces, status)),
                other => return fail(format!("data of the task should come, and there is {other:?}")),
            }
        }
    }

    /// A command with the next CmdSN. `write` says which way `length` bytes go.
    pub fn command(&mut self, cdb: &[u8], write: bool, length: u32) -> ScsiCommand {
        let mut bytes = [0; 16];
        bytes[..cdb.len()].copy_from_slice(cdb);
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = cmd_sn.next();
        ScsiCommand {
            is_immediate: false,
            is_final: true,
            reads: !write && length > 0,
            writes: write && length > 0,
            attribute: TaskAttribute::Simple,
            lun: self.lun,
            initiator_task_tag: self.fresh_tag(),
            expected_data_transfer_length: length,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb: bytes,
        }
    }

    /// TEST UNIT READY.
    pub fn test_unit_ready(&mut self) -> ScsiCommand {
        self.command(&[0; 6], false, 0)
    }

    /// READ(10) of 512-byte blocks from LBA 0.
    pub fn read10(&mut self, blocks: u16) -> ScsiCommand {
        let [high, low] = blocks.to_be_bytes();
        self.command(&[0x28, 0, 0, 0, 0, 0, 0, high, low, 0], false, u32::from(blocks) * 512)
    }

    /// WRITE(10) of 512-byte blocks to LBA 0.
    pub fn write10(&mut self, blocks: u16) -> ScsiCommand {
        let [high, low] = blocks.to_be_bytes();
        self.command(&[0x2a, 0, 0, 0, 0, 0, 0, high, low, 0], true, u32::from(blocks) * 512)
    }

    /// Sends a command without data and checks that it ends well.
    pub fn check_alive(&mut self) -> Outcome {
        let command = self.test_unit_ready();
        self.send(&command, Vec::new())?;
        self.expect_good(command.initiator_task_tag)
    }

    /// Hears unit attentions until there are none.
    pub fn settle(&mut self) -> Outcome {
        for _ in 0..8 {
            let command = self.test_unit_ready();
            self.send(&command, Vec::new())?;
            if self.status(command.initiator_task_tag)? == 0 {
                return Ok(());
            }
        }
        fail("TEST UNIT READY does not come to succeed")
    }

    /// A Data-Out PDU.
    pub fn data_out(
        &mut self,
        task: InitiatorTaskTag,
        transfer: Option<TargetTransferTag>,
        data_sn: u32,
        offset: u32,
        is_final: bool,
    ) -> DataOut {
        DataOut {
            is_final,
            lun: self.lun,
            initiator_task_tag: task,
            target_transfer_tag: transfer,
            exp_stat_sn: self.exp_stat_sn,
            data_sn: Serial32(data_sn),
            buffer_offset: offset,
        }
    }

    /// Answers an R2T with one PDU per `segment` bytes.
    pub fn answer_r2t(&mut self, r2t: &ReadyToTransfer, all: &[u8], segment: usize) -> Outcome {
        let range = r2t.buffer_offset as usize..(r2t.buffer_offset + r2t.desired_data_transfer_length) as usize;
        let Some(data) = all.get(range) else { return fail("the R2T asks for more than the command has") };
        let count = data.chunks(segment).count();
        let mut offset = r2t.buffer_offset;
        for (index, chunk) in data.chunks(segment).enumerate() {
            let header = self.data_out(
                r2t.initiator_task_tag,
                Some(r2t.target_transfer_tag),
                index as u32,
                offset,
                index + 1 == count,
            );
            self.send(&header, chunk.to_vec())?;
            offset += chunk.len() as u32;
        }
        Ok(())
    }

    /// An immediate task management request.
    pub fn management(
        &mut self,
        function: TaskManagementFunction,
        referenced: Option<&ScsiCommand>,
    ) -> TaskManagementRequest {
        TaskManagementRequest {
            is_immediate: true,
            function: Ok(function),
            lun: self.lun,
            initiator_task_tag: self.fresh_tag(),
            referenced_task_tag: referenced.map(|command| command.initiator_task_tag),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ref_cmd_sn: referenced.map_or(Serial32(0), |command| command.cmd_sn),
            exp_data_sn: Serial32(0),
        }
    }

    /// Sends an immediate task management request and gives what came of it.
    pub fn manage(
        &mut self,
        function: TaskManagementFunction,
        referenced: Option<&ScsiCommand>,
    ) -> Outcome<TaskManagementOutcome> {
        let request = self.management(function, referenced);
        self.send(&request, Vec::new())?;
        self.management_outcome()
    }

    /// Sends an immediate Logout Request and gives the response.
    pub fn log_out(&mut self, reason: LogoutReason, cid: u16) -> Outcome<LogoutResponse> {
        let request = LogoutRequest {
            is_immediate: true,
            reason,
            initiator_task_tag: self.fresh_tag(),
            cid,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        self.send(&request, Vec::new())?;
        match self.receive_bhs()? {
            Bhs::LogoutResponse(response) => Ok(response),
            other => fail(format!("a logout response should come, and there is {}", name(&other))),
        }
    }

    /// Sends a SNACK.
    pub fn snack(&mut self, kind: SnackType) -> Outcome {
        let request = SnackRequest { kind, lun: self.lun, exp_stat_sn: self.exp_stat_sn };
        self.send(&request, Vec::new())
    }

    /// An immediate Text Request with `keys`.
    pub fn text_request(&mut self, transfer: Option<TargetTransferTag>) -> TextRequest {
        TextRequest {
            is_immediate: true,
            is_final: true,
            is_continued: false,
            lun: 0,
            initiator_task_tag: self.fresh_tag(),
            target_transfer_tag: transfer,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        }
    }

    /// An immediate NOP-Out that asks for an answer.
    pub fn nop_out(&mut self) -> NopOut {
        NopOut {
            is_immediate: true,
            lun: 0,
            initiator_task_tag: Some(self.fresh_tag()),
            target_transfer_tag: None,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        }
    }
}

/// Data that is not the same at any two places near each other.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 509) as u8).collect()
}
