//! The tasks of a session and the order of its commands: the state that all its connections share.
//!
//! It depends on no connection, framing or response numbers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use base::clock::Instant;
use base::serial::Serial32;

use super::answer::Answer;
use super::command_window::CommandWindow;
use super::event::{LinkId, TaskId, TaskManagementId};
use super::retained_share::RetainedShare;
use super::task::{DataOutHeld, Task};
use crate::framing::ReceivedPdu;
use crate::limits::{
    COMMAND_WINDOW, IMMEDIATE_DATA_TASKS_MAX, IMMEDIATE_TASKS_MAX, RETAINED_ANSWERS, RETAINED_ANSWERS_MAX,
    TASK_MANAGEMENT_MAX,
};
use crate::pdu::{InitiatorTaskTag, TaskManagementFunction, TaskManagementOutcome};

/// An entry of the command window that waits for its turn.
pub(super) enum Held {
    /// A task of [`TaskSet::tasks`], which collects its data meanwhile.
    Task(TaskId),
    /// Any other request, with its connection.
    Request(LinkId, Box<ReceivedPdu>),
    /// A command that was aborted before it came: its number is used up (RFC 7143 11.6.1).
    Plugged,
}

/// A task management request that waits: for commands before it, for the tasks it covers, for the driver, for
/// acknowledgements.
pub(super) struct PendingManagement {
    pub(super) id: TaskManagementId,
    /// The connection for the response.
    pub(super) link: LinkId,
    pub(super) initiator_task_tag: InitiatorTaskTag,
    pub(super) function: TaskManagementFunction,
    pub(super) lun: u64,
    /// The one task of ABORT TASK.
    pub(super) task: Option<TaskId>,
    /// Its own number: earlier commands must have come (RFC 7143 4.2.3.3 b).
    pub(super) cmd_sn: Serial32,
    /// Tasks whose data still comes; the driver gets the function when none is left (RFC 7143
    /// 4.2.3.3 a), or at the deadline.
    pub(super) awaits_data: Vec<TaskId>,
    pub(super) deadline: Instant,
    pub(super) is_begun: bool,
    /// Tasks with the driver whose completion must be seen first.
    pub(super) waits_for: Vec<TaskId>,
    /// The driver's outcome.
    pub(super) outcome: Option<TaskManagementOutcome>,
    /// Responses of other connections that must be acknowledged first (RFC 7143 4.2.2.3.2); set
    /// when all else is done.
    pub(super) fences: Option<Vec<(LinkId, Serial32)>>,
}

/// The tasks of a session.
pub(super) struct TaskSet {
    pub(super) window: CommandWindow<Held>,
    /// In a map without randomness, so that runs repeat.
    pub(super) tasks: BTreeMap<InitiatorTaskTag, Task>,
    /// Answers that may be requested again; none at error recovery level 0.
    pub(super) answers: BTreeMap<InitiatorTaskTag, Answer>,
    /// Tasks that wait for a buffer, oldest first.
    pub(super) starved: VecDeque<TaskId>,
    pub(super) managements: Vec<PendingManagement>,
    /// The data-out buffers of its tasks.
    data_out: DataOutHeld,
    /// What the session keeps for recovery.
    retained: Arc<RetainedShare>,
    /// Bytes of it that the answers here keep.
    kept_bytes: usize,
    /// Delivered tasks of the window that have not ended.
    under_way: usize,
    immediate_tasks: usize,
    generation_next: u64,
}

impl TaskSet {
    pub(super) fn new(first_cmd_sn: Serial32, command_window: u32, retained: Arc<RetainedShare>) -> Self {
        Self {
            window: CommandWindow::new(first_cmd_sn, command_window.min(COMMAND_WINDOW)),
            tasks: BTreeMap::new(),
            answers: BTreeMap::new(),
            starved: VecDeque::new(),
            managements: Vec::new(),
            data_out: DataOutHeld::default(),
            retained,
            kept_bytes: 0,
            under_way: 0,
            immediate_tasks: 0,
            generation_next: 0,
        }
    }

    /// ExpCmdSN and MaxCmdSN, as every response carries them.
    pub(super) fn command_numbers(&self) -> (Serial32, Serial32) {
        (self.window.exp_cmd_sn(), self.window.max_cmd_sn())
    }

