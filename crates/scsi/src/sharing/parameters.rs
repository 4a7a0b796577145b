//! The requests of a client: parameter lists of SHARING OUT.

use super::actions::action_out;
use super::lock::{LOCK_BYTES, Lock};
use super::message::{NO_PROOF, PROOF_BYTES, Proof};
use super::reader::{Reader, WrongByte};

/// Longest parameter list that is read. The count of locks in a LOCK can ask for more; page C1h
/// announces how many are accepted.
pub const LIST_BYTES_MAX: usize = 16 + 1024 * LOCK_BYTES;

const REGISTERS_READS: u8 = 0x01;
const IS_RECLAIM: u8 = 0x01;
const OPEN_READ: u8 = 0x01;
const OPEN_WRITE: u8 = 0x02;

/// The answer of a client to a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CallbackAnswer {
    /// The lock is given up down to the mode that was named, or the copies are dropped.
    Done = 0,
    /// The resource is in use: the client requests more time.
    InUse = 1,
    /// The resource is in use, and its use makes progress.
    GettingOn = 2,
}

/// A life of a client before the target's start, and the proof that it was the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeBefore {
    /// The number of the client then; not zero.
    pub client: u64,
    /// The proof that the target gave to that client.
    pub proof: Proof,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// Registers a client, or another path to one.
    Register {
        /// Drawn by the initiator: paths with one key are one client.
        key: [u8; 16],
        /// Whether the client may keep copies of the blocks it reads.
        registers_reads: bool,
        /// The client's life before the target started again.
        before: Option<LifeBefore>,
    },
    /// Renews the lease.
    Renew {
        /// The number of the last message that the client has taken.
        taken: u64,
    },
    /// Ends the client's life.
    Leave,
    /// Requests locks.
    Lock {
        /// The client's number for this request.
        request: u64,
        /// The transaction that is to hold them; zero for the client itself.
        transaction: u32,
        /// Whether the client held them before the target started again.
        is_reclaim: bool,
        /// The locks, files before their block groups.
        locks: Vec<Lock>,
    },
    /// Gives up locks, or lowers them to a weaker mode.
    Unlock {
        /// Zero: the locks of a transaction are given up when it ends.
        transaction: u32,
        /// The locks with the numbers of their grants, block groups before their files.
        locks: Vec<Lock>,
    },
    /// Answers a callback.
    Acknowledge {
        /// The number of the last message that the client has taken.
        taken: u64,
        /// The number of the callback.
        callback: u64,
        /// The answer to the callback.
        answer: CallbackAnswer,
    },
    /// Begins a transaction.
    Begin {
        /// Its number.
        transaction: u32,
        /// Zero, or the birth of its first try.
        birth: u64,
    },
    /// Ends a transaction.
    End {
        /// Its number.
        transaction: u32,
    },
    /// Opens a file.
    Open {
        /// The file.
        file: u64,
        /// Whether the file is opened for writing, too.
        is_write: bool,
    },
    /// Closes a file.
    Close {
        /// The file.
        file: u64,
        /// As the file was opened.
        is_write: bool,
    },
    /// Fences another client: ends its life.
    Fence {
        /// The number of that client.
        client: u64,
    },
    /// Cancels a request for locks.
    Cancel {
        /// The number of that request.
        request: u64,
    },
}

impl Parameters {
    /// The service action of this list.
    pub fn action(&self) -> u8 {
        match self {
            Self::Register { .. } => action_out::REGISTER,
            Self::Renew { .. } => action_out::RENEW,
            Self::Leave => action_out::LEAVE,
            Self::Lock { .. } => action_out::LOCK,
            Self::Unlock { .. } => action_out::UNLOCK,
            Self::Acknowledge { .. } => action_out::ACKNOWLEDGE,
            Self::Begin { .. } => action_out::BEGIN,
            Self::End { .. } => action_out::END,
            Self::Open { .. } => action_out::OPEN,
            Self::Close { .. } => action_out::CLOSE,
            Self::Fence { .. } => action_out::FENCE,
            Self::Cancel { .. } => action_out::CANCEL,
        }
    }

