//! Copies of what several hosts change: until when they may be used, and how who keeps some is asked to drop them.
//!
//! A device that is shared and told of changes *before* they happen has [`Copies`]
//! ([`Device::copies`](crate::Device::copies)). A layer above that keeps what it read
//! - is a [`Keeper`] there, and drops what it is asked to drop: what it has, and what of it is on its way to it, which
//!   goes to whoever waits for it and is not kept. Whatever was submitted below before the call counts as on its way;
//! - answers that for itself, and never by waiting for a request below: that one may wait for this answer;
//! - uses a copy only while [`Copies::may_use`] says so, asked after the request for it came;
//! - keeps only what it read, not what it wrote: a write does not tell the device below that there is a copy. But
//!   what it wrote under a grant it may keep as long as that lasts ([`grants`](crate::grants)).
//!
//! A layer that neither keeps copies nor changes their places passes these on as they are. One that does not know of
//! them says that there are none: a shared device must not be below it, which is for whoever stacks them to see to.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use base::clock::{Clock, Instant};
use base::range::ByteRange;
use futures_util::future::join_all;

use crate::grants::Grants;

/// Ends when copies are dropped.
pub type Dropped = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Who keeps copies.
pub trait Keeper: Send + Sync + 'static {
    /// Drops every copy of these bytes, those on their way included. What the call has not done the future does.
    fn revoke(&self, range: ByteRange) -> Dropped;

    /// Brings what is dirty of these bytes to the device, durably, as long as it takes, and tells of its progress
    /// ([`Grants::note_progress`]). What was written before the call has ended; nothing is made dirty there meanwhile.
    fn clean(&self, _range: ByteRange) -> Dropped {
        Box::pin(async {})
    }

    /// Whether anything of these bytes is dirty: the device lacks it.
    fn is_dirty(&self, _range: ByteRange) -> bool {
        false
    }
}

/// The copies of one device's data that are kept above it.
#[derive(Clone)]
pub struct Copies(Arc<Shared>);

struct Shared {
    clock: Arc<dyn Clock>,
    /// Nanoseconds of the clock until which copies may be used.
    until: AtomicU64,
    /// None where nobody may delay writes.
    grants: Option<Grants>,
    keepers: Mutex<Vec<Weak<dyn Keeper>>>,
}

impl Copies {
    /// Nobody keeps any yet, and none may be used before the device says so.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::of(clock, None)
    }

    /// The same of a device of which this host may hold ranges of so many bytes alone.
    pub fn with_grants(clock: Arc<dyn Clock>, part_bytes: u64) -> Self {
        let grants = Grants::new(Arc::clone(&clock), part_bytes);
        Self::of(clock, Some(grants))
    }

    fn of(clock: Arc<dyn Clock>, grants: Option<Grants>) -> Self {
        Self(Arc::new(Shared { clock, until: AtomicU64::new(0), grants, keepers: Mutex::new(Vec::new()) }))
    }

    /// What this host holds alone; none where nobody may delay writes.
    pub fn grants(&self) -> Option<&Grants> {
        self.0.grants.as_ref()
    }

    /// Whether copies may be used now.
    pub fn may_use(&self) -> bool {
        self.0.clock.now().as_nanoseconds() < self.0.until.load(Ordering::Acquire)
    }

    /// Copies may be used until then, where the device is not asked again; `None` for not at all. The device's to say.
    pub fn allow_until(&self, until: Option<Instant>) {
        self.0.until.store(until.map_or(0, Instant::as_nanoseconds), Ordering::Release);
    }

    /// `keeper` keeps copies, as long as it lives.
    pub fn add_keeper(&self, keeper: Weak<dyn Keeper>) {
        let mut keepers = self.0.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|keeper| keeper.strong_count() > 0);
        keepers.push(keeper);
    }

    fn keepers(&self) -> Vec<Arc<dyn Keeper>> {
        let keepers = self.0.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Asks all keepers to drop these bytes. What it returns ends when they have.
    pub fn revoke(&self, range: ByteRange) -> Dropped {
        let dropped: Vec<Dropped> = self.keepers().iter().map(|keeper| keeper.revoke(range)).collect();
        Box::pin(async move {
            join_all(dropped).await;
        })
    }

    /// Lets all keepers clean these bytes, which nobody uses any more by then, and drop them. For what is held alone
    /// and called back, which stands as [`Leaving`](crate::grants::Standing::Leaving).
    pub fn release(&self, range: ByteRange) -> Dropped {
        let copies = self.clone();
        Box::pin(async move {
            if let Some(grants) = copies.grants() {
                grants.unused(range).await;
            }
            let cleaned: Vec<Dropped> = copies.keepers().iter().map(|keeper| keeper.clean(range)).collect();
            join_all(cleaned).await;
            copies.revoke(range).await;
        })
    }

    /// Whether any keeper has something dirty of these bytes.
    pub fn are_dirty(&self, range: ByteRange) -> bool {
        self.keepers().iter().any(|keeper| keeper.is_dirty(range))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        clock.advance(Duration::from_millis(1));
        assert!(!copies.may_use());
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
