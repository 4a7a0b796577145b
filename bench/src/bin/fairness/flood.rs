//! Floods of commands that cost the sender little: PDUs made once, whose answers are only counted.
//! The sender then has time to keep a target busy that shares a machine with it.

use std::io::{Read, Write};
use std::net::TcpStream;

use initiator::InitiatorOptions;
use scsi::Cdb;
use tests::bare_session::BareSession;

use crate::Result;

/// Bytes of a ping, and of a Data-Out PDU: as many as the target takes.
const SEGMENT_BYTES: usize = 256 << 10;
/// Keys of a text, and bytes of each: as many as a target parses.
const TEXT_KEYS: usize = 64;
const TEXT_KEY_BYTES: usize = 250;

const HEADER_BYTES: usize = 48;
/// Opcodes (RFC 7143 11.1.1).
const COMMAND: u8 = 0x01;
const DATA_OUT: u8 = 0x05;
const RESPONSE: u8 = 0x21;
const DATA_IN: u8 = 0x25;
const READY_TO_TRANSFER: u8 = 0x31;

/// Pings without end.
pub fn pings(options: &InitiatorOptions) -> Result<()> {
    let data = vec![7; SEGMENT_BYTES];
    answered_by_nothing(options, |session| session.ping(&data))
}

/// Text requests without end.
pub fn texts(options: &InitiatorOptions) -> Result<()> {
    let key = |number| format!("X-{number:02}={}\0", "v".repeat(TEXT_KEY_BYTES));
    let text: String = (0..TEXT_KEYS).map(key).collect();
    answered_by_nothing(options, |session| session.texts(text.as_bytes(), 1))
}

/// Logs in with long segments. Data of writes is immediate or solicited.
fn log_in(options: &InitiatorOptions, number: u32, is_solicited: bool) -> BareSession {
    let InitiatorOptions { portal, target, initiator_name, .. } = options;
    let portal = format!("{}:{}", portal.host, portal.port);
    let (initial_r2t, immediate_data) = if is_solicited { ("Yes", "No") } else { ("No", "Yes") };
    let keys = [
        ("MaxRecvDataSegmentLength", "262144"),
        ("FirstBurstLength", "262144"),
        ("MaxBurstLength", "1048576"),
        ("InitialR2T", initial_r2t),
        ("ImmediateData", immediate_data),
    ];
    BareSession::log_in(&portal, target, initiator_name, number, &keys)
}

/// Sends without end, and discards the answers.
fn answered_by_nothing(
    options: &InitiatorOptions,
    mut send: impl FnMut(&mut BareSession) -> std::io::Result<()>,
) -> Result<()> {
    let mut session = log_in(options, 1, false);
    let (mut answers, _) = session.raw()?;
    std::thread::spawn(move || {
        let mut bytes = vec![0; SEGMENT_BYTES];
        while answers.read(&mut bytes).is_ok_and(|length| length > 0) {}
    });
    loop {
        send(&mut session)?;
    }
}

/// A command that is sent again and again.
#[derive(Clone)]
pub struct Flood {
    pub cdb: Cdb,
    /// Bytes that the command reads.
    pub data_in_bytes: usize,
    pub data_out_bytes: usize,
    /// Whether the data is sent on R2T only.
    pub is_solicited: bool,
    /// Commands in flight of a session.
    pub depth: u64,
    pub sessions: u64,
}

impl Flood {
    /// Sends it without end.
    pub fn run(&self, options: &InitiatorOptions) -> Result<()> {
        let session = |number| -> std::io::Result<Session> {
            let (stream, cmd_sn) = log_in(options, number as u32 + 1, self.is_solicited).raw()?;
            stream.set_write_timeout(None)?;
            Ok(Session { stream, waiting: Vec::new(), cmd_sn, tag: 0 })
        };
        let sessions: Vec<Session> = (0..self.sessions).map(session).collect::<std::io::Result<_>>()?;
        let run = |session| {
            let flood = self.clone();
            std::thread::spawn(move || flood.run_session(session))
        };
        let running: Vec<_> = sessions.into_iter().map(run).collect();
        for thread in running {
            thread.join().map_err(|_| "a flood panicked")??;
        }
        Ok(())
    }

    fn run_session(&self, mut session: Session) -> std::io::Result<()> {
        (0..self.depth).for_each(|_| session.command(self));
        session.send()?;
        let mut bytes = vec![0; SEGMENT_BYTES];
        let (mut filled, mut skipped) = (0, 0);
        loop {
            let length = session.stream.read(&mut bytes[filled..])?;
            if length == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            filled += length;
            let mut at = 0;
            loop {
                let passed = skipped.min(filled - at);
                (at, skipped) = (at + passed, skipped - passed);
                let Some(header) = bytes[at..filled].first_chunk::<HEADER_BYTES>().copied() else { break };
                at += HEADER_BYTES;
                skipped = (u32_at(&header, 4) & 0xff_ffff).next_multiple_of(4) as usize;
                match header[0] & 0x3f {
                    RESPONSE => session.command(self),
                    DATA_IN if header[1] & 1 == 1 => session.command(self),
                    READY_TO_TRANSFER => session.data(&header),
                    _ => {}
                }
            }
            bytes.copy_within(at..filled, 0);
            filled -= at;
            session.send()?;
        }
    }
}

fn u32_at(header: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// A session that sends prepared PDUs.
struct Session {
    stream: TcpStream,
    /// Bytes of the next write to the socket.
    waiting: Vec<u8>,
    cmd_sn: u32,
    tag: u32,
}

impl Session {
    fn command(&mut self, flood: &Flood) {
        let mut header = [0; HEADER_BYTES];
        let immediate_bytes = if flood.is_solicited { 0 } else { flood.data_out_bytes };
        let (reads, writes) = (flood.data_in_bytes > 0, flood.data_out_bytes > 0);
        // Final, a simple task.
        (header[0], header[1]) = (COMMAND, 0x81 | u8::from(reads) << 6 | u8::from(writes) << 5);
        header[4..8].copy_from_slice(&(immediate_bytes as u32).to_be_bytes());
        header[16..20].copy_from_slice(&self.tag.to_be_bytes());
        header[20..24].copy_from_slice(&((flood.data_in_bytes + flood.data_out_bytes) as u32).to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        let cdb = flood.cdb.emit();
        header[32..][..cdb.len()].copy_from_slice(&cdb);
        self.tag = (self.tag + 1) % (1 << 30);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.waiting.extend(header);
        self.waiting.resize(self.waiting.len() + immediate_bytes, 7);
    }

    /// Data-Out PDUs for an R2T.
    fn data(&mut self, r2t: &[u8; HEADER_BYTES]) {
        let (offset, length) = (u32_at(r2t, 40) as usize, u32_at(r2t, 44) as usize);
        for (number, done) in (0..length).step_by(SEGMENT_BYTES).enumerate() {
            let bytes = SEGMENT_BYTES.min(length - done);
            let is_last = done + bytes == length;
            let mut header = [0; HEADER_BYTES];
            (header[0], header[1]) = (DATA_OUT, u8::from(is_last) << 7);
            header[4..8].copy_from_slice(&(bytes as u32).to_be_bytes());
            header[16..24].copy_from_slice(&r2t[16..24]);
            header[36..40].copy_from_slice(&(number as u32).to_be_bytes());
            header[40..44].copy_from_slice(&((offset + done) as u32).to_be_bytes());
            self.waiting.extend(header);
            self.waiting.resize(self.waiting.len() + bytes, 7);
        }
    }

    fn send(&mut self) -> std::io::Result<()> {
        self.stream.write_all(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }
}
