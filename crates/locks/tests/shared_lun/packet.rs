//! What goes between hosts and the target.

use std::time::Duration;

use locks::blocks::BlockRange;
use locks::error::LockError;
use locks::identity::{ClientId, Generation};
use locks::message::{FromClient, Reply, ToClient};

use crate::history::{OperationId, Value};
use crate::world::Event;

/// A session of a host, counted over all.
pub type SessionNumber = u64;

/// Names a command to its host.
pub type Tag = u64;

/// Whom an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub host: usize,
    pub session: SessionNumber,
    pub tag: Tag,
}

/// Blocks that are written, and the operations that they carry.
#[derive(Clone, Debug)]
pub struct Write {
    pub by: Option<ClientId>,
    pub range: BlockRange,
    pub values: Vec<Value>,
    pub is_durable: bool,
    pub operations: Vec<OperationId>,
}

#[derive(Clone, Debug)]
pub enum Request {
    /// With the key by which a host is known that asks again.
    Register {
        previous: Option<ClientId>,
        key: u64,
    },
    /// With the number of the last message taken.
    Control(FromClient, u64),
    /// Without registering it when it is read under a lock.
    Read {
        by: Option<ClientId>,
        range: BlockRange,
        registers: bool,
    },
    Write(Write),
    Flush,
}

#[derive(Clone, Debug)]
pub enum Answer {
    Control(Result<Reply, LockError>),
    Read(Result<(Vec<Value>, Option<Generation>), LockError>),
    Written(Result<Option<Generation>, LockError>),
    Flushed,
    Mail(ClientId, u64, ToClient),
}

/// What somebody wants done by the world.
#[derive(Clone, Debug)]
pub enum Effect {
    Ask(Asker, Request),
    Answer(Asker, Answer),
    /// A write of a host has reached the disk.
    Landed(usize, BlockRange),
    After(Duration, Event),
}
