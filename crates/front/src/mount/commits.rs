//! The commits that no program asks for: what was done becomes durable after a while.

use std::future::{Future, pending};
use std::path::Path;

use ext2::Error;

use crate::limits::COMMIT_INTERVAL;

/// Commits again and again. Of failures that follow one another the first is told. When all is lost, for the reason
/// that `loss` gives, that is told, and there are no more commits.
pub(super) async fn commit_for_ever<F: Future<Output = Result<(), Error>>>(
    commit: impl Fn() -> F,
    loss: impl Fn() -> Option<Error>,
    directory: &Path,
) {
    let place = directory.display();
    let mut ticks = tokio::time::interval(COMMIT_INTERVAL);
    let mut is_failing = false;
    loop {
        ticks.tick().await;
        let committed = commit().await;
        if let Some(error) = loss() {
            tracing::error!(
                %error,
                "nothing is read or written in {place} any more, and what was done there and is not durable is lost: \
                 unmount it, and mount it again"
            );
            return pending().await;
        }
        match &committed {
            Err(error) if !is_failing => tracing::warn!(%error, "what was done in {place} is not durable yet"),
            Ok(()) if is_failing => tracing::info!("what was done in {place} is durable again"),
            _ => {}
        }
        is_failing = committed.is_err();
    }
}

#[cfg(test)]
#[path = "../../../cache/tests/common/lines.rs"]
mod lines;

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::ready;
    use std::time::Duration;

    use block::ErrorKind;
    use tokio::time::timeout;

    use super::lines::Lines;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[derive(Default)]
    struct Below {
        fails: Cell<Option<ErrorKind>>,
        loss: RefCell<Option<Error>>,
        commits: Cell<u64>,
    }

    impl Below {
        /// An hour of commits. Returns how many there were, and how many lines of the log.
        async fn hour(&self) -> (u64, usize) {
            let lines = Lines::default();
            let _guard = lines.listen();
            let before = self.commits.get();
            let commit = || {
                self.commits.set(self.commits.get() + 1);
                ready(self.fails.get().map_or(Ok(()), |kind| Err(ext2::ErrorKind::Device(kind).into())))
            };
            let all = commit_for_ever(commit, || self.loss.borrow().clone(), Path::new("/files"));
            assert!(timeout(HOUR, all).await.is_err(), "it commits for ever");
            (self.commits.get() - before, lines.count())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_committed_for_long_is_a_line() {
        let below = Below::default();
        let (commits, lines) = below.hour().await;
        assert!(commits > 700 && lines == 0, "{commits}, {lines}");
        below.fails.set(Some(ErrorKind::TimedOut));
        let (commits, lines) = below.hour().await;
        assert!(commits > 700 && lines == 1, "{commits}, {lines}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_is_a_line_and_is_not_committed_again() {
        let below = Below::default();
        below.fails.set(Some(ErrorKind::Gone));
        *below.loss.borrow_mut() = Some(ext2::ErrorKind::Device(ErrorKind::Gone).into());
        assert_eq!(below.hour().await, (1, 1));
    }
}
