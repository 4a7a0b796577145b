//! The client's side of negotiation: one option at a time, structured replies and `base:allocation` where the server
//! knows them, then `NBD_OPT_GO`.

use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U32;

use super::{Client, Event, Phase, Step};
use crate::error::ProtocolError;
use crate::limits::OPTION_BYTES_MAX;
use crate::wire::handshake::{
    BASE_ALLOCATION, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, GREETING_MAGIC, GoRequest, GreetingRaw, Info,
    MetaContextReply, MetaContextRequest, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionReplyHeaderRaw, emit_option, info,
    option, reply,
};
use crate::wire::transmission::Abilities;

impl<T> Client<T> {
    pub(super) fn step_greeting(&mut self) -> Result<Step<T>, ProtocolError> {
        let Some(greeting) = self.inbox.take::<GreetingRaw>() else { return Ok(Step::Starved) };
        for (place, expected, found) in [
            ("the greeting", GREETING_MAGIC, greeting.magic.get()),
            ("the newstyle greeting", OPTION_MAGIC, greeting.option_magic.get()),
        ] {
            if found != expected {
                return Err(ProtocolError::Magic { place, found });
            }
        }
        let flags = greeting.flags.get();
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(ProtocolError::HandshakeFlags(flags.into()));
        }
        let answer = U32::new(u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)));
        self.transmit.push(answer.as_bytes());
        if self.options.wants_structured {
            self.ask(Phase::StructuredReply, option::STRUCTURED_REPLY, |_, _| {});
        } else {
            self.ask_go();
        }
        Ok(Step::Again)
    }

    pub(super) fn step_option_reply(&mut self) -> Result<Step<T>, ProtocolError> {
        let Some(header) = self.inbox.peek::<OptionReplyHeaderRaw>() else { return Ok(Step::Starved) };
        if header.magic.get() != OPTION_REPLY_MAGIC {
            return Err(ProtocolError::Magic { place: "an option reply", found: header.magic.get() });
        }
        if header.option.get() != self.phase.option() {
            return Err(ProtocolError::Malformed("a reply to an option that was not asked"));
        }
        let length = header.length.get() as usize;
        if length > OPTION_BYTES_MAX {
            return Err(ProtocolError::Malformed("an option reply of more than 8192 bytes"));
        }
        let whole = size_of::<OptionReplyHeaderRaw>() + length;
        let Some(message) = self.inbox.waiting().get(..whole) else { return Ok(Step::Starved) };
        // A handshake happens once: a copy keeps the borrow of the staging area short.
        let data = message[size_of::<OptionReplyHeaderRaw>()..].to_vec();
        self.inbox.skip(whole as u64);
        self.handle_option_reply(header.reply.get(), &data)
    }

    fn handle_option_reply(&mut self, reply: u32, data: &[u8]) -> Result<Step<T>, ProtocolError> {
        match (self.phase, reply) {
            (Phase::StructuredReply, reply::ACK) => {
                self.info.is_structured = true;
                self.ask(Phase::MetaContext, option::SET_META_CONTEXT, |name, out| {
                    MetaContextRequest { name, queries: vec![BASE_ALLOCATION] }.emit(out);
                });
            }
            (Phase::MetaContext, reply::META_CONTEXT) => {
                let context = MetaContextReply::parse(data);
                let context = context.ok_or(ProtocolError::Malformed("a metadata context of the wrong length"))?;
                if context.name == BASE_ALLOCATION {
                    self.allocation_context = Some(context.id);
                }
            }
            (Phase::MetaContext, reply::ACK) => {
                self.info.has_block_status = self.allocation_context.is_some();
                self.ask_go();
            }
            (Phase::Go, reply::INFO) => self.handle_info(data)?,
            (Phase::Go, reply::ACK) if self.has_export_info => {
                self.phase = Phase::Transmission;
                return Ok(Step::Event(Event::Connected(self.info.clone())));
            }
            (Phase::StructuredReply | Phase::MetaContext, refusal) if refusal & reply::ERROR_BIT != 0 => {
                // Both are conveniences: a server without them is used without them.
                self.allocation_context = None;
                self.ask_go();
            }
            (_, refusal) if refusal & reply::ERROR_BIT != 0 => {
                return Err(refused(self.phase.option(), refusal, data));
            }
            _ => return Err(ProtocolError::Malformed("an option reply that does not fit its option")),
        }
        Ok(Step::Again)
    }

    fn handle_info(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        match Info::parse(data).ok_or(ProtocolError::Malformed("export information of the wrong length or value"))? {
            Info::Export { size_bytes, transmission_flags } => {
                self.info.size_bytes = size_bytes;
                self.info.abilities = Abilities::from_flags(transmission_flags);
                self.has_export_info = true;
            }
            Info::Name(name) => self.info.name = name.to_owned(),
            Info::Description(description) => self.info.description = description.to_owned(),
            Info::BlockSize(sizes) => self.info.block_size = sizes,
            Info::Unknown => {}
        }
        Ok(())
    }

    fn ask_go(&mut self) {
        self.ask(Phase::Go, option::GO, |name, out| {
            GoRequest { name, requests: vec![info::NAME, info::DESCRIPTION, info::BLOCK_SIZE] }.emit(out);
        });
    }

    /// Sends an option, and enters `phase` to wait for its replies. `emit_data` gets the export's
    /// name.
    fn ask(&mut self, phase: Phase, option: u32, emit_data: impl FnOnce(&str, &mut Vec<u8>)) {
        self.phase = phase;
        let name = &self.options.export_name;
        self.transmit.append(|out| emit_option(option, out, |out| emit_data(name, out)));
    }
}

impl Phase {
    /// The option whose replies this phase waits for; zero, which is no option, outside of the handshake.
    fn option(self) -> u32 {
        match self {
            Self::StructuredReply => option::STRUCTURED_REPLY,
            Self::MetaContext => option::SET_META_CONTEXT,
            Self::Go => option::GO,
            Self::Greeting | Self::Transmission | Self::Closed => 0,
        }
    }
}

fn refused(option: u32, refusal: u32, data: &[u8]) -> ProtocolError {
    let reason = match refusal {
        reply::ERR_UNSUP => "the option is not known",
        reply::ERR_POLICY => "the option is forbidden",
        reply::ERR_INVALID => "the option makes no sense to it",
        reply::ERR_UNKNOWN => "there is no such export",
        reply::ERR_SHUTDOWN => "it is going away",
        reply::ERR_TOO_BIG => "the option is too long",
        _ => "no reason that is known here",
    };
    let text = String::from_utf8_lossy(data);
    let message = if text.is_empty() { reason.to_owned() } else { format!("{reason}: {text}") };
    ProtocolError::OptionRefused { option: option::name(option), message }
}
