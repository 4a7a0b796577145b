//! The NBD protocol without I/O, both ends: fixed newstyle negotiation, simple and structured replies.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | the messages, byte for byte |
//! | [`Command`] | what a client asks of the owner of an export, at both ends |
//! | [`server`] | [`Server`]: the server's end of one connection |
//! | [`client`] | [`Client`]: the client's end of one connection |
//! | [`transmit`] | [`TransmitQueue`]: the bytes to be sent, payloads uncopied |
//! | [`error`] | [`ErrorCode`], [`Failure`], [`ProtocolError`] |
//! | [`limits`] | the bounds |
//!
//! The owner drives both ends alike: it receives into `receive_space`, reports the count to
//! `handle_received`, calls `poll_event` until that returns `None`, and sends the bytes of
//! `transmit`. The peer may send anything: the answer is an error reply or [`ProtocolError`], never
//! a panic.
//!
//! | of the document | here |
//! |---|---|
//! | `EXPORT_NAME`, `ABORT`, `LIST`, `INFO`, `GO`, `STRUCTURED_REPLY`, `LIST_META_CONTEXT`, `SET_META_CONTEXT` | yes (the client uses `GO` only) |
//! | `STARTTLS` | refused by policy: connections are local, or inside a tunnel of another program |
//! | `EXTENDED_HEADERS`, `RESIZE`, oldstyle negotiation | not: experimental, experimental, withdrawn |
//! | `READ`, `WRITE`, `DISC`, `FLUSH`, `TRIM`, `CACHE`, `WRITE_ZEROES`, `BLOCK_STATUS` | yes |
//! | metadata contexts | `base:allocation` |

#![forbid(unsafe_code)]

pub mod client;
mod command;
pub mod error;
mod inbox;
pub mod limits;
pub mod server;
pub mod transmit;
pub mod wire;

pub use client::Client;
pub use command::Command;
pub use error::{ErrorCode, Failure, ProtocolError};
pub use server::Server;
pub use transmit::TransmitQueue;
pub use wire::handshake::BlockSize;
pub use wire::transmission::{Abilities, StatusExtent};
