//! SCSI as both ends speak it: command descriptor blocks, sense data, and the data that control commands carry.
//!
//! Pure: bytes in, values out, and back. What comes from outside is parsed into a value or refused with one; nothing
//! here panics on foreign bytes. Sources: SAM-5, SPC-4 (T10/1731-D), SBC-3 (T10/BSR INCITS 514); clauses are cited
//! where they are obeyed.
//!
//! | module | holds |
//! |---|---|
//! | [`cdb`] | [`Cdb`]: typed commands, parsed and emitted; the table of operation codes |
//! | [`sense`] | [`Sense`] and the named conditions |
//! | [`status`] | [`Status`] |
//! | [`task`] | task attributes and task management functions |
//! | [`lun`] | the eight bytes of a LUN |
//! | [`inquiry`], [`vpd`] | standard INQUIRY data and vital product data pages 00h 80h 83h 86h 87h B0h B1h B2h |
//! | [`mode`] | mode parameter headers, block descriptors and pages 01h 08h 0Ah 1Ch |
//! | [`capacity`], [`lba_status`] | READ CAPACITY and GET LBA STATUS data |
//! | [`report_luns`], [`unmap`] | LUN lists, UNMAP parameter lists |
//! | [`persistent_reservation`] | parameter data of PERSISTENT RESERVE IN and OUT |
//! | [`extended_copy`] | EXTENDED COPY lists, RECEIVE COPY RESULTS data, VPD page 8Fh |
//! | [`target_port_groups`] | REPORT TARGET PORT GROUPS data |
//! | [`sanitize`], [`defect_list`], [`log`] | SANITIZE OVERWRITE lists, READ DEFECT DATA and LOG SENSE data |
//! | [`change_mark`] | data of CHANGE MARK IN and OUT, VPD page C0h (forebay's own) |
//! | [`sharing`] | data of SHARING IN and OUT, messages to clients, VPD page C1h (forebay's own) |
//! | [`supported_operations`] | REPORT SUPPORTED OPERATION CODES and TASK MANAGEMENT FUNCTIONS data |

#![forbid(unsafe_code)]

pub mod capacity;
pub mod cdb;
pub mod change_mark;
pub mod defect_list;
pub mod error;
pub mod extended_copy;
mod field;
pub mod inquiry;
pub mod lba_status;
pub mod limits;
pub mod log;
pub mod lun;
pub mod mode;
pub mod persistent_reservation;
pub mod report_luns;
pub mod sanitize;
pub mod sense;
pub mod sharing;
pub mod status;
pub mod supported_operations;
pub mod target_port_groups;
pub mod task;
pub mod unmap;
pub mod vpd;

pub use cdb::{Cdb, CdbBytes, CdbError};
pub use error::Malformed;
pub use sense::{Sense, SenseKey};
pub use status::Status;
pub use task::{TaskAttribute, TaskManagementFunction, TaskManagementOutcome};
