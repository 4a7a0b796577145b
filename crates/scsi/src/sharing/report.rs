//! The data of SHARING IN, REPORT: the clients, the locks they hold and wait for. For operators.

use super::lock::{LOCK_BYTES, Lock};
use super::reader::{Reader, WrongByte};

/// Bytes before the records: length of the rest (4), zero (4), the line where the next report
/// begins (8; zero for none).
pub const HEADER_BYTES: usize = 16;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 48;

/// Bytes of a name that fit in one record.
pub const NAME_BYTES: usize = RECORD_BYTES - 16;

/// One line of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportRecord {
    /// A client; or, as number 0 of a start, [all that came before the present one](Self::is_of_before).
    Client {
        /// Its number.
        client: u64,
        /// Whether its life is over, and its locks have not passed on yet.
        is_being_fenced: bool,
        /// The rest of its lease.
        lease_left_ms: u32,
        /// Ranges that it may have copies of.
        registrations: u64,
        /// Messages that it has not taken.
        untaken: u64,
    },
    /// A lock that is held.
    Grant {
        /// The client that holds it.
        client: u64,
        /// The transaction that holds it; zero for the client itself.
        transaction: u64,
        /// The lock.
        lock: Lock,
    },
    /// A lock that is waited for.
    Waiting {
        /// The client that waits.
        client: u64,
        /// The request that the lock belongs to.
        request: u64,
        /// The lock.
        lock: Lock,
    },
    /// A callback that is not answered.
    Callback {
        /// The client that was called back.
        client: u64,
        /// Its number.
        callback: u64,
        /// The time until the client is fenced.
        deadline_left_ms: u32,
    },
    /// A client that was fenced.
    Fenced {
        /// Its number.
        client: u64,
    },
    /// A piece of the name of an initiator port by which a client came.
    Name {
        /// The number of the client.
        client: u64,
        /// Whether the name goes on in the next record.
        goes_on: bool,
        /// The piece, filled with zeroes at the end of the name.
        text: [u8; NAME_BYTES],
    },
}

/// A part of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The lines of this part.
    pub records: Vec<ReportRecord>,
    /// The line where the next part begins; `None` behind the last.
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

    /// Whether it is no single client: it stands for those of before the target's start, of whom some may live that
    /// have not come back. The lease is the time in which they may reclaim what they held.
    pub fn is_of_before(&self) -> bool {
        matches!(self, Self::Client { client, .. } if *client as u32 == 0)
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
                // Control characters are replaced, because the name is shown on a terminal.
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

    /// Parses REPORT data of a target.
    ///
    /// # Errors
    /// The byte at which it is not valid.
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
