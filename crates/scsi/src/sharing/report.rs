//! The data of SHARING IN, REPORT: who is there, what they hold and wait for. For people.

use super::lock::{LOCK_BYTES, Lock};
use super::reader::{Reader, WrongByte};

/// Bytes of what the data begins with: length of what follows (4), zero (4), where the next report goes on (8; zero for
/// nowhere).
pub const HEADER_BYTES: usize = 16;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 48;

/// Bytes of a name that one record has.
pub const NAME_BYTES: usize = RECORD_BYTES - 16;

/// One line of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportRecord {
    /// A client.
    Client {
        /// Which.
        client: u64,
        /// Whether its life is over, and what it holds has not passed on yet.
        is_being_fenced: bool,
        /// What is left of its lease.
        lease_left_ms: u32,
        /// Ranges that it may have copies of.
        registrations: u64,
        /// Messages that it has not taken.
        untaken: u64,
    },
    /// A lock that is held.
    Grant {
        /// By whom.
        client: u64,
        /// Zero, or by which transaction of it.
        transaction: u64,
        /// What.
        lock: Lock,
    },
    /// A lock that is waited for.
    Waiting {
        /// By whom.
        client: u64,
        /// The request it is of.
        request: u64,
        /// What.
        lock: Lock,
    },
    /// A callback that is not answered.
    Callback {
        /// By whom.
        client: u64,
        /// Its number.
        callback: u64,
        /// When the client is fenced.
        deadline_left_ms: u32,
    },
    /// A client that was fenced.
    Fenced {
        /// Which.
        client: u64,
    },
    /// A piece of the name of an initiator port by which a client came.
    Name {
        /// Which client.
        client: u64,
        /// Whether it goes on in the next line.
        goes_on: bool,
        /// Zeroes behind its end.
        text: [u8; NAME_BYTES],
    },
}

/// A part of what there is to report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Lines.
    pub records: Vec<ReportRecord>,
    /// Where the next part begins; none behind the last.
    pub next: Option<u64>,
}

impl ReportRecord {
    /// The lines of a name.
    pub fn name_lines(client: u64, name: &str) -> impl Iterator<Item = Self> {
        let pieces = name.as_bytes().chunks(NAME_BYTES);
        let count = pieces.len();
        pieces.enumerate().map(move |(index, piece)| {
            let mut text = [0; NAME_BYTES];
            text[..piece.len()].copy_from_slice(piece);
            Self::Name { client, goes_on: index + 1 < count, text }
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        let head = |out: &mut Vec<u8>, kind: u8, flags: u8, ms: u32, client: u64| {
            out.extend([kind, flags, 0, 0]);
            out.extend(ms.to_be_bytes());
            out.extend(client.to_be_bytes());
        };
        let end = out.len() + RECORD_BYTES;
        match *self {
            Self::Client { client, is_being_fenced, lease_left_ms, registrations, untaken } => {
                head(out, 0, u8::from(is_being_fenced), lease_left_ms, client);
                out.extend([registrations.to_be_bytes(), untaken.to_be_bytes()].concat());
            }
            Self::Grant { client, transaction: number, lock } => {
                head(out, 1, 0, 0, client);
                lock.emit(out);
                out.extend(number.to_be_bytes());
            }
            Self::Waiting { client, request: number, lock } => {
                head(out, 2, 0, 0, client);
                lock.emit(out);
                out.extend(number.to_be_bytes());
            }
            Self::Callback { client, callback, deadline_left_ms } => {
                head(out, 3, 0, deadline_left_ms, client);
                out.extend(callback.to_be_bytes());
            }
            Self::Fenced { client } => head(out, 4, 0, 0, client),
            Self::Name { client, goes_on, text } => {
                head(out, 5, u8::from(goes_on), 0, client);
                out.extend(text);
            }
        }
        out.resize(end, 0);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, WrongByte> {
        let at = reader.at();
        let (kind, flags) = (reader.u8()?, reader.flags(1)?);
        reader.zeroes::<2>()?;
        let (ms, client) = (reader.u32()?, reader.u64()?);
        Ok(match kind {
            0 => {
                let (registrations, untaken) = (reader.u64()?, reader.u64()?);
                reader.zeroes::<16>()?;
                Self::Client { client, is_being_fenced: flags != 0, lease_left_ms: ms, registrations, untaken }
            }
            1 => Self::Grant { client, lock: Lock::parse(reader)?, transaction: reader.u64()? },
            2 => Self::Waiting { client, lock: Lock::parse(reader)?, request: reader.u64()? },
            3 => {
                let callback = reader.u64()?;
                reader.zeroes::<LOCK_BYTES>()?;
                Self::Callback { client, callback, deadline_left_ms: ms }
            }
            4 => {
                reader.zeroes::<32>()?;
                Self::Fenced { client }
            }
            5 => Self::Name { client, goes_on: flags != 0, text: reader.field()? },
            _ => return Err(Reader::wrong(at)),
        })
    }
}

impl Report {
    /// The names of the initiator ports by which clients came, put together again.
    pub fn names(records: &[ReportRecord]) -> Vec<(u64, String)> {
        let mut names = Vec::new();
        let mut begun = Vec::new();
        for record in records {
            let ReportRecord::Name { client, goes_on, text } = record else { continue };
            begun.extend(text.iter().take_while(|byte| **byte != 0));
            if !goes_on {
                let name = String::from_utf8_lossy(&std::mem::take(&mut begun)).into_owned();
                // It is for a terminal.
                names.push((*client, name.replace(|letter: char| letter.is_control(), "?")));
            }
        }
        names
    }

    /// The data.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = ((HEADER_BYTES - 4 + self.records.len() * RECORD_BYTES) as u32).to_be_bytes().to_vec();
        out.extend([0; 4]);
        out.extend(self.next.unwrap_or(0).to_be_bytes());
        self.records.iter().for_each(|record| record.emit(&mut out));
        out
    }

    /// From what a target sent.
    ///
    /// # Errors
    /// The byte at which it cannot be understood.
    pub fn parse(data: &[u8]) -> Result<Self, WrongByte> {
        let mut reader = Reader::new(data);
        let length = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
        reader.zeroes::<4>()?;
        let next = Some(reader.u64()?).filter(|next| *next != 0);
        let records_bytes = length.checked_sub(HEADER_BYTES - 4).ok_or(Reader::wrong(0))?;
        if !records_bytes.is_multiple_of(RECORD_BYTES) {
            return Err(Reader::wrong(0));
        }
        let records = reader.items(records_bytes / RECORD_BYTES, RECORD_BYTES, ReportRecord::parse)?;
        reader.end()?;
        Ok(Self { records, next })
    }
}
