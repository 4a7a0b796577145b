//! A crash-safe write log: small writes are acknowledged at the speed of one local append, survive power loss, and
//! reach the origin as few large ones. Paper 000 (iCache), with the peaks it could not avoid removed.
//!
//! ```text
//!   writes ──► slots of RAM or NVRAM ──level 1──► records in the segments of the log device ──level 2──► origin
//!        └───────────── durability `log`: straight to a record ───▲
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`write_log`] | [`WriteLog`], the device that users hold |
//! | [`options`] | the options that users choose: durability, destage order, the paper's profile |
//! | [`status`], [`reads`], [`mod@inspect`] | what a log says about itself, running and at rest; its reads by where their bytes were |
//! | `verify` | whether dirty data is as it was written |
//! | [`mod@format`], [`layout`] | the bytes on the log device, and where they lie |
//! | [`nvram`] | persistent memory as the log sees it |
//! | `core` | the parts that all operations share: locks, state |
//! | `dispatch` | requests to the code that carries them out |
//! | `write`, `read`, `flush`, `extents` | one operation each |
//! | `contents`, `map`, `place`, [`mod@unit`], [`numbers`], `sorted`, `sectors`, `segments`, `stage`, `shadow`, `records` | what is where, and what follows from a change of it; which sectors are where; what *where* is; in which units; which segment and which slot; in how few bytes; of which bytes; segments; slots; what the log has below volatile slots; the newest records in RAM |
//! | `entry`, `appender`, `append` | what waits for a record, and who; the records on their way; sending them, and what becomes of them |
//! | `level1`, `batch`, `selection`, `epoch`, `next_epoch`, `destaged`, `runs`, `level2`, `lost` | destaging: from slots to the log; what is sent at once; which; in the order of the log; which epoch is next; how far the origin is in it; in which writes; sending it; what cannot be sent, since it cannot be read |
//! | `images`, `found`, `pins`, `loaded`, `places`, `sums`, `salvage` | bytes of the log in RAM; records in them; segments that must stay; segments as they are read; pieces read in the order of their places, and the checksums they are held against; what is left of a segment that cannot be read as a whole |
//! | `line`, `entrance`, `pace`, `room` | who waits; who may change something now; how fast, for the rate at which room is made; whether there is any |
//! | `checkpoint`, `checkpointed`, `checkpoint_bytes`, `recovery`, `open` | the life of a log |
//! | `failure`, `failure_note` | whether its device failed; how that is noted |
//! | `origin`, `events` | the origin; its events |
//! | `counters`, `report` | the counters; the status |
//! | [`limits`] | the bounds of this crate |
//!
//! What is promised: every write acknowledged is there, whole, after the power fails at any write of the log device or
//! of the origin (`unsafe-volatile`: every write before the last completed flush). A read never returns less than the
//! last acknowledged write. The format and what it assumes of the media are described in `docs/formats/writelog.md`.

#![forbid(unsafe_code)]

pub mod format;
pub mod inspect;
pub mod layout;
pub mod limits;
pub mod numbers;
pub mod nvram;
pub mod options;
pub mod reads;
pub mod status;
pub mod unit;
pub mod write_log;

mod append;
mod appender;
mod batch;
mod checkpoint;
mod checkpoint_bytes;
mod checkpointed;
mod contents;
mod core;
mod counters;
mod destaged;
mod dispatch;
mod entrance;
mod entry;
mod epoch;
mod events;
mod extents;
mod failure;
mod failure_note;
mod flush;
mod found;
mod images;
mod level1;
mod level2;
mod line;
mod loaded;
mod lost;
mod map;
mod next_epoch;
mod open;
mod origin;
mod pace;
mod pins;
mod place;
mod places;
mod read;
mod records;
mod recovery;
mod report;
mod room;
mod runs;
mod salvage;
mod sectors;
mod segments;
mod selection;
mod shadow;
mod sorted;
mod stage;
mod sums;
mod tag;
mod verify;
mod write;

pub use inspect::{DamagedRange, Inspection, NvramInspection, check, discard, inspect, is_log};
pub use level2::DestageProgress;
pub use nvram::{PersistentRegion, VolatileRegion};
pub use options::{DestageOrder, Durability, FormatOptions, Level2, OpenOptions};
pub use status::{RecoveryReport, Status};
pub use store::ConflictingChanges;
pub use write_log::WriteLog;
