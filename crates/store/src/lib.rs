//! What every crash-safe store on a block device needs.
//!
//! | module | holds |
//! |---|---|
//! | [`superblock`] | [`Superblock`]: two copies at the ends of the device, each write survives a power loss |
//! | [`binding`] | [`Binding`]: which origin a store belongs to, and the error when it meets another |
//! | [`record`] | the bytes of one log record |
//! | [`sequence`] | [`Sequence`]: the number of a record |
//! | [`gathering`], [`turns`] | [`Gathering`]: when the next record of a log starts; which waiting task starts it |
//! | [`appends`] | [`Appends`]: the appends that wait for a record of a log, the records under way, and how each ends |
//! | [`log`] | [`RecordLog`]: a circular log with group commit |
//! | [`mod@replay`] | [`replay()`]: reads a log again, up to the first record that is not the successor |
//! | `batch` | the appends of such a log, grouped by the record they share, with their wakers |
//! | [`conflict`] | [`ConflictingChanges`]: other hosts changed what is dirty |
//! | [`origin_losses`] | [`OriginLosses`]: how often an origin lost what it had not flushed, and what that means for copies |
//! | [`forgettings`] | [`Forgettings`]: the copies that are about to be forgotten, because others changed the origin |
//! | [`reports`] | [`OriginReports`]: what the origin of a store says happened to it |
//! | [`new_device`] | the device on which a store is made |
//! | [`life`] | [`Life`]: whether a cache or log takes requests, and whether it still uses its devices |
//! | [`limits`] | the bounds of this crate |
//!
//! The bytes are described in `docs/formats/store.md`. Nothing here knows a runtime, an operating system or a clock.

#![forbid(unsafe_code)]

pub mod appends;
mod batch;
pub mod binding;
pub mod conflict;
pub mod forgettings;
pub mod gathering;
pub mod life;
pub mod limits;
pub mod log;
pub mod new_device;
pub mod origin_losses;
pub mod record;
pub mod replay;
pub mod reports;
pub mod sequence;
pub mod superblock;
pub mod turns;

pub use appends::{Appends, Weighed};
pub use binding::{Binding, BindingRaw};
pub use conflict::ConflictingChanges;
pub use forgettings::{Forgetting, Forgettings};
pub use gathering::{Gathering, Worth};
pub use life::Life;
pub use log::{Append, AppendRefused, Hold, LogUsage, RecordLog};
pub use origin_losses::OriginLosses;
pub use record::{LogPosition, LogPositionRaw};
pub use replay::{Record, Replayed, replay};
pub use reports::OriginReports;
pub use sequence::Sequence;
pub use superblock::{StoreKind, Superblock, Tokens};
