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
//! A task whose turn has come keeps it, whatever comes later. Each end wakes only those whose turn it brings, and who
//! waits for that end; an abort wakes that task: thousands may wait, for hosts that share the unit or behind a barrier.
//!
//! Once half of the places are taken, an initiator name gets no more of them than it leaves to others: what is withheld
//! for one host by the locks of another lasts as long as these, and must not take all. Many names together can take all
//! the same; beyond that there are places for names that have no task.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use scsi::TaskAttribute;

use crate::limits::{TASKS_MAX, TASKS_RESERVED};
use crate::nexus::NexusId;
pub(crate) use crate::task_list::Abort;
use crate::task_list::{Order, Place, Task, TaskList};

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
    tasks: TaskList,
    /// Count of tasks of each nexus that has any, or had some a while ago.
    counts: BTreeMap<NexusId, usize>,
    /// Numbers of the ordered tasks.
    ordered: BTreeSet<u64>,
    head_count: usize,
    /// Tasks that wait for their turn, by number.
    held: BTreeMap<u64, Place>,
    /// Wakers of those who wait for the end of a task, by its number and their own.
    ends: BTreeMap<(u64, u64), Waker>,
    end_next: u64,
}

/// Nexuses without tasks that are known whatever the count of tasks.
const IDLE_MAX: usize = 8;

fn order_of(attribute: TaskAttribute) -> Order {
    match attribute {
        TaskAttribute::Simple | TaskAttribute::Untagged => Order::Simple,
        TaskAttribute::Ordered => Order::Ordered,
        TaskAttribute::HeadOfQueue | TaskAttribute::Aca => Order::Head,
    }
}

impl State {
    /// Whether no task has to end before this one starts.
    fn may_start(&self, number: u64, order: Order) -> bool {
        match order {
            Order::Head => true,
            Order::Ordered => self.head_count == 0 && self.tasks.oldest() == Some(number),
            Order::Simple => self.head_count == 0 && self.ordered.first().is_none_or(|ordered| *ordered > number),
        }
    }

    /// Gives their turn to the tasks whose turn has come; each gets it once. What holds one task back holds back all
    /// younger ones that wait, so that the first that stays is the last to be looked at.
    fn give_turns(&mut self, wakers: &mut Vec<Waker>) {
        while let Some((&number, &place)) = self.held.first_key_value() {
            let Some(order) = self.tasks.get(place).map(|task| task.order) else { return };
            if !self.may_start(number, order) {
                return;
            }
            self.held.pop_first();
            if let Some(task) = self.tasks.get_mut(place) {
                task.has_turn = true;
                wakers.extend(task.waker.take());
            }
        }
    }

    /// Counts a task of a nexus, beside `others`. A nexus stays known without tasks, since mostly it has some again;
    /// when too many are, all that have none are forgotten.
    fn count(&mut self, nexus: &NexusId, others: usize) {
        if let Some(count) = self.counts.get_mut(nexus) {
            *count += 1;
            return;
        }
        if self.counts.len() > 2 * others + IDLE_MAX {
            self.counts.retain(|_, count| *count > 0);
        }
        self.counts.insert(nexus.clone(), 1);
    }

    /// Notes that a task has left. `wakers` gets those whom to wake.
    fn note_end(&mut self, task: &Task, wakers: &mut Vec<Waker>) {
        if let Some(count) = self.counts.get_mut(&task.nexus) {
            *count -= 1;
        }
        match task.order {
            Order::Simple => {}
            Order::Ordered => {
                self.ordered.remove(&task.number);
            }
            Order::Head => self.head_count -= 1,
        }
        if !self.held.is_empty() {
            self.held.remove(&task.number);
            self.give_turns(wakers);
        }
        if !self.ends.is_empty() {
            let its = self.ends.range((task.number, 0)..=(task.number, u64::MAX)).map(|(key, _)| *key);
            for key in its.collect::<Vec<_>>() {
                wakers.extend(self.ends.remove(&key));
            }
        }
    }
}

/// A task's place in the set. Dropping it takes the task out.
pub(crate) struct Ticket {
    set: TaskSet,
    place: Place,
    /// Set when nobody awaits its outcome any more.
    is_left: AtomicBool,
}

/// Tasks that were aborted and are still under way.
pub(crate) struct Aborted {
    set: TaskSet,
    tasks: Vec<(Place, u64)>,
}