    /// The list.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Register { key, registers_reads, before } => {
                let flags = [if *registers_reads { REGISTERS_READS } else { 0 }, 0, 0, 0, 0, 0, 0, 0];
                let (client, proof) = before.map_or((0, NO_PROOF), |before| (before.client, before.proof));
                [&key[..], &flags, &client.to_be_bytes(), &proof].concat()
            }
            Self::Renew { taken } => taken.to_be_bytes().to_vec(),
            Self::Leave => Vec::new(),
            Self::Lock { request, transaction, is_reclaim, locks } => {
                let mut out = [&request.to_be_bytes()[..], &transaction.to_be_bytes()].concat();
                out.extend([if *is_reclaim { IS_RECLAIM } else { 0 }, 0]);
                emit_locks(out, locks)
            }
            Self::Unlock { transaction, locks } => {
                emit_locks([&transaction.to_be_bytes()[..], &[0; 2]].concat(), locks)
            }
            Self::Acknowledge { taken, callback, answer } => {
                let answer = [*answer as u8, 0, 0, 0, 0, 0, 0, 0];
                [taken.to_be_bytes(), callback.to_be_bytes(), answer].concat()
            }
            Self::Begin { transaction, birth } => {
                [&transaction.to_be_bytes()[..], &[0; 4], &birth.to_be_bytes()].concat()
            }
            Self::End { transaction } => [transaction.to_be_bytes(), [0; 4]].concat(),
            Self::Open { file, is_write } | Self::Close { file, is_write } => {
                let flags = if *is_write { OPEN_READ | OPEN_WRITE } else { OPEN_READ };
                [file.to_be_bytes(), [flags, 0, 0, 0, 0, 0, 0, 0]].concat()
            }
            Self::Fence { client: number } | Self::Cancel { request: number } => number.to_be_bytes().to_vec(),
        }
    }

    /// Parses the list of a service action. A list is exactly as long as its fields and counts
    /// require.
    ///
    /// # Errors
    /// The byte at which it is not valid. An unknown service action has no list.
    pub fn parse(action: u8, list: &[u8]) -> Result<Self, WrongByte> {
        let mut reader = Reader::new(list);
        let parameters = Self::parse_body(action, &mut reader)?;
        reader.end()?;
        Ok(parameters)
    }

    fn parse_body(action: u8, reader: &mut Reader<'_>) -> Result<Self, WrongByte> {
        Ok(match action {
            action_out::REGISTER => {
                let (key, flags) = (reader.field()?, reader.flags(REGISTERS_READS)?);
                reader.zeroes::<7>()?;
                Self::Register { key, registers_reads: flags != 0, before: parse_before(reader)? }
            }
            action_out::RENEW => Self::Renew { taken: reader.u64()? },
            action_out::LEAVE => Self::Leave,
            action_out::LOCK => {
                let (request, transaction) = (reader.u64()?, reader.u32()?);
                let is_reclaim = reader.flags(IS_RECLAIM)? != 0;
                reader.zeroes::<1>()?;
                Self::Lock { request, transaction, is_reclaim, locks: parse_locks(reader, true)? }
            }
            action_out::UNLOCK => {
                let transaction = reader.u32()?;
                reader.zeroes::<2>()?;
                Self::Unlock { transaction, locks: parse_locks(reader, false)? }
            }
            action_out::ACKNOWLEDGE => {
                let (taken, callback, at) = (reader.u64()?, reader.u64()?, reader.at());
                let answer = match reader.u8()? {
                    0 => CallbackAnswer::Done,
                    1 => CallbackAnswer::InUse,
                    2 => CallbackAnswer::GettingOn,
                    _ => return Err(Reader::wrong(at)),
                };
                reader.zeroes::<7>()?;
                Self::Acknowledge { taken, callback, answer }
            }
            action_out::BEGIN => {
                let transaction = reader.u32()?;
                reader.zeroes::<4>()?;
                Self::Begin { transaction, birth: reader.u64()? }
            }
            action_out::END => {
                let transaction = reader.u32()?;
                reader.zeroes::<4>()?;
                Self::End { transaction }
            }
            action_out::OPEN => parse_open(reader).map(|(file, is_write)| Self::Open { file, is_write })?,
            action_out::CLOSE => parse_open(reader).map(|(file, is_write)| Self::Close { file, is_write })?,
            action_out::FENCE => Self::Fence { client: reader.u64()? },
            action_out::CANCEL => Self::Cancel { request: reader.u64()? },
            _ => return Err(Reader::wrong(0)),
        })
    }
}

/// The byte of the parameter list at which lock `index` of a LOCK or UNLOCK begins.
pub fn byte_of_lock(action: u8, index: usize) -> u16 {
    let header = if action == action_out::LOCK { 16 } else { 8 };
    u16::try_from(header + index * LOCK_BYTES).unwrap_or(u16::MAX)
}

fn emit_locks(mut out: Vec<u8>, locks: &[Lock]) -> Vec<u8> {
    out.extend((locks.len() as u16).to_be_bytes());
    locks.iter().for_each(|lock| lock.emit(&mut out));
    out
}

/// A count, and so many locks. A requested lock has a mode and no grant yet; one that is given back
/// has a grant.
fn parse_locks(reader: &mut Reader<'_>, is_asked: bool) -> Result<Vec<Lock>, WrongByte> {
    let count = reader.u16()?;
    reader.items(usize::from(count), LOCK_BYTES, |reader| {
        let at = reader.at();
        let lock = Lock::parse(reader)?;
        if is_asked && lock.mode.is_none() {
            return Err(Reader::wrong(at + 1));
        }
        if is_asked && lock.grant != 0 {
            return Err(Reader::wrong(at + 2));
        }
        Ok(lock)
    })
}

/// The life before; without one, number and proof are zero.
fn parse_before(reader: &mut Reader<'_>) -> Result<Option<LifeBefore>, WrongByte> {
    match reader.u64()? {
        0 => reader.zeroes::<PROOF_BYTES>().map(|()| None),
        client => Ok(Some(LifeBefore { client, proof: reader.field()? })),
    }
}

fn parse_open(reader: &mut Reader<'_>) -> Result<(u64, bool), WrongByte> {
    let (file, at) = (reader.u64()?, reader.at());
    let flags = reader.flags(OPEN_READ | OPEN_WRITE)?;
    if flags == 0 {
        return Err(Reader::wrong(at));
    }
    reader.zeroes::<7>()?;
    Ok((file, flags & OPEN_WRITE != 0))
}
