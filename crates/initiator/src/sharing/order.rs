//! SHARING OUT commands of a client, and their results.

use std::time::Duration;

use block::Buffer;
use iscsi::initiator::{Command, Data, Outcome};
use iscsi::pdu::TaskAttribute;
use locks::identity::ClientId;
use scsi::sharing::Parameters;
use scsi::{Cdb, Sense, Status};

/// The bit that marks tokens of orders; tokens of the engine's commands do not have it.
const TOKENS: u64 = 1 << 63;

/// A SHARING OUT command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// `None` in a registration: the target assigns the client's number.
    pub(crate) client: Option<ClientId>,
    pub(crate) parameters: Parameters,
}

/// The outcome of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// The client is fenced.
    Fenced,
    /// The target started again, or this session is no longer the client's.
    Unknown,
    /// The target refuses it: a client, lock or request that it names does not exist any more.
    Refused,
    /// The outcome is unknown, or the target is busy: the order is sent again.
    Again,
}

impl Order {
    /// Whether it passes the window: the target has room for some answers and a renewal beside it.
    pub(crate) fn is_immediate(&self) -> bool {
        matches!(self.parameters, Parameters::Renew { .. } | Parameters::Acknowledge { .. })
    }

    /// The SHARING OUT command, with a token made of `number`.
    pub(crate) fn command(&self, number: u64, lun: u64, timeout: Duration) -> Command {
        let list = self.parameters.emit();
        let cdb = Cdb::SharingOut {
            service_action: self.parameters.action(),
            client: self.client.map_or(0, ClientId::bits),
            parameter_list_length: list.len() as u32,
        };
        let data = if list.is_empty() { Data::None } else { Data::Write(Buffer::copy_of(&list), 0..list.len()) };
        Command { token: TOKENS | number, lun, cdb: cdb.emit_padded(), attribute: TaskAttribute::Simple, data, timeout }
    }
}

/// The number of the order that has this token; `None` for a command of the engine.
pub(crate) fn number_of(token: u64) -> Option<u64> {
    (token & TOKENS != 0).then_some(token & !TOKENS)
}

/// Whether a unit says that the client of this session is fenced.
pub(crate) fn is_fenced(sense: &Sense) -> bool {
    sense.is_same_condition(&Sense::SHARING_FENCED)
}

/// Whether a unit says that this session is not, or no longer, one of a client that it knows.
pub(crate) fn is_unknown(sense: &Sense) -> bool {
    sense.is_same_condition(&Sense::SHARING_UNKNOWN_CLIENT)
}

/// What the outcome of the command means for the order.
pub(crate) fn answer(outcome: &Outcome) -> Answer {
    let Outcome::Status { status, sense, .. } = outcome else { return Answer::Again };
    match (Status::from_code(*status), Sense::parse(sense)) {
        (Some(Status::Good), _) => Answer::Done,
        (Some(Status::CheckCondition), Ok(sense)) if is_fenced(&sense) => Answer::Fenced,
        (Some(Status::CheckCondition), Ok(sense)) if is_unknown(&sense) => Answer::Unknown,
        (Some(Status::CheckCondition), Ok(sense)) if sense.key == scsi::SenseKey::IllegalRequest => Answer::Refused,
        _ => Answer::Again,
    }
}
