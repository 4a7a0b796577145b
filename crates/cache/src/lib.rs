//! A crash-safe, set-associative block cache: a device over a cache device and an origin.
//!
//! A module uses only what is below it in this table, or behind it in its row (but for the names of the policies in
//! `replacement`, which users choose).
//!
//! | module | holds |
//! |---|---|
//! | `beyond_end` | gives up what is stranded |
//! | [`cache`] | [`Cache`], the device that users hold |
//! | [`status`], [`mod@inspect`] | the status of a running cache; what a cache at rest holds |
//! | `open`, `close`, `mode_change`, `invalidation`, `held_ranges` | opens a cache; closes it; another mode; others changed the origin meanwhile; where it has something clean |
//! | [`replace`] | another cache in place of this one |
//! | `dispatch` | requests, on their way to what carries them out |
//! | `write_back`, `write_through`, `read`, `discard`, `extents`, `flush` | one kind of request each |
//! | `keeper` | what other hosts ask back of a shared origin |
//! | `room`, `clean`, `clean_range`, `batch`, `origin_write` | dirty to clean: for a write that waits, on command, of a range; batches; writes |
//! | `granted` | writes of a shared origin that are delayed and sent: only under a grant |
//! | `lazy` | clean lines are stored, without hurry |
//! | `events` | events of the origin |
//! | `supersede` | changes of the origin that replace what the cache holds |
//! | `read_plan`, `line_write` | where each part of a read comes from; what becomes of one line of a write |
//! | `insertion` | clean data gets into frames |
//! | `line_check`, `timing` | data that is not what was written; how long requests take |
//! | [`stranded`] | what is dirty beyond the end of an origin that shrank |
//! | `core` | one open cache: holds the parts below, and knows no operation |
//! | `succession` | part: the successor of this cache, which forgets what changes here |
//! | `cleaner` | part: whether lines are cleaned, how fast, and from where on |
//! | `journal` | part: the durable state of the lines on the cache device |
//! | `origin`, `origin_flushes`, `flush_failures` | part: the origin, and what it could lose, or has lost |
//! | `pins`, `lines` | part: the map of lines behind its mutex |
//! | `recovery`, `table` | the table on the device, and what is found there and in the log after a crash |
//! | `format_cache` | makes a device a cache |
//! | [`memory`] | the memory that a cache takes |
//! | `deferred` | data of small writes, durable in the log and not in its frames yet |
//! | `changes`, `dirty_runs` | frames that changes of other hosts concern; dirty neighbours |
//! | [`frames`] | which frame holds which block, and which goes next |
//! | [`replacement`] | the policies that choose victims |
//! | `mappings`, `index`, `tags`, `bitmaps`, `page_set` | what frames are made of, in few bytes; clean lines that count after a crash |
//! | [`layout`], [`mod@format`] | where the bytes lie on the cache device, and what they are |
//! | [`options`] | the options that users choose |
//! | [`admission`], [`pace`], `counters`, `failed_reads`, `refused_writes`, `last_error`, `revocations` | what is worth a frame; how fast lines are cleaned; what is counted; what the cache device did not return or take; what a shared origin asked back |
//! | [`freshness`], [`crash_mode`], [`mode`] | changes by others; what a crash leaves; when writes are acknowledged |
//! | [`alignment`], [`line_size`], [`line_checksum`] | where lines begin, how large they are, and what shows that their data is whole |
//! | [`load`], `recovery_report` | parts of the status |
//! | [`sectors`] | 512-byte sectors of a line as bits |
//! | [`numbers`] | which frame, which set, which tag, which block of the origin |
//! | [`limits`] | the bounds of this crate |
//!
//! What is promised: every write acknowledged is there, whole, after the power fails at any write of the cache device
//! or of the origin (mode write-back: durably on the cache device; write-through: as the origin promises). A read never
//! returns less than the last acknowledged write. The format and what it assumes of the media are described in
//! `docs/formats/cache.md`.

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
pub mod line_checksum;
pub mod line_size;
pub mod load;
pub mod memory;
pub mod mode;
pub mod numbers;
pub mod options;
pub mod pace;
pub mod replace;
pub mod replacement;
pub mod sectors;
pub mod status;
pub mod stranded;

mod batch;
mod beyond_end;
mod bitmaps;
mod changes;
mod clean;
mod clean_range;
mod cleaner;
mod close;
mod core;
mod counters;
mod deferred;
mod dirty_runs;
mod discard;
mod dispatch;
mod events;
mod extents;
mod failed_reads;
mod flush;
mod flush_failures;
mod format_cache;
mod granted;
mod held_ranges;
mod index;
mod insertion;
mod invalidation;
mod journal;
mod keeper;
mod last_error;
mod lazy;
mod line_check;
mod line_write;
mod lines;
mod mappings;
mod mode_change;
mod open;
mod origin;
mod origin_flushes;
mod origin_write;
mod page_set;
mod pins;
mod read;
mod read_plan;
mod recovery;
mod recovery_report;
mod refused_writes;
mod revocations;
mod room;
mod succession;
mod supersede;
mod table;
mod tags;
mod timing;
mod write_back;
mod write_through;

pub use admission::{Admission, Tuning};
pub use alignment::Alignment;
pub use beyond_end::discard_beyond_end;
pub use cache::Cache;
pub use cleaner::CleanProgress;
pub use counters::RequestStatus;
pub use crash_mode::CrashMode;
pub use freshness::Freshness;
pub use inspect::{Inspection, check, discard, inspect, is_cache};
pub use line_size::LineSize;
pub use load::{Load, LoadTotals};
pub use mode::Mode;
pub use options::{Associativity, DirtyLimits, FormatOptions, OpenOptions, Percent, TimeOfDay};
pub use pace::CleaningRate;
pub use recovery_report::RecoveryReport;
pub use replace::HandOver;
pub use replacement::Replacement;
pub use status::Status;
pub use store::ConflictingChanges;
pub use stranded::{Stranded, StrandedRange};
pub use succession::CopyProgress;
