//! A descriptor of its own for each durable write under way, so that each gets write-back errors.
//!
//! Linux reports a write-back error once to each open file (`errseq_t`), not to each call: of two
//! `RWF_DSYNC` writes at the same time on one descriptor, the first to look takes the error, and
//! the other returns as if its bytes were on the disk. So each durable write through the page cache
//! borrows an open file that no other uses meanwhile. After an error the idle ones are closed: they
//! would report it once more, to unrelated writes. Those in use stay open, and get it.
//!
//! Such a descriptor was opened after writes by others, and does not get errors that were reported
//! before. So it serves for a write's own bytes only. Flushes are made one at a time on the
//! device's own descriptor, which was open before all writes.
//!
//! Past the page cache none of this is needed: errors come back with the write.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};

/// The open files that durable writes borrow.
#[derive(Default)]
pub(crate) struct SyncFiles {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<SyncFile>,
    /// Grows with each error.
    generation: u64,
}

/// A borrowed open file.
pub(crate) struct SyncFile {
    pub(crate) file: File,
    generation: u64,
}

impl SyncFiles {
    /// An open file of `file` for one user; `None` where the process may open no more, and the
    /// caller uses the device's.
    pub(crate) fn take(&self, file: &File) -> Option<SyncFile> {
        let mut state = self.lock();
        if let Some(idle) = state.idle.pop() {
            return Some(idle);
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Ok(descriptor) => Some(SyncFile { file: File::from(descriptor), generation: state.generation }),
            Err(errno) => {
                drop(state);
                tracing::warn!(
                    "a durable write shares its descriptor with others, and an error may be told to one of them only: \
                     {errno}"
                );
                None
            }
        }
    }

    /// Returns an open file after its write.
    pub(crate) fn give_back(&self, file: SyncFile, has_failed: bool) {
        let mut state = self.lock();
        if has_failed {
            state.generation += 1;
            state.idle.clear();
        } else if file.generation == state.generation {
            state.idle.push(file);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle_count(files: &SyncFiles) -> usize {
        files.lock().idle.len()
    }

    #[test]
    fn each_write_has_a_file_of_its_own_and_an_error_closes_the_idle_ones() {
        let file = tempfile::tempfile().unwrap();
        let files = SyncFiles::default();
        let [first, second, third] = [(); 3].map(|()| files.take(&file).expect("there are descriptors"));
        let numbers = [&first, &second, &third].map(|one| one.file.as_raw_fd());
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2]);
        files.give_back(first, false);
        assert_eq!(idle_count(&files), 1);
        let again = files.take(&file).expect("there is one");
        assert_eq!(again.file.as_raw_fd(), numbers[0], "it is lent again");
        files.give_back(again, false);
        files.give_back(second, true);
        assert_eq!(idle_count(&files), 0);
        files.give_back(third, false);
        assert_eq!(idle_count(&files), 0, "it was open when the error came, and would tell of it");
    }
}
