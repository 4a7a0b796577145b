//! The server's side of negotiation ("Fixed newstyle negotiation", "Option types").
//!
//! Options are answered at once, one after the other, from the staging area. A faulty option gets
//! an error reply where the document has one, and otherwise ends the connection.

use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use super::export::Export;
use super::served::Served;
use super::terms::{ALLOCATION_CONTEXT, Terms};
use crate::error::ProtocolError;
use crate::inbox::Inbox;
use crate::limits::OPTION_BYTES_MAX;
use crate::transmit::TransmitQueue;
use crate::wire::handshake::{
    BASE_ALLOCATION, EXPORT_NAME_PADDING_BYTES, ExportNameReplyRaw, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, GoRequest,
    Info, MetaContextReply, MetaContextRequest, OPTION_MAGIC, OptionHeaderRaw, ServerReply, emit_option_reply, info,
    option, reply,
};
use crate::wire::text;

/// Options that must come without data.
const BARE_OPTIONS: [u32; 3] = [option::LIST, option::STARTTLS, option::STRUCTURED_REPLY];

/// The policy on TLS (`SELECTIVETLS`, `FORCEDTLS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// TLS is refused.
    #[default]
    Off,
    /// A client may ask for TLS.
    Allowed,
    /// A client without TLS cannot reach the export.
    Required,
}

/// The negotiation of one connection.
#[derive(Default)]
pub(super) struct Handshake {
    pub(super) tls: TlsPolicy,
    /// Whether the stream is secured by TLS.
    pub(super) is_secured: bool,
    /// Whether the client's flags have come, so that options follow.
    has_flags: bool,
    terms: Terms,
}

/// What a client's message leads to.
pub(super) enum Step {
    /// To the next one.
    Next,
    /// To nothing: it is not whole.
    Starved,
    /// To an answer, which is queued.
    Answered,
    /// To a refusal with `reply`, once `length` bytes of the option's data were discarded.
    Skip { option: u32, reply: u32, length: u64 },
    /// To TLS, once what is queued was sent.
    TlsBegins,
    /// To requests: the negotiation is over.
    Done,
    /// To the end: the client disconnects.
    Disconnected,
}

impl Handshake {
    /// What was agreed on so far.
    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Takes the next message from `inbox`, and queues its answer in `out`.
    ///
    /// # Errors
    /// When it breaks the protocol.
    pub(super) fn step(
        &mut self,
        inbox: &mut Inbox,
        served: &Served,
        out: &mut TransmitQueue,
    ) -> Result<Step, ProtocolError> {
        if self.has_flags { self.step_option(inbox, served, out) } else { self.step_client_flags(inbox) }
    }

    fn step_client_flags(&mut self, inbox: &mut Inbox) -> Result<Step, ProtocolError> {
        let Some(flags) = inbox.take::<U32>().map(U32::get) else { return Ok(Step::Starved) };
        let known = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        if flags & !known != 0 {
            return Err(ProtocolError::HandshakeFlags(flags));
        }
        self.terms.is_fixed_newstyle = flags & u32::from(FLAG_FIXED_NEWSTYLE) != 0;
        self.terms.is_without_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        self.has_flags = true;
        Ok(Step::Next)
    }

    fn step_option(
        &mut self,
        inbox: &mut Inbox,
        served: &Served,
        out: &mut TransmitQueue,
    ) -> Result<Step, ProtocolError> {
        let Some(header) = inbox.peek::<OptionHeaderRaw>() else { return Ok(Step::Starved) };
        if header.magic.get() != OPTION_MAGIC {
            return Err(ProtocolError::Magic { place: "an option", found: header.magic.get() });
        }
        let (option, length) = (header.option.get(), header.length.get() as usize);
        // Without the fixed part of the negotiation a client would not understand any reply.
        if option != option::EXPORT_NAME && !self.terms.is_fixed_newstyle {
            return Err(ProtocolError::HandshakeFlags(0));
        }
        if length > OPTION_BYTES_MAX {
            if option == option::EXPORT_NAME {
                return Err(ProtocolError::Malformed("an export name of more than 4096 bytes"));
            }
            inbox.skip(size_of::<OptionHeaderRaw>() as u64);
            return Ok(Step::Skip { option, reply: reply::ERR_TOO_BIG, length: length as u64 });
        }
        let whole = size_of::<OptionHeaderRaw>() + length;
        let Some(message) = inbox.waiting().get(..whole) else { return Ok(Step::Starved) };
        // A handshake happens once: a copy keeps the borrow of the staging area short.
        let data = message[size_of::<OptionHeaderRaw>()..].to_vec();
        inbox.skip(whole as u64);
        self.handle_option(option, &data, inbox, served, out)
    }

    fn handle_option(
        &mut self,
        option: u32,
        data: &[u8],
        inbox: &Inbox,
        served: &Served,
        out: &mut TransmitQueue,
    ) -> Result<Step, ProtocolError> {
        if option == option::ABORT {
            reply_option(option, reply::ACK, out);
            return Ok(Step::Disconnected);
        }
        let lacks_tls = self.tls == TlsPolicy::Required && !self.is_secured;
        if option == option::EXPORT_NAME {
            return if lacks_tls { Err(ProtocolError::WithoutTls) } else { self.handle_export_name(data, served, out) };
        }
        if served.is_shutting_down {
            return Ok(answered(option, reply::ERR_SHUTDOWN, out));
        }
        if BARE_OPTIONS.contains(&option) && !data.is_empty() {
            return Ok(answered(option, reply::ERR_INVALID, out));
        }
        if lacks_tls && option != option::STARTTLS {
            return Ok(answered(option, reply::ERR_TLS_REQD, out));
        }
        Ok(match option {
            option::LIST => handle_list(&served.export, out),
            option::STARTTLS => return self.handle_starttls(inbox, out),
            option::INFO | option::GO => self.handle_info(option, data, served, out),
            option::STRUCTURED_REPLY => {
                self.terms.is_structured = true;
                answered(option, reply::ACK, out)
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                let reply = self.handle_meta_context(option, data, served, out);
                answered(option, reply, out)
            }
            _ => answered(option, reply::ERR_UNSUP, out),
        })
    }

