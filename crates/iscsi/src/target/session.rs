//! What the connections of one session share: the command window and the tasks.
//!
//! A session knows no connection, no framing and no response numbers.

use std::collections::{BTreeMap, VecDeque};

use base::serial::Serial32;

use super::command_window::CommandWindow;
use super::event::{SessionRequest, TaskId, TaskManagementId};
use super::task::Task;
use crate::framing::ReceivedPdu;
use crate::limits::{COMMAND_WINDOW, IMMEDIATE_TASKS_MAX, TASK_MANAGEMENT_MAX};
use crate::pdu::{InitiatorTaskTag, TaskManagementOutcome};

/// What waits in the command window for its turn.
pub(super) enum Held {
    /// A task that is among [`Session::tasks`], collecting its data meanwhile.
    Task(TaskId),
    /// Any other request.
    Request(Box<ReceivedPdu>),
    /// A command that was aborted before it came: its number is used up (RFC 7143 11.6.1).
    Plugged,
}

/// A task management request that waits for the tasks it covers, for the driver, or both.
pub(super) struct PendingManagement {
    pub(super) id: TaskManagementId,
    pub(super) initiator_task_tag: InitiatorTaskTag,
    /// Tasks with the driver whose completion must be seen first.
    pub(super) waits_for: Vec<TaskId>,
    /// What the driver said.
    pub(super) outcome: Option<TaskManagementOutcome>,
}

/// A session.
pub(super) struct Session {
    pub(super) request: SessionRequest,
    pub(super) window: CommandWindow<Held>,
    /// In a map without randomness, so that runs repeat.
    pub(super) tasks: BTreeMap<InitiatorTaskTag, Task>,
    /// Tasks that wait for a buffer, oldest first.
    pub(super) starved: VecDeque<TaskId>,
    pub(super) managements: Vec<PendingManagement>,
    /// Delivered tasks of the window that have not ended.
    under_way: usize,
    immediate_tasks: usize,
    generation_next: u64,
}

impl Session {
    pub(super) fn new(request: SessionRequest, first_cmd_sn: Serial32, command_window: u32) -> Self {
        Self {
            request,
            window: CommandWindow::new(first_cmd_sn, command_window.min(COMMAND_WINDOW)),
            tasks: BTreeMap::new(),
            starved: VecDeque::new(),
            managements: Vec::new(),
            under_way: 0,
            immediate_tasks: 0,
            generation_next: 0,
        }
    }

    /// A number never given before, for tasks and task management requests alike.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.generation_next += 1;
        self.generation_next
    }

    /// The task of this name, if it is still the same one.
    pub(super) fn task(&mut self, id: TaskId) -> Option<&mut Task> {
        self.tasks.get_mut(&id.initiator_task_tag).filter(|task| task.id == id)
    }

    pub(super) fn has_room_for_immediate(&self) -> bool {
        self.immediate_tasks < IMMEDIATE_TASKS_MAX
    }

    pub(super) fn has_room_for_management(&self) -> bool {
        self.managements.len() < TASK_MANAGEMENT_MAX
    }

    /// A task begins. Immediate ones are delivered at once, others take their place in the window.
    pub(super) fn add_task(&mut self, task: Task) {
        if task.header.is_immediate {
            self.immediate_tasks += 1;
        } else {
            self.window.take(task.header.cmd_sn, Held::Task(task.id));
        }
        let previous = self.tasks.insert(task.id.initiator_task_tag, task);
        assert!(previous.is_none(), "an initiator task tag names one task");
    }

    /// It is this task's turn.
    pub(super) fn deliver_task(&mut self, id: TaskId) {
        if let Some(task) = self.task(id) {
            task.is_delivered = true;
            self.under_way += 1;
        }
        self.open_window();
    }

    /// A task ends. What becomes free lets the window open.
    pub(super) fn remove_task(&mut self, id: TaskId) -> Option<Task> {
        let task = self.task(id).is_some().then(|| self.tasks.remove(&id.initiator_task_tag)).flatten()?;
        if task.header.is_immediate {
            self.immediate_tasks -= 1;
        } else if task.is_delivered {
            self.under_way -= 1;
            self.open_window();
        }
        Some(task)
    }

    pub(super) fn open_window(&mut self) {
        self.window.open(self.under_way);
    }

    /// A task covered by task management requests has ended.
    pub(super) fn note_end(&mut self, id: TaskId) {
        for pending in &mut self.managements {
            pending.waits_for.retain(|&other| other != id);
        }
    }

    /// A task management request whose response may be sent now.
    pub(super) fn take_finished_management(&mut self) -> Option<(InitiatorTaskTag, TaskManagementOutcome)> {
        let is_finished = |pending: &PendingManagement| pending.waits_for.is_empty() && pending.outcome.is_some();
        let index = self.managements.iter().position(is_finished)?;
        let pending = self.managements.remove(index);
        pending.outcome.map(|outcome| (pending.initiator_task_tag, outcome))
    }
}
