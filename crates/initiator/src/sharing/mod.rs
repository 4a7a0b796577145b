//! Being a client of a logical unit that several hosts share (`docs/protocol/sharing.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`member`] | [`Member`]: the client's life over all sessions: it registers, renews, hears callbacks and answers them |
//! | `holding` | ranges that the client holds alone: asked for, called back, claimed back |
//! | `wire` | locks as the state machine has them, and as they are on the wire |
//! | [`order`] | SHARING OUT commands, and what came of them |
//! | `registering` | copies that a client has from before |
//! | `asking` | what people ask of a shared unit |
//! | [`status`] | [`SharingStatus`] |
//!
//! What becomes of requests meanwhile is the engine's: none leaves before the session is the client's, so that no write
//! passes as a stranger's.

mod asking;
mod holding;
pub(crate) mod member;
pub(crate) mod order;
mod registering;
pub(crate) mod status;
mod wire;

pub(crate) use member::Member;
pub use status::SharingStatus;
