//! A session's numbering and tasks, apart from the connections that carry them (RFC 7143 4.2.2.1 and 4.2.4).
//!
//! The connections of a session share its window and its tasks; each task belongs to the connection
//! on which its command was sent. Commands wait in order until the target's window (MaxCmdSN)
//! allows them; CmdSN is assigned when a command is sent. An *immediate* command bypasses the queue
//! and the window, and uses no CmdSN: the caller submits no more of them than a target accepts (RFC
//! 7143 4.2.2.1). A task's tag is its slot and the slot's generation, so an answer that comes after
//! its task ended finds no task.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;
use base::clock::Instant;
use base::serial::Serial32;

use super::command::{Command, Completed, Data, Outcome};
use super::login::LoggedIn;
use super::received::Received;
use crate::limits::INITIATOR_TASKS_MAX;
use crate::negotiation::Negotiated;
use crate::pdu::{BHS_BYTES, InitiatorTaskTag, Residual, TaskAttribute};

/// Slots below this stand in the tag's low half. The high half counts generations, and never is FFFFh.
const SLOT_BITS: u32 = 16;
const _: () = assert!(INITIATOR_TASKS_MAX <= 1 << SLOT_BITS);

/// The initiator's side of a session.
pub struct Session {
    negotiated: Negotiated,
    cmd_sn: Serial32,
    exp_cmd_sn: Serial32,
    max_cmd_sn: Serial32,
    waiting: VecDeque<(Command, Instant)>,
    /// Immediate ones, which go first.
    immediate: VecDeque<(Command, Instant)>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    completed: VecDeque<Completed>,
    /// Not later than the earliest deadline of any task.
    earliest_deadline: Option<Instant>,
    submitted_count: u64,
    /// Tasks that have an outcome and wait for the last of their data to be sent.
    lingering_count: usize,
    /// The target's part of the session's name; zero before the login.
    tsih: u16,
    may_split: bool,
    /// The load of each connection, by CID.
    loads: Vec<(u16, Load)>,
    /// Resets under way: the CID of the connection that waits for the answer, and the LUN field of the unit.
    resets: Vec<(u16, u64)>,
}

/// The load of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Commands.
    pub commands: usize,
    /// Bytes of their PDUs and data, both ways.
    pub bytes: usize,
}

struct Slot {
    generation: u16,
    task: Option<Task>,
}

/// A command that was sent.
pub(super) struct Task {
    pub(super) token: u64,
    /// CID of its connection.
    pub(super) cid: u16,
    pub(super) order: u64,
    pub(super) lun: u64,
    pub(super) cmd_sn: Serial32,
    pub(super) is_immediate: bool,
    pub(super) cdb: [u8; 16],
    pub(super) attribute: TaskAttribute,
    pub(super) deadline: Instant,
    pub(super) is_aborting: bool,
    /// Bytes to be moved.
    data_bytes: usize,
    pub(super) data: TaskData,
    pub(super) received: Received,
    /// Count of complete Data-In PDUs: the number of the next one.
    pub(super) data_in_count: u32,
    /// The outcome of a write whose data is still being sent: its buffer is not back yet.
    pub(super) outcome: Option<Outcome>,
}

impl Task {
    /// Its load on its connection: the PDUs of command and response, and the data.
    fn cost_bytes(&self) -> usize {
        2 * BHS_BYTES + self.data_bytes
    }
}

/// A task's buffer.
pub(super) enum TaskData {
    None,
    /// `None` while the connection reads into it. The range is part of a buffer of this size.
    Read(Option<Buffer>, Range<usize>, usize),
    Write(Arc<Buffer>, Range<usize>),
}

impl TaskData {
    pub(super) fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Read(_, range, _) | Self::Write(_, range) => range.len(),
        }
    }

    /// The buffer; or the data itself while the connection still has it. A read whose connection is
    /// gone gets a new buffer of the same size, without the old content.
    fn into_buffer(self) -> Result<Buffer, Self> {
        match self {
            Self::None => Ok(Buffer::empty()),
            Self::Read(Some(buffer), ..) => Ok(buffer),
            Self::Read(None, _, length) => Ok(Buffer::zeroed(length)),
            Self::Write(shared, range) => Arc::try_unwrap(shared).map_err(|shared| Self::Write(shared, range)),
        }
    }
}

