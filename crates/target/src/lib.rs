//! The iSCSI target on tokio: portals, sessions and logical units.
//!
//! The protocol is [`iscsi::target`], the commands are `logical_unit`; here are the sockets, the clock, and what
//! connections share.
//!
//! | module | holds |
//! |---|---|
//! | [`server`] | [`TargetServer`]: targets, portals, shards, shutdown |
//! | [`target`] | [`Target`]: a name and its logical units |
//! | `login` | the loop that drives one connection through its login, over any stream |
//! | `session` | the loop that drives a session with all its connections |
//! | `turns` | whose turn it is among the sessions of a thread |
//! | `transport` | a stream that can move to its session's shard |
//! | `sessions` | the table of sessions: TSIHs, reinstatement |
//! | `connections` | the table of connections: how many of whom |
//! | [`quota`] | [`Quota`]: what peers may hold, and what they are told beyond it |
//! | `own_wakes` | what wakes a session while it is polled |
//! | `data_in` | who may begin to read, and who waits for room |
//! | `held_data` | data of writes that waits for other hosts of a shared unit |
//! | `control` | how one connection is told to stop, and how others learn that it has |
//! | `shared` | what all connections of a server share |
//! | `addresses` | the two ends of a connection |
//! | `counters`, `tally`, `rates` | what the server did, and what was done to each logical unit, ever and of late |
//! | [`status`] | the snapshot of everything that people look at |
//!
//! ```text
//! acceptor ──► shard 0: current_thread runtime ── connections, each one future
//!          ──► shard 1: ...                          (whichever shard has the fewest)
//! ```
//!
//! A session is one future without tasks of its own: it reads into where the data belongs, executes commands in place
//! when they are answered in place, polls the others, and writes what gathered with one call per connection. It lives
//! and dies on the shard of its first connection; others are handed there after their login.
//!
//! Whoever assembles a target polls `LogicalUnit::run` of its units; this crate does not.

#![forbid(unsafe_code)]

mod addresses;
mod connections;
mod control;
mod counters;
mod data_in;
mod held_data;
pub mod limits;
mod login;
mod own_wakes;
mod portals;
pub mod quota;
mod rates;
pub mod server;
mod session;
mod sessions;
mod shared;
pub mod status;
mod tally;
pub mod target;
mod transport;
mod turns;
mod waiting;

pub use addresses::Addresses;
pub use portals::{BoundPortals, PORTAL_GROUP_DEFAULT};
pub use quota::Quota;
pub use server::{BoundServer, TargetServer};
pub use shared::TargetServerOptions;
pub use status::{
    BusyPollStatus, ConnectionState, ConnectionStatus, LatencyStatus, LunStatus, NegotiatedStatus, SessionActivity,
    SessionStatus, Status,
};
pub use target::{LunMask, MaskedLun, Target};
