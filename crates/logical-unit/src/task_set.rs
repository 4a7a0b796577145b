//! Tasks under way: for task management, and for the order of tasks.
//!
//! Only a task that waits is in the set; one that ends at once never is. A [`Ticket`] stands for it
//! and leaves with it. An aborted task is not cancelled: its requests at the device run to their
//! end, and its outcome is replaced. The task management function waits for its ticket, so that
//! after the response it does not touch the medium any more (SAM-5 7.1).
//!
//! Order (SAM-5 8.9):
//!
//! | task | waits for |
//! |---|---|
//! | simple | head-of-queue tasks, older ordered ones |
//! | ordered | head-of-queue tasks, all older ones |
//! | head of queue | no other task |
//!
//! Once half of the places are taken, an initiator name gets no more of them than it leaves to others: what is withheld
//! for one host by the locks of another lasts as long as these, and must not take all. Many names together can take all
//! the same; beyond that there are places for names that have no task.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use scsi::TaskAttribute;

use crate::limits::{TASKS_MAX, TASKS_RESERVED};
use crate::nexus::NexusId;

/// The task set of one logical unit. Clones are the same set.
#[derive(Clone, Default)]
pub(crate) struct TaskSet {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Tasks under way, and ordered and head-of-queue ones among them; they change only under `state`.
    task_count: AtomicUsize,
    barrier_count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    number_next: u64,
    /// Ascending by number.
    tasks: Vec<Task>,
    /// Count of tasks of each nexus that has any.
    counts: BTreeMap<NexusId, usize>,
    /// Wakers called whenever a task leaves; each woken task checks for itself.
    waiting: Vec<Waker>,
}

struct Task {
    number: u64,
    nexus: NexusId,
    tag: u64,
    order: Order,
    abort: Option<Abort>,
}

/// The attributes, reduced to how they order tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Simple,
    Ordered,
    Head,
}

impl Order {
    fn of(attribute: TaskAttribute) -> Self {
        match attribute {
            TaskAttribute::Simple | TaskAttribute::Untagged => Self::Simple,
            TaskAttribute::Ordered => Self::Ordered,
            TaskAttribute::HeadOfQueue | TaskAttribute::Aca => Self::Head,
        }
    }
}

impl Task {
    /// Whether it has to end before `other` starts.
    fn is_before(&self, other: &Self) -> bool {
        let is_older = self.number < other.number;
        match other.order {
            Order::Head => false,
            Order::Ordered => is_older || (self.order == Order::Head && self.number != other.number),
            Order::Simple => self.order == Order::Head || (is_older && self.order == Order::Ordered),
        }
    }
}

/// The nexus that aborted a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    /// Its own nexus: the task ends without a response.
    ByItself,
    /// Another nexus: it ends with TASK ABORTED (TAS is set).
    ByAnother,
}

/// A task's place in the set. Dropping it takes the task out.
pub(crate) struct Ticket {
    set: TaskSet,
    number: u64,
    /// Set when nobody awaits its outcome any more.
    is_left: AtomicBool,
}

impl TaskSet {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a task with this attribute has to wait for others before it starts.
    pub(crate) fn must_wait(&self, attribute: TaskAttribute) -> bool {
        let others = match Order::of(attribute) {
            Order::Simple => &self.shared.barrier_count,
            Order::Ordered => &self.shared.task_count,
            Order::Head => return false,
        };
        others.load(Ordering::Acquire) > 0
    }

