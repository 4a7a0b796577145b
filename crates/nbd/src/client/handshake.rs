//! The client's side of negotiation: one option at a time, structured replies and `base:allocation` where the server
//! knows them, then `NBD_OPT_GO`.

use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U32;

use super::export_info::ExportInfo;
use crate::error::ProtocolError;
use crate::inbox::Inbox;
use crate::limits::OPTION_BYTES_MAX;
use crate::transmit::TransmitQueue;
use crate::wire::handshake::{
    BASE_ALLOCATION, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, GREETING_MAGIC, GoRequest, GreetingRaw, Info,
    MetaContextReply, MetaContextRequest, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionReplyHeaderRaw, emit_option, info,
    option, reply,
};
use crate::wire::transmission::Abilities;

/// How to negotiate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// The export, or empty for the server's default. At most [`STRING_BYTES_MAX`](crate::limits::STRING_BYTES_MAX).
    pub export_name: String,
    /// Whether to ask for structured replies and, with them, `base:allocation`.
    pub wants_structured: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { export_name: String::new(), wants_structured: true }
    }
}

/// The negotiation of one connection.
pub(super) struct Handshake {
    options: ClientOptions,
    stage: Stage,
    info: ExportInfo,
    has_export_info: bool,
    allocation_context: Option<u32>,
}

/// What the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    StructuredReply,
    MetaContext,
    Go,
}

impl Stage {
    /// The option whose replies it waits for; zero, which is no option, before the first one.
    fn option(self) -> u32 {
        match self {
            Self::StructuredReply => option::STRUCTURED_REPLY,
            Self::MetaContext => option::SET_META_CONTEXT,
            Self::Go => option::GO,
            Self::Greeting => 0,
        }
    }
}

/// What a server's message leads to.
pub(super) enum Step {
    /// To the next one.
    Next,
    /// To nothing: it is not whole.
    Starved,
    /// To requests: the negotiation is over.
    Done,
}

impl Handshake {
    pub(super) fn new(options: ClientOptions) -> Self {
        Self {
            options,
            stage: Stage::Greeting,
            info: ExportInfo::default(),
            has_export_info: false,
            allocation_context: None,
        }
    }

    /// What was learnt about the export.
    pub(super) fn info(&self) -> &ExportInfo {
        &self.info
    }

    /// The id of `base:allocation`, where the server has it.
    pub(super) fn allocation_context(&self) -> Option<u32> {
        self.allocation_context
    }

    /// Takes the next message from `inbox`, and queues what it leads to in `out`.
    ///
    /// # Errors
    /// When the server contradicts itself, or refuses the export.
    pub(super) fn step(&mut self, inbox: &mut Inbox, out: &mut TransmitQueue) -> Result<Step, ProtocolError> {
        match self.stage {
            Stage::Greeting => self.step_greeting(inbox, out),
            Stage::StructuredReply | Stage::MetaContext | Stage::Go => self.step_option_reply(inbox, out),
        }
    }

    fn step_greeting(&mut self, inbox: &mut Inbox, out: &mut TransmitQueue) -> Result<Step, ProtocolError> {
        let Some(greeting) = inbox.take::<GreetingRaw>() else { return Ok(Step::Starved) };
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
        out.push(answer.as_bytes());
        if self.options.wants_structured {
            self.ask(Stage::StructuredReply, out, |_, _| {});
        } else {
            self.ask_go(out);
        }
        Ok(Step::Next)
    }

    fn step_option_reply(&mut self, inbox: &mut Inbox, out: &mut TransmitQueue) -> Result<Step, ProtocolError> {
        let Some(header) = inbox.peek::<OptionReplyHeaderRaw>() else { return Ok(Step::Starved) };
        if header.magic.get() != OPTION_REPLY_MAGIC {
            return Err(ProtocolError::Magic { place: "an option reply", found: header.magic.get() });
        }
        if header.option.get() != self.stage.option() {
            return Err(ProtocolError::Malformed("a reply to an option that was not asked"));
        }
        let length = header.length.get() as usize;
        if length > OPTION_BYTES_MAX {
            return Err(ProtocolError::Malformed("an option reply of more than 8192 bytes"));
        }
        let whole = size_of::<OptionReplyHeaderRaw>() + length;
        let Some(message) = inbox.waiting().get(..whole) else { return Ok(Step::Starved) };
        // A handshake happens once: a copy keeps the borrow of the staging area short.
        let data = message[size_of::<OptionReplyHeaderRaw>()..].to_vec();
        inbox.skip(whole as u64);
        self.handle_option_reply(header.reply.get(), &data, out)
    }

    fn handle_option_reply(&mut self, reply: u32, data: &[u8], out: &mut TransmitQueue) -> Result<Step, ProtocolError> {
        match (self.stage, reply) {
            (Stage::StructuredReply, reply::ACK) => {
                self.info.is_structured = true;
                self.ask(Stage::MetaContext, out, |name, out| {
                    MetaContextRequest { name, queries: vec![BASE_ALLOCATION] }.emit(out);
                });
            }
            (Stage::MetaContext, reply::META_CONTEXT) => {
                let context = MetaContextReply::parse(data);
                let context = context.ok_or(ProtocolError::Malformed("a metadata context of the wrong length"))?;
                if context.name == BASE_ALLOCATION {
                    self.allocation_context = Some(context.id);
                }
            }
            (Stage::MetaContext, reply::ACK) => {
                self.info.has_block_status = self.allocation_context.is_some();
                self.ask_go(out);
            }
            (Stage::Go, reply::INFO) => self.handle_info(data)?,
            (Stage::Go, reply::ACK) if self.has_export_info => return Ok(Step::Done),
            (Stage::StructuredReply | Stage::MetaContext, refusal) if refusal & reply::ERROR_BIT != 0 => {
                // Both are conveniences: a server without them is used without them.
                self.allocation_context = None;
                self.ask_go(out);
            }
            (_, refusal) if refusal & reply::ERROR_BIT != 0 => {
                return Err(refused(self.stage.option(), refusal, data));
            }
            _ => return Err(ProtocolError::Malformed("an option reply that does not fit its option")),
        }
        Ok(Step::Next)
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

    fn ask_go(&mut self, out: &mut TransmitQueue) {
        self.ask(Stage::Go, out, |name, out| {
            GoRequest { name, requests: vec![info::NAME, info::DESCRIPTION, info::BLOCK_SIZE] }.emit(out);
        });
    }

    /// Sends the option of `stage`, and waits for its replies. `emit_data` gets the export's name.
    fn ask(&mut self, stage: Stage, out: &mut TransmitQueue, emit_data: impl FnOnce(&str, &mut Vec<u8>)) {
        self.stage = stage;
        let name = &self.options.export_name;
        out.append(|out| emit_option(stage.option(), out, |out| emit_data(name, out)));
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
