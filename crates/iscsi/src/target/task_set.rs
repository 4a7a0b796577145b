//! The tasks of a session and the order of its commands: the state that all its connections share.
//!
//! It depends on no connection, framing or response numbers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::serial::Serial32;

use super::answer::Answer;
use super::answers::Answers;
use super::barrier::Barrier;
use super::command_window::CommandWindow;
use super::event::{LinkId, Outcome, TaskId, TaskManagementId};
use super::fences::Fences;
use super::knowledge::Knowledge;
use super::retained_share::RetainedShare;
use super::task::{DataOutHeld, Task};
use crate::framing::ReceivedPdu;
use crate::limits::{COMMAND_WINDOW, IMMEDIATE_DATA_TASKS_MAX, IMMEDIATE_TASKS_MAX, RETAINED_ANSWERS};
use crate::pdu::{InitiatorTaskTag, ScsiCommand};

/// An entry of the command window that waits for its turn.
pub(super) enum Held {
    /// A task of [`TaskSet::tasks`], which collects its data meanwhile.
    Task(TaskId),
    /// Any other request, with its connection.
    Request(LinkId, Box<ReceivedPdu>),
    /// A command that was aborted before it came: its number is used up (RFC 7143 11.6.1).
    Plugged,
}

/// The tasks of a session.
pub(super) struct TaskSet {
    pub(super) window: CommandWindow<Held>,
    /// In a map without randomness, so that runs repeat. Boxed, because the map moves what is in it.
    pub(super) tasks: BTreeMap<InitiatorTaskTag, Box<Task>>,
    /// Answers that may be requested again; none at error recovery level 0.
    pub(super) answers: Answers,
    /// Tasks that wait for a buffer, oldest first.
    pub(super) starved: VecDeque<TaskId>,
    /// What its commands know of the news that responses bring.
    pub(super) knowledge: Knowledge,
    /// One for each function under way that is for several tasks.
    barriers: Vec<Barrier>,
    /// What holds answers back.
    pub(super) fences: Fences,
    /// What of each unit was ended before it came; one entry for each unit of the target at most.
    ended: Vec<Barrier>,
    /// The data-out buffers of its tasks.
    data_out: DataOutHeld,
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
            answers: Answers::new(retained),
            starved: VecDeque::new(),
            knowledge: Knowledge::new(),
            barriers: Vec::new(),
            fences: Fences::default(),
            ended: Vec::new(),
            data_out: DataOutHeld::default(),
            under_way: 0,
            immediate_tasks: 0,
            generation_next: 0,
        }
    }

    /// ExpCmdSN and MaxCmdSN, as every response carries them.
    pub(super) fn command_numbers(&self) -> (Serial32, Serial32) {
        (self.window.exp_cmd_sn(), self.window.max_cmd_sn())
    }

    /// All tasks, by tag.
    pub(super) fn all(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values().map(Box::as_ref)
    }

    /// Whether the task of this id has not ended.
    pub(super) fn has(&self, id: TaskId) -> bool {
        self.tasks.get(&id.initiator_task_tag).is_some_and(|task| task.id == id)
    }

    /// A number that was never used before, for tasks and task management requests alike.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.generation_next += 1;
        self.generation_next
    }

    /// The task of this id, if it is still the same one.
    pub(super) fn task(&mut self, id: TaskId) -> Option<&mut Task> {
        self.tasks.get_mut(&id.initiator_task_tag).filter(|task| task.id == id).map(Box::as_mut)
    }

    pub(super) fn has_room_for_immediate(&self) -> bool {
        self.immediate_tasks < IMMEDIATE_TASKS_MAX
    }

    /// Whether one more may bring a little data whatever else the session holds.
    pub(super) fn has_room_for_immediate_data(&self) -> bool {
        self.immediate_tasks < IMMEDIATE_DATA_TASKS_MAX
    }

    /// Adds a task. An immediate one is delivered at once, others take their place in the window.
    pub(super) fn add_task(&mut self, mut task: Box<Task>) {
        if task.header.is_immediate {
            self.immediate_tasks += 1;
            task.place = self.knowledge.place_of_immediate(task.header.cmd_sn, self.window.exp_cmd_sn());
        } else {
            self.window.take(task.header.cmd_sn, Held::Task(task.id));
        }
        self.data_out.add(task.data_out_held);
        // The initiator reuses the tag of an answer that it has: it will not request that again.
        self.answers.forget_one(task.id.initiator_task_tag);
        let previous = self.tasks.insert(task.id.initiator_task_tag, task);
        assert!(previous.is_none(), "an initiator task tag names one task");
    }

    /// Delivers this task, whose turn has come.
    pub(super) fn deliver_task(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(&id.initiator_task_tag).filter(|task| task.id == id) {
            task.is_delivered = true;
            task.place = self.knowledge.place_of(task.header.cmd_sn);
            self.under_way += 1;
        }
        self.open_window();
    }

    /// Holds back what is behind a function, until [`TaskSet::lift_barrier`].
    pub(super) fn add_barrier(&mut self, barrier: Barrier) {
        self.barriers.push(barrier);
    }

    /// Notes that the driver has the function of a barrier: commands that it covers and that come from now on wait for
    /// what it comes to.
    pub(super) fn begin_barrier(&mut self, function: TaskManagementId) {
        self.barriers.iter_mut().filter(|barrier| barrier.id == function).for_each(|barrier| barrier.is_begun = true);
    }

    /// Notes that a function was carried out before all commands that it covers had come: those that come later are
    /// [over](Self::is_over).
    pub(super) fn note_ended(&mut self, function: Barrier) {
        if self.window.has_delivered_up_to(function.cmd_sn) {
            return;
        }
        let same =
            |noted: &Barrier| noted.lun.zip(function.lun).is_some_and(|(one, other)| scsi::lun::is_same(one, other));
        match self.ended.iter_mut().find(|noted| same(noted)) {
            Some(noted) if noted.cmd_sn.is_before(function.cmd_sn) => *noted = function,
            Some(_) => {}
            None => self.ended.push(function),
        }
    }

    /// Whether a function that was carried out and answered covers a command that comes only now: it ended before it
    /// came (RFC 7143 11.5.1), and has no answer.
    pub(super) fn is_over(&self, command: &ScsiCommand) -> bool {
        self.ended.iter().any(|function| function.covers(command))
    }

    /// Forgets functions whose covered commands have all come.
    pub(super) fn forget_ended(&mut self) {
        let window = &self.window;
        self.ended.retain(|function| !window.has_delivered_up_to(function.cmd_sn));
    }

    /// Holds an answer back if its unit has a fence; else returns it. A task that has one is not with the driver.
    pub(super) fn hold_answer(&mut self, id: TaskId, outcome: Outcome) -> Option<Outcome> {
        let lun = self.task(id).map(|task| task.header.lun);
        if !self.fences.hold_back(lun) {
            return Some(outcome);
        }
        let place = self.next_generation();
        if let Some(task) = self.task(id) {
            (task.is_started, task.answer) = (false, Some((place, outcome)));
        }
        None
    }

    /// Takes a fence down. Returns the tasks whose answers were held back, in the order of these; another fence may
    /// hold some back still.
    #[must_use]
    pub(super) fn clear_fence(&mut self, function: TaskManagementId) -> Vec<TaskId> {
        self.fences.clear(function);
        let mut held: Vec<_> = self.all().filter_map(|task| Some((task.answer.as_ref()?.0, task.id))).collect();
        held.sort_by_key(|(place, _)| *place);
        held.into_iter().map(|(_, id)| id).collect()
    }

    /// Bytes of memory of the data of answers that are held back.
    pub(super) fn held_answer_bytes(&self) -> usize {
        if self.fences.is_empty() {
            return 0;
        }
        self.all().filter_map(|task| task.answer.as_ref()).map(|(_, answer)| answer.data_in.capacity()).sum()
    }

    /// Whether a task waits for a function under way.
    pub(super) fn is_held_back(&self, id: TaskId) -> bool {
        let task = || self.tasks.get(&id.initiator_task_tag).filter(|task| task.id == id);
        !self.barriers.is_empty()
            && task().is_some_and(|task| self.barriers.iter().any(|barrier| barrier.holds_back(&task.header)))
    }

    /// Lets go what was behind a function that is carried out or refused. Returns the tasks that may go on, in the
    /// order of their commands. Those that the driver had before the function came may have been ended by it, and are
    /// answered nevertheless.
    #[must_use]
    pub(super) fn lift_barrier(&mut self, function: TaskManagementId) -> Vec<TaskId> {
        let Some(index) = self.barriers.iter().position(|barrier| barrier.id == function) else { return Vec::new() };
        let barrier = self.barriers.swap_remove(index);
        let mut freed = Vec::new();
        for task in self.tasks.values_mut().filter(|task| barrier.is_before(&task.header)) {
            task.outlives_function |= task.is_started;
            if !task.is_started {
                freed.push((task.header.cmd_sn.distance_from(barrier.cmd_sn), task.id));
            }
        }
        freed.sort_by_key(|(distance, id)| (*distance, id.generation));
        freed.into_iter().map(|(_, id)| id).collect()
    }

    /// Removes a task that has ended. The freed place lets the window open.
    pub(super) fn remove_task(&mut self, id: TaskId) -> Option<Box<Task>> {
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

    /// Notes what a request acknowledges, with the number that it has or that the next command gets. What came ahead of
    /// it was sent before, whatever its number.
    pub(super) fn hear(&mut self, at: LinkId, exp_stat_sn: Serial32, cmd_sn: Serial32) {
        let end = self.window.end();
        self.knowledge.acknowledge(at, exp_stat_sn, if cmd_sn.is_before(end) { end } else { cmd_sn });
    }

    /// Whether the initiator knew of these news when it sent a task.
    pub(super) fn knows(&self, id: TaskId, news: u64) -> bool {
        let task = self.tasks.get(&id.initiator_task_tag).filter(|task| task.id == id);
        task.zip(self.knowledge.known_from(news)).is_some_and(|(task, from)| task.place >= from)
    }

    /// Forgets these news if all tasks know of them, and with them all that come. Returns whether it does.
    pub(super) fn forget_news(&mut self, news: u64) -> bool {
        let Some(from) = self.knowledge.known_from(news) else { return false };
        let is_known = self.all().all(|task| !task.is_delivered || task.place >= from);
        if is_known {
            self.knowledge.forget(news);
        }
        is_known
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

    /// Drops answers that cannot be requested any more. The freed places let the window open.
    pub(super) fn forget_answers(&mut self, is_over: impl Fn(&Answer) -> bool) {
        self.answers.forget(is_over);
        self.open_window();
    }

    /// Notes that the initiator has the response with this number.
    pub(super) fn acknowledge_answer(&mut self, tag: InitiatorTaskTag, stat_sn: Serial32) {
        if self.answers.acknowledge_response(tag, stat_sn) {
            self.open_window();
        }
    }

    pub(super) fn open_window(&mut self) {
        self.window.open(self.under_way + self.answers.count().saturating_sub(RETAINED_ANSWERS));
    }

    /// Drops the undelivered commands of a connection, so that the initiator can send them again on
    /// another one (RFC 7143 11.14).
    pub(super) fn give_up_undelivered(&mut self, at: LinkId) {
        let of_link = |task: &Task| task.link == at && !task.is_delivered;
        let given_up: Vec<TaskId> = self.all().filter(|task| of_link(task)).map(|task| task.id).collect();
        self.window.give_up(|held| match held {
            Held::Task(id) => given_up.contains(id),
            Held::Request(link, _) => *link == at,
            Held::Plugged => false,
        });
        for id in given_up {
            self.drop_task(id);
        }
    }

    /// Ends tasks of which the initiator learns only by a unit attention. Returns the LUN fields of those that were not
    /// aborted before: the end of aborted tasks was reported already.
    #[must_use]
    pub(super) fn drop_tasks(&mut self, is_ended: impl Fn(&Task) -> bool) -> Vec<u64> {
        let ended: Vec<&Task> = self.all().filter(|task| is_ended(task)).collect();
        let luns: BTreeSet<u64> = ended.iter().filter(|task| !task.is_aborted).map(|task| task.header.lun).collect();
        let ended: Vec<TaskId> = ended.into_iter().map(|task| task.id).collect();
        ended.into_iter().for_each(|id| self.drop_task(id));
        luns.into_iter().collect()
    }

    /// Ends a task without a response. One that the driver has stays until the driver returns it.
    pub(super) fn drop_task(&mut self, id: TaskId) {
        let Some(task) = self.task(id) else { return };
        task.is_aborted = true;
        if !task.is_started {
            // A command that waits for its turn keeps its number: the window finds no task when the turn comes.
            self.remove_task(id);
        }
    }
}
