//! The cache as the keeper of copies of an origin that several hosts share: what it does with a range that other hosts
//! ask back.
//!
//! A *revoked* range, which other hosts are about to change, is forgotten at once, without waiting
//! for requests: the origin may hold those up until the copy is dropped. See
//! [`revocations`](crate::revocations). A range that is called back is cleaned first.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use base::range::ByteRange;
use block::{Copies, Dropped, Keeper};

use crate::core::Core;
use crate::limits::GRANT_PAUSE_MS;

impl Keeper for Core {
    fn revoke(&self, range: ByteRange) -> Dropped {
        let range = self.origin.inside(range);
        // In this order: an insertion holds its lines and checks for revocations, so it either sees
        // this one or its lines are forgotten below.
        self.revocations.note(range);
        self.lines.forget_clean(range);
        Box::pin(async {})
    }

    fn clean(&self, range: ByteRange) -> Dropped {
        let range = self.origin.inside(range);
        let Some(core) = self.itself.upgrade() else { return Box::pin(async {}) };
        Box::pin(async move {
            // It is not known yet whether other hosts wrote over data that was dirty before this
            // open.
            while core.cleaner.is_held() && !core.life.is_stopped() {
                core.clock.sleep(Duration::from_millis(GRANT_PAUSE_MS)).await;
            }
            let cleaning = Arc::clone(&core);
            let progress = move || {
                if let Some(grants) = cleaning.revocations.copies().and_then(Copies::grants) {
                    grants.note_progress();
                }
            };
            // After a close the rest is dirty on the cache device; the next open handles it. Until
            // then the range is never given up: another host may own it by now.
            if core.clean_range(range, progress).await.is_err() && !core.life.has_ended() {
                pending::<()>().await;
            }
        })
    }

    fn is_dirty(&self, range: ByteRange) -> bool {
        !self.life.has_ended() && self.lines.has_dirty(self.origin.inside(range))
    }
}
