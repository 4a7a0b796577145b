//! Messages of the handshake phase ("Newstyle negotiation", "Fixed newstyle negotiation", "Handshake phase" of
//! "Values").

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Cursor, bounded, emit_string, text};
use crate::limits::BLOCK_BYTES_MIN_MAX;

/// `NBDMAGIC`, the first bytes of a server.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, in the greeting of a newstyle server and before each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// `NBD_FLAG_FIXED_NEWSTYLE` of the server, `NBD_FLAG_C_FIXED_NEWSTYLE` of the client.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// `NBD_FLAG_NO_ZEROES` of the server, `NBD_FLAG_C_NO_ZEROES` of the client: no 124 zeroes after the answer to
/// `NBD_OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// The context of block status that says what is allocated, the only one served.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// The server's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct GreetingRaw {
    /// [`GREETING_MAGIC`].
    pub magic: U64,
    /// [`OPTION_MAGIC`].
    pub option_magic: U64,
    /// `FLAG_*`.
    pub flags: U16,
}
const _: () = assert!(size_of::<GreetingRaw>() == 18);

/// Before the data of each option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct OptionHeaderRaw {
    /// [`OPTION_MAGIC`].
    pub magic: U64,
    /// One of [`option`].
    pub option: U32,
    /// Bytes of data that follow.
    pub length: U32,
}
const _: () = assert!(size_of::<OptionHeaderRaw>() == 16);

/// Before the data of each reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct OptionReplyHeaderRaw {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option this answers.
    pub option: U32,
    /// One of [`reply`].
    pub reply: U32,
    /// Bytes of data that follow.
    pub length: U32,
}
const _: () = assert!(size_of::<OptionReplyHeaderRaw>() == 20);

/// The answer to `NBD_OPT_EXPORT_NAME`; 124 zeroes follow unless both sides said [`FLAG_NO_ZEROES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ExportNameReplyRaw {
    /// Bytes of the export.
    pub size_bytes: U64,
    /// See [`Abilities`](super::transmission::Abilities).
    pub transmission_flags: U16,
}
const _: () = assert!(size_of::<ExportNameReplyRaw>() == 10);

/// Zeroes after [`ExportNameReplyRaw`] for clients that did not decline them.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Option numbers ("Option types").
pub mod option {
    /// Chooses the export and ends the negotiation without a way to report errors.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the connection.
    pub const ABORT: u32 = 2;
    /// Asks for the names of the exports.
    pub const LIST: u32 = 3;
    /// Asks for TLS.
    pub const STARTTLS: u32 = 5;
    /// Asks about one export.
    pub const INFO: u32 = 6;
    /// As `INFO`, and ends the negotiation when it succeeds.
    pub const GO: u32 = 7;
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Asks which contexts of block status there are.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses contexts of block status.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Asks for headers with 64-bit lengths (experimental; refused here).
    pub const EXTENDED_HEADERS: u32 = 11;

    /// The option's name in messages for people.
    pub const fn name(number: u32) -> &'static str {
        match number {
            EXPORT_NAME => "NBD_OPT_EXPORT_NAME",
            ABORT => "NBD_OPT_ABORT",
            LIST => "NBD_OPT_LIST",
            STARTTLS => "NBD_OPT_STARTTLS",
            INFO => "NBD_OPT_INFO",
            GO => "NBD_OPT_GO",
            STRUCTURED_REPLY => "NBD_OPT_STRUCTURED_REPLY",
            LIST_META_CONTEXT => "NBD_OPT_LIST_META_CONTEXT",
            SET_META_CONTEXT => "NBD_OPT_SET_META_CONTEXT",
            EXTENDED_HEADERS => "NBD_OPT_EXTENDED_HEADERS",
            _ => "an unknown option",
        }
    }
}

