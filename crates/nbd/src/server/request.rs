//! The server's requests: the checks, and the error of each that fails ("Request types", "Error
//! values").

use base::buffer::Buffer;

use super::export::Export;
use super::served::Served;
use super::terms::Terms;
use super::ticket::Ticket;
use crate::command::{Command, WireRequest};
use crate::error::{ErrorCode, ProtocolError};
use crate::inbox::Inbox;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::wire::transmission::command::{BLOCK_STATUS, CACHE, DISC, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
use crate::wire::transmission::command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
use crate::wire::transmission::{Abilities, REQUEST_MAGIC, RequestRaw};

/// A request as it was received, and what follows.
pub(super) enum Request {
    /// The client disconnects.
    Disconnect,
    /// To be carried out.
    Command(Ticket, Command),
    /// A write, whose payload follows.
    Write(Ticket),
    /// Not allowed.
    Refused(Ticket, ErrorCode),
    /// A write that is not allowed, whose payload follows all the same.
    RefusedWrite(Ticket, ErrorCode),
}

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

impl Request {
    /// The next request, or `None` while it is not whole.
    ///
    /// # Errors
    /// When it is no request.
    pub(super) fn take(inbox: &mut Inbox, served: &Served, terms: &Terms) -> Result<Option<Self>, ProtocolError> {
        let Some(request) = inbox.take::<RequestRaw>() else { return Ok(None) };
        if request.magic.get() != REQUEST_MAGIC {
            return Err(ProtocolError::Magic { place: "a request", found: request.magic.get().into() });
        }
        let ticket = Ticket { cookie: request.cookie.get(), wire: WireRequest::of_raw(&request) };
        if ticket.wire.command == DISC {
            return Ok(Some(Self::Disconnect));
        }
        Ok(Some(match (check(&ticket, served, terms), ticket.wire.command) {
            (Ok(()), WRITE) => Self::Write(ticket),
            (Err(code), WRITE) => Self::RefusedWrite(ticket, code),
            (Err(code), _) => Self::Refused(ticket, code),
            (Ok(()), _) => {
                let command = ticket.wire.to_command(Buffer::empty());
                Self::Command(ticket, command)
            }
        }))
    }
}

/// Whether the export can do this, and if not, why.
fn check(ticket: &Ticket, served: &Served, terms: &Terms) -> Result<(), ErrorCode> {
    if served.is_shutting_down {
        return Err(ErrorCode::Shutdown);
    }
    if ticket.wire.command == FLUSH {
        let is_plain = ticket.wire.offset == 0 && ticket.wire.length == 0 && ticket.wire.flags & !FUA == 0;
        return if is_plain { Ok(()) } else { Err(ErrorCode::Invalid) };
    }
    let abilities = served.abilities(terms);
    let rule = RULES.iter().find(|rule| rule.command == ticket.wire.command).ok_or(ErrorCode::Invalid)?;
    if rule.is_mutation && abilities.is_read_only {
        return Err(ErrorCode::NotPermitted);
    }
    let is_understood = ticket.wire.flags & !rule.flags == 0
        && (ticket.wire.flags & DF == 0 || abilities.can_dont_fragment)
        && (ticket.wire.flags & FAST_ZERO == 0 || abilities.can_fast_zero)
        && (ticket.wire.command != BLOCK_STATUS || terms.has_block_status)
        && (rule.is_offered)(&abilities);
    if !is_understood || ticket.wire.length == 0 {
        return Err(ErrorCode::Invalid);
    }
    check_range(ticket, &served.export, rule)
}

fn check_range(ticket: &Ticket, export: &Export, rule: &Rule) -> Result<(), ErrorCode> {
    let end = ticket.wire.offset.checked_add(u64::from(ticket.wire.length));
    if end.is_none_or(|end| end > export.size_bytes) {
        return Err(rule.past_end);
    }
    match rule.too_long {
        Some(code) if ticket.wire.length > PAYLOAD_BYTES_MAX => Err(code),
        _ => Ok(()),
    }
}
