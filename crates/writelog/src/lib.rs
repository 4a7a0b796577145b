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
//! | `core`, `assemble` | the parts of one open log; how they are made |
//! | `dispatch` | requests to the parts that carry them out |
//! | `write`, `read`, `flush`, `extents` | one operation each |
//! | `past_log` | writes past a log that failed |
//! | `log_state`, `settings`, `activity` | what the log knows, behind one mutex; options of both levels; whether requests come |
//! | `contents` | the map, with the segments and slots that depend on it |
//! | `map`, `place`, [`mod@unit`] | the extents of the log; their places; units of 512 bytes |
//! | [`numbers`], `sorted`, `sectors` | numbers of sectors, segments, slots; extents in few bytes; ranges in sectors |
//! | `segments`, `stage`, `shadow`, `records` | segments; slots; the log below volatile slots; cached records |
//! | `entry`, `appender`, `append` | entries that wait for a record; the records under way; the part that sends them |
//! | `level1`, `batch`, `selection` | from slots to the log; the pieces sent at once; their choice |
//! | `epoch`, `next_epoch`, `destaged` | epochs; the choice of the next one; how far the origin has the log |
//! | `runs`, `batch_writer` | the writes of a batch; the part that sends them |
//! | `need`, `level2`, `lost` | whether a batch is due; from the log to the origin; data that cannot be read |
//! | `images`, `found`, `pins`, `loaded` | bytes of the log in RAM; records in them; pinned and loaded segments |
//! | `used_buffers` | buffers that are used again |
//! | `places`, `sums`, `salvage` | pieces read by their places; checksums of entries; unreadable segments |
//! | `line`, `entrance`, `pace`, `room` | waiting changes; their admission; its pace; room for records |
//! | `snapshot`, `checkpoint_bytes` | what a checkpoint stores; its bytes |
//! | `checkpoint`, `checkpointed`, `recovery`, `open` | the life of a log |
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

mod activity;
mod append;
mod appender;
mod assemble;
mod batch;
mod batch_writer;
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
mod log_state;
mod lost;
mod map;
mod need;
mod next_epoch;
mod open;
mod origin;
mod pace;
mod past_log;
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
mod settings;
mod shadow;
mod snapshot;
mod sorted;
mod stage;
mod sums;
mod tag;
#[cfg(test)]
mod tests;
mod used_buffers;
mod verify;
mod write;

pub use inspect::{DamagedRange, Inspection, NvramInspection, check, discard, inspect, is_log};
pub use level2::DestageProgress;
pub use nvram::{PersistentRegion, VolatileRegion};
pub use options::{DestageOrder, Durability, FormatOptions, Level2, OpenOptions};
pub use status::{RecoveryReport, Status};
pub use store::ConflictingChanges;
pub use write_log::WriteLog;
