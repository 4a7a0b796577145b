//! A SCSI logical unit (device server) over a block device, without runtime or operating system.
//!
//! A transport holds a [`LunMap`], adds and removes I_T nexuses, and passes each [`Command`] with
//! all its data-out. It gets an [`Execution`]: ready at once where there is nothing to wait for
//! (RAM, control commands, errors), else a future. Commands run in parallel; overlapping ones are
//! kept in order by the unit's range lock, and ordered tasks by its task set.
//!
//! | module | holds |
//! |---|---|
//! | [`lun_map`] | [`LunMap`]: LUN to logical unit, absent LUNs, REPORT LUNS, task management |
//! | [`management`] | [`Management`]: a task management function until the tasks that it aborted have ended |
//! | `mapped_units` | the units of a map by LUN, and the number of each arrival under one |
//! | [`mod@unit`], [`options`] | [`LogicalUnit`]: a device and the state that commands share; its configuration |
//! | `device_server` | the checks before a command runs, and the choice of its handler |
//! | [`command`] | [`Command`], [`Outcome`] |
//! | [`execution`] | [`Execution`] |
//! | [`nexus`] | [`NexusId`] |
//! | `comparison` | [`CompareAndWrite`]: the layer that compares and writes where other paths lead to the blocks |
//! | `access` | the one way to the blocks: ranges, and the gate where a unit is shared |
//! | `admission` | the state of the unit when a command arrived |
//! | `attention` | unit attentions, per I_T nexus |
//! | `device_watch` | turns events of the device into unit attentions |
//! | `lost_writes` | nexuses to which a loss of writes has still to be reported |
//! | `task_set`, `task_list` | tasks under way: for aborts, and for the order of tasks; the list of them |
//! | `reservation` | RESERVE(6) and persistent reservations; [`ReservationStore`] |
//! | [`change_marks`] | ranges that others changed since a cache was detached; [`ChangeStore`] |
//! | [`sharing`] | hosts that share the unit: clients, locks, messages, the gate; [`SharingStore`] |
//! | `protection` | nexuses that may only read |
//! | `failure` | block errors as sense data |
//! | `identity` | serial number and designators |
//! | `commands/` | one file per family of commands |
//! | `medium_state`, `mode_state`, `sanitize_state`, `copy_results` | state that outlives a command |
//! | `marked_changes` | how commands record the ranges that they change |
//! | `data_hold` | writes whose data is requested only after other hosts dropped their copies |
//! | `data_in` | data in the form that the initiator asked for |

#![forbid(unsafe_code)]

mod access;
mod admission;
mod attention;
pub mod change_marks;
pub mod command;
mod commands;
mod comparison;
mod copy_results;
mod data_hold;
mod data_in;
mod device_server;
mod device_watch;
pub mod execution;
mod failure;
mod identity;
pub mod limits;
mod lost_writes;
pub mod lun_map;
pub mod management;
mod mapped_units;
mod marked_changes;
mod medium_state;
mod mode_state;
pub mod nexus;
pub mod options;
mod protection;
mod reservation;
mod sanitize_state;
pub mod sharing;
mod task_list;
mod task_set;
pub mod unit;

pub use change_marks::{ChangeStore, MemoryChanges, SavedMarks};
pub use command::{Command, Outcome};
pub use comparison::{CompareAndWrite, Comparing, Comparison};
pub use execution::Execution;
pub use lun_map::{LunMap, MappedUnit, Mapping, WeakLunMap};
pub use management::Management;
pub use nexus::NexusId;
pub use options::LogicalUnitOptions;
pub use reservation::{ReservationStore, SavedReservations};
pub use sharing::{EndedLives, LifeSecret, SavedSharing, SharingOptions, SharingStore};
pub use unit::LogicalUnit;
