//! The messages between hosts and the target.

use std::time::Duration;

use locks::blocks::BlockRange;
use locks::error::LockError;
use locks::identity::{ClientId, Generation};
use locks::message::{FromClient, Reply, ToClient};

use crate::history::{OperationId, Value};
use crate::world::Event;

/// A session of a host, numbered over all hosts.
pub type SessionNumber = u64;

/// A command's name at its host.
pub type Tag = u64;

/// The receiver of an answer.
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
    /// With the key that identifies a host which asks again.
    Register {
        previous: Option<ClientId>,
        key: u64,
    },
    /// With the number of the last message handled.
    Control(FromClient, u64),
    /// Not registered when it is read under a lock.
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

/// A request to the world.
#[derive(Clone, Debug)]
pub enum Effect {
    Ask(Asker, Request),
    Answer(Asker, Answer),
    /// A write of a host has reached the disk.
    Landed(usize, BlockRange),
    After(Duration, Event),
}