/// Reply types ("Option reply types").
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export: [`ServerReply`](super::ServerReply).
    pub const SERVER: u32 = 2;
    /// One fact: [`Info`](super::Info).
    pub const INFO: u32 = 3;
    /// One context: [`MetaContextReply`](super::MetaContextReply).
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = ERROR_BIT + 1;
    /// The option is forbidden here.
    pub const ERR_POLICY: u32 = ERROR_BIT + 2;
    /// The option's data makes no sense.
    pub const ERR_INVALID: u32 = ERROR_BIT + 3;
    /// Only TLS will do (`FORCEDTLS`).
    pub const ERR_TLS_REQD: u32 = ERROR_BIT + 5;
    /// The export does not exist.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT + 6;
    /// The server is going away.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT + 7;
    /// The option is longer than the server accepts.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT + 9;
}

/// Information types of `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's own name.
    pub const NAME: u16 = 1;
    /// A description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoRequest<'a> {
    /// The export, or empty for the default one.
    pub name: &'a str,
    /// The [`info`] types asked for.
    pub requests: Vec<u16>,
}

impl<'a> GoRequest<'a> {
    /// The request in `data`, or `None` when lengths and data disagree.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor(data);
        let name = cursor.string()?;
        let count = usize::from(cursor.u16()?);
        let requests = cursor.bytes(2 * count)?.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        let requests = requests.collect();
        cursor.0.is_empty().then_some(Self { name, requests })
    }

    /// Appends the data of the option.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_string(self.name, out);
        out.extend_from_slice(&(self.requests.len() as u16).to_be_bytes());
        self.requests.iter().for_each(|request| out.extend_from_slice(&request.to_be_bytes()));
    }
}

/// Data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaContextRequest<'a> {
    /// The export, or empty for the default one.
    pub name: &'a str,
    /// Contexts or namespaces.
    pub queries: Vec<&'a str>,
}

impl<'a> MetaContextRequest<'a> {
    /// The request in `data`, or `None` when lengths and data disagree.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor(data);
        let name = cursor.string()?;
        let count = cursor.u32()?;
        // The count is chosen by the peer. A wrong one does no harm: the data runs out first.
        let queries = (0..count).map(|_| cursor.string()).collect::<Option<Vec<_>>>()?;
        cursor.0.is_empty().then_some(Self { name, queries })
    }

    /// Appends the data of the option.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_string(self.name, out);
        out.extend_from_slice(&(self.queries.len() as u32).to_be_bytes());
        self.queries.iter().for_each(|query| emit_string(query, out));
    }
}

/// Data of [`reply::META_CONTEXT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaContextReply<'a> {
    /// The id of the context in block status replies; zero when listing.
    pub id: u32,
    /// The context.
    pub name: &'a str,
}

impl<'a> MetaContextReply<'a> {
    /// The reply in `data`, or `None` when it is too short or no text.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor(data);
        let id = cursor.u32()?;
        Some(Self { id, name: text(cursor.0)? })
    }

    /// Appends the data of the reply.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(bounded(self.name).as_bytes());
    }
}

/// Data of [`reply::SERVER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReply<'a> {
    /// The export.
    pub name: &'a str,
    /// A description for people, perhaps empty.
    pub description: &'a str,
}

impl<'a> ServerReply<'a> {
    /// The reply in `data`, or `None` when lengths and data disagree.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor(data);
        let name = cursor.string()?;
        Some(Self { name, description: text(cursor.0)? })
    }

    /// Appends the data of the reply.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_string(self.name, out);
        out.extend_from_slice(bounded(self.description).as_bytes());
    }
}

/// Data of [`reply::INFO`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Info<'a> {
    /// `NBD_INFO_EXPORT`.
    Export {
        /// Bytes of the export.
        size_bytes: u64,
        /// See [`Abilities`](super::transmission::Abilities).
        transmission_flags: u16,
    },
    /// `NBD_INFO_NAME`.
    Name(&'a str),
    /// `NBD_INFO_DESCRIPTION`.
    Description(&'a str),
    /// `NBD_INFO_BLOCK_SIZE`.
    BlockSize(BlockSize),
    /// A type this crate does not know; to be ignored.
    Unknown,
}

/// Size constraints, in bytes ("Size constraints").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Unit of offsets and lengths: a power of two up to 64 KiB.
    pub min: u32,
    /// Unit of efficient requests: a power of two, at least `min` and 512.
    pub preferred: u32,
    /// Largest payload, at least `preferred`.
    pub payload_max: u32,
}

