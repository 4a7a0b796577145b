//! The block device contract that every part of forebay's data path implements, and the parts that
//! go with it.
//!
//! | module | holds |
//! |---|---|
//! | [`device`] | the [`Device`] trait, [`Geometry`], [`Hints`], [`Identity`] |
//! | [`request`] | [`Request`], [`Operation`], [`Response`], [`Extent`] |
//! | [`copies`] | [`Copies`]: copies of a shared device's data, and how they are revoked |
//! | [`grants`] | [`Grants`]: ranges of a shared device that this host holds alone, and may delay writes in |
//! | [`completion`] | [`Completion`]: a request's future; [`Workers`](completion::Workers), where dropped ones end |
//! | [`error`] | [`Error`] = kind + context + source |
//! | [`event`] | events of devices for the layers above: resized, offline, back ... |
//! | [`range_lock`] | the one lock that keeps overlapping requests in order |
//! | [`shared_sync`] | which writes and flushes wait for which sync, where they share one |
//! | [`losses`] | [`Losses`](losses::Losses): losses of acknowledged data, and which clients have been told |
//! | [`poll_wakes`] | [`PollWakes`]: wake-ups of a task by the futures that it polls |
//! | [`pieces`] | how much of a long request is done at a time |
//! | [`submitter`] | [`Submitter`]: the submitter of a request |
//! | [`fair_queue`] | [`FairQueue`]: fair turns for submitters where there is too little for all |
//! | [`memory`] | a sparse device in RAM |
//! | [`layer`] | devices over devices: delay, disk, error, stats, read-only; and the medium that loses power, crash |
//!
//! Everything is a [`Device`] over a [`Device`], so any layer can be left out, reordered or run alone.

#![forbid(unsafe_code)]

pub mod completion;
pub mod copies;
pub mod device;
pub mod error;
pub mod event;
pub mod fair_queue;
pub mod geometry;
pub mod grants;
pub mod identity;
pub mod layer;
pub mod limits;
pub mod losses;
pub mod memory;
pub mod pieces;
pub mod poll_wakes;
pub mod range_lock;
pub mod request;
pub mod shared_sync;
pub mod submitter;

pub use base::buffer::{Buffer, BufferPool};
pub use base::range::ByteRange;
pub use completion::Completion;
pub use copies::{Copies, Dropped, Keeper};
pub use device::{Device, SharedDevice};
pub use error::{Error, ErrorKind};
pub use event::{Event, EventHub, EventReceiver, EventRelay};
pub use fair_queue::FairQueue;
pub use geometry::{Geometry, Hints};
pub use grants::Grants;
pub use identity::Identity;
pub use poll_wakes::PollWakes;
pub use request::{Extent, ExtentKind, Operation, OperationKind, Request, Response};
pub use submitter::Submitter;
