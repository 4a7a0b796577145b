//! Background work by name, so that a test can end any piece of it with a panic and check what
//! happens to the process.
//!
//! A panic in background work must end the process: acknowledged data is safe and is recovered by
//! the next start, while a process without a part of its work would hang without an error. The
//! program installs a hook for that. Code that starts background work names it here. The program
//! may register an observer, which is called at each turn of the work; without one a turn costs one
//! load.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::OnceLock;

static OBSERVER: OnceLock<fn(&'static str)> = OnceLock::new();

/// Calls `observer` with the name of each piece of background work at each of its turns. The first observer stays.
pub fn observe(observer: fn(&'static str)) {
    let _ = OBSERVER.set(observer);
}

/// Reports a turn of the work `name` to the observer.
pub fn turn(name: &'static str) {
    if let Some(observer) = OBSERVER.get() {
        observer(name);
    }
}

/// Runs `work` under this name.
pub async fn named<F: Future>(name: &'static str, work: F) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|context| {
        turn(name);
        work.as_mut().poll(context)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::executor::block_on;

    static TURNS: AtomicU32 = AtomicU32::new(0);

    #[test]
    fn each_turn_of_named_work_is_seen() {
        observe(|name| {
            if name == "this test" {
                TURNS.fetch_add(1, Ordering::Relaxed);
            }
        });
        turn("this test");
        turn("another");
        assert_eq!(block_on(named("this test", async { 7 })), 7);
        assert_eq!(TURNS.load(Ordering::Relaxed), 2);
    }
}
