//! A thread of its own for level 2, as in the program. Both threads share one clock, which does not
//! advance before both are idle.
//!
//! The order of what the two do at one moment depends on the machine, and differs from run to run:
//! the command that repeats a run repeats everything else.
//!
//! It finds faults of the two at work at one moment, in any order. A fault within some
//! instructions, such as a lock released between a check and its use, it finds only by luck: the
//! two meet where both have work at one moment of virtual time, and for microseconds. To draw such
//! orders the executor would have to know every lock and every atomic of the stores, to switch
//! threads there: another executor, and other types in all crates. Such faults are sought by tests
//! in which threads meet all the time: `crates/cache/tests/threads.rs` (clients, cleaning,
//! checkpoints and replacement), and those of the program, where level 2 has a thread of its own,
//! under load and SIGKILL (`tests/tests/kill.rs`, `cache_parts.rs`).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

/// A thread with tasks. When dropped, it ends after what it does at that moment.
pub(crate) struct SecondThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified at every change of the state.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    incoming: Vec<BoxFuture<'static, ()>>,
    is_woken: bool,
    is_busy: bool,
    has_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits for work: new tasks, or wake-ups of old ones; `None` at the end.
    fn wait_for_work(&self) -> Option<Vec<BoxFuture<'static, ()>>> {
        self.change(|state| state.is_busy = false);
        let waiting = |state: &mut State| !state.is_woken && !state.has_ended;
        let mut state = self.changed.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        state.is_woken = false;
        state.is_busy = true;
        (!state.has_ended).then(|| std::mem::take(&mut state.incoming))
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.change(|state| state.is_woken = true);
    }
}

/// Marks the thread as ended when it is dropped, also by a panic, so that no other thread waits for
/// it.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.change(|state| state.has_ended = true);
    }
}

fn work(shared: Arc<Shared>) {
    let ended = Ended(shared);
    let waker = Waker::from(Arc::clone(&ended.0));
    let mut tasks = FuturesUnordered::new();
    while let Some(incoming) = ended.0.wait_for_work() {
        tasks.extend(incoming);
        while let Poll::Ready(Some(())) = tasks.poll_next_unpin(&mut Context::from_waker(&waker)) {}
    }
}

impl SecondThread {
    /// A thread without tasks.
    pub(crate) fn new() -> Self {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        Self { shared, thread: Some(thread::spawn(|| work(of_thread))) }
    }

    /// Adds a task.
    pub(crate) fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.shared.change(|state| {
            state.incoming.push(task);
            state.is_woken = true;
        });
    }

    /// A function that waits until it is idle: see
    /// [`Executor::beside`](base::executor::Executor::beside).
    pub(crate) fn idle(&self) -> impl Fn() + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            let is_at_work = |state: &mut State| (state.is_woken || state.is_busy) && !state.has_ended;
            drop(shared.changed.wait_while(shared.lock(), is_at_work));
        }
    }
}

impl Drop for SecondThread {
    fn drop(&mut self) {
        self.shared.change(|state| state.has_ended = true);
        let ended = self.thread.take().map(JoinHandle::join);
        if ended.is_some_and(|ended| ended.is_err()) && !thread::panicking() {
            panic!("the second thread panicked");
        }
    }
}