    /// `NBD_OPT_STARTTLS`. The client waits for the answer, so bytes that came behind the option
    /// are an attacker's, and end the connection. What was negotiated in the clear may be an
    /// attacker's too, and is forgotten.
    fn handle_starttls(&mut self, inbox: &Inbox, out: &mut TransmitQueue) -> Result<Step, ProtocolError> {
        let refusal = match self.tls {
            TlsPolicy::Off => Some(reply::ERR_POLICY),
            _ if self.is_secured => Some(reply::ERR_INVALID),
            _ => None,
        };
        if let Some(refusal) = refusal {
            return Ok(answered(option::STARTTLS, refusal, out));
        }
        if !inbox.waiting().is_empty() {
            return Err(ProtocolError::Malformed("something in the clear behind NBD_OPT_STARTTLS"));
        }
        let Terms { is_fixed_newstyle, is_without_zeroes, .. } = self.terms;
        self.terms = Terms { is_fixed_newstyle, is_without_zeroes, ..Terms::default() };
        reply_option(option::STARTTLS, reply::ACK, out);
        Ok(Step::TlsBegins)
    }

    fn handle_export_name(&self, data: &[u8], served: &Served, out: &mut TransmitQueue) -> Result<Step, ProtocolError> {
        let name = text(data).ok_or(ProtocolError::Malformed("an export name that is no UTF-8"))?;
        if !served.has_name(name) || served.is_shutting_down {
            return Err(ProtocolError::UnknownExport(name.to_owned()));
        }
        let answer = ExportNameReplyRaw {
            size_bytes: U64::new(served.export.size_bytes),
            transmission_flags: U16::new(served.abilities(&self.terms).to_flags()),
        };
        out.push(answer.as_bytes());
        if !self.terms.is_without_zeroes {
            out.push(&[0; EXPORT_NAME_PADDING_BYTES]);
        }
        Ok(Step::Done)
    }

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`: the export's facts, whether requested or not, names only if
    /// requested; after a successful `GO`, transmission.
    fn handle_info(&self, option: u32, data: &[u8], served: &Served, out: &mut TransmitQueue) -> Step {
        let Some(request) = GoRequest::parse(data) else {
            return answered(option, reply::ERR_INVALID, out);
        };
        if !served.has_name(request.name) {
            return answered(option, reply::ERR_UNKNOWN, out);
        }
        let transmission_flags = served.abilities(&self.terms).to_flags();
        let export = &served.export;
        let facts = [
            (info::EXPORT, true, Info::Export { size_bytes: export.size_bytes, transmission_flags }),
            (info::NAME, false, Info::Name(&export.name)),
            (info::DESCRIPTION, false, Info::Description(&export.description)),
            (info::BLOCK_SIZE, true, Info::BlockSize(export.block_size)),
        ];
        for (kind, is_always_sent, fact) in facts {
            if is_always_sent || request.requests.contains(&kind) {
                out.append(|out| emit_option_reply(option, reply::INFO, out, |out| fact.emit(out)));
            }
        }
        let step = answered(option, reply::ACK, out);
        if option == option::GO { Step::Done } else { step }
    }

    /// Metadata contexts ("Metadata querying"): a query of ours selects, `base:` and no query list, anything else is
    /// ignored.
    /// Returns the reply that ends the answer.
    fn handle_meta_context(&mut self, option: u32, data: &[u8], served: &Served, out: &mut TransmitQueue) -> u32 {
        let is_selecting = option == option::SET_META_CONTEXT;
        if is_selecting {
            self.terms.has_block_status = false;
        }
        let request = MetaContextRequest::parse(data).filter(|_| self.terms.is_structured);
        let Some(request) = request else { return reply::ERR_INVALID };
        if !served.has_name(request.name) {
            return reply::ERR_UNKNOWN;
        }
        let is_exact = request.queries.contains(&BASE_ALLOCATION);
        let is_listed = !is_selecting && (request.queries.is_empty() || request.queries.contains(&"base:"));
        if is_exact || is_listed {
            let id = if is_selecting { ALLOCATION_CONTEXT } else { 0 };
            let context = MetaContextReply { id, name: BASE_ALLOCATION };
            out.append(|out| emit_option_reply(option, reply::META_CONTEXT, out, |out| context.emit(out)));
            self.terms.has_block_status |= is_selecting;
        }
        reply::ACK
    }
}

fn handle_list(export: &Export, out: &mut TransmitQueue) -> Step {
    let server = ServerReply { name: &export.name, description: &export.description };
    out.append(|out| emit_option_reply(option::LIST, reply::SERVER, out, |out| server.emit(out)));
    answered(option::LIST, reply::ACK, out)
}

fn answered(option: u32, reply: u32, out: &mut TransmitQueue) -> Step {
    reply_option(option, reply, out);
    Step::Answered
}

/// Queues a reply without data.
pub(super) fn reply_option(option: u32, reply: u32, out: &mut TransmitQueue) {
    out.append(|out| emit_option_reply(option, reply, out, |_| {}));
}
