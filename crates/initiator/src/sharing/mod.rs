//! Being a client of a logical unit that several hosts share (`docs/protocol/sharing.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`client`] | [`SharingClient`]: a client that several paths share, and a path of it |
//! | [`member`] | [`Member`]: the client over all sessions: it registers, renews, receives callbacks and answers them |
//! | `path` | its paths: which registers how and when, and which are strangers |
//! | `holding` | ranges that the client holds alone: requested, called back, reclaimed |
//! | `wire` | locks of the state machine, converted from and to the wire |
//! | [`order`] | SHARING OUT commands, and their results |
//! | `registering` | registers copies that a client has from an earlier life |
//! | `asking` | reports and fencing for administrators |
//! | [`unanswered`] | what the target is to answer by a message, and until when |
//! | `spacing` | when something is done again that has failed |
//! | [`status`] | [`SharingStatus`] |
//!
//! The engine handles the requests: none is sent before the session is the client's, so that no
//! write counts as that of an unknown client.

mod asking;
pub(crate) mod client;
mod holding;
pub(crate) mod member;
pub(crate) mod order;
mod path;
mod registering;
mod spacing;
pub(crate) mod status;
pub(crate) mod unanswered;
mod wire;

pub(crate) use client::ClientPath;
pub use client::SharingClient;
pub(crate) use member::Member;
pub use status::SharingStatus;