impl TaskSet {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a task with this attribute has to wait for others before it starts.
    pub(crate) fn must_wait(&self, attribute: TaskAttribute) -> bool {
        let others = match order_of(attribute) {
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
        let order = order_of(attribute);
        match order {
            Order::Simple => {}
            Order::Ordered => {
                state.ordered.insert(number);
            }
            Order::Head => state.head_count += 1,
        }
        let task = Task { number, nexus: nexus.clone(), tag, order, abort: None, has_turn: false, waker: None };
        let place = state.tasks.push(task);
        let others = self.shared.task_count.fetch_add(1, Ordering::Release);
        state.count(nexus, others);
        if order != Order::Simple {
            self.shared.barrier_count.fetch_add(1, Ordering::Release);
        }
        Ticket { set: self.clone(), place, is_left: AtomicBool::new(false) }
    }

    /// Aborts every task that `matches`, on behalf of `by`. Returns them, or `None` when there was none.
    pub(crate) fn abort(&self, by: &NexusId, mut matches: impl FnMut(&NexusId, u64) -> bool) -> Option<Aborted> {
        let mut state = self.lock();
        let (mut tasks, mut wakers) = (Vec::new(), Vec::new());
        for (place, task) in state.tasks.iter_mut().filter(|(_, task)| matches(&task.nexus, task.tag)) {
            let abort = if task.nexus == *by { Abort::ByItself } else { Abort::ByAnother };
            // Silence wins: its own nexus does not expect a response any more.
            if task.abort != Some(Abort::ByItself) {
                task.abort = Some(abort);
            }
            // A task that can end early checks for an abort.
            wakers.extend(task.waker.take());
            tasks.push((place, task.number));
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        (!tasks.is_empty()).then(|| Aborted { set: self.clone(), tasks })
    }

    /// Tasks under way.
    #[cfg(test)]
    pub(crate) fn task_count(&self) -> usize {
        self.lock().tasks.count()
    }
}

impl Aborted {
    /// Waits until none of these tasks is under way.
    pub(crate) fn ended(self) -> impl Future<Output = ()> + Send + 'static {
        let number = {
            let mut state = self.set.lock();
            state.end_next += 1;
            state.end_next
        };
        Ended { aborted: self, number, watched: None }
    }
}

/// The future of [`Aborted::ended`]. It waits for one task behind the other.
struct Ended {
    aborted: Aborted,
    /// Its own.
    number: u64,
    /// The task whose end wakes it.
    watched: Option<u64>,
}

impl Future for Ended {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { aborted: Aborted { set, tasks }, number: own, watched } = &mut *self;
        let mut state = set.lock();
        while let Some((place, number)) = tasks.last() {
            if state.tasks.get(*place).is_some_and(|task| task.number == *number) {
                state.ends.insert((*number, *own), context.waker().clone());
                *watched = Some(*number);
                return Poll::Pending;
            }
            tasks.pop();
        }
        Poll::Ready(())
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(watched) = self.watched {
            self.aborted.set.lock().ends.remove(&(watched, self.number));
        }
    }
}

impl Ticket {
    /// Waits for the tasks that have to end before this one starts.
    pub(crate) async fn turn(&self) {
        poll_fn(|context| {
            let mut state = self.set.lock();
            let Some(Task { number, order, has_turn, .. }) = state.tasks.get(self.place) else {
                return Poll::Ready(());
            };
            let (number, order, has_turn) = (*number, *order, *has_turn);
            if has_turn || state.may_start(number, order) {
                return Poll::Ready(());
            }
            state.held.insert(number, self.place);
            self.wait(&mut state, context)
        })
        .await;
    }

