//! Floods of commands that cost the sender little: PDUs made once, whose answers are only counted.
//! The sender then has time to keep a target busy that shares a machine with it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use initiator::InitiatorOptions;
use scsi::{Cdb, Status};
use tests::bare_session::BareSession;

use crate::Result;

/// Bytes of a ping, of a Data-Out PDU and of what comes with a command at most: as many as the target takes.
const SEGMENT_BYTES: usize = 256 << 10;
/// Keys of a text, and bytes of each: as many as a target parses.
const TEXT_KEYS: usize = 64;
const TEXT_KEY_BYTES: usize = 250;

/// Time between two notes of what was answered.
const NOTE_PAUSE: Duration = Duration::from_millis(50);

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
pub struct Flood {
    pub cdb: Cdb,
    /// Bytes that it brings.
    pub data_in_bytes: usize,
    /// What it writes. It comes with the command where it fits, and is all asked for else.
    pub data_out: Vec<u8>,
    /// Commands under way of a session.
    pub depth: u64,
    pub sessions: u64,
}

/// What was answered so far.
#[derive(Default)]
struct Answers {
    all: AtomicU64,
    /// Those with another status than GOOD.
    refused: AtomicU64,
}

impl Answers {
    fn note(&self, status: u8) {
        self.all.fetch_add(1, Ordering::Relaxed);
        if status != Status::Good as u8 {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Flood {
    fn is_solicited(&self) -> bool {
        self.data_out.len() > SEGMENT_BYTES
    }

    /// Sends it without end, and prints now and then how many of them were answered a second, and with another status
    /// than GOOD, since it began.
    pub fn run(self, options: &InitiatorOptions) -> Result<()> {
        let session = |number| -> std::io::Result<Session> {
            let (stream, cmd_sn) = log_in(options, number as u32 + 1, self.is_solicited()).raw()?;
            stream.set_write_timeout(None)?;
            Ok(Session { stream, waiting: Vec::new(), cmd_sn, tag: 0 })
        };
        let sessions: Vec<Session> = (0..self.sessions).map(session).collect::<std::io::Result<_>>()?;
        let (flood, answers, began) = (Arc::new(self), Arc::new(Answers::default()), Instant::now());
        let run = |session| {
            let (flood, answers) = (Arc::clone(&flood), Arc::clone(&answers));
            std::thread::spawn(move || flood.run_session(session, &answers))
        };
        let running: Vec<_> = sessions.into_iter().map(run).collect();
        while !running.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(NOTE_PAUSE);
            let rate = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
            println!("{:.1} {:.1}", rate(&answers.all), rate(&answers.refused));
        }
        for thread in running {
            thread.join().map_err(|_| "a flood panicked")??;
        }
        Ok(())
    }

    /// The PDU of the command and of what comes with it, without its numbers.
    fn pdu(&self) -> Vec<u8> {
        let immediate: &[u8] = if self.is_solicited() { &[] } else { &self.data_out };
        let (reads, writes) = (self.data_in_bytes > 0, !self.data_out.is_empty());
        let mut header = [0; HEADER_BYTES];
        // Final, a simple task.
        (header[0], header[1]) = (COMMAND, 0x81 | u8::from(reads) << 6 | u8::from(writes) << 5);
        header[4..8].copy_from_slice(&(immediate.len() as u32).to_be_bytes());
        header[20..24].copy_from_slice(&((self.data_in_bytes + self.data_out.len()) as u32).to_be_bytes());
        let cdb = self.cdb.emit();
        header[32..][..cdb.len()].copy_from_slice(&cdb);
        let mut pdu = [&header[..], immediate].concat();
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        pdu
    }

    fn run_session(&self, mut session: Session, answers: &Answers) -> std::io::Result<()> {
        let pdu = self.pdu();
        (0..self.depth).for_each(|_| session.command(&pdu));
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
                let is_answer = match header[0] & 0x3f {
                    RESPONSE => true,
                    DATA_IN => header[1] & 1 == 1,
                    READY_TO_TRANSFER => {
                        session.data(&header, &self.data_out);
                        false
                    }
                    _ => false,
                };
                if is_answer {
                    answers.note(header[3]);
                    session.command(&pdu);
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
    /// The command whose PDU this is but for its numbers.
    fn command(&mut self, pdu: &[u8]) {
        let start = self.waiting.len();
        self.waiting.extend_from_slice(pdu);
        let header = &mut self.waiting[start..][..HEADER_BYTES];
        header[16..20].copy_from_slice(&self.tag.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.tag = (self.tag + 1) % (1 << 30);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
    }

    /// Data-Out PDUs for an R2T.
    fn data(&mut self, r2t: &[u8; HEADER_BYTES], data_out: &[u8]) {
        let (offset, length) = (u32_at(r2t, 40) as usize, u32_at(r2t, 44) as usize);
        let asked = data_out.get(offset..offset + length).unwrap_or_default();
        let segments = asked.chunks(SEGMENT_BYTES);
        let last = segments.len().saturating_sub(1);
        for (number, segment) in segments.enumerate() {
            let mut header = [0; HEADER_BYTES];
            (header[0], header[1]) = (DATA_OUT, u8::from(number == last) << 7);
            header[4..8].copy_from_slice(&(segment.len() as u32).to_be_bytes());
            header[16..24].copy_from_slice(&r2t[16..24]);
            header[36..40].copy_from_slice(&(number as u32).to_be_bytes());
            header[40..44].copy_from_slice(&((offset + number * SEGMENT_BYTES) as u32).to_be_bytes());
            self.waiting.extend_from_slice(&header);
            self.waiting.extend_from_slice(segment);
        }
    }

    fn send(&mut self) -> std::io::Result<()> {
        self.stream.write_all(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }
}
