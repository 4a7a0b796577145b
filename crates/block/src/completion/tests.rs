use super::*;
use crate::range_lock::RangeLock;
use base::clock::Clock;
use base::executor::Executor;
use base::range::ByteRange;
use futures_util::FutureExt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn work_that_lets_others_go_first_has_its_turn_after_them() {
    for is_last in [false, true] {
        let mut executor = Executor::in_order();
        let (workers, order) = (Workers::new(), Arc::new(Mutex::new(Vec::new())));
        let note = |name| {
            let order = Arc::clone(&order);
            move || order.lock().unwrap().push(name)
        };
        let (running, polite, work) = (workers.clone(), workers.clone(), note("work"));
        executor.spawn(async move { running.run().await });
        executor.run_until_stalled();
        workers.spawn(async move {
            if is_last {
                polite.yield_now().await;
            }
            work();
        });
        let other = note("other");
        executor.spawn(async move { other() });
        executor.run_until_stalled();
        let expected = if is_last { ["other", "work"] } else { ["work", "other"] };
        assert_eq!(*order.lock().unwrap(), expected);
    }
}

#[test]
fn a_response_is_looked_at_by_who_takes_it_and_by_nobody_else() {
    let seen = Arc::new(AtomicUsize::new(0));
    let watched = |completion: Completion| {
        let seen = Arc::clone(&seen);
        completion.watched(move |response| {
            assert!(response.result.is_ok());
            seen.fetch_add(1, Ordering::Relaxed);
        })
    };
    let done = || Response::done(Buffer::empty());
    let mut taken = watched(Completion::ready(done()));
    assert_eq!((taken.try_take().is_some(), seen.load(Ordering::Relaxed)), (true, 1));
    let (completion, sender) = Completion::slot();
    let mut polled = watched(completion);
    assert!((&mut polled).now_or_never().is_none() && polled.try_take().is_none());
    sender.complete(done());
    assert_eq!(seen.load(Ordering::Relaxed), 1, "nobody has taken it");
    assert!(polled.now_or_never().is_some());
    assert_eq!(seen.load(Ordering::Relaxed), 2);
    let (completion, sender) = Completion::slot();
    let mut tried = watched(watched(completion));
    sender.complete(done());
    assert_eq!((tried.try_take().is_some(), seen.load(Ordering::Relaxed)), (true, 4));
    let (completion, sender) = Completion::slot();
    let behind = watched(completion).then(&Workers::new(), Completion::ready);
    sender.complete(done());
    assert!(behind.now_or_never().is_some());
    assert_eq!(seen.load(Ordering::Relaxed), 5);
    let (completion, sender) = Completion::slot();
    drop(watched(completion));
    sender.complete(done());
    assert_eq!(seen.load(Ordering::Relaxed), 5);
}

/// `Shared` wakes under a lock that it takes again on its drop, so it must not be dropped by
/// the wake-up.
#[test]
fn a_task_ends_with_its_workers_and_not_with_its_last_waker() {
    let mut executor = Executor::new(1);
    let workers = Workers::new();
    let (completion, sender) = Completion::slot();
    let shared = async move { completion.await.result.is_ok() }.shared();
    let awaited = shared.clone();
    drop(Completion::task(&workers, async move {
        awaited.await;
        Response::done(Buffer::empty())
    }));
    executor.spawn(async move { workers.run().await });
    executor.run();
    drop(executor);
    drop(sender);
    assert_eq!(shared.now_or_never(), Some(false));
}

/// A cache that another one replaces stops its workers, perhaps with a flush under way that its
/// client does not await yet.
#[test]
fn a_task_that_is_woken_when_its_workers_have_ended_is_left_to_whoever_awaits_it() {
    for are_running in [false, true] {
        let mut executor = Executor::in_order();
        let workers = Workers::new();
        let running = workers.clone();
        let (slots, senders): (Vec<_>, Vec<_>) = (0..3).map(|_| Completion::slot()).unzip();
        let mut senders = senders.into_iter();
        let mut wake_next = || senders.next().expect("there is one").complete(Response::done(Buffer::empty()));
        let completion = Completion::task(&workers, async move {
            for slot in slots {
                slot.await;
            }
            failed()
        });
        executor.spawn(async move { running.run().await });
        if are_running {
            // The workers have the task when they are dropped.
            wake_next();
            executor.run();
            drop(executor);
        } else {
            workers.stop();
            wake_next();
            executor.run();
        }
        wake_next();
        let awaited = completion.map(|response| response.result.map_err(|error| error.kind()));
        let result = Arc::new(Mutex::new(None));
        let mut executor = Executor::in_order();
        let kept = Arc::clone(&result);
        executor.spawn(async move { *kept.lock().unwrap() = Some(awaited.await) });
        executor.run();
        assert_eq!(*result.lock().unwrap(), None);
        wake_next();
        executor.run();
        assert_eq!(*result.lock().unwrap(), Some(Err(ErrorKind::Media)));
    }
}

