//! iSCSI without I/O: PDUs, negotiation, CHAP and both ends' state machines (RFC 7143).
//!
//! Bytes and the time go in; bytes, events and deadlines come out. This crate uses no socket, clock
//! or runtime. CDBs, sense data and task attributes are values of the crate `scsi`.
//!
//! | module | holds |
//! |---|---|
//! | [`pdu`] | every PDU: its 48-byte header as a checked struct and as a value without impossible states |
//! | [`framing`] | bytes to PDUs and back: receive assembly, transmit queue, digests; used by both ends |
//! | [`text`] | `key=value` parameters |
//! | [`name`] | the syntax of iSCSI names |
//! | [`negotiation`] | the table of keys and their negotiation |
//! | [`chap`] | CHAP, both roles |
//! | [`split`] | names of our extension that splits connections |
//! | [`url`] | `iscsi://` addresses |
//! | [`target`] | the target's state machine: sessions, connections, tasks |
//! | [`initiator`] | the initiator's state machine |
//! | [`limits`] | the bounds of this crate |

#![forbid(unsafe_code)]

pub mod chap;
pub mod framing;
pub mod initiator;
pub mod limits;
pub mod name;
pub mod negotiation;
pub mod pdu;
pub mod sharing;
pub mod split;
pub mod target;
pub mod text;
pub mod url;
