//! The open directories of a mount, each listed as it was when it was read from its beginning.
//!
//! A new name may move others to other places in a directory, so no place in it tells how far a program has got.
//! Therefore all names are read at once when position 0 is asked for, and a position is an index among them. Names
//! that came since are not told, and those that went may be, until the program goes back to the beginning, as
//! `readdir` of POSIX allows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ext2::{DirectoryEntry, Error, ErrorKind, FileType, InodeNumber};
use fuser::FileHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The open directories.
pub(super) struct Listings {
    /// Short sections, never across an await.
    open: Mutex<Open>,
    /// A permit for each byte that all listings together may keep.
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Open {
    /// `None` until it is read.
    directories: BTreeMap<FileHandle, Option<Arc<Listing>>>,
    last: u64,
}

/// The names of a directory as of one moment.
#[derive(Default)]
pub(super) struct Listing {
    entries: Vec<Entry>,
    /// One behind the other.
    names: Vec<u8>,
    /// A permit for each byte of both.
    permit: Option<OwnedSemaphorePermit>,
}

struct Entry {
    /// Of its name among the names.
    end: u32,
    inode: InodeNumber,
    file_type: Option<FileType>,
}

impl Listings {
    /// `bytes_max`: of all listings together.
    pub(super) fn new(bytes_max: u32) -> Self {
        Self { open: Mutex::default(), room: Arc::new(Semaphore::new(bytes_max as usize)) }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A directory is opened.
    pub(super) fn open(&self) -> FileHandle {
        let mut open = self.lock();
        open.last += 1;
        let handle = FileHandle(open.last);
        open.directories.insert(handle, None);
        handle
    }

    /// It is closed: its listing is freed.
    pub(super) fn close(&self, handle: FileHandle) {
        self.lock().directories.remove(&handle);
    }

    /// What is kept of an open directory.
    pub(super) fn get(&self, handle: FileHandle) -> Option<Arc<Listing>> {
        self.lock().directories.get(&handle)?.clone()
    }

    /// Frees what is kept of an open directory: it is read anew.
    pub(super) fn forget(&self, handle: FileHandle) {
        drop(self.replace(handle, None));
    }

    /// Keeps the listing of an open directory.
    pub(super) fn keep(&self, handle: FileHandle, mut listing: Listing) -> Arc<Listing> {
        listing.entries.shrink_to_fit();
        listing.names.shrink_to_fit();
        let listing = Arc::new(listing);
        drop(self.replace(handle, Some(Arc::clone(&listing))));
        listing
    }

    /// Returns the former one, to be freed without the lock.
    fn replace(&self, handle: FileHandle, listing: Option<Arc<Listing>>) -> Option<Arc<Listing>> {
        let mut open = self.lock();
        std::mem::replace(open.directories.get_mut(&handle)?, listing)
    }

    /// Adds an entry to a listing that is read.
    ///
    /// # Errors
    /// `NoMemory` when all listings together have as many bytes as they may have.
    pub(super) fn add(&self, listing: &mut Listing, entry: DirectoryEntry<'_>) -> Result<(), Error> {
        let bytes = size_of::<Entry>() + entry.name.len();
        let Ok(permit) = Arc::clone(&self.room).try_acquire_many_owned(bytes as u32) else {
            let count = listing.entries.len();
            let context =
                format!("no memory for more than {count} names of a directory, beside those that others list");
            return Err(Error::new(ErrorKind::NoMemory, context));
        };
        match &mut listing.permit {
            Some(all) => all.merge(permit),
            None => listing.permit = Some(permit),
        }
        listing.names.extend_from_slice(entry.name);
        let end = listing.names.len() as u32;
        listing.entries.push(Entry { end, inode: entry.inode, file_type: entry.file_type });
        Ok(())
    }
}

impl Listing {
    /// The entries from `position` on, each with the position of the next.
    pub(super) fn from(&self, position: u64) -> impl Iterator<Item = (u64, DirectoryEntry<'_>)> {
        let first = usize::try_from(position).unwrap_or(usize::MAX).min(self.entries.len());
        let begin = first.checked_sub(1).map_or(0, |before| self.entries[before].end);
        let ends = self.entries[first..].iter().map(|entry| entry.end);
        let begins = std::iter::once(begin).chain(ends);
        self.entries[first..].iter().zip(begins).zip(1..).map(move |((entry, begin), count)| {
            let name = &self.names[begin as usize..entry.end as usize];
            (first as u64 + count, DirectoryEntry { name, inode: entry.inode, file_type: entry.file_type })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> DirectoryEntry<'_> {
        DirectoryEntry { name: name.as_bytes(), inode: InodeNumber(12), file_type: Some(FileType::Regular) }
    }

    fn listing(listings: &Listings, names: &[&str]) -> Result<Listing, ErrorKind> {
        let mut listing = Listing::default();
        for name in names {
            listings.add(&mut listing, entry(name)).map_err(|error| error.kind())?;
        }
        Ok(listing)
    }

    fn names(listing: &Listing, position: u64) -> Vec<(u64, &str)> {
        listing.from(position).map(|(next, entry)| (next, str::from_utf8(entry.name).unwrap())).collect()
    }

    #[test]
    fn a_position_is_an_index_among_the_names_and_any_number_is_one() {
        let listings = Listings::new(1000);
        let listing = listing(&listings, &["a", "bcd", "ef"]).unwrap();
        assert_eq!(names(&listing, 0), [(1, "a"), (2, "bcd"), (3, "ef")]);
        assert_eq!(names(&listing, 2), [(3, "ef")]);
        assert_eq!(names(&listing, 3), []);
        assert_eq!(names(&listing, u64::MAX), []);
    }

    #[test]
    fn all_listings_together_have_so_many_bytes_and_closing_a_directory_frees_its_own() {
        let of_each = (size_of::<Entry>() + 1) as u32;
        let listings = Listings::new(4 * of_each);
        let handles = [listings.open(), listings.open()];
        for handle in handles {
            listings.keep(handle, listing(&listings, &["a", "b"]).unwrap());
        }
        assert_eq!(listing(&listings, &["a"]).err(), Some(ErrorKind::NoMemory));
        listings.close(handles[0]);
        assert_eq!(names(&listings.get(handles[1]).unwrap(), 1), [(2, "b")]);
        listings.forget(handles[1]);
        assert!(listing(&listings, &["a", "b", "c", "d"]).is_ok());
        assert_eq!(listing(&listings, &["a", "b", "c", "d", "e"]).err(), Some(ErrorKind::NoMemory));
        assert_eq!(listings.room.available_permits(), 4 * of_each as usize);
    }

    #[test]
    fn what_is_read_for_a_directory_that_was_closed_meanwhile_is_not_kept() {
        let listings = Listings::new(1000);
        let handle = listings.open();
        let read = listing(&listings, &["a"]).unwrap();
        listings.close(handle);
        drop(listings.keep(handle, read));
        assert!(listings.get(handle).is_none());
        assert_eq!(listings.room.available_permits(), 1000);
    }
}