/// Nobody polls it any more, and what it holds would stay held as long as somebody can wake it.
#[test]
fn a_task_whose_workers_have_ended_ends_with_its_completion() {
    let mut executor = Executor::in_order();
    let workers = Workers::new();
    let running = workers.clone();
    executor.spawn(async move { running.run().await });
    let [(first, wake), (second, sender)] = [(); 2].map(|()| Completion::slot());
    let held = Arc::new(());
    let kept = Arc::downgrade(&held);
    let completion = Completion::task(&workers, async move {
        let _held = held;
        first.await;
        second.await
    });
    wake.complete(Response::done(Buffer::empty()));
    executor.run();
    drop(executor);
    assert!(kept.upgrade().is_some(), "it can still be awaited");
    drop(completion);
    assert!(kept.upgrade().is_none());
    drop(sender);
}

fn failed() -> Response {
    Response::failed(Error::new(ErrorKind::Media, "a test"), Buffer::empty())
}

#[test]
fn a_step_is_taken_where_the_operation_ends_whether_or_not_anybody_awaits_it() {
    let workers = Workers::new();
    for is_dropped in [false, true] {
        let is_taken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_taken);
        let (completion, sender) = Completion::slot();
        let mut completion = completion.then(&workers, move |response| {
            flag.store(true, Ordering::Relaxed);
            assert!(response.result.is_ok());
            Completion::ready(failed())
        });
        assert!(completion.try_take().is_none() && !is_taken.load(Ordering::Relaxed));
        let kept = (!is_dropped).then_some(completion);
        sender.complete(Response::done(Buffer::empty()));
        assert!(is_taken.load(Ordering::Relaxed));
        if let Some(completion) = kept {
            let response = completion.now_or_never().expect("the step is the last there is to do");
            assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::Media));
        }
    }
}

/// After each kind of completion, and after another step.
#[test]
fn a_step_that_is_not_over_at_once_is_waited_for() {
    for kind in ["ready", "slot", "slot that is over", "task", "step"] {
        let mut executor = Executor::new(1);
        let workers = Workers::new();
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        let (slot, sender) = Completion::slot();
        let mut sender = Some(sender);
        let first = match kind {
            "ready" => Completion::ready(failed()),
            "slot" => slot,
            "slot that is over" => {
                sender.take().expect("it was made just now").complete(failed());
                slot
            }
            "task" => Completion::task(&workers, slot),
            _ => slot.then(&workers, Completion::ready),
        };
        let (clock, inner) = (executor.clock(), workers.clone());
        let completion = first.then(&workers, move |response| {
            let seconds = if response.result.is_err() { 2 } else { 1 };
            Completion::task(&inner, async move {
                clock.sleep(Duration::from_secs(seconds)).await;
                Response::done(Buffer::copy_of(&[seconds as u8]))
            })
        });
        if let Some(sender) = sender.filter(|_| kind != "ready") {
            executor.spawn(async move { sender.complete(failed()) });
        }
        assert_eq!(&executor.block_on(completion).buffer[..], [2], "{kind}");
    }
}

/// As another thread would do while the driver takes the first step.
#[test]
fn a_step_put_behind_one_that_is_being_taken_is_taken_too() {
    let workers = Workers::new();
    let place = Arc::new(Mutex::new(None::<Completion>));
    let (completion, sender) = Completion::slot();
    let (inner, inner_workers) = (Arc::clone(&place), workers.clone());
    let completion = completion.then(&workers, move |response| {
        let mut place = inner.lock().unwrap();
        let longer = place.take().map(|completion| completion.then(&inner_workers, |_| Completion::ready(failed())));
        *place = longer;
        Completion::ready(response)
    });
    *place.lock().unwrap() = Some(completion);
    sender.complete(Response::done(Buffer::empty()));
    let completion = place.lock().unwrap().take().expect("it was put back");
    let response = completion.now_or_never().expect("both steps are over at once");
    assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::Media));
}

#[test]
fn a_driver_that_stops_takes_the_step_with_an_error() {
    let workers = Workers::new();
    let (completion, sender) = Completion::slot();
    let completion = completion.then(&workers, Completion::ready);
    drop(sender);
    let response = completion.now_or_never().expect("there is nothing to wait for");
    assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::OutcomeUnknown));
}

