//! Which of several paths reach the unit best: each path's target port group is read every few
//! seconds (asymmetric logical unit access, SPC-4 5.15).
//!
//! | the target port group of a path is | the path is |
//! |---|---|
//! | active/optimized, or not reported | preferred |
//! | active/non-optimized, or it depends on the block | taken when there is no better |
//! | standby, unavailable, offline, in transition | not taken |
//!
//! A path without a session is read when its session is back. A request that a port refuses for its
//! state meanwhile goes to another path (`block::layer::multipath`).

use std::future::Future;
use std::sync::Arc;

use base::clock::Clock;
use block::Error;
use block::layer::multipath::{Access, Multipath};
use futures_util::future::join_all;
use initiator::RemoteLun;
use scsi::target_port_groups::AccessState;

use crate::limits::ACCESS_INTERVAL;

/// A path whose access state can be read.
pub(crate) trait Reaching: Send + Sync {
    /// As [`RemoteLun::access_state`].
    fn state(&self) -> impl Future<Output = Result<Option<AccessState>, Error>> + Send;
}

impl Reaching for Arc<RemoteLun> {
    async fn state(&self) -> Result<Option<AccessState>, Error> {
        self.access_state().await
    }
}

/// Updates in `multipath` how each of its paths reaches the unit, for ever. `paths` are in its
/// order.
pub(crate) async fn watch<R: Reaching>(multipath: &Multipath, paths: Vec<R>, clock: &dyn Clock) {
    let watches = paths.iter().enumerate().map(|(index, path)| async move {
        let mut before = Access::default();
        loop {
            match path.state().await {
                Ok(state) => {
                    let access = state.map_or(Access::Optimized, access_of);
                    if access != before {
                        tracing::info!(path = index + 1, access = access.as_str(), "another way to reach the unit");
                    }
                    before = access;
                    multipath.set_access(index, access);
                }
                // The path keeps its last state; an offline path is avoided anyway.
                Err(error) => tracing::debug!(path = index + 1, %error, "how it reaches the unit is not known"),
            }
            clock.sleep(ACCESS_INTERVAL).await;
        }
    });
    join_all(watches).await;
}

fn access_of(state: AccessState) -> Access {
    match state {
        AccessState::ActiveOptimized => Access::Optimized,
        AccessState::ActiveNonOptimized | AccessState::BlockDependent => Access::NonOptimized,
        AccessState::Standby | AccessState::Unavailable | AccessState::Offline | AccessState::Transitioning => {
            Access::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    use base::executor::Executor;
    use block::device::DeviceExt as _;
    use block::layer::multipath::Policy;
    use block::memory::MemoryDevice;
    use block::{Buffer, ErrorKind, Identity, SharedDevice};

    /// A path with a state that the test sets; `None` is a session that is away.
    #[derive(Clone)]
    struct Reported(Arc<Mutex<Option<AccessState>>>);

    impl Reported {
        fn new(state: AccessState) -> Self {
            Self(Arc::new(Mutex::new(Some(state))))
        }

        fn set(&self, state: Option<AccessState>) {
            *self.0.lock().expect("no test panics with it") = state;
        }
    }

    impl Reaching for Reported {
        async fn state(&self) -> Result<Option<AccessState>, Error> {
            match *self.0.lock().expect("no test panics with it") {
                Some(state) => Ok(Some(state)),
                None => Err(ErrorKind::OutcomeUnknown.into()),
            }
        }
    }

    #[test]
    fn requests_follow_the_best_state_and_come_back_with_it() {
        let mut executor = Executor::new(1);
        let clock = executor.clock();
        let disk: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, Identity::default()));
        let paths = vec![Arc::clone(&disk), disk];
        let policy = Policy::Failover;
        let paths = Multipath::new(paths, policy, Duration::from_secs(1), Arc::new(clock.clone()));
        let multipath = Arc::new(paths.expect("it is one unit"));
        let reported = [Reported::new(AccessState::ActiveOptimized), Reported::new(AccessState::ActiveNonOptimized)];
        let (running, watching, asked, time) =
            (Arc::clone(&multipath), Arc::clone(&multipath), reported.to_vec(), clock.clone());
        executor.spawn(async move { running.run().await });
        executor.spawn(async move { watch(&watching, asked, &time).await });
        let taken = |executor: &mut Executor| {
            let (multipath, time) = (Arc::clone(&multipath), clock.clone());
            executor.block_on(async move {
                time.sleep(ACCESS_INTERVAL + Duration::from_millis(1)).await;
                let before = multipath.paths();
                multipath.read(0, Buffer::zeroed(512)).await.expect("a path takes it");
                let after = multipath.paths();
                (0..2).find(|&path| after[path].request_count > before[path].request_count).expect("it was taken")
            })
        };
        assert_eq!(taken(&mut executor), 0);
        reported[0].set(Some(AccessState::Standby));
        assert_eq!(taken(&mut executor), 1, "what there is is taken");
        reported[1].set(Some(AccessState::ActiveOptimized));
        reported[0].set(None);
        assert_eq!(taken(&mut executor), 1, "a path that does not answer keeps what it had");
        reported[0].set(Some(AccessState::ActiveNonOptimized));
        assert_eq!(taken(&mut executor), 1);
        reported[0].set(Some(AccessState::ActiveOptimized));
        assert_eq!(taken(&mut executor), 0, "the first of equals is the first again");
    }
}
