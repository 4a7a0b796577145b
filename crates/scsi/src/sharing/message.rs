//! Messages to a client: what stands behind SenseLength in the data segment of an Asynchronous Message with AsyncEvent
//! 248, AsyncVCode 1.

use super::lock::{LOCK_BYTES, Lock};
use super::reader::{Reader, WrongByte};

/// AsyncEvent of a message.
pub const ASYNC_EVENT: u8 = 248;

/// AsyncVCode of a message.
pub const ASYNC_VCODE: u8 = 1;

/// Bytes of what every message begins with.
pub const HEADER_BYTES: usize = 32;

/// Bytes of the longest message with so many locks: those that a client must be able to take in one data segment.
pub const fn message_bytes_max(locks_max: usize) -> usize {
    HEADER_BYTES + 16 + locks_max * LOCK_BYTES
}

/// Bytes of what a client shows the target after a start: HMAC-SHA-256 has as many (RFC 2104).
pub const PROOF_BYTES: usize = 32;

/// What shows that a life was a client's own.
pub type Proof = [u8; PROOF_BYTES];

/// Shows nothing.
pub const NO_PROOF: Proof = [0; PROOF_BYTES];

/// Why locks were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// It was chosen to end a deadlock. Its transaction must end.
    Deadlock = 1,
    /// Another client has reclaimed what conflicts.
    ReclaimConflict = 2,
    /// What that client of before held can no longer be reclaimed.
    NotReclaimable = 3,
    /// The time for reclaims is over.
    GraceOver = 4,
    /// There is no such block or block group.
    BeyondEnd = 5,
    /// A lock of this kind has no such mode.
    WrongKind = 6,
    /// Nothing lies below a block group.
    IntentionOnLeaf = 7,
    /// The file comes before its block groups.
    LeafBeforeRoot = 8,
    /// The file is locked in a mode that does not allow it.
    RootTooWeak = 9,
    /// The lock on the file is one on each of its block groups.
    Implied = 10,
    /// There is no such transaction.
    NoTransaction = 11,
    /// The number of the transaction was used before.
    TransactionReused = 12,
    /// The number of the request is in use by another one.
    RequestReused = 13,
    /// A transaction reclaims nothing.
    ReclaimOfTransaction = 14,
}

const REASONS: [Reason; 14] = [
    Reason::Deadlock,
    Reason::ReclaimConflict,
    Reason::NotReclaimable,
    Reason::GraceOver,
    Reason::BeyondEnd,
    Reason::WrongKind,
    Reason::IntentionOnLeaf,
    Reason::LeafBeforeRoot,
    Reason::RootTooWeak,
    Reason::Implied,
    Reason::NoTransaction,
    Reason::TransactionReused,
    Reason::RequestReused,
    Reason::ReclaimOfTransaction,
];

/// The content of a message, by its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageBody {
    /// It is a client now; the header says which.
    Registered {
        /// How long it may be silent.
        lease_ms: u32,
        /// For so long only reclaims are granted.
        grace_ms: u32,
        /// The key it registered with.
        key: [u8; 16],
        /// To be shown to the target after its next start: this life was the client's. [`NO_PROOF`] from a target that
        /// takes none then.
        proof: Proof,
    },
    /// All locks of a request are held.
    Granted {
        /// The request.
        request: u64,
        /// The transaction that holds them; zero for the client itself.
        transaction: u32,
        /// With the modes they are held in, which can be more than was asked for, and the numbers of their grants.
        locks: Vec<Lock>,
    },
    /// They are not yet.
    Queued {
        /// The request.
        request: u64,
    },
    /// They will not be.
    Refused {
        /// The request.
        request: u64,
        /// Why.
        reason: Reason,
        /// Which lock of it is the reason; zero where none is.
        index: u16,
    },
    /// A lock is to be given up, down to the mode named.
    CallBack {
        /// Named in the answer.
        callback: u64,
        /// What, what may be kept of it, and which grant is meant.
        lock: Lock,
        /// The client is fenced after that.
        deadline_ms: u32,
    },
    /// Every copy of these blocks is to be dropped.
    Purge {
        /// Named in the answer.
        callback: u64,
        /// The first of them.
        first_block: u64,
        /// How many.
        block_count: u64,
        /// The client is fenced after that.
        deadline_ms: u32,
    },
    /// No client has the file open any more.
    LastClose {
        /// The file.
        file: u64,
    },
    /// A transaction has begun.
    Begun {
        /// Its number.
        transaction: u32,
        /// To be named when it is tried again.
        birth: u64,
    },
}

/// A message to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// LUN field of the logical unit.
    pub lun: u64,
    /// To whom.
    pub client: u64,
    /// Counts the messages to that client, from 1.
    pub number: u64,
    /// What.
    pub body: MessageBody,
}

