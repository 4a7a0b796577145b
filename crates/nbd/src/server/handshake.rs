//! The server's side of negotiation ("Fixed newstyle negotiation", "Option types").
//!
//! Options are answered at once, one after the other, from the staging area. A faulty option gets
//! an error reply where the document has one, and otherwise ends the connection.

use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use super::{ALLOCATION_CONTEXT, AfterSkip, Event, Intake, Negotiated, Phase, Server, Step, TlsPolicy};
use crate::error::ProtocolError;
use crate::limits::OPTION_BYTES_MAX;
use crate::wire::handshake::{
    BASE_ALLOCATION, EXPORT_NAME_PADDING_BYTES, ExportNameReplyRaw, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, GoRequest,
    Info, MetaContextReply, MetaContextRequest, OPTION_MAGIC, OptionHeaderRaw, ServerReply, emit_option_reply, info,
    option, reply,
};
use crate::wire::text;
use crate::wire::transmission::Abilities;

/// Options that must come without data.
const BARE_OPTIONS: [u32; 3] = [option::LIST, option::STARTTLS, option::STRUCTURED_REPLY];

impl Server {
    pub(super) fn step_client_flags(&mut self) -> Result<Step, ProtocolError> {
        let Some(flags) = self.inbox.take::<U32>().map(U32::get) else { return Ok(Step::Starved) };
        let known = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        if flags & !known != 0 {
            return Err(ProtocolError::HandshakeFlags(flags));
        }
        self.negotiated.is_fixed_newstyle = flags & u32::from(FLAG_FIXED_NEWSTYLE) != 0;
        self.negotiated.is_without_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        self.phase = Phase::Options;
        Ok(Step::Again)
    }

    pub(super) fn step_option(&mut self) -> Result<Step, ProtocolError> {
        let Some(header) = self.inbox.peek::<OptionHeaderRaw>() else { return Ok(Step::Starved) };
        if header.magic.get() != OPTION_MAGIC {
            return Err(ProtocolError::Magic { place: "an option", found: header.magic.get() });
        }
        let (option, length) = (header.option.get(), header.length.get() as usize);
        // Without the fixed part of the negotiation a client would not understand any reply.
        if option != option::EXPORT_NAME && !self.negotiated.is_fixed_newstyle {
            return Err(ProtocolError::HandshakeFlags(0));
        }
        if length > OPTION_BYTES_MAX {
            if option == option::EXPORT_NAME {
                return Err(ProtocolError::Malformed("an export name of more than 4096 bytes"));
            }
            self.inbox.skip(size_of::<OptionHeaderRaw>() as u64);
            let then = AfterSkip::RefuseOption { option, reply: reply::ERR_TOO_BIG };
            self.intake = Intake::Skip { remaining: length as u64, then };
            return Ok(Step::Again);
        }
        let whole = size_of::<OptionHeaderRaw>() + length;
        let Some(message) = self.inbox.waiting().get(..whole) else { return Ok(Step::Starved) };
        // A handshake happens once: a copy keeps the borrow of the staging area short.
        let data = message[size_of::<OptionHeaderRaw>()..].to_vec();
        self.inbox.skip(whole as u64);
        self.handle_option(option, &data)
    }