#[test]
fn a_dropped_task_still_finishes() {
    let mut executor = Executor::new(1);
    let workers = Workers::new();
    let is_finished = Arc::new(AtomicBool::new(false));
    let (clock, flag) = (executor.clock(), Arc::clone(&is_finished));
    drop(Completion::task(&workers, async move {
        clock.sleep(Duration::from_millis(1)).await;
        flag.store(true, Ordering::Relaxed);
        Response::done(Buffer::empty())
    }));
    let running = workers.clone();
    executor.spawn(async move { running.run().await });
    executor.run();
    assert!(is_finished.load(Ordering::Relaxed));
}

/// Two operations on one range, awaited in the wrong order: the second must not wait until the
/// first one is awaited.
#[test]
fn a_task_nobody_awaits_yet_goes_on() {
    let mut executor = Executor::new(1);
    let workers = Workers::new();
    let running = workers.clone();
    executor.spawn(async move { running.run().await });
    let (lock, clock) = (RangeLock::new(), executor.clock());
    let operation = |workers: &Workers| {
        let (lock, clock) = (lock.clone(), clock.clone());
        Completion::task(workers, async move {
            let _guard = lock.exclusive(ByteRange { offset: 0, length: 512 }).await;
            clock.sleep(Duration::from_millis(1)).await;
            Response::done(Buffer::empty())
        })
    };
    let (first, second) = (operation(&workers), operation(&workers));
    let results = executor.block_on(async move {
        let second = second.await.result;
        (first.await.result, second)
    });
    assert!(results.0.is_ok() && results.1.is_ok());
}

#[test]
fn a_late_wake_does_not_bring_a_finished_task_back() {
    let mut executor = Executor::new(1);
    let workers = Workers::new();
    let waker = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&waker);
    let mut completion = Completion::task(&workers, async move {
        poll_fn(|context| {
            *kept.lock().unwrap() = Some(context.waker().clone());
            Poll::Ready(())
        })
        .await;
        Response::done(Buffer::empty())
    });
    assert!(completion.try_take().is_some());
    waker.lock().unwrap().take().expect("the task left its waker").wake();
    workers.stop();
    // It would not end with a task that never ends.
    executor.block_on(async move { workers.run().await });
}

#[test]
fn a_task_that_is_awaited_needs_no_workers() {
    let mut executor = Executor::new(1);
    let clock = executor.clock();
    let completion = Completion::task(&Workers::new(), async move {
        futures_util::future::ready(()).await;
        clock.sleep(Duration::from_millis(1)).await;
        clock.sleep(Duration::from_millis(1)).await;
        Response::done(Buffer::empty())
    });
    assert!(executor.block_on(completion).result.is_ok());
}

/// The seed decides whether the workers or the owner come first, and whether the owner leaves
/// in between.
#[test]
fn owners_and_workers_do_not_lose_a_task_between_them() {
    let test = crate::crash_test!();
    for seed in test.seeds(0, 200, 1) {
        let _printed = test.on_panic(seed, None);
        let mut executor = Executor::new(seed);
        let workers = Workers::new();
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        let finished = Arc::new(AtomicUsize::new(0));
        for number in 0..8u64 {
            let (clock, count) = (executor.clock(), Arc::clone(&finished));
            let completion = Completion::task(&workers, async move {
                for step in 0..4 {
                    clock.sleep(Duration::from_micros(1 + (seed + number + step) % 3)).await;
                }
                count.fetch_add(1, Ordering::Relaxed);
                Response::done(Buffer::empty())
            });
            let clock = executor.clock();
            executor.spawn(async move {
                clock.sleep(Duration::from_micros((seed * number) % 5)).await;
                match number % 3 {
                    0 => drop(completion),
                    1 => drop(completion.await),
                    _ => {
                        let mut completion = completion;
                        let pause = clock.sleep(Duration::from_micros(2));
                        // Polled for a while, then dropped or finished.
                        let _ = futures_util::future::select(&mut completion, pause).await;
                    }
                }
            });
        }
        executor.run();
        assert_eq!(finished.load(Ordering::Relaxed), 8, "seed {seed}");
    }
}

#[test]
fn a_task_that_need_not_wait_is_ready_at_once() {
    let mut completion = Completion::task(&Workers::new(), async { Response::done(Buffer::empty()) });
    assert!(completion.try_take().is_some());
    assert!(completion.try_take().is_none());
}

#[test]
fn a_lost_driver_is_an_unknown_outcome() {
    let (mut completion, sender) = Completion::slot();
    assert!(completion.try_take().is_none());
    drop(sender);
    let response = completion.try_take().expect("the sender is gone");
    assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::OutcomeUnknown));
}
