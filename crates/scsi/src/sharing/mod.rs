//! Data of SHARING IN and OUT, the messages behind them, and VPD page C1h: how several hosts use one logical unit.
//! These are forebay's own; `docs/protocol/sharing.md` says what they mean.
//!
//! | module | holds |
//! |---|---|
//! | `actions` | the service actions of both commands |
//! | [`support`] | VPD page C1h |
//! | [`lock`] | what can be locked and how, as both directions have it |
//! | [`parameters`] | what a client asks: the parameter lists of SHARING OUT |
//! | [`message`] | what the target says: the event data of an Asynchronous Message |
//! | [`report`] | who is there, and what they hold: the data of SHARING IN |
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
