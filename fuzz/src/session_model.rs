//! What an initiator knows of its commands, and what it may expect of the target for that:
//!
//! - a command is executed at most once, and no CmdSN twice; commands that need no data begin at their unit in the
//!   order of their numbers, and none before every number below it was used (RFC 7143 4.2.2.1). Between units there is
//!   no order: those behind a function for one unit wait for it, those for others do not (RFC 7143 11.5.1);
//! - a write begins only with all its data, and as it was sent, whatever was lost or damaged meanwhile;
//! - what is read is what the device server gave, whole before its status;
//! - a task has one response, and once a task management function that ended it is answered, nothing more (RFC 7143
//!   4.2.2.3.2);
//! - a task management function, and the logout of a session, are answered when nothing of the tasks they ended is with
//!   the driver any more (RFC 7143 4.2.3.3, 11.14).
//!
//! A header with turned bits makes the initiator's knowledge worthless: then only framing and numbering are checked.

use std::collections::{BTreeMap, BTreeSet};

use base::serial::Serial32;
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};
use iscsi::target::{Command, LinkId};
use scsi::Cdb;

/// The byte that belongs at an offset, in either direction.
pub fn content(offset: usize) -> u8 {
    (offset % 251) as u8
}

/// One use of an initiator task tag.
#[derive(Clone, Debug)]
pub struct Use {
    /// Its number among all; stands in the CDB.
    pub serial: u32,
    /// CmdSN.
    pub cmd_sn: Serial32,
    /// Outside the order.
    pub is_immediate: bool,
    /// LUN.
    pub lun: u64,
    /// Where it was sent, or reassigned to.
    pub link: LinkId,
    /// Bytes, as the initiator told the target.
    pub expected: u32,
    /// Data-out, not data-in.
    pub is_write: bool,
    is_begun: bool,
    /// The driver has given its outcome.
    is_completed: bool,
    is_answered: bool,
    /// A SNACK or a reassignment may bring another response.
    may_answer_again: bool,
    is_silenced: bool,
    /// The connection on which that was said.
    silenced_on: Option<LinkId>,
    /// This use of the tag, or one before, was asked for its data again: it may still be on its way.
    was_asked_again: bool,
    /// Bytes that the device server gave.
    data_in: Option<usize>,
    received: Vec<(usize, usize)>,
}

/// A command as it was sent.
struct Sent {
    /// `None` if it was immediate.
    cmd_sn: Option<Serial32>,
    lun: u64,
    is_write: bool,
}

/// A task management request under way.
struct Management {
    function: TaskManagementFunction,
    /// The one task that it names.
    referenced: Option<u32>,
    /// Serial numbers of what it covers.
    covered: Vec<u32>,
}

/// The initiator's memory.
#[derive(Default)]
pub struct Model {
    /// By initiator task tag.
    uses: BTreeMap<u32, Use>,
    /// Every command sent, by serial number.
    sent: Vec<Sent>,
    begun: BTreeSet<u32>,
    begun_cmd_sn: BTreeSet<u32>,
    /// CmdSN of the last one that began at a unit, by LUN.
    last_without_data: BTreeMap<u64, Serial32>,
    /// Numbers that were used for anything.
    covered: BTreeSet<u32>,
    managements: BTreeMap<u32, Management>,
    closed: BTreeSet<LinkId>,
    /// A header was sent that is not what this thinks.
    pub is_blind: bool,
}

impl Model {
    /// The next command's serial number.
    pub fn next_serial(&self) -> u32 {
        self.sent.len() as u32
    }

    /// A number is used up, by whatever.
    pub fn note_cmd_sn(&mut self, cmd_sn: Serial32) {
        self.covered.insert(cmd_sn.0);
    }

    /// A command is sent. If its tag is in use, the target will refuse it, and the old use stays.
    #[allow(clippy::too_many_arguments)] // They are the fields of a command.
    pub fn note_command(
        &mut self,
        tag: u32,
        cmd_sn: Serial32,
        is_immediate: bool,
        lun: u64,
        link: LinkId,
        expected: u32,
        is_write: bool,
    ) {
        let serial = self.next_serial();
        self.sent.push(Sent { cmd_sn: (!is_immediate).then_some(cmd_sn), lun, is_write });
        if !is_immediate {
            self.note_cmd_sn(cmd_sn);
        }
        let fresh = Use {
            serial,
            cmd_sn,
            is_immediate,
            lun,
            link,
            expected,
            is_write,
            is_begun: false,
            is_completed: false,
            is_answered: false,
            may_answer_again: false,
            is_silenced: false,
            silenced_on: None,
            was_asked_again: self.uses.get(&tag).is_some_and(|used| used.was_asked_again),
            data_in: None,
            received: Vec::new(),
        };
        self.uses.insert(tag, fresh);
    }

