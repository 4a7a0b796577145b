//! What a mount does when another host asks for the lock: all of it becomes durable in its place,
//! and nothing of it stays in memory.

use std::sync::Arc;

use block::{ByteRange, Dropped, Keeper};

use crate::commit::Commit;
use crate::pins::Pins;
use crate::shared::Shared;

/// A mount, as the keeper of copies of its device.
pub(crate) struct Keeping<C, P> {
    shared: Arc<Shared<C, P>>,
}

impl<C: Commit, P: Pins> Keeping<C, P> {
    /// The keeper for a mount; it keeps as long as the result lives.
    pub(crate) fn begin(shared: &Arc<Shared<C, P>>) -> Option<Arc<Self>> {
        let lock = shared.lock_of_hosts()?;
        let keeping = Arc::new(Self { shared: Arc::clone(shared) });
        let keeper: Arc<dyn Keeper> = keeping.clone();
        lock.copies().add_keeper(Arc::downgrade(&keeper));
        Some(keeping)
    }
}

impl<C: Commit, P: Pins> Keeper for Keeping<C, P> {
    fn revoke(&self, range: ByteRange) -> Dropped {
        self.shared.forget_clean(range);
        Box::pin(async {})
    }

    /// Its requests have ended. The lock is not given up before this is done: an error is tried
    /// again, until the device's other end fences this host.
    fn clean(&self, _: ByteRange) -> Dropped {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let Some(lock) = shared.lock_of_hosts() else { return };
            while shared.bring_out().await.is_err() {
                // What conflicts with what others may have done is not for this device any more.
                if lock.check().is_err() {
                    return;
                }
                lock.pause().await;
            }
        })
    }

    /// What is committed is not: whoever has the lock next finds it in the redo area.
    fn is_dirty(&self, _: ByteRange) -> bool {
        self.shared.has_uncommitted()
    }
}
