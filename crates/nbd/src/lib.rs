//! The NBD protocol without I/O, both ends: fixed newstyle negotiation, simple and structured replies.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | the messages, byte for byte |
//! | [`server`] | [`Server`]: one connection, seen from the export |
//! | [`client`] | [`Client`]: one connection, seen from whoever uses the export |
//! | [`transmit`] | [`TransmitQueue`]: what is to be sent, payloads uncopied |
//! | [`error`] | [`ErrorCode`], [`Failure`], [`ProtocolError`] |
//! | [`limits`] | the bounds |
//!
//! Both ends are driven alike: receive into `receive_space`, tell `handle_received`, call `poll_event` until it returns
//! `None`, send what `transmit` holds. Bytes come from a peer that may lie: the answer is an error reply or
//! [`ProtocolError`], never a panic.
//!
//! | of the document | here |
//! |---|---|
//! | `EXPORT_NAME`, `ABORT`, `LIST`, `INFO`, `GO`, `STRUCTURED_REPLY`, `LIST_META_CONTEXT`, `SET_META_CONTEXT` | yes (the client uses `GO` only) |
//! | `STARTTLS` | refused by policy: connections are local, or inside somebody else's tunnel |
//! | `EXTENDED_HEADERS`, `RESIZE`, oldstyle negotiation | not: experimental, experimental, withdrawn |
//! | `READ`, `WRITE`, `DISC`, `FLUSH`, `TRIM`, `CACHE`, `WRITE_ZEROES`, `BLOCK_STATUS` | yes |
//! | metadata contexts | `base:allocation` |

#![forbid(unsafe_code)]

pub mod client;
pub mod error;
mod inbox;
pub mod limits;
pub mod server;
pub mod transmit;
pub mod wire;

pub use client::Client;
pub use error::{ErrorCode, Failure, ProtocolError};
pub use server::Server;
pub use transmit::TransmitQueue;
pub use wire::handshake::BlockSize;
pub use wire::transmission::{Abilities, StatusExtent};