impl BlockSize {
    /// The constraints of an export that announced none ("Size constraints").
    pub const DEFAULT: Self = Self { min: 1, preferred: 4096, payload_max: 32 << 20 };

    /// Whether the numbers follow the document's rules.
    pub fn is_valid(&self) -> bool {
        self.min.is_power_of_two()
            && self.min <= BLOCK_BYTES_MIN_MAX
            && self.preferred.is_power_of_two()
            && self.preferred >= self.min.max(512)
            && self.payload_max >= self.preferred
    }
}

impl<'a> Info<'a> {
    /// The fact in `data`, or `None` when its length or content does not fit its type.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor(data);
        let parsed = match cursor.u16()? {
            info::EXPORT => Self::Export { size_bytes: cursor.u64()?, transmission_flags: cursor.u16()? },
            info::NAME => return text(cursor.0).map(Self::Name),
            info::DESCRIPTION => return text(cursor.0).map(Self::Description),
            info::BLOCK_SIZE => {
                let sizes = BlockSize { min: cursor.u32()?, preferred: cursor.u32()?, payload_max: cursor.u32()? };
                if !sizes.is_valid() {
                    return None;
                }
                Self::BlockSize(sizes)
            }
            _ => return Some(Self::Unknown),
        };
        cursor.0.is_empty().then_some(parsed)
    }

    /// Appends the data of the reply. `Unknown` has none: it only comes from parsing.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Export { size_bytes, transmission_flags } => {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                out.extend_from_slice(&size_bytes.to_be_bytes());
                out.extend_from_slice(&transmission_flags.to_be_bytes());
            }
            Self::Name(name) => emit_info_text(info::NAME, name, out),
            Self::Description(description) => emit_info_text(info::DESCRIPTION, description, out),
            Self::BlockSize(sizes) => {
                out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                for size in [sizes.min, sizes.preferred, sizes.payload_max] {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
            Self::Unknown => {}
        }
    }
}

fn emit_info_text(kind: u16, text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(bounded(text).as_bytes());
}

/// Appends an option: header, then what `emit_data` appends.
pub fn emit_option(option: u32, out: &mut Vec<u8>, emit_data: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.resize(start + size_of::<OptionHeaderRaw>(), 0);
    emit_data(out);
    let length = out.len() - start - size_of::<OptionHeaderRaw>();
    let header = OptionHeaderRaw {
        magic: U64::new(OPTION_MAGIC),
        option: U32::new(option),
        length: U32::new(u32::try_from(length).expect("an option of ours is a few strings of bounded length")),
    };
    out[start..start + size_of::<OptionHeaderRaw>()].copy_from_slice(header.as_bytes());
}

