//! Errors that travel in replies, and breaches of the protocol that end a connection.

use std::fmt;

/// The error values of a reply ("Error values"). Anything else a peer sends counts as [`ErrorCode::Invalid`], as the
/// document asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    /// `NBD_EPERM`: not permitted, the export is read-only.
    NotPermitted = 1,
    /// `NBD_EIO`: input or output failed.
    InputOutput = 5,
    /// `NBD_ENOMEM`: the server is out of memory.
    NoMemory = 12,
    /// `NBD_EINVAL`: the request is not valid for this export.
    Invalid = 22,
    /// `NBD_ENOSPC`: no space left, or a write past the end.
    NoSpace = 28,
    /// `NBD_EOVERFLOW`: too long for one request.
    Overflow = 75,
    /// `NBD_ENOTSUP`: zeroing would not be fast.
    NotSupported = 95,
    /// `NBD_ESHUTDOWN`: the server is going away.
    Shutdown = 108,
}

impl ErrorCode {
    /// Every code, in the document's order.
    pub const ALL: [Self; 8] = [
        Self::NotPermitted,
        Self::InputOutput,
        Self::NoMemory,
        Self::Invalid,
        Self::NoSpace,
        Self::Overflow,
        Self::NotSupported,
        Self::Shutdown,
    ];

    /// The value on the wire.
    pub const fn to_wire(self) -> u32 {
        self as u32
    }

    /// The meaning of a value on the wire, or `None` for zero, which is success.
    pub fn from_wire(value: u32) -> Option<Self> {
        let known = Self::ALL.into_iter().find(|code| code.to_wire() == value);
        (value != 0).then(|| known.unwrap_or(Self::Invalid))
    }

    /// The code in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotPermitted => "not permitted",
            Self::InputOutput => "input/output error",
            Self::NoMemory => "out of memory",
            Self::Invalid => "invalid request",
            Self::NoSpace => "no space left",
            Self::Overflow => "request too long",
            Self::NotSupported => "not supported",
            Self::Shutdown => "server shuts down",
        }
    }
}

/// Why a request failed: the code for programs and a sentence, perhaps empty, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code that programs act on.
    pub code: ErrorCode,
    /// The sentence that people read; sent only where structured replies were negotiated.
    pub message: String,
}

impl From<ErrorCode> for Failure {
    fn from(code: ErrorCode) -> Self {
        Self { code, message: String::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() { f.write_str(self.code.as_str()) } else { f.write_str(&self.message) }
    }
}

/// A breach of the protocol by the peer, after which the connection can only be closed ("hard disconnect").
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A message does not start with its magic number.
    #[error("the peer does not speak NBD here: {place} starts with {found:#x}")]
    Magic {
        /// Which message was expected.
        place: &'static str,
        /// The number received instead.
        found: u64,
    },
    /// The peer does not know or accept fixed newstyle negotiation, or asks for flags that are not defined.
    #[error("handshake flags {0:#x} cannot be served: fixed newstyle negotiation is needed")]
    HandshakeFlags(u32),
    /// `NBD_OPT_EXPORT_NAME` named no export of this server; the option has no other way to say so.
    #[error("there is no export \"{0}\" here")]
    UnknownExport(String),
    /// `NBD_OPT_EXPORT_NAME` came without the TLS that is required; the option has no other way to say so.
    #[error("the client did not ask for TLS, without which nothing is served here")]
    WithoutTls,
    /// The server refused an option that cannot be done without.
    #[error("the server refuses {option}: {message}")]
    OptionRefused {
        /// The option's name.
        option: &'static str,
        /// The server's reason.
        message: String,
    },
    /// A reply carries a cookie of no outstanding request.
    #[error("a reply answers no outstanding request: cookie {0:#x}")]
    UnknownCookie(u64),
    /// A message's fields contradict each other, the request they answer, or what was negotiated.
    #[error("the peer sent {0}")]
    Malformed(&'static str),
}
