//! The iSCSI initiator: a remote LUN as a block device.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use block::device::DeviceExt as _;
//! use initiator::{InitiatorOptions, TcpConnector, connect};
//!
//! let options = InitiatorOptions::for_url(&"iscsi://127.0.0.1/iqn.2026-01.io.forebay:disk/0".parse()?);
//! let (lun, driver) = connect(options, Arc::new(TcpConnector)).await?;
//! tokio::spawn(driver);
//! lun.write(0, block::Buffer::zeroed(4096), false).await?;
//! lun.flush().await?;
//! lun.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `remote_lun` | [`RemoteLun`]: the device |
//! | `access` | how its target port reaches the unit: active, standby |
//! | `compare_and_write`, `reservation` | what a LUN that hosts share can do besides |
//! | `sharing` | being a client of a LUN that several hosts share: lease, callbacks, copies |
//! | `change_marks` | what other hosts changed while this one had no session, where the target records it |
//! | `change_guard` | [`ChangeGuard`]: whether this host may still change what others changed |
//! | `content` | the id of what a LUN has, where the target gives it one |
//! | `content_guard` | [`ContentGuard`]: whether that is still the same in a new session |
//! | `driver` | [`connect`] and the [`Driver`]: sessions come and go, with back-off |
//! | `discovery` | [`discover`]: asks a portal for its targets |
//! | `engine` | requests to commands and back; retries |
//! | `engine/*` | its parts: jobs and what each waits for; what an answer means; losses; what is not durable |
//! | `job` | one request as a sequence of commands |
//! | `raw_command` | a SCSI command as its caller made it, and when it is issued again |
//! | `under_way` | commands in the order in which they were sent |
//! | `verdict` | what each outcome of a command means |
//! | `retained` | copies of writes that the LUN may still lose |
//! | `retained_replay` | those that are written again after the LUN lost them, and when |
//! | `unit` | what a LUN says about itself |
//! | `link` | one session with all its connections |
//! | `wire` | one connection and its stream, or the two of a pair |
//! | `recovery` | lost connections of a session that goes on |
//! | `back_off` | how long to wait before the next session |
//! | `growth` | how a session comes to the connections it is to have |
//! | `connector` | [`Connector`]: where streams come from |
//! | `taken_marks`, `changed_ranges` | the change marks that are held; changes by others, published as events |
//! | `shared`, `alarm`, `log_limit` | what device and driver share; a deadline that wakes the driver; log lines that do not repeat |
//! | `options`, `status`, `error`, `limits` | what their names say |
//!
//! Promise: an acknowledged write survives the loss of the session, of the target process and,
//! where the LUN has a volatile cache, of that cache, as long as this process lives. After a
//! completed flush its durability is up to the LUN.

#![forbid(unsafe_code)]

mod access;
mod alarm;
mod answering;
mod back_off;
mod change_guard;
mod change_marks;
mod changed_ranges;
mod compare_and_write;
mod connector;
mod content;
mod content_guard;
mod discovery;
mod driver;
mod engine;
mod error;
mod growth;
mod job;
pub mod limits;
mod link;
mod log_limit;
mod notice;
mod options;
mod raw_command;
mod recovery;
mod remote_lun;
mod reservation;
mod retained;
mod retained_replay;
mod rounds;
mod shared;
mod sharing;
mod status;
mod taken_marks;
mod under_way;
mod unit;
mod verdict;
mod wire;

pub use change_guard::{ChangeGuard, Deciding, ReportedChanges};
pub use change_marks::{ChangeMarkSupport, ChangeReport, Mark};
pub use compare_and_write::Compared;
pub use connector::{BoxedStream, Connecting, Connector, Stream, TcpConnector};
pub use content::{ContentId, is_content_id};
pub use content_guard::{ContentAnswer, ContentGuard};
pub use discovery::discover;
pub use driver::{Driver, connect};
pub use iscsi::initiator::DiscoveredTarget;
pub use options::{ChapCredentials, InitiatorOptions};
pub use raw_command::RawOutcome;
pub use remote_lun::RemoteLun;
pub use reservation::{RegisteredKeys, Reservation};
pub use scsi::persistent_reservation::{ReservationData, ReservationType};
pub use scsi::sharing::Support as SharingSupport;
pub use sharing::{SharingClient, SharingStatus};
pub use status::{State, Status};
