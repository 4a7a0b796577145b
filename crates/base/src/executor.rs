//! A deterministic executor for tests and experiments in virtual time.
//!
//! One thread, one seed. Ready tasks run in an order drawn from the seed (so that a test explores interleavings) or,
//! with [`Executor::in_order`], first come first served. When no task is ready the [`VirtualClock`] jumps to the next
//! deadline; when there is none either, the run is over. The same seed gives the same run, to the nanosecond.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::clock::VirtualClock;
use crate::random::Random;

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The executor. It owns its tasks and drops them with itself.
pub struct Executor {
    clock: VirtualClock,
    order: Option<Random>,
    tasks: HashMap<u64, TaskFuture>,
    task_next: u64,
    ready: Arc<Mutex<Vec<u64>>>,
    /// Each waits until a thread that runs beside this executor has nothing to do.
    beside: Vec<Box<dyn Fn()>>,
}

struct TaskWaker {
    task: u64,
    ready: Arc<Mutex<Vec<u64>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = lock(&self.ready);
        if !ready.contains(&self.task) {
            ready.push(self.task);
        }
    }
}

fn lock(ready: &Mutex<Vec<u64>>) -> MutexGuard<'_, Vec<u64>> {
    ready.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// An executor that picks among ready tasks by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { order: Some(Random::new(seed)), ..Self::in_order() }
    }

    /// An executor that runs ready tasks first come, first served.
    pub fn in_order() -> Self {
        Self {
            clock: VirtualClock::new(),
            order: None,
            tasks: HashMap::new(),
            task_next: 0,
            ready: Arc::default(),
            beside: Vec::new(),
        }
    }

    /// The clock that this executor advances.
    pub fn clock(&self) -> VirtualClock {
        self.clock.clone()
    }

    /// Lets time pass only when another thread with the same clock has nothing to do: `idle` waits
    /// for that. From then on only a task of this executor, or time, may give that thread more to
    /// do.
    pub fn beside(&mut self, idle: impl Fn() + 'static) {
        self.beside.push(Box::new(idle));
    }

    /// Adds a task.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + 'static) {
        let task = self.task_next;
        self.task_next += 1;
        self.tasks.insert(task, Box::pin(future));
        lock(&self.ready).push(task);
    }

    /// Runs until no task is ready; the clock stands still.
    pub fn run_until_stalled(&mut self) {
        while self.run_one() {}
    }

    /// Runs, letting time pass, until every task is done or waits for an event that time does not
    /// bring.
    pub fn run(&mut self) {
        loop {
            self.run_until_stalled();
            match self.clock.next_deadline() {
                Some(deadline) => self.clock.advance_to(deadline),
                None => return,
            }
        }
    }

    /// Runs `future` to its end together with the other tasks, letting time pass.
    ///
    /// # Panics
    /// When `future` waits for an event that neither a task nor time brings.
    pub fn block_on<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let result_of_task = Arc::clone(&result);
        self.spawn(async move {
            let value = future.await;
            *result_of_task.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        loop {
            let ran = self.run_one();
            if let Some(value) = result.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return value;
            }
            if !ran {
                let deadline = self.clock.next_deadline().expect("the future waits for something that will never come");
                self.clock.advance_to(deadline);
            }
        }
    }

    /// Runs a task that is ready, now or by the threads beside this. Returns whether there was one.
    fn run_one(&mut self) -> bool {
        self.run_ready() || {
            self.beside.iter().for_each(|idle| idle());
            !self.beside.is_empty() && self.run_ready()
        }
    }

    fn run_ready(&mut self) -> bool {
        let task = {
            let mut ready = lock(&self.ready);
            if ready.is_empty() {
                return false;
            }
            let index = self.order.as_mut().map_or(0, |random| random.below(ready.len() as u64) as usize);
            ready.remove(index)
        };
        if let Some(future) = self.tasks.get_mut(&task) {
            let waker = Waker::from(Arc::new(TaskWaker { task, ready: Arc::clone(&self.ready) }));
            if let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.tasks.remove(&task);
            }
        }
        true
    }
}

/// Runs one future to its end on a fresh in-order executor.
pub fn block_on<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    Executor::in_order().block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Instant};
    use std::time::Duration;

    fn interleaving(seed: u64) -> Vec<(u64, u64)> {
        let mut executor = Executor::new(seed);
        let log = Arc::new(Mutex::new(Vec::new()));
        for task in 0..4u64 {
            let (clock, log) = (executor.clock(), Arc::clone(&log));
            executor.spawn(async move {
                for step in 1..=3 {
                    clock.sleep(Duration::from_millis(step)).await;
                    log.lock().unwrap().push((clock.now().as_nanoseconds(), task));
                }
            });
        }
        executor.run();
        Arc::into_inner(log).expect("the tasks are over").into_inner().unwrap()
    }

    #[test]
    fn one_seed_one_run() {
        assert_eq!(interleaving(7), interleaving(7));
        assert_ne!(interleaving(7), interleaving(8));
    }

    #[test]
    fn time_jumps_to_deadlines() {
        let mut executor = Executor::in_order();
        let clock = executor.clock();
        let slept_until = executor.block_on(async move {
            clock.sleep(Duration::from_secs(3600)).await;
            clock.now()
        });
        assert_eq!(slept_until, Instant::START + Duration::from_secs(3600));
    }
}
