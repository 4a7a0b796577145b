//! Sharing of a logical unit among several hosts (`docs/protocol/sharing.md`): its clients, their
//! locks, and the gate for blocks.
//!
//! [`locks::manager`] decides. This module holds the commands that ask it, the messages that carry
//! its decisions, the clock that ends leases, and the commands that must end before a client's life
//! is over.
//!
//! | module | holds |
//! |---|---|
//! | [`settings`] | [`SharingOptions`]: times, and the store for what outlives a start |
//! | [`store`] | [`SharingStore`], [`SavedSharing`] |
//! | [`ended`] | [`EndedLives`]: the lives that nobody may reclaim from |
//! | [`proof`] | the code by which a client proves after a start that an earlier life was its own |
//! | `wire` | converts between the lock manager's types and the wire's |
//! | `shares` | what the clients hold in all, and how much of it a host may have |
//! | `state` | the lock manager, the clients' paths and messages, commands at the gate |
//! | `site` | [`Sharing`]: the state behind its lock, and whether the unit is shared at all |
//! | `passage` | a command's way through the gate |
//! | `orders` | SHARING OUT |
//! | `reporting` | SHARING IN |
//! | `driver` | deadlines, fences, and saving the durable state |
//! | `watch` | notices that the target itself was not run for a while |

mod driver;
pub mod ended;
mod orders;
mod passage;
pub mod proof;
mod reporting;
pub mod settings;
mod shares;
mod site;
mod state;
pub mod store;
mod watch;
mod wire;

pub use ended::EndedLives;
pub(crate) use orders::Registering;
pub(crate) use passage::{Direction, Passage};
pub use proof::LifeSecret;
pub use settings::SharingOptions;
pub(crate) use site::Sharing;
pub use state::Addressed;
pub use store::{SavedSharing, SharingStore};
