//! Builds a running stack from a configuration: the one place that knows all parts.
//!
//! | module | holds |
//! |---|---|
//! | `access_watch` | which of several paths reach the unit best |
//! | [`attach`] | an attachment: a stack with its fronts, from the beginning to the end |
//! | [`awaited`] | an attachment before its target is there |
//! | `cache_change` | replaces a cache while it is used |
//! | [`cache_place`] | the place of a cache, and the options with which it is made and opened |
//! | [`difference_place`] | likewise, the difference from a base that is never written |
//! | `difference_file` | whether the file of a difference is whole and at its place while it is used |
//! | `difference_note` | that it was not, for the next attach |
//! | [`caches`] | the list of this host's caches and write logs |
//! | [`time`] | the clock of a running stack |
//! | [`config`] | the target's configuration file |
//! | [`control`] | the control socket every long-running process answers on |
//! | `descriptors` | the limit on open files and connections |
//! | `device_name` | the name that stays with a block device |
//! | `dirty_guard` | what becomes of dirty data when others changed the LUN meanwhile |
//! | `ending_time` | the time that an end has, once it does not wait for its target any more |
//! | [`events`] | what happened in a process |
//! | [`error`] | errors as a person meets them, and the exit codes |
//! | `flag` | an event that happens once, and that several tasks wait for |
//! | [`fronts`] | how applications reach a device: NBD, a FUSE file, an iSCSI gateway |
//! | [`freshness`] | whether the content of a store is still that of its LUN |
//! | `held_marks` | the marks of a store while it is used |
//! | [`limits_table`] | `[limits]` of the configuration file |
//! | [`link`] | a stream over a longer or thinner link |
//! | [`login`] | initiator name and CHAP secrets |
//! | `listeners` | the sockets of an attachment |
//! | [`log_place`] | the place of a write log, and how it is made and opened |
//! | `lun_check` | whether the file or device of a LUN can be served |
//! | [`lun_spec`] | the grammar of `--lun` |
//! | [`marks_file`] | the change marks of a file or block device LUN |
//! | [`metrics`] | the status as metrics, over HTTP |
//! | [`mount`] | a mounted file system, from the beginning to the end |
//! | `portal_group` | a session that moves between the portals of one group |
//! | `occurrences` | events that are found by looking at an attachment or a mount |
//! | [`place`] | the place of a store: a file, a block device, or a part of one |
//! | [`content`] | the content of a place, before it is opened |
//! | [`store_file`], `unfinished`, [`place_device`] | finding, making (beside the place first) and opening stores |
//! | [`newest_data`] | whether the newest data of a LUN may be in a store that is not used with it |
//! | `open_store` | which store an open file holds, for whoever finds it cut |
//! | [`paths`] | run-time and state directories |
//! | `record_file` | small files of JSON that are replaced whole |
//! | [`registry`] | LUNs with their newest data in a cache of this host; locks on LUNs in use |
//! | `reload_lines` | the log's lines about reloads of the configuration |
//! | [`remote`] | one remote LUN: URL, login, link |
//! | [`remotes`] | several of them as one device |
//! | `search` | the search for a target that cannot be reached yet |
//! | [`segments`] | TCP segments as the kernel counts them |
//! | [`serve`] | targets and their logical units |
//! | [`rooted_setting`] | the text of a setting that means the same from whatever directory it is read |
//! | [`settings`] | the table of settings of an attachment, and the chosen values |
//! | [`sidecar`] | the serial number that stays with a file or block device LUN |
//! | `sharing_file` | the durable state of the hosts that share a LUN |
//! | `socket_names` | modes and groups of socket files, as people write them |
//! | [`stack`] | remote LUN, cache, write log, difference as one device |
//! | [`status`] | the status of a process |
//! | [`systemd`] | sockets from the service manager, and messages to it |
//! | [`target_config`] | one target to serve, as configured |
//! | [`target_file`] | the grammar of a target's configuration file |
//! | `watch` | warnings of an attachment |
//! | `worker_thread` | background work on a thread of its own |

#![forbid(unsafe_code)]

mod access_watch;
pub mod attach;
pub mod awaited;
mod base_content;
pub mod busy_polling;
mod cache_change;
pub mod cache_place;
mod cache_settings;
pub mod caches;
pub mod config;
pub mod content;
pub mod control;
mod descriptors;
mod device_name;
mod difference_file;
mod difference_note;
pub mod difference_place;
mod dirty_guard;
mod ending_time;
pub mod error;
pub mod events;
mod flag;
mod foreign;
pub mod freshness;
pub mod fronts;
pub mod held_marks;
pub mod limits;
pub mod limits_table;
pub mod link;
mod listeners;
pub mod log_place;
pub mod login;
mod lun_check;
pub mod lun_mask;
pub mod lun_spec;
pub mod marks_file;
pub mod metrics;
pub mod mount;
mod name_lock;
pub mod newest_data;
mod occurrences;
mod open_store;
mod own_stores;
pub mod paths;
pub mod place;
pub mod place_device;
mod portal_group;
mod record_file;
pub mod registry;
mod regular_file;
mod reload_lines;
pub mod remote;
pub mod remotes;
pub mod rooted_setting;
mod search;
pub mod segments;
pub mod serve;
pub mod settings;
mod sharing_file;
pub mod sidecar;
mod socket_names;
pub mod stack;
pub mod status;
pub mod store_file;
pub mod systemd;
pub mod target_config;
pub mod target_file;
#[cfg(test)]
mod test_target;
pub mod time;
mod unfinished;
mod units;
mod watch;
mod worker_thread;

pub use error::{Error, Failure, Result};
