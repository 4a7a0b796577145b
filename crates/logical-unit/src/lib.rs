//! A SCSI logical unit (device server) over a block device, without runtime or operating system.
//!
//! A transport holds a [`LunMap`], tells it of I_T nexuses that come and go, and gives it one [`Command`] at a time
//! with all its data-out. It gets an [`Execution`]: ready at once where nothing has to be waited for (RAM, control
//! commands, errors), else a future. Commands run in parallel; overlapping ones are kept in order by the unit's range
//! lock, and ordered tasks by its task set.
//!
//! | module | holds |
//! |---|---|
//! | [`lun_map`] | [`LunMap`]: LUN to logical unit, absent LUNs, REPORT LUNS, task management |
//! | [`mod@unit`], [`options`] | [`LogicalUnit`]: a device and what commands share; what it is set up with |
//! | `device_server` | what is checked before a command runs, and where it goes |
//! | [`command`] | [`Command`], [`Outcome`] |
//! | [`execution`] | [`Execution`] |
//! | [`nexus`] | [`NexusId`] |
//! | `comparison` | [`CompareAndWrite`]: who compares and writes where this unit is not the only way to the blocks |
//! | `access` | the one way to the blocks: ranges, and the gate where a unit is shared |
//! | `admission` | how things stood when a command came |
//! | `attention` | unit attentions, per I_T nexus |
//! | `device_watch` | what the device reports becomes unit attentions |
//! | `lost_writes` | who is still to be told that what it wrote may be lost |
//! | `task_set` | tasks under way: what can be aborted, and what ordered tasks wait for |
//! | `reservation` | RESERVE(6) and persistent reservations; [`ReservationStore`] |
//! | [`change_marks`] | what others have changed since a cache let go, recorded durably before it changes; [`ChangeStore`] |
//! | [`sharing`] | hosts that share the unit: clients, locks, messages, the gate; [`SharingStore`] |
//! | `protection` | nexuses that may read and not write |
//! | `failure` | block errors as sense data |
//! | `identity` | serial number and designators |
//! | `commands/` | one file per family of commands |
//! | `medium_state`, `mode_state`, `sanitize_state`, `copy_results` | what commands left behind |
//! | `marked_changes` | how commands record what they change |
//! | `data_hold` | data of writes that is not asked for while other hosts drop their copies |
//! | `data_in` | data as an initiator takes it |

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
mod marked_changes;
mod medium_state;
mod mode_state;
pub mod nexus;
pub mod options;
mod protection;
mod reservation;
mod sanitize_state;
pub mod sharing;
mod task_set;
pub mod unit;

pub use change_marks::{ChangeStore, MemoryChanges, SavedMarks};
pub use command::{Command, Outcome};
pub use comparison::{CompareAndWrite, Comparing, Comparison};
pub use execution::Execution;
pub use lun_map::{LunMap, Mapping, TaskManagementResponse, WeakLunMap};
pub use nexus::NexusId;
pub use options::LogicalUnitOptions;
pub use reservation::{ReservationStore, SavedReservations};
pub use sharing::{LifeSecret, SavedSharing, SharingOptions, SharingStore};
pub use unit::LogicalUnit;