    /// The latest use of a tag.
    pub fn find(&self, tag: u32) -> Option<&Use> {
        self.uses.get(&tag)
    }

    /// Whether a tag may be used for another command: its last one was answered, or is over.
    pub fn is_free(&self, tag: u32) -> bool {
        self.uses.get(&tag).is_none_or(|used| used.is_answered || used.is_silenced)
    }

    /// The target hands a command to its driver.
    pub fn check_begin(&mut self, command: &Command, first: Serial32) {
        if self.is_blind {
            return;
        }
        let serial = match command.cdb {
            Ok(Cdb::Read(transfer) | Cdb::Write(transfer)) => transfer.blocks.lba as u32,
            _ => panic!("a command that was never sent: {command:?}"),
        };
        let Some(&Sent { cmd_sn, lun, is_write }) = self.sent.get(serial as usize) else {
            panic!("a command that was never sent: {command:?}")
        };
        assert!(self.begun.insert(serial), "a command is executed once");
        if let Some(cmd_sn) = cmd_sn {
            assert!(self.begun_cmd_sn.insert(cmd_sn.0), "CmdSN {cmd_sn:?} is executed once");
            let mut below = first;
            while below.is_before(cmd_sn) {
                assert!(self.covered.contains(&below.0), "{cmd_sn:?} begins, but {below:?} never came");
                below = below.next();
            }
            if !is_write {
                let last = self.last_without_data.insert(lun, cmd_sn);
                assert!(last.is_none_or(|last| last.is_before(cmd_sn)), "at one unit in the order of CmdSN");
            }
        }
        let is_right = command.data_out.iter().enumerate().all(|(offset, &byte)| byte == content(offset));
        assert!(is_right, "a write begins with the data that was sent");
        let tag = command.task.initiator_task_tag.get();
        if let Some(used) = self.uses.get_mut(&tag).filter(|used| used.serial == serial) {
            used.is_begun = true;
            if is_write {
                assert_eq!(command.data_out.len(), used.expected as usize, "a write begins with all its data");
            }
        }
    }

    /// The driver gives so many bytes of data-in for a task.
    pub fn note_completion(&mut self, tag: u32, data_in_bytes: usize) {
        if let Some(used) = self.uses.get_mut(&tag).filter(|used| used.is_begun) {
            let limit = if used.is_write { 0 } else { used.expected as usize };
            used.data_in = Some(data_in_bytes.min(limit));
            used.is_completed = true;
        }
    }

    /// The task that something on a connection is about. What a closed connection still sends was queued before it was
    /// closed, and proves nothing.
    fn used(&mut self, tag: u32, at: LinkId) -> Option<&mut Use> {
        if self.is_blind || self.closed.contains(&at) {
            return None;
        }
        let used = self.uses.get_mut(&tag).unwrap_or_else(|| panic!("nobody asked for task {tag}"));
        assert!(!used.is_silenced, "task {tag} was ended, and that was answered");
        assert_eq!(used.link, at, "a task stays on its connection");
        Some(used)
    }

    /// Data-In came, with or without the status of its task; `is_new` unless that status came before.
    pub fn check_data_in(&mut self, tag: u32, at: LinkId, offset: usize, bytes: &[u8]) {
        if self.uses.get(&tag).is_some_and(|used| !used.is_begun) {
            // A command outside of the window is as good as not sent: the tag's use before, perhaps on another
            // connection, was asked for its data again.
            return;
        }
        let Some(used) = self.used(tag, at) else { return };
        let is_right = bytes.iter().enumerate().all(|(index, &byte)| byte == content(offset + index));
        assert!(is_right, "what is read is what the device server gave");
        let Some(given) = used.data_in else {
            assert!(used.was_asked_again, "data comes after the device server gave it");
            return;
        };
        assert!(offset + bytes.len() <= given, "{offset} and {} of {given}", bytes.len());
        used.received.push((offset, offset + bytes.len()));
    }

