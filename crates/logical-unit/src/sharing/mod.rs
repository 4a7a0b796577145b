//! Sharing of a logical unit among several hosts (`docs/protocol/sharing.md`): who its clients are, what they hold, and
//! the gate for blocks.
//!
//! The decisions are those of [`locks::manager`]; here are the commands that ask for them, the messages that tell of
//! them, the time that ends leases, and what has to end before a client's life is over.
//!
//! | module | holds |
//! |---|---|
//! | [`settings`] | [`SharingOptions`]: times, and where what outlives a start is kept |
//! | [`store`] | [`SharingStore`], [`SavedSharing`] |
//! | [`proof`] | what shows after a start whose a life before was |
//! | `wire` | what is said on the wire, as the lock manager has it, and back |
//! | `state` | the lock manager, the clients' paths and messages, commands at the gate |
//! | `site` | [`Sharing`]: the state behind its lock, and whether anybody shares at all |
//! | `passage` | a command's way through the gate |
//! | `orders` | SHARING OUT |
//! | `reporting` | SHARING IN |
//! | `driver` | deadlines, fences, and what has to be durable |
//! | `watch` | whether the target itself was not run for a while |

mod driver;
mod orders;
mod passage;
pub mod proof;
mod reporting;
pub mod settings;
mod site;
mod state;
pub mod store;
mod watch;
mod wire;

pub(crate) use orders::Registering;
pub(crate) use passage::{Direction, Passage};
pub use proof::LifeSecret;
pub use settings::SharingOptions;
pub(crate) use site::Sharing;
pub use state::Addressed;
pub use store::{SavedSharing, SharingStore};
