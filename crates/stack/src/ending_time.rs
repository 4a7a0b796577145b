//! The end of what needs a target, an attachment or a mount: when it begins, the time that it has
//! once it is not to wait for its target any more, and what it reports meanwhile.

use std::cell::Cell;
use std::future::{Future, pending};
use std::sync::OnceLock;

use tokio::sync::watch::Sender;
use tokio::time::Instant;

use crate::control::Progress;
use crate::flag::wait_until;
use crate::limits::{CLOSE_STEP_TIME_MIN, CLOSE_TIME_MAX, WATCH_INTERVAL};
use crate::remotes::{Remotes, Session};
use crate::status::{Left, Report};

/// The bound of the steps of one end, which share one time; a step after that has
/// [`CLOSE_STEP_TIME_MIN`].
pub(crate) struct EndingTime {
    /// What ends, for the log.
    name: String,
    /// `true` once it is to end.
    stopping: Sender<bool>,
    /// `true` once it is to end at once, even during a cleaning.
    cut_short: Sender<bool>,
    /// The deadline of an end at once.
    deadline: OnceLock<Instant>,
    /// `true` once no step has any time left.
    is_over: Sender<bool>,
    /// Whether a step of the end was given up because of the target.
    is_target_left: Cell<bool>,
    /// Whether the target was asked at the end, and did not answer.
    is_target_silent: Cell<bool>,
}

/// The result of `end`; meanwhile the caller is told, again and again, what the end waits for.
pub(crate) async fn telling<T>(
    end: impl Future<Output = T>,
    progress: Option<&Progress>,
    waits: impl Fn() -> Option<Report>,
) -> T {
    let tell = async {
        loop {
            tokio::time::sleep(WATCH_INTERVAL).await;
            if let (Some(progress), Some(report)) = (progress, waits()) {
                // Sending fails when the caller has hung up.
                let _ = progress.send(report);
            }
        }
    };
    tokio::select! {
        ended = end => ended,
        () = tell => unreachable!("it is told for ever"),
    }
}