/// Appends a reply to an option: header, then what `emit_data` appends.
pub fn emit_option_reply(option: u32, reply: u32, out: &mut Vec<u8>, emit_data: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.resize(start + size_of::<OptionReplyHeaderRaw>(), 0);
    emit_data(out);
    let length = out.len() - start - size_of::<OptionReplyHeaderRaw>();
    let header = OptionReplyHeaderRaw {
        magic: U64::new(OPTION_REPLY_MAGIC),
        option: U32::new(option),
        reply: U32::new(reply),
        length: U32::new(u32::try_from(length).expect("a reply of ours is a few strings of bounded length")),
    };
    out[start..start + size_of::<OptionReplyHeaderRaw>()].copy_from_slice(header.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes that `emit` appends to a vector that is not empty.
    fn emitted(emit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = vec![0xa5; 7];
        emit(&mut out);
        assert_eq!(out[..7], [0xa5; 7], "emit only appends");
        out.split_off(7)
    }

    #[test]
    fn golden_option_go() {
        let request = GoRequest { name: "disk", requests: vec![info::BLOCK_SIZE, info::NAME] };
        let bytes = emitted(|out| emit_option(option::GO, out, |out| request.emit(out)));
        #[rustfmt::skip]
        assert_eq!(bytes, [
            b'I', b'H', b'A', b'V', b'E', b'O', b'P', b'T', 0, 0, 0, 7, 0, 0, 0, 14,
            0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 2, 0, 3, 0, 1,
        ]);
    }

    #[test]
    fn golden_option_replies() {
        let export = Info::Export { size_bytes: 0x0102_0304_0506_0708, transmission_flags: 0x0d6d };
        let bytes = emitted(|out| emit_option_reply(option::GO, reply::INFO, out, |out| export.emit(out)));
        #[rustfmt::skip]
        assert_eq!(bytes, [
            0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 12,
            0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x0d, 0x6d,
        ]);
        let sizes = Info::BlockSize(BlockSize { min: 512, preferred: 4096, payload_max: 1 << 25 });
        assert_eq!(emitted(|out| sizes.emit(out)), [0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]);
        let refusal = emitted(|out| emit_option_reply(option::STARTTLS, reply::ERR_POLICY, out, |_| {}));
        assert_eq!(refusal[8..], [0, 0, 0, 5, 0x80, 0, 0, 2, 0, 0, 0, 0]);
        let context = MetaContextReply { id: 1, name: BASE_ALLOCATION };
        assert_eq!(emitted(|out| context.emit(out)), *b"\0\0\0\x01base:allocation");
        let server = ServerReply { name: "a", description: "bc" };
        assert_eq!(emitted(|out| server.emit(out)), *b"\0\0\0\x01abc");
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for data in
            [&b""[..], b"\0\0\0\x05disk\0\0", b"\0\0\0\x04disk\0\x02\0\x03", b"\0\0\0\0\0\0x", b"\xff\xff\xff\xff"]
        {
            assert_eq!(GoRequest::parse(data), None, "{data:?}");
        }
        assert_eq!(MetaContextRequest::parse(b"\0\0\0\0\xff\xff\xff\xff\0\0\0\x01a"), None);
        assert_eq!(Info::parse(&[0, 0, 1]), None);
        assert_eq!(Info::parse(&[0, 3, 0, 0, 2, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]), None, "513 is no power of two");
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            name in ".{0,20}",
            description in ".{0,20}",
            requests in prop::collection::vec(any::<u16>(), 0..6),
            queries in prop::collection::vec(".{0,12}", 0..5),
            (id, size_bytes, transmission_flags) in any::<(u32, u64, u16)>(),
        ) {
            let go = GoRequest { name: &name, requests };
            let bytes = emitted(|out| go.emit(out));
            prop_assert_eq!(GoRequest::parse(&bytes), Some(go.clone()));
            let meta = MetaContextRequest { name: &name, queries: queries.iter().map(String::as_str).collect() };
            let bytes = emitted(|out| meta.emit(out));
            prop_assert_eq!(MetaContextRequest::parse(&bytes), Some(meta.clone()));
            let context = MetaContextReply { id, name: &name };
            let bytes = emitted(|out| context.emit(out));
            prop_assert_eq!(MetaContextReply::parse(&bytes), Some(context.clone()));
            let server = ServerReply { name: &name, description: &description };
            let bytes = emitted(|out| server.emit(out));
            prop_assert_eq!(ServerReply::parse(&bytes), Some(server.clone()));
            for info in [
                Info::Export { size_bytes, transmission_flags },
                Info::Name(&name),
                Info::Description(&description),
                Info::BlockSize(BlockSize { min: 512, preferred: 65536, payload_max: id | 65536 }),
            ] {
                let bytes = emitted(|out| info.emit(out));
            prop_assert_eq!(Info::parse(&bytes), Some(info.clone()));
            }
        }

        #[test]
        fn any_bytes_parse_or_do_not(data in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = GoRequest::parse(&data);
            let _ = MetaContextRequest::parse(&data);
            let _ = MetaContextReply::parse(&data);
            let _ = ServerReply::parse(&data);
            let _ = Info::parse(&data);
        }
    }
}
