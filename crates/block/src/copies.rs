//! Copies of data that several hosts change: until when they may be used, and how their keepers are
//! asked to drop them.
//!
//! A shared device that hears of changes *before* they happen has [`Copies`]
//! ([`Device::copies`](crate::Device::copies)). A layer above that keeps data it read
//! - is a [`Keeper`] there, and drops what it is asked to drop: its copies, and data under way to
//!   it, which is returned to the waiting request and not kept. Every request submitted below
//!   before the call counts as under way;
//! - answers that by itself, and never by waiting for a request below: that one may wait for this
//!   answer;
//! - uses a copy only while [`Copies::may_use`] allows it, asked after the client's request came;
//! - keeps only data that it read, not data that it wrote: a write registers no copy at the device
//!   below. But data written under a grant it may keep as long as the grant lasts
//!   ([`grants`](crate::grants)).
//!
//! A layer that neither keeps copies nor changes their offsets passes these on as they are. A layer
//! that does not support them returns `None`: the code that stacks layers must not put it above a
//! shared device.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base::clock::{Clock, Instant};
use base::range::ByteRange;
use futures_util::future::join_all;

use crate::grants::Grants;

/// Completes when the copies are dropped.
pub type Dropped = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A layer that keeps copies.
pub trait Keeper: Send + Sync + 'static {
    /// Drops every copy of these bytes, those under way included. What the call itself does not do,
    /// the future does.
    fn revoke(&self, range: ByteRange) -> Dropped;

    /// Cleans these bytes: writes what is dirty to the device, durably, as long as it takes, and
    /// reports its progress ([`Grants::note_progress`]). All writes submitted before the call have
    /// ended; nothing becomes dirty there meanwhile.
    fn clean(&self, _range: ByteRange) -> Dropped {
        Box::pin(async {})
    }

    /// Whether anything of these bytes is dirty: the device lacks it.
    fn is_dirty(&self, _range: ByteRange) -> bool {
        false
    }
}

/// The keepers of copies of one device, and until when copies may be used.
#[derive(Clone)]
pub struct Copies(Arc<Shared>);

struct Shared {
    clock: Arc<dyn Clock>,
    /// Nanoseconds of the clock until which copies may be used.
    until: AtomicU64,
    /// `None` where no host may delay writes.
    grants: Option<Grants>,
    keepers: Mutex<Vec<Weak<dyn Keeper>>>,
}

impl Copies {
    /// Without keepers; no copy may be used before the device allows it.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::of(clock, None)
    }

    /// Likewise, for a device on which this host may hold ranges alone, in parts of `part_bytes`
    /// ([`WHOLE_DEVICE`](crate::grants::WHOLE_DEVICE): all of it, or nothing).
    pub fn with_grants(clock: Arc<dyn Clock>, part_bytes: u64) -> Self {
        let grants = Grants::new(Arc::clone(&clock), part_bytes);
        Self::of(clock, Some(grants))
    }

    fn of(clock: Arc<dyn Clock>, grants: Option<Grants>) -> Self {
        Self(Arc::new(Shared { clock, until: AtomicU64::new(0), grants, keepers: Mutex::new(Vec::new()) }))
    }

    /// Whether both are those of one client: what one allows or asks for, the other does.
    pub fn are_one(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The ranges that this host holds alone; `None` where no host may delay writes.
    pub fn grants(&self) -> Option<&Grants> {
        self.0.grants.as_ref()
    }

    /// Whether copies may be used now.
    pub fn may_use(&self) -> bool {
        self.0.clock.now().as_nanoseconds() < self.0.until.load(Ordering::Acquire)
    }

    /// How long copies may be used from now on, unless the device extends it.
    pub fn time_left(&self) -> Duration {
        let until = self.0.until.load(Ordering::Acquire);
        Duration::from_nanos(until.saturating_sub(self.0.clock.now().as_nanoseconds()))
    }

    /// Allows the use of copies until then, unless the device extends it; `None` forbids it. Called
    /// by the device.
    pub fn allow_until(&self, until: Option<Instant>) {
        self.0.until.store(until.map_or(0, Instant::as_nanoseconds), Ordering::Release);
    }

    /// Registers `keeper`, as long as it lives.
    pub fn add_keeper(&self, keeper: Weak<dyn Keeper>) {
        let mut keepers = self.0.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|keeper| keeper.strong_count() > 0);
        keepers.push(keeper);
    }

    fn keepers(&self) -> Vec<Arc<dyn Keeper>> {
        let keepers = self.0.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Asks all keepers to drop these bytes. Completes when they have.
    pub fn revoke(&self, range: ByteRange) -> Dropped {
        let dropped: Vec<Dropped> = self.keepers().iter().map(|keeper| keeper.revoke(range)).collect();
        Box::pin(async move {
            join_all(dropped).await;
        })
    }

    /// Lets all keepers clean these bytes, which no request uses any more. For a range held alone
    /// that was called back, and has the standing [`Leaving`](crate::grants::Standing::Leaving).
    pub fn clean(&self, range: ByteRange) -> Dropped {
        let copies = self.clone();
        Box::pin(async move {
            if let Some(grants) = copies.grants() {
                grants.unused(range).await;
            }
            let cleaned: Vec<Dropped> = copies.keepers().iter().map(|keeper| keeper.clean(range)).collect();
            join_all(cleaned).await;
        })
    }

    /// Does that, and has them drop these bytes.
    pub fn release(&self, range: ByteRange) -> Dropped {
        let copies = self.clone();
        Box::pin(async move {
            copies.clean(range).await;
            copies.revoke(range).await;
        })
    }

    /// Whether any keeper has dirty data of these bytes.
    pub fn are_dirty(&self, range: ByteRange) -> bool {
        self.keepers().iter().any(|keeper| keeper.is_dirty(range))
    }
}

#[cfg(test)]
mod tests {
    use base::clock::VirtualClock;
    use futures_util::FutureExt as _;

    use super::*;

    #[derive(Default)]
    struct Noting(Mutex<Vec<ByteRange>>);

    impl Keeper for Noting {
        fn revoke(&self, range: ByteRange) -> Dropped {
            self.0.lock().unwrap().push(range);
            Box::pin(async {})
        }
    }

    #[test]
    fn copies_may_be_used_until_the_time_that_the_device_says() {
        let clock = VirtualClock::new();
        let copies = Copies::new(Arc::new(clock.clone()));
        assert!(!copies.may_use());
        copies.allow_until(Some(clock.now() + Duration::from_secs(1)));
        clock.advance(Duration::from_millis(999));
        assert!(copies.may_use());
        assert_eq!(copies.time_left(), Duration::from_millis(1));
        clock.advance(Duration::from_millis(1));
        assert!(!copies.may_use());
        clock.advance(Duration::from_secs(1));
        assert_eq!(copies.time_left(), Duration::ZERO);
    }

    #[test]
    fn whoever_keeps_copies_is_asked_and_who_is_gone_is_not_waited_for() {
        let copies = Copies::new(Arc::new(VirtualClock::new()));
        let (stays, goes): (Arc<Noting>, Arc<Noting>) = Default::default();
        let (weak_stays, weak_goes) = (Arc::downgrade(&stays), Arc::downgrade(&goes));
        copies.add_keeper(weak_stays);
        copies.add_keeper(weak_goes);
        drop(goes);
        let range = ByteRange { offset: 512, length: 512 };
        assert_eq!(copies.revoke(range).now_or_never(), Some(()));
        assert_eq!(*stays.0.lock().unwrap(), [range]);
    }
}