    /// A number that was never used before, for tasks and task management requests alike.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.generation_next += 1;
        self.generation_next
    }

    /// The task of this id, if it is still the same one.
    pub(super) fn task(&mut self, id: TaskId) -> Option<&mut Task> {
        self.tasks.get_mut(&id.initiator_task_tag).filter(|task| task.id == id)
    }

    pub(super) fn has_room_for_immediate(&self) -> bool {
        self.immediate_tasks < IMMEDIATE_TASKS_MAX
    }

    /// Whether one more may bring a little data whatever else the session holds.
    pub(super) fn has_room_for_immediate_data(&self) -> bool {
        self.immediate_tasks < IMMEDIATE_DATA_TASKS_MAX
    }

    pub(super) fn has_room_for_management(&self) -> bool {
        self.managements.len() < TASK_MANAGEMENT_MAX
    }

    /// Adds a task. An immediate one is delivered at once, others take their place in the window.
    pub(super) fn add_task(&mut self, task: Task) {
        if task.header.is_immediate {
            self.immediate_tasks += 1;
        } else {
            self.window.take(task.header.cmd_sn, Held::Task(task.id));
        }
        self.data_out.add(task.data_out_held);
        // The initiator reuses the tag of an answer that it has: it will not request that again.
        self.forget_answer(task.id.initiator_task_tag);
        let previous = self.tasks.insert(task.id.initiator_task_tag, task);
        assert!(previous.is_none(), "an initiator task tag names one task");
    }

    /// Delivers this task, whose turn has come.
    pub(super) fn deliver_task(&mut self, id: TaskId) {
        if let Some(task) = self.task(id) {
            task.is_delivered = true;
            self.under_way += 1;
        }
        self.open_window();
    }

    /// Removes a task that has ended. The freed place lets the window open.
    pub(super) fn remove_task(&mut self, id: TaskId) -> Option<Task> {
        let task = self.task(id).is_some().then(|| self.tasks.remove(&id.initiator_task_tag)).flatten()?;
        self.data_out.remove(task.data_out_held);
        if task.header.is_immediate {
            self.immediate_tasks -= 1;
        } else if task.is_delivered {
            self.under_way -= 1;
            self.open_window();
        }
        Some(task)
    }

    /// The data-out buffers of its tasks.
    pub(super) fn data_out(&self) -> DataOutHeld {
        self.data_out
    }

    /// Sets a task's data-out buffer, in place of the former one.
    pub(super) fn hold(&mut self, id: TaskId, held: DataOutHeld) {
        let Some(task) = self.task(id) else { return };
        let before = std::mem::replace(&mut task.data_out_held, held);
        self.data_out.remove(before);
        self.data_out.add(held);
    }

    /// Bytes held by requests ahead of their turn.
    pub(super) fn held_request_bytes(&self) -> usize {
        let of = |held: &Held| if let Held::Request(_, pdu) = held { pdu.data.buffer.capacity() } else { 0 };
        self.window.held().map(of).sum()
    }

    /// The connection of the first command or request that waits for an earlier one.
    pub(super) fn first_held_on(&self) -> Option<LinkId> {
        self.window.held().find_map(|held| match held {
            Held::Task(id) => self.tasks.get(&id.initiator_task_tag).map(|task| task.link),
            Held::Request(link, _) => Some(*link),
            Held::Plugged => None,
        })
    }

    /// What the session keeps for recovery.
    pub(super) fn retained(&self) -> Arc<RetainedShare> {
        Arc::clone(&self.retained)
    }

    /// Keeps an answer until it is acknowledged; the data kept in all is limited for this session
    /// and for all sessions.
    pub(super) fn keep_answer(&mut self, answer: Answer) {
        self.answers.insert(answer.id.initiator_task_tag, answer);
        let mut kept: usize = self.answers.values().map(Answer::kept_bytes).sum();
        while !self.retained.has_room_for(kept, self.kept_bytes) {
            let oldest = self.answers.values_mut().filter(|answer| answer.data.is_some());
            let Some(oldest) = oldest.min_by_key(|answer| answer.id.generation) else { break };
            kept -= oldest.forget_data();
        }
        self.tell_kept(kept);
    }

    /// Whether the initiator acknowledges so few answers that it must be cut off.
    pub(super) fn keeps_too_many_answers(&self) -> bool {
        self.answers.len() > RETAINED_ANSWERS_MAX
    }

    /// Forgets the data of the answer whose response has this number.
    pub(super) fn forget_data_of(&mut self, tag: InitiatorTaskTag, stat_sn: Serial32) {
        let answer = self.answers.get_mut(&tag).filter(|answer| answer.stat_sn == Some(stat_sn));
        let freed = answer.map_or(0, Answer::forget_data);
        self.tell_kept(self.kept_bytes.saturating_sub(freed));
    }

    /// Drops answers that cannot be requested any more. The freed places let the window open.
    pub(super) fn forget_answers(&mut self, is_over: impl Fn(&Answer) -> bool) {
        self.answers.retain(|_, answer| !is_over(answer));
        self.tell_kept(self.answers.values().map(Answer::kept_bytes).sum());
        self.open_window();
    }

    fn forget_answer(&mut self, tag: InitiatorTaskTag) {
        if let Some(answer) = self.answers.remove(&tag) {
            self.tell_kept(self.kept_bytes.saturating_sub(answer.kept_bytes()));
        }
    }

    fn tell_kept(&mut self, bytes: usize) {
        self.retained.tell(std::mem::replace(&mut self.kept_bytes, bytes), bytes);
    }

    /// Notes that the initiator has the response with this number.
    pub(super) fn acknowledge_answer(&mut self, tag: InitiatorTaskTag, stat_sn: Serial32) {
        if self.answers.get(&tag).is_some_and(|answer| answer.stat_sn == Some(stat_sn)) {
            self.forget_answer(tag);
            self.open_window();
        }
    }

    pub(super) fn open_window(&mut self) {
        self.window.open(self.under_way + self.answers.len().saturating_sub(RETAINED_ANSWERS));
    }

    /// Notes the end of a task for task management requests that cover it.
    pub(super) fn note_end(&mut self, id: TaskId) {
        for pending in &mut self.managements {
            pending.waits_for.retain(|&other| other != id);
            pending.awaits_data.retain(|&other| other != id);
        }
    }

    /// Whether a tag belongs to a task management request that waits.
    pub(super) fn is_management(&self, tag: InitiatorTaskTag) -> bool {
        self.managements.iter().any(|pending| pending.initiator_task_tag == tag)
    }
}

impl Drop for TaskSet {
    /// Frees all data kept for the session, however it ended.
    fn drop(&mut self) {
        self.tell_kept(0);
    }
}
