//! Builds a running stack from a configuration: the one place that knows all parts.
//!
//! | module | holds |
//! |---|---|
//! | `access_watch` | which of several paths reach the unit best |
//! | [`attach`] | an attachment: a stack with its fronts, from the beginning to the end |
//! | [`awaited`] | an attachment before its target is there |
//! | `cache_change` | another cache in place of the one there is |
//! | [`cache_place`] | where a cache lies, and with what it is made and opened |
//! | [`difference_place`] | likewise, the difference from a base that stays as it is |
//! | [`caches`] | what is known of this host's caches |
//! | [`time`] | the clock of a running stack |
//! | [`config`] | the target's configuration file |
//! | [`control`] | the control socket every long-running process answers on |
//! | `descriptors` | how many files and connections may be open |
//! | `device_name` | the name that stays with a block device |
//! | `ending_time` | the time that an end has, once it does not wait for its target any more |
//! | [`error`] | errors as a person meets them, and the exit codes |
//! | `flag` | something that happens once, and that several wait for |
//! | [`fronts`] | how applications reach a device: NBD, a FUSE file, an iSCSI gateway |
//! | [`freshness`] | whether what a store holds is still what its LUN has |
//! | `held_marks` | the marks of a store while it is used |
//! | [`limits_table`] | `[limits]` of the configuration file |
//! | [`link`] | a stream over a longer or thinner link |
//! | [`login`] | initiator name and CHAP secrets |
//! | `listeners` | where an attachment is reached |
//! | [`log_place`] | where a write log lies, and how it is made and opened |
//! | `lun_check` | whether what a LUN is to be made of can be served |
//! | [`lun_spec`] | what `--lun` says |
//! | [`marks_file`] | the change marks of a file or block device LUN |
//! | [`metrics`] | the status as metrics, over HTTP |
//! | [`mount`] | a file system in a directory, from the beginning to the end |
//! | `portal_group` | a session that moves between the portals of one group |
//! | [`place`] | where a store lies: a file, a block device, or a part of one |
//! | [`content`] | what is at a place, before it is opened |
//! | [`store_file`], `unfinished`, [`place_device`] | how what is at a place is found or made, made beside it first, and opened |
//! | [`paths`] | run-time and state directories |
//! | `record_file` | small files of JSON that are replaced whole |
//! | [`registry`] | which LUNs have their newest data in a cache of this host; which are in use |
//! | [`remote`] | how a remote LUN is reached |
//! | [`remotes`] | several of them as one device |
//! | `search` | the search for a target that is not there yet |
//! | [`segments`] | TCP segments as the kernel counts them |
//! | [`serve`] | targets and their logical units |
//! | [`settings`] | what a person may choose for an attachment: the one table of it, and what was chosen |
//! | [`sidecar`] | the serial number that stays with a file or block device LUN |
//! | `sharing_file` | what a start has to know of the hosts that share a LUN |
//! | `socket_names` | modes and groups of socket files, as people write them |
//! | [`stack`] | remote LUN, cache, write log, difference as one device |
//! | [`status`] | what a process says of itself and of its work |
//! | [`systemd`] | sockets the service manager passes, and what it is told |
//! | [`target_config`] | one target to serve, as asked for |
//! | [`target_file`] | the grammar of a target's configuration file |
//! | `watch` | what an attachment warns of |
//! | `worker_thread` | background work on a thread of its own |

#![forbid(unsafe_code)]

mod access_watch;
pub mod attach;
pub mod awaited;
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
pub mod difference_place;
mod ending_time;
pub mod error;
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
mod own_stores;
pub mod paths;
pub mod place;
pub mod place_device;
mod portal_group;
mod record_file;
pub mod registry;
pub mod remote;
pub mod remotes;
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
