//! A crash-safe, set-associative block cache: a device over a cache device and an origin.
//!
//! | module | holds |
//! |---|---|
//! | [`cache`] | [`Cache`], what users hold |
//! | [`options`] | what users choose |
//! | [`crash_mode`] | what a crash leaves |
//! | [`status`], [`load`], [`mod@inspect`] | what a cache says about itself, running and at rest |
//! | [`mod@format`], [`layout`] | the bytes on the cache device, and where they lie |
//! | [`line_size`], [`alignment`] | how large lines are, and where they begin on the origin |
//! | [`frames`] | which frame holds which block, and which goes next |
//! | [`replacement`] | the policies that choose |
//! | [`admission`] | what is worth a frame, and what is fetched ahead |
//! | `tags`, `index`, `bitmaps`, `page_set` | what frames are made of, in few bytes |
//! | [`sectors`] | 512-byte sectors of a line as bits |
//! | `core` | what all operations share: locks, state, dispatch |
//! | `read`, `write_back`, `write_through`, `discard`, `flush`, `extents` | one operation each |
//! | `origin_flushes` | what a cache and its successor know together about flushes of their origin |
//! | `line_check` | data that is not what was written |
//! | `clean`, `origin_write`, `dirty_runs`, [`pace`] | dirty to clean, in which writes, and how fast |
//! | [`stranded`] | what is dirty beyond the end of an origin that shrank |
//! | [`replace`] | another cache in place of this one |
//! | `mappings`, `unmap` | clean lines that count after a crash |
//! | `table`, `checkpoint`, `recovery` | the table on the device: how it is read, written, and found again after a crash |
//! | [`freshness`] | what is still true after a time in which nobody looked on |
//! | `format_cache`, `open`, `events` | the life of a cache |
//! | [`memory`] | what it takes of memory |
//! | [`limits`] | the bounds of this crate |
//!
//! What is promised: every write acknowledged is there, whole, after the power fails at any write of the cache device or of the origin
//! (mode write-back: durably on the cache device; write-through: as the origin promises). A read never returns less than the last
//! acknowledged write. The format and what it assumes of the media are described in `docs/formats/cache.md`.

#![forbid(unsafe_code)]

pub mod admission;
pub mod alignment;
pub mod cache;
pub mod crash_mode;
pub mod format;
pub mod frames;
pub mod freshness;
pub mod inspect;
pub mod layout;
pub mod limits;
pub mod line_size;
pub mod load;
pub mod memory;
pub mod options;
mod origin_write;
pub mod pace;
pub mod replace;
pub mod replacement;
pub mod sectors;
pub mod status;
pub mod stranded;

mod bitmaps;
mod checkpoint;
mod clean;
mod core;
mod dirty_runs;
mod discard;
mod events;
mod extents;
mod flush;
mod format_cache;
mod index;
mod line_check;
mod mappings;
mod open;
mod origin_flushes;
mod page_set;
mod read;
mod recovery;
mod table;
mod tags;
mod unmap;
mod write_back;
mod write_through;

pub use admission::{Admission, Tuning};
pub use alignment::Alignment;
pub use cache::Cache;
pub use clean::CleanProgress;
pub use crash_mode::CrashMode;
pub use freshness::Freshness;
pub use inspect::{Inspection, check, discard, inspect, is_cache};
pub use line_size::LineSize;
pub use load::{Load, LoadTotals};
pub use options::{Associativity, DirtyLimits, FormatOptions, Mode, OpenOptions, Percent, TimeOfDay};
pub use pace::CleaningRate;
pub use replace::{CopyProgress, HandOver};
pub use replacement::Replacement;
pub use status::{RecoveryReport, RequestStatus, Status};
pub use store::ConflictingChanges;
pub use stranded::{Stranded, StrandedRange, discard_beyond_end};