impl Session {
    /// A session before its login, which numbers its first command `cmd_sn`.
    pub fn new(cmd_sn: Serial32) -> Self {
        Self {
            negotiated: Negotiated::default(),
            cmd_sn,
            exp_cmd_sn: cmd_sn,
            max_cmd_sn: cmd_sn.minus(1),
            waiting: VecDeque::new(),
            immediate: VecDeque::new(),
            slots: Vec::new(),
            free: Vec::new(),
            completed: VecDeque::new(),
            earliest_deadline: None,
            submitted_count: 0,
            lingering_count: 0,
            tsih: 0,
            may_split: false,
            loads: Vec::new(),
            resets: Vec::new(),
        }
    }

    /// Queues a command.
    pub fn submit(&mut self, now: Instant, command: Command) {
        let deadline = self.note_submitted(now, &command);
        self.waiting.push_back((command, deadline));
    }

    /// Queues an immediate command.
    pub fn submit_immediate(&mut self, now: Instant, command: Command) {
        let deadline = self.note_submitted(now, &command);
        self.immediate.push_back((command, deadline));
    }

    fn note_submitted(&mut self, now: Instant, command: &Command) -> Instant {
        let deadline = now + command.timeout;
        self.note_deadline(deadline);
        self.submitted_count += 1;
        deadline
    }

    /// Ends the queued commands that are `unwanted` by their token and were not sent: they have got no CmdSN. Returns
    /// whether there were any.
    pub fn withdraw(&mut self, unwanted: impl Fn(u64) -> bool) -> bool {
        let before = self.completed.len();
        for (command, deadline) in std::mem::take(&mut self.waiting) {
            if unwanted(command.token) {
                let buffer = command.data.into_buffer();
                self.completed.push_back(Completed { token: command.token, buffer, outcome: Outcome::NotSent });
            } else {
                self.waiting.push_back((command, deadline));
            }
        }
        self.completed.len() > before
    }

    /// The next command that has ended.
    pub fn poll_completed(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }

    /// Count of commands that have not ended.
    pub fn outstanding_count(&self) -> usize {
        self.waiting.len() + self.immediate.len() + self.slots.len() - self.free.len()
    }

    /// Commands the target would take now beyond those it has.
    pub fn window(&self) -> u32 {
        if self.cmd_sn.is_after(self.max_cmd_sn) { 0 } else { self.max_cmd_sn.distance_from(self.cmd_sn) + 1 }
    }

    /// The values in force.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// The target's part of the session's name; zero before the login.
    pub fn tsih(&self) -> u16 {
        self.tsih
    }

    /// Whether its connections may be split.
    pub fn may_split(&self) -> bool {
        self.may_split
    }

    /// The load of the connection `cid`.
    pub fn load(&self, cid: u16) -> Load {
        self.loads.iter().find(|(other, _)| *other == cid).map(|(_, load)| *load).unwrap_or_default()
    }

    /// Forgets a lost connection without tasks.
    pub fn forget_connection(&mut self, cid: u16) {
        self.end_resets_of(cid);
        self.loads.retain(|(other, load)| *other != cid || load.commands > 0);
    }

    /// The tasks of a connection, in the order of their commands.
    pub fn tasks_of(&self, cid: u16) -> Vec<InitiatorTaskTag> {
        let mut tags: Vec<_> = self.tags().filter(|(_, task)| task.cid == cid && task.outcome.is_none()).collect();
        tags.sort_by_key(|(_, task)| task.order);
        tags.into_iter().map(|(tag, _)| tag).collect()
    }

