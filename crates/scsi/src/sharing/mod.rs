//! Data of SHARING IN and OUT, the messages behind them, and VPD page C1h: how several hosts use one logical unit.
//! These are forebay's own; `docs/protocol/sharing.md` says what they mean.
//!
//! | module | holds |
//! |---|---|
//! | `actions` | the service actions of both commands |
//! | [`support`] | VPD page C1h |
//! | [`lock`] | the lock descriptor, as both directions have it |
//! | [`parameters`] | the requests of a client: the parameter lists of SHARING OUT |
//! | [`message`] | the messages of the target: the event data of an Asynchronous Message |
//! | [`report`] | the clients and their locks: the data of SHARING IN |
//! | `reader` | fields in foreign bytes, one after the other |

mod actions;
pub mod lock;
pub mod message;
pub mod parameters;
mod reader;
pub mod report;
pub mod support;

pub use actions::{action_in, action_out};
pub use lock::{Lock, Mode, Resource};
pub use message::{Message, MessageBody, NO_PROOF, Proof, Reason};
pub use parameters::{CallbackAnswer, LifeBefore, Parameters};
pub use reader::WrongByte;
pub use report::{Report, ReportRecord};
pub use support::Support;

#[cfg(test)]
mod tests;