    fn handle_option(&mut self, option: u32, data: &[u8]) -> Result<Step, ProtocolError> {
        if option == option::ABORT {
            self.reply_option(option, reply::ACK);
            self.phase = Phase::Closed;
            return Ok(Step::Event(Event::Disconnected));
        }
        let lacks_tls = self.tls == TlsPolicy::Required && !self.is_secured;
        if option == option::EXPORT_NAME {
            return if lacks_tls { Err(ProtocolError::WithoutTls) } else { self.handle_export_name(data) };
        }
        if self.is_shutting_down {
            self.reply_option(option, reply::ERR_SHUTDOWN);
            return Ok(Step::Again);
        }
        if BARE_OPTIONS.contains(&option) && !data.is_empty() {
            self.reply_option(option, reply::ERR_INVALID);
            return Ok(Step::Again);
        }
        if lacks_tls && option != option::STARTTLS {
            self.reply_option(option, reply::ERR_TLS_REQD);
            return Ok(Step::Again);
        }
        match option {
            option::LIST => self.handle_list(),
            option::STARTTLS => return self.handle_starttls(),
            option::INFO | option::GO => return Ok(self.handle_info(option, data)),
            option::STRUCTURED_REPLY => {
                self.negotiated.is_structured = true;
                self.reply_option(option, reply::ACK);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.handle_meta_context(option, data),
            _ => self.reply_option(option, reply::ERR_UNSUP),
        }
        Ok(Step::Again)
    }

    /// `NBD_OPT_STARTTLS`. The client waits for the answer, so bytes that came behind the option
    /// are an attacker's, and end the connection. What was negotiated in the clear may be an
    /// attacker's too, and is forgotten.
    fn handle_starttls(&mut self) -> Result<Step, ProtocolError> {
        let refusal = match self.tls {
            TlsPolicy::Off => Some(reply::ERR_POLICY),
            _ if self.is_secured => Some(reply::ERR_INVALID),
            _ => None,
        };
        if let Some(refusal) = refusal {
            self.reply_option(option::STARTTLS, refusal);
            return Ok(Step::Again);
        }
        if !self.inbox.waiting().is_empty() {
            return Err(ProtocolError::Malformed("something in the clear behind NBD_OPT_STARTTLS"));
        }
        let Negotiated { is_fixed_newstyle, is_without_zeroes, .. } = self.negotiated;
        self.negotiated = Negotiated { is_fixed_newstyle, is_without_zeroes, ..Negotiated::default() };
        self.reply_option(option::STARTTLS, reply::ACK);
        self.phase = Phase::Securing;
        Ok(Step::Event(Event::TlsBegins))
    }

    fn handle_export_name(&mut self, data: &[u8]) -> Result<Step, ProtocolError> {
        let name = text(data).ok_or(ProtocolError::Malformed("an export name that is no UTF-8"))?;
        if !self.serves(name) || self.is_shutting_down {
            return Err(ProtocolError::UnknownExport(name.to_owned()));
        }
        let answer = ExportNameReplyRaw {
            size_bytes: U64::new(self.export.size_bytes),
            transmission_flags: U16::new(self.abilities().to_flags()),
        };
        self.transmit.push(answer.as_bytes());
        if !self.negotiated.is_without_zeroes {
            self.transmit.push(&[0; EXPORT_NAME_PADDING_BYTES]);
        }
        Ok(self.enter_transmission())
    }

    fn handle_list(&mut self) {
        let export = &self.export;
        let server = ServerReply { name: &export.name, description: &export.description };
        self.transmit.append(|out| emit_option_reply(option::LIST, reply::SERVER, out, |out| server.emit(out)));
        self.reply_option(option::LIST, reply::ACK);
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`: the export's facts, whether requested or not, names only if
    /// requested; after a successful `GO`, transmission.
    fn handle_info(&mut self, option: u32, data: &[u8]) -> Step {
        let Some(request) = GoRequest::parse(data) else {
            self.reply_option(option, reply::ERR_INVALID);
            return Step::Again;
        };
        if !self.serves(request.name) {
            self.reply_option(option, reply::ERR_UNKNOWN);
            return Step::Again;
        }
        let transmission_flags = self.abilities().to_flags();
        let export = &self.export;
        let facts = [
            (info::EXPORT, true, Info::Export { size_bytes: export.size_bytes, transmission_flags }),
            (info::NAME, false, Info::Name(&export.name)),
            (info::DESCRIPTION, false, Info::Description(&export.description)),
            (info::BLOCK_SIZE, true, Info::BlockSize(export.block_size)),
        ];
        for (kind, is_always_sent, fact) in facts {
            if is_always_sent || request.requests.contains(&kind) {
                self.transmit.append(|out| emit_option_reply(option, reply::INFO, out, |out| fact.emit(out)));
            }
        }
        self.reply_option(option, reply::ACK);
        if option == option::GO { self.enter_transmission() } else { Step::Again }
    }

    /// Metadata contexts ("Metadata querying"): a query of ours selects, `base:` and no query list, anything else is
    /// ignored.
    fn handle_meta_context(&mut self, option: u32, data: &[u8]) {
        let is_selecting = option == option::SET_META_CONTEXT;
        if is_selecting {
            self.negotiated.has_block_status = false;
        }
        let request = MetaContextRequest::parse(data).filter(|_| self.negotiated.is_structured);
        let Some(request) = request else { return self.reply_option(option, reply::ERR_INVALID) };
        if !self.serves(request.name) {
            return self.reply_option(option, reply::ERR_UNKNOWN);
        }
        let is_exact = request.queries.contains(&BASE_ALLOCATION);
        let is_listed = !is_selecting && (request.queries.is_empty() || request.queries.contains(&"base:"));
        if is_exact || is_listed {
            let id = if is_selecting { ALLOCATION_CONTEXT } else { 0 };
            let context = MetaContextReply { id, name: BASE_ALLOCATION };
            self.transmit.append(|out| emit_option_reply(option, reply::META_CONTEXT, out, |out| context.emit(out)));
            self.negotiated.has_block_status |= is_selecting;
        }
        self.reply_option(option, reply::ACK);
    }

    pub(super) fn reply_option(&mut self, option: u32, reply: u32) {
        self.has_answered = true;
        self.transmit.append(|out| emit_option_reply(option, reply, out, |_| {}));
    }

    fn enter_transmission(&mut self) -> Step {
        self.phase = Phase::Transmission;
        Step::Event(Event::Negotiated { is_structured: self.negotiated.is_structured })
    }

    fn serves(&self, name: &str) -> bool {
        name.is_empty() || name == self.export.name
    }

    pub(super) fn abilities(&self) -> Abilities {
        Abilities { can_dont_fragment: self.negotiated.is_structured, ..self.export.abilities }
    }
}
