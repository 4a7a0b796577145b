//! The block device contract that every piece of forebay's data path implements, and the small pieces that go with it.
//!
//! | module | holds |
//! |---|---|
//! | [`device`] | the [`Device`] trait, [`Geometry`], [`Hints`], [`Identity`] |
//! | [`request`] | [`Request`], [`Operation`], [`Response`], [`Extent`] |
//! | [`copies`] | [`Copies`]: what is kept of a device that several hosts change, and how it is asked back |
//! | [`grants`] | [`Grants`]: ranges of it that this host holds alone, and may delay writes of |
//! | [`completion`] | [`Completion`]: the one future that every `submit` returns, and [`Workers`](completion::Workers), where dropped ones finish |
//! | [`error`] | [`Error`] = kind + context + source |
//! | [`event`] | what devices tell upwards: resized, offline, back ... |
//! | [`range_lock`] | the one lock that keeps overlapping requests in order |
//! | [`shared_sync`] | which writes and flushes wait for which sync, where they share one |
//! | [`pieces`] | how much of a long request is done at a time |
//! | [`submitter`] | [`Submitter`]: whose a request is |
//! | [`fair_queue`] | [`FairQueue`]: whose turn it is where there is too little for all |
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
pub mod memory;
pub mod pieces;
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
pub use request::{Extent, ExtentKind, Operation, OperationKind, Request, Response};
pub use submitter::Submitter;