    /// Whether no task is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.task_count.load(Ordering::Acquire) == 0
    }

    /// Whether there is no room for another task of this nexus: TASK SET FULL.
    pub(crate) fn is_full_for(&self, nexus: &NexusId) -> bool {
        let all = self.shared.task_count.load(Ordering::Acquire);
        if all < TASKS_MAX / 2 {
            return false;
        }
        let name = nexus.initiator_name();
        let state = self.lock();
        let own = state.counts.iter().filter(|(other, _)| other.initiator_name() == name);
        let own: usize = own.map(|(_, count)| count).sum();
        let is_first = own == 0 && all < TASKS_MAX + TASKS_RESERVED;
        all + own >= TASKS_MAX && !is_first
    }

    /// Count of tasks entered so far.
    pub(crate) fn begun(&self) -> u64 {
        self.lock().number_next
    }

    /// Adds a task that waits. The caller checks [`is_full_for`](Self::is_full_for) first; several
    /// concurrent callers may exceed the limit by their count.
    pub(crate) fn enter(&self, nexus: &NexusId, tag: u64, attribute: TaskAttribute) -> Ticket {
        let mut state = self.lock();
        let number = state.number_next;
        state.number_next += 1;
        let order = Order::of(attribute);
        state.tasks.push(Task { number, nexus: nexus.clone(), tag, order, abort: None });
        *state.counts.entry(nexus.clone()).or_default() += 1;
        self.shared.task_count.fetch_add(1, Ordering::Release);
        self.shared.barrier_count.fetch_add(usize::from(order != Order::Simple), Ordering::Release);
        Ticket { set: self.clone(), number, is_left: AtomicBool::new(false) }
    }

    /// Aborts every task that `matches`, on behalf of `by`. Returns their numbers, to wait for with
    /// [`ended`](Self::ended), or `None` when there was none.
    pub(crate) fn abort(&self, by: &NexusId, mut matches: impl FnMut(&NexusId, u64) -> bool) -> Option<Vec<u64>> {
        let mut state = self.lock();
        let mut numbers = Vec::new();
        for task in state.tasks.iter_mut().filter(|task| matches(&task.nexus, task.tag)) {
            let abort = if task.nexus == *by { Abort::ByItself } else { Abort::ByAnother };
            // Silence wins: its own nexus does not expect a response any more.
            if task.abort != Some(Abort::ByItself) {
                task.abort = Some(abort);
            }
            numbers.push(task.number);
        }
        // A task that can end early checks for an abort.
        let wakers = std::mem::take(&mut state.waiting);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        (!numbers.is_empty()).then_some(numbers)
    }

    /// Waits until none of these tasks is under way.
    pub(crate) async fn ended(&self, numbers: Vec<u64>) {
        self.until(|state| !state.tasks.iter().any(|task| numbers.contains(&task.number))).await;
    }

    async fn until(&self, is_reached: impl Fn(&State) -> bool) {
        poll_fn(|context| self.poll_until(&is_reached, context)).await;
    }

    fn poll_until(&self, is_reached: impl Fn(&State) -> bool, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if is_reached(&state) {
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Tasks under way.
    #[cfg(test)]
    pub(crate) fn task_count(&self) -> usize {
        self.lock().tasks.len()
    }
}

impl Ticket {
    /// Waits for the tasks that have to end before this one starts.
    pub(crate) async fn turn(&self) {
        let number = self.number;
        self.set
            .until(|state| {
                let own = state.tasks.iter().find(|task| task.number == number);
                own.is_none_or(|own| !state.tasks.iter().any(|task| task.is_before(own)))
            })
            .await;
    }

    /// Waits until this task is aborted.
    pub(crate) async fn aborted(&self) {
        let number = self.number;
        let is_aborted = |state: &State| {
            state.tasks.iter().find(|task| task.number == number).is_none_or(|task| task.abort.is_some())
        };
        self.set.until(is_aborted).await;
    }

    /// How this task was aborted, if it was.
    pub(crate) fn abort(&self) -> Option<Abort> {
        self.set.lock().tasks.iter().find(|task| task.number == self.number).and_then(|task| task.abort)
    }

    /// Notes that nobody awaits its outcome any more: its session has ended.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }

    /// Whether its outcome is sent to the initiator.
    pub(crate) fn is_answered(&self) -> bool {
        !self.is_left.load(Ordering::Acquire) && self.abort().is_none()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let wakers = {
            let mut state = self.set.lock();
            let Some(index) = state.tasks.iter().position(|task| task.number == self.number) else { return };
            let task = state.tasks.remove(index);
            if let Some(count) = state.counts.get_mut(&task.nexus) {
                *count -= 1;
                if *count == 0 {
                    state.counts.remove(&task.nexus);
                }
            }
            self.set.shared.task_count.fetch_sub(1, Ordering::Release);
            self.set.shared.barrier_count.fetch_sub(usize::from(task.order != Order::Simple), Ordering::Release);
            std::mem::take(&mut state.waiting)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::executor::Executor;

    fn nexus() -> NexusId {
        NexusId::new("nexus")
    }

    #[test]
    fn ordered_tasks_wait_for_all_older_ones_and_hold_back_younger_ones() {
        let mut executor = Executor::in_order();
        let set = TaskSet::default();
        assert!(!set.must_wait(TaskAttribute::Ordered));
        let oldest = set.enter(&nexus(), 1, TaskAttribute::Simple);
        assert!(set.must_wait(TaskAttribute::Ordered));
        assert!(!set.must_wait(TaskAttribute::Simple));
        let log = Arc::new(Mutex::new(Vec::new()));
        for (name, attribute) in [("ordered", TaskAttribute::Ordered), ("simple", TaskAttribute::Simple)] {
            let ticket = set.enter(&nexus(), 2, attribute);
            let log = Arc::clone(&log);
            executor.spawn(async move {
                ticket.turn().await;
                log.lock().unwrap().push(name);
            });
        }
        assert!(set.must_wait(TaskAttribute::Simple));
        assert!(!set.must_wait(TaskAttribute::HeadOfQueue));
        executor.run_until_stalled();
        assert!(log.lock().unwrap().is_empty());
        drop(oldest);
        executor.run_until_stalled();
        assert_eq!(*log.lock().unwrap(), ["ordered", "simple"]);
        assert_eq!(set.task_count(), 0);
    }

    #[test]
    fn an_abort_says_by_whom_and_waits_for_the_end() {
        let mut executor = Executor::in_order();
        let set = TaskSet::default();
        let other = NexusId::new("other");
        let ticket = set.enter(&nexus(), 7, TaskAttribute::Simple);
        assert_eq!(set.abort(&nexus(), |_, tag| tag == 8), None);
        assert_eq!(set.abort(&other, |_, tag| tag == 7).map(|numbers| numbers.len()), Some(1));
        assert_eq!(ticket.abort(), Some(Abort::ByAnother));
        let numbers = set.abort(&nexus(), |_, tag| tag == 7).expect("it is there");
        assert_eq!(ticket.abort(), Some(Abort::ByItself));
        let has_ended = Arc::new(Mutex::new(false));
        let (waiting, flag) = (set.clone(), Arc::clone(&has_ended));
        executor.spawn(async move {
            waiting.ended(numbers).await;
            *flag.lock().unwrap() = true;
        });
        executor.run_until_stalled();
        assert!(!*has_ended.lock().unwrap());
        drop(ticket);
        executor.run_until_stalled();
        assert!(*has_ended.lock().unwrap());
    }

    /// Enters as many tasks as its nexuses get, each in turn.
    fn take_all(set: &TaskSet, nexuses: &[NexusId]) -> Vec<Ticket> {
        let mut taken = Vec::new();
        let mut turns = nexuses.iter().cycle();
        while let Some(nexus) = turns.next().filter(|nexus| !set.is_full_for(nexus)) {
            taken.push(set.enter(nexus, taken.len() as u64, TaskAttribute::Simple));
        }
        taken
    }

    #[test]
    fn a_name_leaves_as_many_tasks_as_it_has_whatever_the_count_of_its_sessions() {
        let set = TaskSet::default();
        let sessions = |name: &str, count: usize| -> Vec<NexusId> {
            (0..count).map(|number| NexusId::new(&format!("iqn.{name},i,0x{number:012x},iqn.t,t,0x0001"))).collect()
        };
        let mut first = take_all(&set, &sessions("first", 33));
        let second = take_all(&set, &sessions("second", 3));
        let third = take_all(&set, &sessions("third", 1));
        assert_eq!([first.len(), second.len(), third.len()], [TASKS_MAX / 2, TASKS_MAX / 4, TASKS_MAX / 8]);
        first.truncate(3);
        let more = take_all(&set, &sessions("second", 5));
        assert_eq!(second.len() + more.len(), (TASKS_MAX - 3 - third.len()).div_ceil(2));
        drop((first, second, more, third));
        assert!(set.lock().counts.is_empty());
        assert!(!set.must_wait(TaskAttribute::Ordered));
    }

    #[test]
    fn who_has_no_task_gets_one_however_many_names_have_taken_all_they_get() {
        let set = TaskSet::default();
        let names: Vec<NexusId> = (0..40).map(|number| NexusId::new(&format!("{number}"))).collect();
        let taken: Vec<Vec<Ticket>> = names.iter().map(|name| take_all(&set, std::slice::from_ref(name))).collect();
        let count: usize = taken.iter().map(Vec::len).sum();
        assert!(count >= TASKS_MAX - 1, "{count} tasks");
        let newcomer = take_all(&set, &[nexus()]);
        assert_eq!(newcomer.len(), 1, "whoever came before");
        assert!(names.iter().all(|name| set.is_full_for(name)));
        drop(newcomer);
        assert!(!set.is_full_for(&nexus()));
    }

    #[test]
    fn a_full_set_says_so() {
        let set = TaskSet::default();
        let enter = |number| set.enter(&NexusId::new(&format!("{number}")), number, TaskAttribute::Simple);
        let all = (TASKS_MAX + TASKS_RESERVED) as u64;
        let mut tickets: Vec<Ticket> = (0..all).map(enter).collect();
        assert!(set.is_full_for(&nexus()));
        tickets.pop();
        assert!(!set.is_full_for(&nexus()));
        drop(tickets);
        assert!(!set.must_wait(TaskAttribute::Ordered));
    }
}