impl Message {
    /// The event data.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = [self.lun.to_be_bytes(), self.client.to_be_bytes(), self.number.to_be_bytes()].concat();
        out.extend([self.body.kind(), 0, 0, 0, 0, 0, 0, 0]);
        self.body.emit(&mut out);
        out
    }

    /// From what a target sent.
    ///
    /// # Errors
    /// The byte at which it cannot be understood.
    pub fn parse(event_data: &[u8]) -> Result<Self, WrongByte> {
        let mut reader = Reader::new(event_data);
        let (lun, client, number) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (at, kind) = (reader.at(), reader.u8()?);
        reader.zeroes::<7>()?;
        let body = MessageBody::parse(kind, &mut reader)?.ok_or(Reader::wrong(at))?;
        reader.end()?;
        Ok(Self { lun, client, number, body })
    }
}

impl MessageBody {
    fn kind(&self) -> u8 {
        match self {
            Self::Registered { .. } => 0,
            Self::Granted { .. } => 1,
            Self::Queued { .. } => 2,
            Self::Refused { .. } => 3,
            Self::CallBack { .. } => 4,
            Self::Purge { .. } => 5,
            Self::LastClose { .. } => 6,
            Self::Begun { .. } => 7,
        }
    }

    fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Registered { lease_ms, grace_ms, key, proof } => {
                out.extend([lease_ms.to_be_bytes(), grace_ms.to_be_bytes()].concat());
                out.extend([&key[..], proof].concat());
            }
            Self::Granted { request, transaction, locks } => {
                out.extend(request.to_be_bytes());
                out.extend([transaction.to_be_bytes(), (locks.len() as u32).to_be_bytes()].concat());
                locks.iter().for_each(|lock| lock.emit(out));
            }
            Self::Queued { request: number } | Self::LastClose { file: number } => out.extend(number.to_be_bytes()),
            Self::Refused { request, reason, index } => {
                out.extend(request.to_be_bytes());
                out.extend([(*reason as u16).to_be_bytes(), index.to_be_bytes(), [0; 2], [0; 2]].concat());
            }
            Self::CallBack { callback, lock, deadline_ms } => {
                out.extend(callback.to_be_bytes());
                lock.emit(out);
                out.extend([deadline_ms.to_be_bytes(), [0; 4]].concat());
            }
            Self::Purge { callback, first_block, block_count, deadline_ms } => {
                out.extend([callback.to_be_bytes(), first_block.to_be_bytes(), block_count.to_be_bytes()].concat());
                out.extend([deadline_ms.to_be_bytes(), [0; 4]].concat());
            }
            Self::Begun { transaction, birth } => {
                out.extend([transaction.to_be_bytes(), [0; 4]].concat());
                out.extend(birth.to_be_bytes());
            }
        }
    }

    /// None for a kind that is not known.
    fn parse(kind: u8, reader: &mut Reader<'_>) -> Result<Option<Self>, WrongByte> {
        Ok(Some(match kind {
            0 => Self::Registered {
                lease_ms: reader.u32()?,
                grace_ms: reader.u32()?,
                key: reader.field()?,
                proof: reader.field()?,
            },
            1 => {
                let (request, transaction, count) = (reader.u64()?, reader.u32()?, reader.u32()?);
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                Self::Granted { request, transaction, locks: reader.items(count, LOCK_BYTES, Lock::parse)? }
            }
            2 => Self::Queued { request: reader.u64()? },
            3 => {
                let (request, at) = (reader.u64()?, reader.at());
                let code = reader.u16()?;
                let reason = REASONS.into_iter().find(|reason| *reason as u16 == code).ok_or(Reader::wrong(at))?;
                let index = reader.u16()?;
                reader.zeroes::<4>()?;
                Self::Refused { request, reason, index }
            }
            4 => {
                let (callback, lock, deadline_ms) = (reader.u64()?, Lock::parse(reader)?, reader.u32()?);
                reader.zeroes::<4>()?;
                Self::CallBack { callback, lock, deadline_ms }
            }
            5 => {
                let (callback, first_block, block_count) = (reader.u64()?, reader.u64()?, reader.u64()?);
                let deadline_ms = reader.u32()?;
                reader.zeroes::<4>()?;
                Self::Purge { callback, first_block, block_count, deadline_ms }
            }
            6 => Self::LastClose { file: reader.u64()? },
            7 => {
                let transaction = reader.u32()?;
                reader.zeroes::<4>()?;
                Self::Begun { transaction, birth: reader.u64()? }
            }
            _ => return Ok(None),
        }))
    }
}
