//! Messages to a client: the event data, behind SenseLength in the data segment of an Asynchronous
//! Message with AsyncEvent 248, AsyncVCode 1.

use super::lock::{LOCK_BYTES, Lock};
use super::reader::{Reader, WrongByte};

/// AsyncEvent of a message.
pub const ASYNC_EVENT: u8 = 248;

/// AsyncVCode of a message.
pub const ASYNC_VCODE: u8 = 1;

/// Bytes of the header of every message.
pub const HEADER_BYTES: usize = 32;

/// Bytes of the longest message with so many locks: those that a client must be able to take in one data segment.
pub const fn message_bytes_max(locks_max: usize) -> usize {
    HEADER_BYTES + 16 + locks_max * LOCK_BYTES
}

/// Bytes of a [`Proof`]: HMAC-SHA-256 has as many (RFC 2104).
pub const PROOF_BYTES: usize = 32;

/// The proof that a life before the target's start was the client's own.
pub type Proof = [u8; PROOF_BYTES];

/// The absence of a proof.
pub const NO_PROOF: Proof = [0; PROOF_BYTES];

/// The reason why locks were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// The request was chosen to end a deadlock. Its transaction must end.
    Deadlock = 1,
    /// Another client has reclaimed a conflicting lock.
    ReclaimConflict = 2,
    /// The locks of the client's life before can no longer be reclaimed.
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
    /// The file is locked in a mode too weak for this lock of a block group.
    RootTooWeak = 9,
    /// The lock on the file implies a lock on each of its block groups.
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
    /// The receiver is a client now; the header has its number.
    Registered {
        /// The time for which the client may be silent.
        lease_ms: u32,
        /// The time for which only reclaims are granted.
        grace_ms: u32,
        /// The key it registered with.
        key: [u8; 16],
        /// The proof, for the target after its next start, that this life was the client's.
        /// [`NO_PROOF`] from a target that accepts none then.
        proof: Proof,
    },
    /// All locks of a request are held.
    Granted {
        /// The request.
        request: u64,
        /// The transaction that holds them; zero for the client itself.
        transaction: u32,
        /// The locks, with the modes they are held in, which can be more than was requested, and
        /// the numbers of their grants.
        locks: Vec<Lock>,
    },
    /// The locks of a request are not held yet.
    Queued {
        /// The request.
        request: u64,
    },
    /// The locks of a request will not be granted.
    Refused {
        /// The request.
        request: u64,
        /// The reason.
        reason: Reason,
        /// The index of the lock that is the reason; zero where none is.
        index: u16,
    },
    /// The client is to give up a lock, down to the mode named.
    CallBack {
        /// The number of the callback, for the answer.
        callback: u64,
        /// The lock, with the mode that the client may keep and the number of its grant.
        lock: Lock,
        /// The time after which the client is fenced.
        deadline_ms: u32,
    },
    /// The client is to drop every copy of these blocks.
    Purge {
        /// The number of the callback, for the answer.
        callback: u64,
        /// The first block.
        first_block: u64,
        /// The count of blocks.
        block_count: u64,
        /// The time after which the client is fenced.
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
        /// The birth of the transaction, to be sent along when it is tried again.
        birth: u64,
    },
}

/// A message to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// LUN field of the logical unit.
    pub lun: u64,
    /// The number of the client.
    pub client: u64,
    /// The number of the message: it counts those to that client, from 1.
    pub number: u64,
    /// The content.
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

    /// Parses the event data of a target.
    ///
    /// # Errors
    /// The byte at which it is not valid.
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
