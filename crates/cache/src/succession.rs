//! The successor of a cache, as the cache itself has to know it: the successor forgets what changes
//! here. See [`replace`](crate::replace).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::range::ByteRange;
use serde::Serialize;

use crate::alignment::{inside, outside};
use crate::journal::Journal;

/// Progress of the copying to a successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopyProgress {
    /// Lines that were here when it began.
    pub lines_total: u64,
    /// Lines of these that were copied or passed over.
    pub lines_done: u64,
}

/// A successor, while there is one.
#[derive(Default)]
pub(crate) struct Succession {
    /// Whether there is one, readable without the lock. A request that is on a line when this
    /// changes holds its range lock, and the copy of the line waits for that.
    has_successor: AtomicBool,
    /// Short sections, never across an await or together with another lock.
    copying: Mutex<Option<Copying>>,
}

struct Copying {
    journal: Arc<Journal>,
    /// Padding of the successor; see `alignment`.
    padding: u64,
    progress: Option<CopyProgress>,
}

impl Succession {
    fn copying(&self) -> MutexGuard<'_, Option<Copying>> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `tell` makes the cache with this journal and padding forget what changes.
    pub(crate) fn begin(&self, journal: &Arc<Journal>, padding: u64) {
        *self.copying() = Some(Copying { journal: Arc::clone(journal), padding, progress: None });
        self.has_successor.store(true, Ordering::Release);
    }

    /// Notes the progress of the copying.
    pub(crate) fn note_progress(&self, progress: CopyProgress) {
        if let Some(copying) = &mut *self.copying() {
            copying.progress = Some(progress);
        }
    }

    /// Progress of the copying; `None` when nothing was copied.
    pub(crate) fn progress(&self) -> Option<CopyProgress> {
        self.copying().as_ref().and_then(|copying| copying.progress)
    }

    /// Ends the succession. Returns the successor's journal, if there was one.
    pub(crate) fn end(&self) -> Option<Arc<Journal>> {
        self.has_successor.store(false, Ordering::Release);
        self.copying().take().map(|copying| copying.journal)
    }

    /// Makes the successor, if there is one, forget `range`, which is about to change here.
    /// `padding` is that of the caller's cache. The caller keeps others out of the range.
    pub(crate) async fn tell(&self, range: ByteRange, padding: u64) {
        if !self.has_successor.load(Ordering::Acquire) {
            return;
        }
        let copying = self.copying().as_ref().map(|copying| (Arc::clone(&copying.journal), copying.padding));
        let Some((journal, successor_padding)) = copying else { return };
        let range = inside(outside(range, padding), successor_padding);
        if let Err(error) = journal.prepare_supersede(range).await {
            tracing::warn!(%error, "the cache that was to take the place of this one failed");
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;

    use super::*;
    use crate::crash_mode::CrashMode;
    use crate::journal::tests::{lines_of, made};
    use crate::lines::tests::{put, valid};
    use crate::sectors::Sectors;

    #[test]
    fn a_successor_forgets_what_changes_where_its_own_lines_begin_until_it_is_told_no_more() {
        let mut executor = Executor::in_order();
        let (_device, journal) = made(&mut executor, CrashMode::DirtySynchronous);
        let frame = put(lines_of(&journal), 1, 0xff, 0);
        let succession = Arc::new(Succession::default());
        let mut tell = |sector: u64| {
            let succession = Arc::clone(&succession);
            executor.block_on(async move {
                // Offset in a cache with a padding of one sector.
                succession.tell(ByteRange { offset: (sector + 1) * 512, length: 512 }, 512).await;
            });
            valid(lines_of(&journal), frame)
        };
        assert_eq!(tell(6), Sectors::from_bytes(&[0xff]), "nobody is told");
        succession.begin(&journal, 1024);
        assert_eq!(tell(6), Sectors::from_bytes(&[0xfe]));
        assert!(succession.end().is_some_and(|ended| Arc::ptr_eq(&ended, &journal)));
        assert_eq!((tell(7), succession.progress()), (Sectors::from_bytes(&[0xfe]), None));
    }
}
