//! The scripts of an NBD client and of an NBD server, and of the owner of the end under test.

use nbd::wire::handshake::{OPTION_MAGIC, OPTION_REPLY_MAGIC};
use nbd::wire::transmission::{REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC};

use crate::input::{Input, emit_counted};

/// How a run begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// The handshake is done properly before the first item.
    pub is_negotiated: bool,
    /// With structured replies and block status.
    pub is_structured: bool,
    /// The export is read-only.
    pub is_read_only: bool,
    /// Bytes of one read from the network; 0 reads as many as there is space for.
    pub read_bytes: u8,
}

/// One step.
#[derive(Clone, Debug)]
pub enum Item {
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// The client under script sends an option; the server under script answers the last one.
    Option {
        /// Option, or type of the reply.
        code: u32,
        /// Its data.
        data: Vec<u8>,
    },
    /// A request: from the script, or to be submitted to the client under test.
    Request {
        /// Command flags.
        flags: u16,
        /// Which command.
        command: u8,
        /// First byte.
        offset: u32,
        /// Count of bytes.
        length: u32,
    },
    /// An answer: to be given by the server under test, or from the script.
    Answer {
        /// To which of the outstanding requests.
        index: u8,
        /// A simple reply with this error, where it is below 128; else a chunk.
        kind: u8,
        /// Type and flags of the chunk.
        chunk: u16,
        /// Its payload.
        payload: Vec<u8>,
    },
    /// The end under test goes away.
    Leave,
}

const ITEMS_MAX: usize = 200;

impl Item {
    fn parse(input: &mut Input<'_>) -> Self {
        match input.byte() % 8 {
            0 => Self::Raw(input.counted().to_vec()),
            1 => {
                // Codes are small, apart from the bit that marks errors.
                let code = u32::from(input.u16());
                Self::Option { code: (code & 0x8000) << 16 | code & 0x7fff, data: input.counted().to_vec() }
            }
            2..=4 => {
                Self::Request { flags: input.u16(), command: input.byte(), offset: input.u32(), length: input.u32() }
            }
            5 | 6 => Self::Answer {
                index: input.byte(),
                kind: input.byte(),
                chunk: input.u16(),
                payload: input.counted().to_vec(),
            },
            _ => Self::Leave,
        }
    }

    fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Raw(bytes) => {
                out.push(0);
                emit_counted(bytes, out);
            }
            Self::Option { code, data } => {
                out.push(1);
                out.extend_from_slice(&((code >> 16 & 0x8000 | code & 0x7fff) as u16).to_be_bytes());
                emit_counted(data, out);
            }
            Self::Request { flags, command, offset, length } => {
                out.push(2);
                out.extend_from_slice(&flags.to_be_bytes());
                out.push(*command);
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(&length.to_be_bytes());
            }
            Self::Answer { index, kind, chunk, payload } => {
                out.extend_from_slice(&[5, *index, *kind]);
                out.extend_from_slice(&chunk.to_be_bytes());
                emit_counted(payload, out);
            }
            Self::Leave => out.push(7),
        }
    }
}

/// A whole script.
#[derive(Clone, Debug)]
pub struct Script {
    /// How it begins.
    pub setup: Setup,
    /// What happens.
    pub items: Vec<Item>,
}

impl Script {
    /// The script that `bytes` are.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut input = Input::new(bytes);
        let flags = input.byte();
        let has = |bit: u8| flags & 1 << bit != 0;
        let setup =
            Setup { is_negotiated: has(0), is_structured: has(1), is_read_only: has(2), read_bytes: input.byte() };
        let mut items = Vec::new();
        while !input.is_empty() && items.len() < ITEMS_MAX {
            items.push(Item::parse(&mut input));
        }
        Self { setup, items }
    }

    /// The bytes that are this script.
    pub fn emit(&self) -> Vec<u8> {
        let Setup { is_negotiated, is_structured, is_read_only, read_bytes } = self.setup;
        let flags = u8::from(is_negotiated) | u8::from(is_structured) << 1 | u8::from(is_read_only) << 2;
        let mut out = vec![flags, read_bytes];
        self.items.iter().for_each(|item| item.emit(&mut out));
        out
    }
}

/// An option as a client sends it.
pub fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
    out
}

/// The answer to an option as a server sends it.
pub fn option_reply_bytes(option: u32, reply: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    for number in [option, reply, data.len() as u32] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(data);
    out
}

/// A request without its payload.
pub fn request_bytes(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut out = REQUEST_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&command.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out
}

/// A simple reply without its payload.
pub fn simple_reply_bytes(error: u32, cookie: u64) -> Vec<u8> {
    let mut out = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out
}

/// A chunk of a structured reply.
pub fn chunk_bytes(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
    out
}
