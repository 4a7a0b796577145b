//! An iSCSI initiator of few words: it sends what it is told to, and reads only when it is told to.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use base::serial::Serial32;
use iscsi::framing::{DataSegment, Digests, TransmitQueue};
use iscsi::pdu::{
    AdditionalHeaders, BHS_BYTES, DataOut, Header, InitiatorTaskTag, Isid, LoginRequest, LoginStage, NopOut, Opcode,
    ReadyToTransfer, ScsiCommand, TaskAttribute, TextRequest,
};
use iscsi::text::Keys;

/// Time after which a target that takes nothing more is taken to have had enough.
const FULL_AFTER: Duration = Duration::from_millis(500);

/// A PDU as it is sent: its header, its data, and what pads it.
pub fn pdu_bytes<H: Header>(header: &H, data: Vec<u8>) -> Vec<u8> {
    let mut queue = TransmitQueue::new(Digests::default());
    queue.push(header, &AdditionalHeaders::default(), DataSegment::from(data));
    let mut slices = [IoSlice::new(&[]); 4];
    let count = queue.io_slices(&mut slices);
    slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
}

/// Reads one PDU: its header.
///
/// # Errors
/// Those of the connection.
pub fn read_pdu(stream: &mut TcpStream) -> io::Result<[u8; BHS_BYTES]> {
    let mut header = [0; BHS_BYTES];
    stream.read_exact(&mut header)?;
    let length = u32::from_be_bytes([0, header[5], header[6], header[7]]).next_multiple_of(4);
    stream.read_exact(&mut vec![0; length as usize])?;
    Ok(header)
}

/// A login of the first connection of the session `number`, whose first command has the number 1.
pub fn login_request(number: u32, current_stage: LoginStage, transit_to: Option<LoginStage>) -> LoginRequest {
    LoginRequest {
        is_continued: false,
        current_stage,
        transit_to,
        version_max: 0,
        version_min: 0,
        isid: Isid::random_format(number, 0),
        tsih: 0,
        initiator_task_tag: tag(1),
        cid: 0,
        cmd_sn: Serial32(1),
        exp_stat_sn: Serial32(0),
    }
}

/// A session of one connection in its full feature phase.
pub struct BareSession {
    stream: TcpStream,
    cmd_sn: Serial32,
}

impl BareSession {
    /// Logs in to `target` at `portal` with these keys beside the names, as the session `number` of `initiator`, and
    /// takes the unit attentions that come first.
    ///
    /// # Panics
    /// When the target refuses.
    pub fn log_in(portal: &str, target: &str, initiator: &str, number: u32, keys: &[(&'static str, &str)]) -> Self {
        let mut stream = TcpStream::connect(portal).expect("the target listens");
        let mut text = Keys::new();
        let names = [("InitiatorName", initiator), ("TargetName", target)];
        names.iter().chain(keys).for_each(|(key, value)| text.push(*key, *value));
        let request = login_request(number, LoginStage::OperationalNegotiation, Some(LoginStage::FullFeaturePhase));
        stream.write_all(&pdu_bytes(&request, text.emit())).expect("the target takes a login");
        let answer = read_pdu(&mut stream).expect("the target answers a login");
        assert_eq!((answer[0], answer[36]), (0x23, 0), "a login response of the class success (RFC 7143 11.13)");
        stream.set_write_timeout(Some(FULL_AFTER)).expect("it is a duration");
        let mut session = Self { stream, cmd_sn: Serial32(1) };
        for number in 0..2 {
            session.command(number, [0; 16], 0, false).expect("there is room");
            read_pdu(&mut session.stream).expect("TEST UNIT READY is answered");
        }
        session
    }

    /// Sends a command of which `expected` bytes are to come, or to go if it writes, none of them with the command.
    ///
    /// # Errors
    /// Those of the connection; among them that the target takes nothing more.
    pub fn command(&mut self, number: u32, cdb: [u8; 16], expected: u32, writes: bool) -> io::Result<()> {
        let command = ScsiCommand {
            is_immediate: false,
            is_final: true,
            reads: expected > 0 && !writes,
            writes,
            attribute: TaskAttribute::Simple,
            lun: 0,
            initiator_task_tag: tag(number),
            expected_data_transfer_length: expected,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
            cdb,
        };
        self.cmd_sn = self.cmd_sn.next();
        self.send(&command, Vec::new())
    }

    /// READ(16) of the first `bytes`, in blocks of 512 bytes.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn read(&mut self, number: u32, bytes: u32) -> io::Result<()> {
        self.command(number, cdb16(0x88, bytes / 512), bytes, false)
    }

    /// WRITE(16) of the first `bytes`, in blocks of 512 bytes; its data stays away.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn open_write(&mut self, number: u32, bytes: u32) -> io::Result<()> {
        self.command(number, cdb16(0x8a, bytes / 512), bytes, true)
    }

    /// WRITE(16) of the first `bytes`, in blocks of 512 bytes. What its first R2T asks for comes, but for the last one.
    ///
    /// # Errors
    /// As [`Self::command`]; among them that no R2T comes.
    pub fn unfinished_write(&mut self, number: u32, bytes: u32) -> io::Result<()> {
        self.open_write(number, bytes)?;
        self.stream.set_read_timeout(Some(FULL_AFTER))?;
        let asked = loop {
            let header = read_pdu(&mut self.stream)?;
            if Opcode::of(&header) == Some(Opcode::ReadyToTransfer) {
                break ReadyToTransfer::parse(&header).map_err(io::Error::other)?;
            }
        };
        let data = DataOut {
            is_final: false,
            lun: 0,
            initiator_task_tag: asked.initiator_task_tag,
            target_transfer_tag: Some(asked.target_transfer_tag),
            exp_stat_sn: Serial32(0),
            data_sn: Serial32(0),
            buffer_offset: asked.buffer_offset,
        };
        self.send(&data, vec![b'w'; asked.desired_data_transfer_length as usize - 1])
    }

    /// A ping whose echo has its data.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn ping(&mut self, data: &[u8]) -> io::Result<()> {
        let ping = NopOut {
            is_immediate: true,
            lun: 0,
            initiator_task_tag: Some(tag(7)),
            target_transfer_tag: None,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
        };
        self.send(&ping, data.to_vec())
    }

    /// Text requests of one PDU each, so many of them.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn texts(&mut self, text: &[u8], count: usize) -> io::Result<()> {
        let request = TextRequest {
            is_immediate: true,
            is_final: true,
            is_continued: false,
            lun: 0,
            initiator_task_tag: tag(8),
            target_transfer_tag: None,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial32(0),
        };
        self.stream.write_all(&pdu_bytes(&request, text.to_vec()).repeat(count))
    }

    /// Its connection, for whoever sends PDUs as they are or reads answers, and the number of the next command.
    ///
    /// # Errors
    /// Those of the system.
    pub fn raw(&self) -> io::Result<(TcpStream, u32)> {
        Ok((self.stream.try_clone()?, self.cmd_sn.0))
    }

    fn send<H: Header>(&mut self, header: &H, data: Vec<u8>) -> io::Result<()> {
        self.stream.write_all(&pdu_bytes(header, data))
    }
}

/// The tag of a task.
///
/// # Panics
/// For the reserved one.
pub fn tag(number: u32) -> InitiatorTaskTag {
    InitiatorTaskTag::new(number).expect("it is not the reserved one")
}

fn cdb16(operation_code: u8, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = operation_code;
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
