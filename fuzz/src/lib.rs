//! What the fuzz targets share.
//!
//! Targets that drive a state machine do not take a plain stream of bytes: a mutated stream nearly always dies at its
//! first length or checksum. Their input is a *script*, a list of small items; the harness fills in what a peer would
//! have to compute (lengths, digests, tags, sequence numbers), as far as the item asks for it. Scripts can be emitted
//! as well as parsed, so the seeds are made by code (`examples/seeds`). Every byte string is a script: what ends
//! early reads as zeroes.
//!
//! | module | holds |
//! |---|---|
//! | [`input`] | bytes to numbers |
//! | [`iscsi_script`] | the script of an iSCSI peer |
//! | [`iscsi_peer`] | its wire: PDUs made with digests, PDUs of the other end parsed and checked |
//! | [`scsi_script`] | commands for logical units |
//! | [`session_script`], [`session_model`] | an initiator with several connections that loses things, and what it may expect |
//! | [`sharing_script`] | hosts that share a unit |
//! | [`nbd_script`] | the scripts of an NBD client and server |
//! | [`ext2_image`] | an ext2 to be damaged, looked through and changed |
//! | [`damage`], [`cache_image`], [`log_image`] | damage to a cache device or a write log, with checksums put right again |

#![forbid(unsafe_code)]

pub mod cache_image;
pub mod damage;
pub mod ext2_image;
pub mod input;
pub mod iscsi_peer;
pub mod iscsi_script;
pub mod log_image;
pub mod nbd_script;
pub mod scsi_script;
pub mod session_model;
pub mod session_script;
pub mod sharing_script;
