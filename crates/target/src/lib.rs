//! The iSCSI target on tokio: portals, sessions and logical units.
//!
//! The protocol is [`iscsi::target`], the commands are `logical_unit`; this crate has the sockets,
//! the clock, and the state that connections share.
//!
//! | module | holds |
//! |---|---|
//! | [`server`] | [`TargetServer`]: targets, portals, shards, shutdown |
//! | [`target`] | [`Target`]: a name and its logical units |
//! | `login` | the loop that drives one connection through its login, over any stream |
//! | `session` | the loop that drives a session with all its connections |
//! | `turns` | the order in which the sessions of a thread work |
//! | `transport` | a stream that can move to its session's shard |
//! | `sessions` | the table of sessions: TSIHs, reinstatement |
//! | `connections` | the table of connections |
//! | [`quota`] | [`Quota`]: the resources that peers may use, and the answer beyond them |
//! | `data_in` | memory for data-in: which sessions may read, and which wait |
//! | `held_data` | R2Ts that wait for other hosts of a shared unit |
//! | `control` | directives to a connection, and the notification of its end |
//! | `shared` | the state that all connections of a server share |
//! | `addresses` | the two ends of a connection |
//! | `counters`, `tally`, `rates` | counters of the server and of each logical unit, in total and recent |
//! | [`status`] | the snapshot for users |
//!
//! ```text
//! acceptor ──► shard 0: current_thread runtime ── connections, each one future
//!          ──► shard 1: ...                          (whichever shard has the fewest)
//! ```
//!
//! A session is one future without tasks of its own: it reads into the final buffers, executes a
//! command in place when the device answers at once, polls the others, and writes what is queued
//! with one call per connection. It lives and dies on the shard of its first connection; others are
//! handed there after their login.
//!
//! The owner of a target polls `LogicalUnit::run` of its units; this crate does not.

#![forbid(unsafe_code)]

mod addresses;
mod connections;
mod control;
mod counters;
mod data_in;
mod held_data;
pub mod limits;
mod login;
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
