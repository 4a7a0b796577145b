//! Attributes that the kernel keeps of a file system that hosts share: as long as this host has the lock, and no
//! longer.
//!
//! | | then |
//! |---|---|
//! | the lock is given up | every request has been answered; the kernel is told to forget the attributes, then others get the lock |
//! | the lease ends, and this host is frozen | the kernel forgets them by itself: what it is told of their time ends before the lease does |
//! | this host is frozen between looking at the lease and answering | it looks again, and takes them back |
//!
//! An answer that the kernel has not looked at when it is told to forget is void: it counts its requests, and drops
//! attributes that are older. That takes an inode which it knows already, so an inode of which it has not asked
//! anything yet is returned without.
//!
//! Names are not kept. To take one back the kernel waits for requests in its directory, and these may wait for the
//! lock whose release would wait for that.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use block::{ByteRange, Copies, Dropped, Keeper};
use fuser::{INodeNo, Notifier};

use crate::limits::{ATTRIBUTES_FORGOTTEN_AT_ONCE, ATTRIBUTES_KEPT_MAX, ATTRIBUTES_LEASE_MARGIN};

/// Tells the kernel to forget the attributes of an inode.
type Forget = Box<dyn Fn(INodeNo) + Send + Sync>;

/// The attributes that the kernel keeps.
pub(super) struct KeptAttributes {
    copies: Copies,
    forget: Arc<OnceLock<Forget>>,
    /// Short sections, never across an await.
    kept: Mutex<BTreeSet<INodeNo>>,
}

impl KeptAttributes {
    /// Nothing is kept before [`begin`](Self::begin).
    pub(super) fn of(copies: Copies) -> Arc<Self> {
        let kept = Arc::new(Self { copies, forget: Arc::default(), kept: Mutex::default() });
        let keeper: Arc<dyn Keeper> = kept.clone();
        kept.copies.add_keeper(Arc::downgrade(&keeper));
        kept
    }

    /// The kernel is there.
    pub(super) fn begin(&self, notifier: Notifier) {
        let _ = self.forget.set(Box::new(move |node| {
            // Without offset: pages are not asked for, and nothing waits.
            if let Err(error) = notifier.inval_inode(node, -1, 0) {
                tracing::warn!(%error, "the kernel does not forget the attributes of an inode");
            }
        }));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<INodeNo>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the kernel may keep the attributes of an inode that it knows. The caller holds the lock until it has
    /// answered, and calls [`confirm`](Self::confirm) then.
    pub(super) fn time(&self, node: INodeNo) -> Duration {
        let time = self.copies.time_left().saturating_sub(ATTRIBUTES_LEASE_MARGIN);
        if time.is_zero() || self.forget.get().is_none() {
            return Duration::ZERO;
        }
        let mut kept = self.lock();
        if kept.len() >= ATTRIBUTES_KEPT_MAX && !kept.contains(&node) {
            return Duration::ZERO;
        }
        kept.insert(node);
        time
    }

    /// The kernel was told to keep the attributes of an inode for this time: if that came too late, it forgets them.
    pub(super) fn confirm(&self, node: INodeNo, time: Duration) {
        if self.copies.time_left() < time
            && let Some(forget) = self.forget.get()
        {
            forget(node);
        }
    }

    /// The kernel does not know the inode any more.
    pub(super) fn remove(&self, node: INodeNo) {
        self.lock().remove(&node);
    }
}

impl Keeper for KeptAttributes {
    /// No request is under way.
    fn revoke(&self, _: ByteRange) -> Dropped {
        let (kept, forget) = (std::mem::take(&mut *self.lock()), Arc::clone(&self.forget));
        Box::pin(async move {
            let Some(forget) = forget.get() else { return };
            for (count, node) in (1..).zip(kept) {
                forget(node);
                if count % ATTRIBUTES_FORGOTTEN_AT_ONCE == 0 {
                    tokio::task::yield_now().await;
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use base::clock::VirtualClock;
    use futures_util::FutureExt as _;

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    struct World {
        clock: VirtualClock,
        copies: Copies,
        kept: Arc<KeptAttributes>,
        forgotten: Arc<Mutex<Vec<u64>>>,
    }

    impl World {
        fn new() -> Self {
            let clock = VirtualClock::new();
            let copies = Copies::new(Arc::new(clock.clone()));
            let (kept, forgotten) = (KeptAttributes::of(copies.clone()), Arc::<Mutex<Vec<u64>>>::default());
            let noted = Arc::clone(&forgotten);
            let _ = kept.forget.set(Box::new(move |node| noted.lock().unwrap().push(node.0)));
            let world = Self { clock, copies, kept, forgotten };
            world.renew();
            world
        }

        fn renew(&self) {
            use base::clock::Clock as _;
            self.copies.allow_until(Some(self.clock.now() + LEASE));
        }

        fn forgotten(&self) -> Vec<u64> {
            std::mem::take(&mut *self.forgotten.lock().unwrap())
        }
    }

    #[test]
    fn what_the_kernel_keeps_ends_before_the_lease_does() {
        let world = World::new();
        for seconds in 0..12 {
            let left = LEASE.saturating_sub(Duration::from_secs(seconds));
            let time = world.kept.time(INodeNo(7));
            assert_eq!(time, left.saturating_sub(ATTRIBUTES_LEASE_MARGIN));
            assert!(time.is_zero() || time < left);
            world.clock.advance(Duration::from_secs(1));
        }
        world.copies.allow_until(None);
        assert_eq!(world.kept.time(INodeNo(7)), Duration::ZERO);
    }

    /// Each once, and only those.
    #[test]
    fn what_the_kernel_keeps_it_forgets_before_others_get_the_lock() {
        let world = World::new();
        for node in [7, 8, 7, 9] {
            assert!(!world.kept.time(INodeNo(node)).is_zero());
        }
        world.kept.remove(INodeNo(8));
        let all = ByteRange { offset: 0, length: u64::MAX };
        let mut released = world.copies.release(all);
        assert_eq!(world.forgotten(), []);
        assert!((&mut released).now_or_never().is_some());
        assert_eq!(world.forgotten(), [7, 9]);
        assert!(world.copies.clean(all).now_or_never().is_some());
        assert!(world.copies.release(all).now_or_never().is_some());
        assert_eq!(world.forgotten(), []);
    }

    /// The process was stopped between: the kernel counts the time from when it got the answer.
    #[test]
    fn what_comes_too_late_is_taken_back() {
        let world = World::new();
        let time = world.kept.time(INodeNo(7));
        world.clock.advance(ATTRIBUTES_LEASE_MARGIN);
        world.kept.confirm(INodeNo(7), time);
        assert_eq!(world.forgotten(), []);
        world.clock.advance(Duration::from_millis(1));
        world.kept.confirm(INodeNo(7), time);
        assert_eq!(world.forgotten(), [7]);
        world.renew();
        world.kept.confirm(INodeNo(7), time);
        assert_eq!(world.forgotten(), []);
    }

    #[test]
    fn the_kernel_keeps_so_many_and_no_more() {
        let world = World::new();
        (0..ATTRIBUTES_KEPT_MAX as u64).for_each(|node| assert!(!world.kept.time(INodeNo(node)).is_zero()));
        assert!(world.kept.time(INodeNo(u64::MAX)).is_zero() && !world.kept.time(INodeNo(0)).is_zero());
    }
}