    /// A status came, for the first time.
    pub fn check_response(&mut self, tag: u32, at: LinkId, is_good: bool) {
        let Some(used) = self.used(tag, at) else { return };
        assert!(!used.is_answered || used.may_answer_again, "a task has one response");
        used.is_answered = true;
        used.may_answer_again = false;
        if is_good && let Some(given) = used.data_in {
            used.received.sort_unstable();
            let whole = used.received.iter().fold(0, |to, &(from, until)| if from <= to { to.max(until) } else { to });
            assert_eq!(whole, given, "all data comes before its status");
        }
    }

    /// An R2T came.
    pub fn check_r2t(&mut self, tag: u32, at: LinkId, offset: usize, length: usize) {
        // An R2T has no number that a response elsewhere could wait for: it may be heard after the end of its task was
        // told there.
        if self.uses.get(&tag).is_some_and(|used| used.silenced_on.is_some_and(|on| on != at)) {
            return;
        }
        let Some(used) = self.used(tag, at) else { return };
        assert!(used.is_write && !used.is_answered, "only writes that are not over want data");
        assert!(offset + length <= used.expected as usize, "no more is wanted than the initiator has");
    }

    /// What the initiator sends may bring a response again: for one task, or for all of them.
    pub fn note_recovery(&mut self, tag: Option<u32>) {
        for (_, used) in self.uses.iter_mut().filter(|(own, _)| tag.is_none_or(|tag| tag == **own)) {
            used.may_answer_again = true;
            used.was_asked_again = true;
        }
    }

    /// A task management request is sent.
    pub fn note_management(
        &mut self,
        tag: u32,
        function: TaskManagementFunction,
        lun: u64,
        referenced: Option<u32>,
        (first, cmd_sn): (Serial32, Serial32),
    ) {
        use TaskManagementFunction as Function;
        if matches!(function, Function::TargetWarmReset | Function::TargetColdReset | Function::NexusReset) {
            // What has not come never will.
            let mut missing = first;
            while missing.is_before(cmd_sn) {
                self.note_cmd_sn(missing);
                missing = missing.next();
            }
        }
        let is_covered = |own: u32, used: &Use| {
            used.cmd_sn.is_before(cmd_sn)
                && !used.is_answered
                && match function {
                    Function::AbortTask => Some(own) == referenced,
                    Function::AbortTaskSet | Function::ClearTaskSet | Function::LogicalUnitReset => used.lun == lun,
                    Function::TargetWarmReset | Function::TargetColdReset | Function::NexusReset => true,
                    _ => false,
                }
        };
        let covered = self.uses.iter().filter(|(own, used)| is_covered(**own, used)).map(|(_, used)| used.serial);
        let covered = covered.collect();
        if function == Function::TaskReassign {
            self.note_recovery(referenced);
        }
        self.managements.insert(tag, Management { function, referenced, covered });
    }

    /// A task management response came, on this connection.
    pub fn check_management(&mut self, tag: u32, at: LinkId, outcome: TaskManagementOutcome) {
        let Some(management) = self.managements.remove(&tag) else {
            assert!(self.is_blind, "nobody asked for function {tag}");
            return;
        };
        if outcome != TaskManagementOutcome::FunctionComplete {
            return;
        }
        if management.function == TaskManagementFunction::TaskReassign {
            // One that was queued before its connection was closed may be heard after a later one.
            let is_closed = self.closed.contains(&at);
            if let Some(used) = management.referenced.and_then(|tag| self.uses.get_mut(&tag)).filter(|_| !is_closed) {
                used.link = at;
                used.may_answer_again = true;
            }
            return;
        }
        for used in self.uses.values_mut().filter(|used| management.covered.contains(&used.serial)) {
            let is_with_driver = used.is_begun && !used.is_completed;
            assert!(self.is_blind || !is_with_driver, "an abort waits for the driver");
            // One that had its response meanwhile may be asked for it again.
            used.is_silenced = !used.is_answered;
            used.silenced_on = used.is_silenced.then_some(at);
        }
    }

    /// Nothing more is received on a connection.
    pub fn note_closed(&mut self, link: LinkId) {
        self.closed.insert(link);
    }
}
