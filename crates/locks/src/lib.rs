//! Locks, callbacks and leases of a logical unit that several hosts share, without I/O: both ends' state machines.
//!
//! Time and messages go in as arguments; messages and deadlines come out. All state is ordered and
//! can be compared, so that a model checker can visit every state of the real code.
//!
//! | module | holds |
//! |---|---|
//! | [`mode`], [`resource`], [`blocks`] | the paper's modes and their tables; what can be locked; ranges of blocks |
//! | [`identity`] | clients, transactions, requests and the other numbers |
//! | [`rules`] | root before leaf, and the other rules between a file and its block groups |
//! | [`grants`], [`queue`], [`lock_table`] | granted locks, waiting requests, and both together |
//! | [`deadlock`] | circles of requests that wait for each other |
//! | [`clients`], [`transactions`], [`open_files`], [`callbacks`] | the manager's tables |
//! | [`registrations`], [`gate`], [`withheld`] | registered copies; the gate for commands; commands before it |
//! | [`manager`] | the target's end: [`LockManager`](manager::LockManager) |
//! | [`holder`], [`fetches`] | the client's end: [`Holder`](holder::Holder); blocks on their way to it |
//! | [`outbox`] | messages that a client has not acknowledged |
//! | [`message`], [`error`] | the messages of both ends |
//! | [`settings`], [`limits`] | times and bounds |

#![forbid(unsafe_code)]

pub mod blocks;
pub mod callbacks;
pub mod clients;
pub mod deadlock;
pub mod error;
pub mod fetches;
pub mod gate;
pub mod grants;
pub mod holder;
pub mod identity;
pub mod limits;
pub mod lock_table;
pub mod manager;
pub mod message;
pub mod mode;
pub mod open_files;
pub mod outbox;
pub mod queue;
pub mod registrations;
pub mod resource;
pub mod rules;
pub mod settings;
pub mod transactions;
pub mod withheld;