    /// Takes all commands that have not ended, in the order in which they were submitted, with
    /// their buffers: the session is lost.
    pub fn take_all(&mut self) -> Vec<(u64, Buffer)> {
        let mut tasks: Vec<Task> = self.slots.iter_mut().filter_map(|slot| slot.task.take()).collect();
        tasks.sort_by_key(|task| task.order);
        self.slots.clear();
        self.free.clear();
        self.earliest_deadline = None;
        self.lingering_count = 0;
        self.loads.clear();
        self.resets.clear();
        let sent = tasks.into_iter().map(|task| {
            // A dropped connection has given its share of the buffer back; otherwise it is copied.
            let buffer = task.data.into_buffer().unwrap_or_else(|data| match data {
                TaskData::Write(shared, _) => Buffer::copy_of(&shared),
                TaskData::None | TaskData::Read(..) => Buffer::empty(),
            });
            (task.token, buffer)
        });
        let waiting = self
            .immediate
            .drain(..)
            .chain(self.waiting.drain(..))
            .map(|(command, _)| (command.token, command.data.into_buffer()));
        sent.chain(waiting).collect()
    }

    /// Notes a login. The first one establishes the session, others join it.
    pub(super) fn establish(&mut self, logged_in: &LoggedIn) {
        if self.tsih == 0 {
            self.negotiated = logged_in.negotiated;
            self.tsih = logged_in.tsih;
            self.may_split = logged_in.may_split && logged_in.negotiated.max_connections > 1;
        }
        self.update_window(logged_in.exp_cmd_sn, logged_in.max_cmd_sn);
    }

