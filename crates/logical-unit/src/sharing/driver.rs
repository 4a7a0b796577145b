//! The background work of sharing: deadlines, fences, and saving the state that must be durable.
//!
//! A fence takes all ranges once: every command that held one before has ended then, and every
//! command that gets one later checks that its client lives. So it does not matter through which
//! unit a command came, or whether it came before its client registered. Then the device is
//! flushed: the next holder of a lock could read what a client wrote and did not flush before it
//! died, and a loss of power must not take that away. The same happens after a start, before locks
//! are granted that former clients did not reclaim.
//!
//! Then the end of the client's life is made durable, before anything passes on: it may not know of
//! it, and must not reclaim after a start what others have had since ([`ended`](super::ended)).

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use block::completion::Workers;
use block::range_lock::RangeLock;
use block::{ByteRange, Request, SharedDevice};
use locks::identity::{BootEpoch, ClientId};

use super::orders::TURN;
use super::site::Sharing;
use super::store::SavedSharing;
use crate::limits::SAVING_RETRY_INTERVAL;

/// Closes the gate at the end of the driver: nobody would keep the deadlines of those that wait there.
struct ClosesGate(Arc<Sharing>);

impl Drop for ClosesGate {
    fn drop(&mut self) {
        self.0.with(|state, now| state.close_gate(now));
    }
}

/// The pending work of the driver.
#[derive(Default)]
struct Work {
    to_fence: Vec<ClientId>,
    grace_end: Option<BootEpoch>,
    forgets_lease: bool,
}

impl Sharing {
    /// Runs until it is dropped, which ends the unit for all that wait at its gate. `ranges` and `device` are those of
    /// the unit.
    pub(crate) async fn run(self: Arc<Self>, ranges: RangeLock, workers: Workers, device: SharedDevice) {
        let _closes_gate = ClosesGate(Arc::clone(&self));
        loop {
            let work = self.work();
            for client in work.to_fence {
                let (sharing, ranges, device) = (Arc::clone(&self), ranges.clone(), Arc::clone(&device));
                workers.spawn(async move {
                    drop(ranges.exclusive(ByteRange { offset: 0, length: u64::MAX }).await);
                    flush(&device).await;
                    sharing.keep_end(client).await;
                    sharing.with(|state, now| state.manager.fenced(now, client));
                });
            }
            if let Some(epoch) = work.grace_end {
                flush(&device).await;
                self.keep_grace_end(epoch).await;
            }
            if work.forgets_lease {
                self.forget_lease().await;
            }
            self.wait().await;
            self.with(|state, now| state.manager.handle_timeout(now));
        }
    }

    fn work(&self) -> Work {
        self.with(|state, _| Work {
            to_fence: std::mem::take(&mut state.to_fence),
            grace_end: state.grace_end.take(),
            forgets_lease: state.is_lease_forgotten(),
        })
    }

    /// Waits for the next deadline, or for work.
    async fn wait(&self) {
        let mut sleep = self.with(|state, now| {
            state.armed = state.manager.next_deadline().map(|deadline| state.watch.look_by(now).min(deadline));
            state.armed.map(|deadline| self.clock.sleep_until(deadline))
        });
        poll_fn(|context| {
            self.driver.register(context.waker());
            if self.with(|state, _| state.needs_driver()) {
                return Poll::Ready(());
            }
            sleep.as_mut().map_or(Poll::Pending, |sleep| sleep.as_mut().poll(context))
        })
        .await;
    }

    /// Makes durable that no lock of former clients can be reclaimed after the next start. Until
    /// then no other lock is granted.
    async fn keep_grace_end(&self, epoch: BootEpoch) {
        let _turn = self.turns.exclusive(TURN).await;
        let mut saved = self.with(|state, _| SavedSharing { reclaimable_from: epoch.0, ..state.saved.clone() });
        saved.ended.forget_before(epoch);
        while !self.save(saved.clone()).await {
            self.clock.sleep(SAVING_RETRY_INTERVAL).await;
        }
        self.with(|state, now| {
            state.saved = saved;
            state.manager.grace_end_kept(now);
        });
    }

    /// Makes durable that the life of a client has ended, and with it the one whose locks it could
    /// reclaim.
    async fn keep_end(&self, client: ClientId) {
        while !self.try_keep_end(client).await {
            self.clock.sleep(SAVING_RETRY_INTERVAL).await;
        }
    }

    async fn try_keep_end(&self, client: ClientId) -> bool {
        let _turn = self.turns.exclusive(TURN).await;
        let (mut saved, previous) = self.with(|state, _| {
            let registered = state.manager.clients().all().find(|(registered, _)| *registered == client);
            (state.saved.clone(), registered.and_then(|(_, found)| found.previous))
        });
        let lives = previous.into_iter().chain([client]);
        let mut has_room = true;
        for life in lives {
            has_room &= saved.ended.add(life);
        }
        let is_saved = self.save(saved.clone()).await;
        if is_saved {
            self.with(|state, _| state.saved = saved);
        }
        if is_saved && !has_room {
            tracing::warn!(
                "too many clients of a shared unit have ended for each to be noted: after the next start of the target \
                 no client of before claims anything back"
            );
        }
        is_saved
    }

    /// Makes durable that no client can hold a lock: the next start need not wait for any. A client
    /// that registers meanwhile has to make its lease durable after this.
    async fn forget_lease(&self) {
        let _turn = self.turns.exclusive(TURN).await;
        let saved = self.with(|state, _| {
            let forgets = state.is_lease_forgotten();
            forgets.then(|| {
                (state.saved.longest_lease_ms, state.saved.may_lack_writes) = (None, false);
                state.saved.clone()
            })
        });
        if let Some(saved) = saved {
            // If this fails, the next start waits in vain, which does no harm.
            self.save(saved).await;
        }
    }

    /// Saves the state. Returns whether it is durable. Of saves that fail one after the other the first is logged: what
    /// is not durable is tried again each second.
    async fn save(&self, saved: SavedSharing) -> bool {
        let Some(store) = &self.store else { return true };
        let error = store.save(saved).await.err();
        let was_failing = self.is_save_failing.swap(error.is_some(), Ordering::Relaxed);
        match &error {
            Some(error) if !was_failing => {
                tracing::error!(%error, "what is to be known of a shared unit after a start cannot be made durable");
            }
            None if was_failing => {
                tracing::warn!("what is to be known of a shared unit after a start is durable again");
            }
            _ => {}
        }
        error.is_none()
    }
}

/// Flushes the device. A loss is reported to the nexuses that wrote, as for any flush; no command
/// waits for this one.
async fn flush(device: &SharedDevice) {
    if let Err(error) = device.submit(Request::flush()).await.result {
        tracing::error!(%error, "what clients wrote that are gone cannot be made durable");
    }
}
