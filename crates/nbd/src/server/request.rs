//! The server's requests: the checks, and the error of each that fails ("Request types", "Error
//! values").

use super::{AfterSkip, Command, Event, Intake, Phase, Server, Step, Ticket};
use crate::error::{ErrorCode, ProtocolError};
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::wire::transmission::command::{BLOCK_STATUS, CACHE, DISC, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
use crate::wire::transmission::command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
use crate::wire::transmission::{Abilities, REQUEST_MAGIC, RequestRaw};

/// The rules of one command, except for its range.
struct Rule {
    command: u16,
    /// Flags it may carry. FUA is taken with every command, as the document asks.
    flags: u16,
    is_mutation: bool,
    /// The answer to a range past the end.
    past_end: ErrorCode,
    /// The answer to more than the largest payload; `None` where length costs nothing.
    too_long: Option<ErrorCode>,
    /// Whether the export offers it.
    is_offered: fn(&Abilities) -> bool,
}

const RULES: [Rule; 6] = [
    Rule {
        command: READ,
        flags: FUA | DF,
        is_mutation: false,
        past_end: ErrorCode::Invalid,
        too_long: Some(ErrorCode::Overflow),
        is_offered: |_| true,
    },
    Rule {
        command: WRITE,
        flags: FUA,
        is_mutation: true,
        past_end: ErrorCode::NoSpace,
        too_long: Some(ErrorCode::Invalid),
        is_offered: |_| true,
    },
    Rule {
        command: TRIM,
        flags: FUA,
        is_mutation: true,
        past_end: ErrorCode::Invalid,
        too_long: None,
        is_offered: |abilities| abilities.can_trim,
    },
    Rule {
        command: CACHE,
        flags: FUA,
        is_mutation: false,
        past_end: ErrorCode::Invalid,
        too_long: Some(ErrorCode::Overflow),
        is_offered: |abilities| abilities.can_cache,
    },
    Rule {
        command: WRITE_ZEROES,
        flags: FUA | NO_HOLE | FAST_ZERO,
        is_mutation: true,
        past_end: ErrorCode::NoSpace,
        too_long: None,
        is_offered: |abilities| abilities.can_write_zeroes,
    },
    Rule {
        command: BLOCK_STATUS,
        flags: FUA | REQ_ONE,
        is_mutation: false,
        past_end: ErrorCode::Invalid,
        too_long: None,
        is_offered: |_| true,
    },
];

impl Server {
    pub(super) fn step_request(&mut self) -> Result<Step, ProtocolError> {
        let Some(request) = self.inbox.take::<RequestRaw>() else { return Ok(Step::Starved) };
        if request.magic.get() != REQUEST_MAGIC {
            return Err(ProtocolError::Magic { place: "a request", found: request.magic.get().into() });
        }
        let ticket = Ticket {
            cookie: request.cookie.get(),
            command: request.command.get(),
            flags: request.flags.get(),
            offset: request.offset.get(),
            length: request.length.get(),
        };
        if ticket.command == DISC {
            self.phase = Phase::Closed;
            return Ok(Step::Event(Event::Disconnected));
        }
        let verdict = self.check(&ticket);
        if ticket.command == WRITE {
            return Ok(self.begin_payload(ticket, verdict));
        }
        if let Err(code) = verdict {
            self.refuse(ticket, code);
            return Ok(Step::Again);
        }
        let command = to_command(&ticket);
        Ok(self.give_out(ticket, command))
    }

    /// The payload of a write follows whether the write is allowed or not: it is received, or
    /// skipped.
    fn begin_payload(&mut self, ticket: Ticket, verdict: Result<(), ErrorCode>) -> Step {
        match verdict {
            Ok(()) => {
                let length = ticket.length as usize;
                self.intake = Intake::Unbuffered { ticket };
                Step::Event(Event::BufferNeeded { length })
            }
            Err(code) => {
                let remaining = u64::from(ticket.length);
                self.intake = Intake::Skip { remaining, then: AfterSkip::FailRequest { ticket, code } };
                Step::Again
            }
        }
    }

    /// Whether the export can do this, and if not, why.
    fn check(&self, ticket: &Ticket) -> Result<(), ErrorCode> {
        if self.is_shutting_down {
            return Err(ErrorCode::Shutdown);
        }
        if ticket.command == FLUSH {
            let is_plain = ticket.offset == 0 && ticket.length == 0 && ticket.flags & !FUA == 0;
            return if is_plain { Ok(()) } else { Err(ErrorCode::Invalid) };
        }
        let abilities = self.abilities();
        let rule = RULES.iter().find(|rule| rule.command == ticket.command).ok_or(ErrorCode::Invalid)?;
        if rule.is_mutation && abilities.is_read_only {
            return Err(ErrorCode::NotPermitted);
        }
        let is_understood = ticket.flags & !rule.flags == 0
            && (ticket.flags & DF == 0 || abilities.can_dont_fragment)
            && (ticket.flags & FAST_ZERO == 0 || abilities.can_fast_zero)
            && (ticket.command != BLOCK_STATUS || self.negotiated.has_block_status)
            && (rule.is_offered)(&abilities);
        if !is_understood || ticket.length == 0 {
            return Err(ErrorCode::Invalid);
        }
        self.check_range(ticket, rule)
    }

    fn check_range(&self, ticket: &Ticket, rule: &Rule) -> Result<(), ErrorCode> {
        let end = ticket.offset.checked_add(u64::from(ticket.length));
        if end.is_none_or(|end| end > self.export.size_bytes) {
            return Err(rule.past_end);
        }
        match rule.too_long {
            Some(code) if ticket.length > PAYLOAD_BYTES_MAX => Err(code),
            _ => Ok(()),
        }
    }
}

/// The command of a ticket that passed the checks and has no payload.
fn to_command(ticket: &Ticket) -> Command {
    let (offset, length) = (ticket.offset, ticket.length);
    let has = |flag| ticket.flags & flag != 0;
    match ticket.command {
        READ => Command::Read { offset, length },
        FLUSH => Command::Flush,
        TRIM => Command::Trim { offset, length, fua: has(FUA) },
        CACHE => Command::Cache { offset, length },
        WRITE_ZEROES => Command::WriteZeroes {
            offset,
            length,
            fua: has(FUA),
            may_discard: !has(NO_HOLE),
            only_if_fast: has(FAST_ZERO),
        },
        BLOCK_STATUS => Command::BlockStatus { offset, length, only_first: has(REQ_ONE) },
        other => unreachable!("command {other} has no rule and was refused"),
    }
}