    /// RFC 7143 4.2.2.1: both are ignored when they contradict each other, and neither is lowered.
    pub(super) fn update_window(&mut self, exp_cmd_sn: Serial32, max_cmd_sn: Serial32) {
        if max_cmd_sn.is_before(exp_cmd_sn.minus(1)) {
            return;
        }
        if exp_cmd_sn.is_after(self.exp_cmd_sn) {
            self.exp_cmd_sn = exp_cmd_sn;
        }
        if max_cmd_sn.is_after(self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    /// The CmdSN that the next command will have; immediate requests carry it without using it up.
    pub(super) fn next_cmd_sn(&self) -> Serial32 {
        self.cmd_sn
    }

    /// Uses up a CmdSN.
    pub(super) fn take_cmd_sn(&mut self) -> Serial32 {
        let taken = self.cmd_sn;
        self.cmd_sn = taken.next();
        taken
    }

    /// Holds back commands for the unit of `lun`, which the connection `cid` resets: what is sent meanwhile outlives
    /// the reset (RFC 7143 11.5.1), and nobody knows when the target carries it out. Immediate commands pass: the lease
    /// of a shared unit does not wait.
    pub(super) fn begin_reset(&mut self, cid: u16, lun: u64) {
        self.resets.push((cid, lun));
    }

    /// Lets commands go that such a reset held back.
    pub(super) fn end_reset(&mut self, cid: u16, lun: u64) {
        self.resets.retain(|reset| *reset != (cid, lun));
    }

    /// Likewise for a connection that is gone with its resets.
    pub(super) fn end_resets_of(&mut self, cid: u16) {
        self.resets.retain(|(other, _)| *other != cid);
    }

    /// Index of the first queued command that no reset holds back.
    fn next_waiting(&self) -> Option<usize> {
        let is_held_back = |lun: u64| self.resets.iter().any(|(_, reset)| *reset == lun);
        self.waiting.iter().position(|(command, _)| !is_held_back(command.lun))
    }

    /// Whether a command could be sent now.
    pub fn has_to_send(&self) -> bool {
        let is_slot_free = !self.free.is_empty() || self.slots.len() < INITIATOR_TASKS_MAX;
        let may_send = !self.immediate.is_empty() || (self.window() > 0 && self.next_waiting().is_some());
        may_send && is_slot_free
    }

    /// The next command that may be sent, as a task of the connection `cid`.
    pub(super) fn next_to_send(&mut self, cid: u16) -> Option<InitiatorTaskTag> {
        if !self.has_to_send() {
            return None;
        }
        let is_immediate = !self.immediate.is_empty();
        let (command, deadline) = match is_immediate {
            true => self.immediate.pop_front()?,
            false => self.next_waiting().and_then(|index| self.waiting.remove(index))?,
        };
        let data = match command.data {
            Data::None => TaskData::None,
            Data::Read(buffer, range) => {
                let length = buffer.len();
                TaskData::Read(Some(buffer), range, length)
            }
            Data::Write(buffer, range) => TaskData::Write(Arc::new(buffer), range),
        };
        let task = Task {
            token: command.token,
            cid,
            order: self.submitted_count - (self.waiting.len() + self.immediate.len()) as u64,
            lun: command.lun,
            cmd_sn: if is_immediate { self.next_cmd_sn() } else { self.take_cmd_sn() },
            is_immediate,
            cdb: command.cdb,
            attribute: command.attribute,
            deadline,
            is_aborting: false,
            data_bytes: data.length(),
            data,
            received: Received::default(),
            data_in_count: 0,
            outcome: None,
        };
        Some(self.insert(task))
    }

    fn insert(&mut self, task: Task) -> InitiatorTaskTag {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, task: None });
            u16::try_from(self.slots.len() - 1).expect("there are at most 2^16 slots")
        });
        self.change_load(task.cid, |load| {
            load.commands += 1;
            load.bytes += task.cost_bytes();
        });
        let slot = &mut self.slots[usize::from(index)];
        // FFFFh is skipped so that no tag is the reserved value.
        slot.generation = if slot.generation >= u16::MAX - 1 { 0 } else { slot.generation + 1 };
        slot.task = Some(task);
        let value = u32::from(slot.generation) << SLOT_BITS | u32::from(index);
        InitiatorTaskTag::new(value).expect("no generation is FFFFh")
    }

    /// Moves a task to the connection `cid`. An abort of it that was under way is lost.
    pub(super) fn move_task(&mut self, tag: InitiatorTaskTag, cid: u16) {
        self.await_again(tag);
        let Some(task) = self.task(tag) else { return };
        let (before, cost_bytes) = (std::mem::replace(&mut task.cid, cid), task.cost_bytes());
        self.change_load(before, |load| {
            load.commands -= 1;
            load.bytes -= cost_bytes;
        });
        self.change_load(cid, |load| {
            load.commands += 1;
            load.bytes += cost_bytes;
        });
    }

    fn change_load(&mut self, cid: u16, change: impl FnOnce(&mut Load)) {
        let found = self.loads.iter().position(|(other, _)| *other == cid);
        let at = found.unwrap_or_else(|| {
            self.loads.push((cid, Load::default()));
            self.loads.len() - 1
        });
        change(&mut self.loads[at].1);
    }

    /// The task of a tag, if it has not ended.
    pub(super) fn task(&mut self, tag: InitiatorTaskTag) -> Option<&mut Task> {
        let slot = self.slots.get_mut((tag.get() & 0xffff) as usize)?;
        let is_same = u32::from(slot.generation) == tag.get() >> SLOT_BITS;
        slot.task.as_mut().filter(|_| is_same)
    }

    /// The task of a tag, if it has not ended and its command was sent on the connection `cid`.
    pub(super) fn task_on(&mut self, cid: u16, tag: InitiatorTaskTag) -> Option<&mut Task> {
        self.task(tag).filter(|task| task.cid == cid)
    }

    /// Tags of all tasks.
    pub(super) fn tags(&self) -> impl Iterator<Item = (InitiatorTaskTag, &Task)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let value = u32::from(slot.generation) << SLOT_BITS | u32::try_from(index).ok()?;
            Some((InitiatorTaskTag::new(value)?, slot.task.as_ref()?))
        })
    }

    /// Ends a task with the target's status. GOOD with less data than that implies is a failure.
    pub(super) fn complete_with_status(
        &mut self,
        tag: InitiatorTaskTag,
        status: u8,
        sense: Vec<u8>,
        residual: Residual,
    ) {
        let Some(task) = self.task(tag) else { return };
        let expected = match (&task.data, residual) {
            (TaskData::Read(..), Residual::Underflow(missing)) => task.data.length().saturating_sub(missing as usize),
            (TaskData::Read(..), _) => task.data.length(),
            _ => 0,
        };
        let received_bytes = task.received.bytes();
        let outcome = if status == 0 && received_bytes < expected {
            Outcome::Failed(format!("the target sent {received_bytes} bytes and says it sent {expected}"))
        } else {
            Outcome::Status { status, sense, residual, received_bytes }
        };
        self.complete(tag, outcome);
    }

    /// Ends a task. A write ends when all of its data has been sent.
    pub(super) fn complete(&mut self, tag: InitiatorTaskTag, outcome: Outcome) {
        let index = (tag.get() & 0xffff) as usize;
        if self.task(tag).is_none() {
            return;
        }
        let Some(mut task) = self.slots[index].task.take() else { return };
        let (cid, cost_bytes) = (task.cid, task.cost_bytes());
        match std::mem::replace(&mut task.data, TaskData::None).into_buffer() {
            Ok(buffer) => {
                self.change_load(cid, |load| {
                    load.commands -= 1;
                    load.bytes -= cost_bytes;
                });
                self.free.push(index as u16);
                self.completed.push_back(Completed { token: task.token, buffer, outcome });
            }
            Err(data) => {
                task.data = data;
                task.outcome = Some(outcome);
                self.lingering_count += 1;
                self.slots[index].task = Some(task);
            }
        }
    }

    /// Ends the writes that had an outcome and whose last byte has been sent now.
    pub(super) fn complete_lingering(&mut self) {
        if self.lingering_count == 0 {
            return;
        }
        self.lingering_count = 0;
        let lingering: Vec<InitiatorTaskTag> =
            self.tags().filter(|(_, task)| task.outcome.is_some()).map(|(tag, _)| tag).collect();
        for tag in lingering {
            if let Some(outcome) = self.task(tag).and_then(|task| task.outcome.take()) {
                self.complete(tag, outcome);
            }
        }
    }

    /// A moment that is not later than the first deadline of any command.
    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.earliest_deadline
    }

    /// Tags of tasks of the connection `cid` whose time is up and that are not being aborted.
    /// Commands that were never sent end here.
    pub(super) fn expire(&mut self, now: Instant, cid: u16) -> Vec<InitiatorTaskTag> {
        if self.earliest_deadline.is_none_or(|deadline| deadline > now) {
            return Vec::new();
        }
        for queue in [&mut self.immediate, &mut self.waiting] {
            for (command, deadline) in std::mem::take(queue) {
                if deadline <= now {
                    let buffer = command.data.into_buffer();
                    self.completed.push_back(Completed { token: command.token, buffer, outcome: Outcome::NotSent });
                } else {
                    queue.push_back((command, deadline));
                }
            }
        }
        let is_idle = |task: &Task| !task.is_aborting && task.outcome.is_none();
        let is_due = |task: &Task| task.deadline <= now && task.cid == cid;
        let expired: Vec<_> =
            self.tags().filter(|(_, task)| is_idle(task) && is_due(task)).map(|(tag, _)| tag).collect();
        let later = self.tags().filter(|(_, task)| is_idle(task) && !is_due(task)).map(|(_, task)| task.deadline);
        let waiting = self.immediate.iter().chain(&self.waiting).map(|(_, deadline)| *deadline);
        self.earliest_deadline = later.chain(waiting).min();
        expired
    }

    /// Lets a task become overdue again whose abort is not under way any more.
    pub(super) fn await_again(&mut self, tag: InitiatorTaskTag) {
        let Some(task) = self.task(tag) else { return };
        task.is_aborting = false;
        let deadline = task.deadline;
        self.note_deadline(deadline);
    }

    fn note_deadline(&mut self, deadline: Instant) {
        self.earliest_deadline = Some(self.earliest_deadline.map_or(deadline, |earliest| earliest.min(deadline)));
    }
}