    /// Waits until this task is aborted.
    pub(crate) async fn aborted(&self) {
        poll_fn(|context| {
            let mut state = self.set.lock();
            match state.tasks.get(self.place) {
                Some(task) if task.abort.is_none() => self.wait(&mut state, context),
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Its waker is called when its turn comes or it is aborted: both are awaited by one future.
    fn wait(&self, state: &mut State, context: &Context<'_>) -> Poll<()> {
        if let Some(task) = state.tasks.get_mut(self.place) {
            match &mut task.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
        }
        Poll::Pending
    }

    /// How this task was aborted, if it was.
    pub(crate) fn abort(&self) -> Option<Abort> {
        self.set.lock().tasks.get(self.place).and_then(|task| task.abort)
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
        let mut wakers = Vec::new();
        // What a waker drops or wakes may come back to this set, so that its lock must not be held.
        let _task = {
            let mut state = self.set.lock();
            let Some(task) = state.tasks.remove(self.place) else { return };
            state.note_end(&task, &mut wakers);
            self.set.shared.task_count.fetch_sub(1, Ordering::Release);
            if task.order != Order::Simple {
                self.set.shared.barrier_count.fetch_sub(1, Ordering::Release);
            }
            task
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::executor::Executor;
    use base::random::Random;

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
        assert!(set.abort(&nexus(), |_, tag| tag == 8).is_none());
        assert_eq!(set.abort(&other, |_, tag| tag == 7).map(|aborted| aborted.tasks.len()), Some(1));
        assert_eq!(ticket.abort(), Some(Abort::ByAnother));
        let aborted = set.abort(&nexus(), |_, tag| tag == 7).expect("it is there");
        assert_eq!(ticket.abort(), Some(Abort::ByItself));
        let has_ended = Arc::new(Mutex::new(false));
        let flag = Arc::clone(&has_ended);
        executor.spawn(async move {
            aborted.ended().await;
            *flag.lock().unwrap() = true;
        });
        executor.run_until_stalled();
        assert!(!*has_ended.lock().unwrap());
        drop(ticket);
        executor.run_until_stalled();
        assert!(*has_ended.lock().unwrap());
    }

    /// Counts its wakes.
    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl std::task::Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Bell {
        /// Polls a future that rings it.
        fn poll<T>(self: &Arc<Self>, future: Pin<&mut dyn Future<Output = T>>) -> bool {
            future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(self)))).is_ready()
        }

        /// How often it rang since it was last asked.
        fn rings(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    const MANY: u64 = 500;

    #[test]
    fn an_end_wakes_nobody_whose_turn_it_does_not_bring() {
        let set = TaskSet::default();
        let bell = Arc::<Bell>::default();
        let all: Vec<Ticket> = (0..MANY).map(|tag| set.enter(&nexus(), tag, TaskAttribute::Simple)).collect();
        let mut waits: Vec<_> = all.iter().map(|ticket| Box::pin(ticket.aborted())).collect();
        assert!(!waits.iter_mut().any(|wait| bell.poll(wait.as_mut())));
        (0..MANY).for_each(|tag| drop(set.enter(&nexus(), MANY + tag, TaskAttribute::Simple)));
        assert_eq!(bell.rings(), 0, "nobody waits for these");
        let aborted = set.abort(&nexus(), |_, tag| tag == 7).expect("it is there");
        assert_eq!(bell.rings(), 1, "the one that was aborted");
        assert!(bell.poll(waits[7].as_mut()));
        drop(waits);
        let mut ended = Box::pin(aborted.ended());
        assert!(!bell.poll(ended.as_mut()));
        drop(all);
        assert_eq!(bell.rings(), 1, "who waited for the end of one");
        assert!(bell.poll(ended.as_mut()));
    }

    #[test]
    fn the_end_of_an_ordered_task_wakes_the_next_one_only() {
        let set = TaskSet::default();
        let bell = Arc::<Bell>::default();
        let all: Vec<Ticket> = (0..MANY).map(|tag| set.enter(&nexus(), tag, TaskAttribute::Ordered)).collect();
        for ticket in &all[1..] {
            assert!(!bell.poll(Box::pin(ticket.turn()).as_mut()));
        }
        let mut polls = 0;
        for (ended, ticket) in all.into_iter().enumerate() {
            assert!(bell.poll(Box::pin(ticket.turn()).as_mut()), "the turn of {ended}");
            drop(ticket);
            polls += bell.rings();
        }
        assert_eq!(polls as u64, MANY - 1);
    }

    /// What a task awaits, and what the model says of it.
    struct Modelled {
        number: u64,
        tag: u64,
        order: Order,
        has_turn: bool,
        is_aborted: bool,
        ticket: Arc<Ticket>,
        bell: Arc<Bell>,
        turn: Awaited,
        aborted: Awaited,
    }

    /// A future, and whether it is over.
    struct Awaited(Option<Pin<Box<dyn Future<Output = ()>>>>);

    impl Awaited {
        fn new(future: impl Future<Output = ()> + 'static) -> Self {
            Self(Some(Box::pin(future)))
        }

        fn is_over(&mut self, bell: &Arc<Bell>) -> bool {
            if self.0.as_mut().is_some_and(|future| bell.poll(future.as_mut())) {
                self.0 = None;
            }
            self.0.is_none()
        }
    }

    /// SAM-5 8.9, word by word.
    fn is_before(older: &Modelled, other: &Modelled) -> bool {
        let is_older = older.number < other.number;
        match other.order {
            Order::Head => false,
            Order::Ordered => is_older || (older.order == Order::Head && older.number != other.number),
            Order::Simple => older.order == Order::Head || (is_older && older.order == Order::Ordered),
        }
    }

    fn enter_modelled(set: &TaskSet, number: u64, random: &mut Random) -> Modelled {
        let attributes = [TaskAttribute::Simple, TaskAttribute::Ordered, TaskAttribute::HeadOfQueue];
        let attribute = attributes[[0, 0, 0, 0, 1, 1, 2][random.below(7) as usize]];
        let tag = random.below(6);
        let ticket = Arc::new(set.enter(&nexus(), tag, attribute));
        let (turn, aborted) = (Arc::clone(&ticket), Arc::clone(&ticket));
        Modelled {
            number,
            tag,
            order: order_of(attribute),
            has_turn: false,
            is_aborted: false,
            ticket,
            bell: Arc::default(),
            turn: Awaited::new(async move { turn.turn().await }),
            aborted: Awaited::new(async move { aborted.aborted().await }),
        }
    }

    /// Random tasks, ends and aborts against a slow and obvious set. A future is polled only when it was woken: none
    /// is forgotten.
    #[test]
    fn turns_aborts_and_ends_are_those_of_the_obvious_set() {
        let test = block::crash_test!();
        for seed in test.seeds(0, 40, 1) {
            let _printed = test.on_panic(seed, None);
            let mut random = Random::new(seed);
            let set = TaskSet::default();
            let mut tasks = Vec::<Modelled>::new();
            let mut ends = Vec::<(Vec<u64>, Awaited, Arc<Bell>)>::new();
            for number in 0..400 {
                match random.below(10) {
                    0..5 => {
                        let task = enter_modelled(&set, number, &mut random);
                        task.bell.0.store(1, Ordering::Relaxed);
                        tasks.push(task);
                    }
                    5..9 if !tasks.is_empty() => {
                        drop(tasks.remove(random.below(tasks.len() as u64) as usize));
                    }
                    _ => {
                        let tag = random.below(6);
                        let aborted = set.abort(&nexus(), |_, of| of == tag);
                        let its = tasks.iter_mut().filter(|task| task.tag == tag);
                        let numbers: Vec<u64> = its.map(|task| (task.is_aborted = true, task.number).1).collect();
                        assert_eq!(aborted.is_some(), !numbers.is_empty());
                        let bell = Arc::new(Bell(AtomicUsize::new(1)));
                        ends.extend(aborted.map(|aborted| (numbers, Awaited::new(aborted.ended()), bell)));
                    }
                }
                for index in 0..tasks.len() {
                    let is_held = tasks.iter().any(|other| is_before(other, &tasks[index]));
                    tasks[index].has_turn |= !is_held;
                }
                for task in &mut tasks {
                    if task.bell.rings() > 0 {
                        task.aborted.is_over(&task.bell);
                        task.turn.is_over(&task.bell);
                    }
                    let at = (seed, number, task.number, task.order);
                    assert_eq!(task.turn.0.is_none(), task.has_turn, "turn: {at:?}");
                    assert_eq!(task.aborted.0.is_none(), task.is_aborted, "abort: {at:?}");
                    assert_eq!(task.ticket.abort().is_some(), task.is_aborted);
                }
                for (numbers, ended, bell) in &mut ends {
                    numbers.retain(|number| tasks.iter().any(|task| task.number == *number));
                    if bell.rings() > 0 {
                        ended.is_over(bell);
                    }
                    assert_eq!(ended.0.is_none(), numbers.is_empty(), "end: {seed} {number}");
                }
                ends.retain(|(_, ended, _)| ended.0.is_some() && random.below(50) > 0);
            }
            drop(tasks);
            let state = set.lock();
            assert!(state.held.is_empty() && state.ends.len() <= ends.len() && state.ordered.is_empty());
            assert_eq!((state.tasks.count(), state.head_count), (0, 0));
        }
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
        assert!(set.lock().counts.values().all(|count| *count == 0));
        sessions("many", 200).iter().for_each(|nexus| drop(set.enter(nexus, 1, TaskAttribute::Simple)));
        assert!(set.lock().counts.len() <= IDLE_MAX + 1, "those without tasks are forgotten");
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