impl EndingTime {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            stopping: Sender::new(false),
            cut_short: Sender::new(false),
            deadline: OnceLock::new(),
            is_over: Sender::new(false),
            is_target_left: Cell::new(false),
            is_target_silent: Cell::new(false),
        }
    }

    /// Begins the end. Returns whether it had begun before.
    pub(crate) fn begin(&self) -> bool {
        self.stopping.send_replace(true)
    }

    /// Raised once it is to end.
    pub(crate) fn stopping(&self) -> &Sender<bool> {
        &self.stopping
    }

    pub(crate) fn has_begun(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Stops the end from waiting for the target. It has [`CLOSE_TIME_MAX`] from now on.
    pub(crate) fn cut_short(&self) {
        self.cut_short_by(Instant::now() + CLOSE_TIME_MAX);
    }

    fn cut_short_by(&self, deadline: Instant) {
        self.deadline.get_or_init(|| deadline);
        self.cut_short.send_replace(true);
    }

    /// Takes the time of all steps away.
    pub(crate) fn take_away(&self) {
        self.cut_short_by(Instant::now());
        self.is_over.send_replace(true);
    }

    pub(crate) fn is_cut_short(&self) -> bool {
        *self.cut_short.borrow()
    }

    pub(crate) async fn until_cut_short(&self) {
        wait_until(&self.cut_short).await;
    }

    /// The result of `life`, which includes the end. From the beginning of that on the target, if there is one, is
    /// asked whether it still answers; a silent one is left.
    pub(crate) async fn watching_target<T>(
        &self,
        life: impl Future<Output = T>,
        remotes: Option<&Remotes>,
        dirty_bytes: impl Fn() -> u64,
    ) -> T {
        let watch = async {
            wait_until(&self.stopping).await;
            match remotes {
                Some(remotes) => self.leave_silent_target(remotes, dirty_bytes).await,
                None => pending().await,
            }
        };
        tokio::select! {
            ended = life => ended,
            () = watch => unreachable!("it is asked for ever"),
        }
    }

    /// Asks the target, for ever, whether it still answers. A silent target is waited for while
    /// there is dirty data; after that no longer than after a signal.
    async fn leave_silent_target(&self, remotes: &Remotes, dirty_bytes: impl Fn() -> u64) {
        loop {
            let is_silent = tokio::time::timeout(CLOSE_TIME_MAX, remotes.answer()).await.is_err();
            self.is_target_silent.set(is_silent);
            if is_silent && dirty_bytes() == 0 {
                self.cut_short_by(Instant::now());
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    /// What is left where this ended with `dirty_bytes`. A target that was silent for a while, and answered before the
    /// end, was not left.
    pub(crate) fn left(&self, dirty_bytes: u64) -> Left {
        let is_target_silent = Some(self.is_target_silent.get() && self.is_target_left.get());
        Left { name: Some(self.name.clone()), dirty_bytes: Some(dirty_bytes), is_target_silent, ..Left::default() }
    }

    /// The target for which dirty data waits, where it is away, and its state.
    pub(crate) fn waits_for(&self, remotes: Option<&Remotes>, dirty_bytes: impl FnOnce() -> u64) -> Option<String> {
        self.missed_target(remotes?).filter(|_| dirty_bytes() > 0)
    }

    /// The target, where it is away, and its state.
    pub(crate) fn missed_target(&self, remotes: &Remotes) -> Option<String> {
        let Session { state, portal, .. } = remotes.session();
        let state = match state.as_str() {
            "online" if self.is_target_silent.get() => "silent",
            "online" => return None,
            state => state,
        };
        Some(format!("{portal} ({state})"))
    }

    /// Whether a step was not waited for.
    pub(crate) fn is_target_left(&self) -> bool {
        self.is_target_left.get()
    }

    /// Waits until a step that begins now has had its time; for ever, unless the end is cut short.
    pub(crate) async fn until_step_is_over(&self) {
        let too_long = async {
            self.until_cut_short().await;
            let least = Instant::now() + CLOSE_STEP_TIME_MIN;
            let until = self.deadline.get().map_or(least, |&deadline| deadline.max(least));
            tokio::time::sleep_until(until).await;
        };
        tokio::select! {
            () = too_long => {}
            () = wait_until(&self.is_over) => {}
        }
    }

    /// The result of `step`; `None` when it is to end at once and takes too long, since a target
    /// that is away is not waited for. The rest is then as after a crash. All steps of an end share
    /// one time; a step after that gets the time that a target which answers needs.
    pub(crate) async fn within<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            outcome = step => Some(outcome),
            () = self.until_step_is_over() => {
                if !self.is_target_left.replace(true) {
                    tracing::warn!("\"{}\" ends without its target", self.name);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::{CLOSE_STEPS_MAX, FRONTS_TIME_MAX, STOP_TIME_MAX};

    #[tokio::test(start_paused = true)]
    async fn an_end_whose_steps_all_wait_for_nothing_is_over_in_time() {
        let (time, began) = (EndingTime::new("disk"), Instant::now());
        time.cut_short();
        tokio::time::sleep(FRONTS_TIME_MAX).await;
        for _ in 0..CLOSE_STEPS_MAX {
            assert_eq!(time.within(pending::<()>()).await, None);
        }
        assert!(began.elapsed() < STOP_TIME_MAX, "{:?}", began.elapsed());
        assert!(time.is_target_left());
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_has_its_time_until_that_is_taken_away() {
        let (time, began) = (EndingTime::new("disk"), Instant::now());
        let far = tokio::time::sleep(Duration::from_secs(60));
        assert_eq!(time.within(far).await, Some(()), "nobody was in a hurry");
        time.cut_short();
        let before_long = Duration::from_millis(100);
        let (step, ()) = tokio::join!(time.within(pending::<()>()), async {
            tokio::time::sleep(before_long).await;
            time.take_away();
        });
        assert_eq!(step, None);
        assert_eq!(began.elapsed(), Duration::from_secs(60) + before_long);
        assert_eq!(time.within(pending::<()>()).await, None);
        assert_eq!(began.elapsed(), Duration::from_secs(60) + before_long, "nor has any other");
        assert_eq!(time.within(async {}).await, Some(()), "what need not wait is done");
    }
}
