//! The tasks of a session and the order of its commands: what all its connections share.
//!
//! It knows no connection, no framing and no response numbers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use base::clock::Instant;
use base::serial::Serial32;

use super::answer::Answer;
use super::command_window::CommandWindow;
use super::event::{LinkId, TaskId, TaskManagementId};
use super::parameters::RetainedData;
use super::task::{DataOutHeld, Task};
use crate::framing::ReceivedPdu;
use crate::limits::{
    COMMAND_WINDOW, IMMEDIATE_DATA_TASKS_MAX, IMMEDIATE_TASKS_MAX, RETAINED_ANSWERS, RETAINED_DATA_BYTES_MAX,
    TASK_MANAGEMENT_MAX,
};
use crate::pdu::{InitiatorTaskTag, TaskManagementFunction, TaskManagementOutcome};

/// What waits in the command window for its turn.
pub(super) enum Held {
    /// A task that is among [`TaskSet::tasks`], collecting its data meanwhile.
    Task(TaskId),
    /// Any other request, and the connection it came on.
    Request(LinkId, Box<ReceivedPdu>),
    /// A command that was aborted before it came: its number is used up (RFC 7143 11.6.1).
    Plugged,
}

/// A task management request that waits: for commands before it, for the tasks it covers, for the driver, for
/// acknowledgements.
pub(super) struct PendingManagement {
    pub(super) id: TaskManagementId,
    /// Where the response goes.
    pub(super) link: LinkId,
    pub(super) initiator_task_tag: InitiatorTaskTag,
    pub(super) function: TaskManagementFunction,
    pub(super) lun: u64,
    /// The one task of ABORT TASK.
    pub(super) task: Option<TaskId>,
    /// Its own number: what comes before it must have come (RFC 7143 4.2.3.3 b).
    pub(super) cmd_sn: Serial32,
    /// Tasks whose data still comes; the driver is told when none is left (RFC 7143 4.2.3.3 a), or at the deadline.
    pub(super) awaits_data: Vec<TaskId>,
    pub(super) deadline: Instant,
    pub(super) is_begun: bool,
    /// Tasks with the driver whose completion must be seen first.
    pub(super) waits_for: Vec<TaskId>,
    /// What the driver said.
    pub(super) outcome: Option<TaskManagementOutcome>,
    /// Responses of other connections that must be acknowledged first (RFC 7143 4.2.2.3.2); set when all else is done.
    pub(super) fences: Option<Vec<(LinkId, Serial32)>>,
}

/// The tasks of a session.
pub(super) struct TaskSet {
    pub(super) window: CommandWindow<Held>,
    /// In a map without randomness, so that runs repeat.
    pub(super) tasks: BTreeMap<InitiatorTaskTag, Task>,
    /// Tasks whose answer may be asked for again; nothing at error recovery level 0.
    pub(super) answers: BTreeMap<InitiatorTaskTag, Answer>,
    /// Tasks that wait for a buffer, oldest first.
    pub(super) starved: VecDeque<TaskId>,
    pub(super) managements: Vec<PendingManagement>,
    /// What its tasks have of data-out buffers.
    data_out: DataOutHeld,
    /// What all sessions keep for recovery.
    retained: Arc<RetainedData>,
    /// Bytes of it that the answers here keep.
    kept_bytes: usize,
    /// Delivered tasks of the window that have not ended.
    under_way: usize,
    immediate_tasks: usize,
    generation_next: u64,
}

impl TaskSet {
    pub(super) fn new(first_cmd_sn: Serial32, command_window: u32, retained: Arc<RetainedData>) -> Self {
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

    /// Whether one more may bring a little data whatever else the session holds.
    pub(super) fn has_room_for_immediate_data(&self) -> bool {
        self.immediate_tasks < IMMEDIATE_DATA_TASKS_MAX
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
        self.data_out.add(task.data_out_held);
        // The initiator names a new task like one whose answer it has: it will not ask for that again.
        self.forget_answer(task.id.initiator_task_tag);
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
        self.data_out.remove(task.data_out_held);
        if task.header.is_immediate {
            self.immediate_tasks -= 1;
        } else if task.is_delivered {
            self.under_way -= 1;
            self.open_window();
        }
        Some(task)
    }

    /// What its tasks have of data-out buffers.
    pub(super) fn data_out(&self) -> DataOutHeld {
        self.data_out
    }

    /// A task has this data-out buffer from now on, in the place of what it had.
    pub(super) fn hold(&mut self, id: TaskId, held: DataOutHeld) {
        let Some(task) = self.task(id) else { return };
        let before = std::mem::replace(&mut task.data_out_held, held);
        self.data_out.remove(before);
        self.data_out.add(held);
    }

    /// Bytes that requests ahead of their turn hold.
    pub(super) fn held_request_bytes(&self) -> usize {
        let of = |held: &Held| if let Held::Request(_, pdu) = held { pdu.data.buffer.capacity() } else { 0 };
        self.window.held().map(of).sum()
    }

    /// The connection of the first command or request that waits for one before it.
    pub(super) fn first_held_on(&self) -> Option<LinkId> {
        self.window.held().find_map(|held| match held {
            Held::Task(id) => self.tasks.get(&id.initiator_task_tag).map(|task| task.link),
            Held::Request(link, _) => Some(*link),
            Held::Plugged => None,
        })
    }

    /// Keeps an answer until it is acknowledged; of its data, and what is kept already, as much as this session and all
    /// may.
    pub(super) fn keep_answer(&mut self, answer: Answer) {
        self.answers.insert(answer.id.initiator_task_tag, answer);
        let mut kept: usize = self.answers.values().map(Answer::kept_bytes).sum();
        while kept > RETAINED_DATA_BYTES_MAX || !self.retained.has_room_for(kept, self.kept_bytes) {
            let oldest = self.answers.values_mut().filter(|answer| answer.kept_bytes() > 0);
            let Some(oldest) = oldest.min_by_key(|answer| answer.id.generation) else { break };
            kept -= oldest.kept_bytes();
            oldest.forget_data();
        }
        self.tell_kept(kept);
    }

    /// Nobody can ask for these answers any more. What becomes free lets the window open.
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

    /// The initiator has the response with this number.
    pub(super) fn acknowledge_answer(&mut self, tag: InitiatorTaskTag, stat_sn: Serial32) {
        if self.answers.get(&tag).is_some_and(|answer| answer.stat_sn == Some(stat_sn)) {
            self.forget_answer(tag);
            self.open_window();
        }
    }

    pub(super) fn open_window(&mut self) {
        self.window.open(self.under_way + self.answers.len().saturating_sub(RETAINED_ANSWERS));
    }

    /// A task covered by task management requests has ended.
    pub(super) fn note_end(&mut self, id: TaskId) {
        for pending in &mut self.managements {
            pending.waits_for.retain(|&other| other != id);
            pending.awaits_data.retain(|&other| other != id);
        }
    }

    /// The link of a task, and whether it is a SCSI task at all.
    pub(super) fn is_management(&self, tag: InitiatorTaskTag) -> bool {
        self.managements.iter().any(|pending| pending.initiator_task_tag == tag)
    }
}

impl Drop for TaskSet {
    /// Whatever its session ends by, nothing is kept for it.
    fn drop(&mut self) {
        self.tell_kept(0);
    }
}
