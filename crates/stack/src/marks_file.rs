//! The change marks of a file or block device LUN, kept beside its sidecar (format: `docs/formats/change-marks.md`).
//!
//! Every page stands alone, with a checksum. A damaged or torn page counts as *changed*: the page
//! of a mark as a missing mark, the page of a part of its bits as all bits set. So a write that is
//! cut by a power loss loses no change, whatever is left of it.
//!
//! When the LUN's file is closed in order, its size and change time are noted: a file that another
//! program changed since counts as changed everywhere. The time is that of its status (ctime),
//! which no program can set back. After a crash of the target they are not known, and not checked.
//!
//! Which file is served is noted meanwhile, and checked after a crash as well: marks are void for a
//! file that took the place of that one. Its inode alone does not tell: file systems give the number
//! of a removed file to the next one, and a copy of a directory in another file system may have the
//! same numbers. So the time of its birth, which no program can set, and the id of the file system
//! are noted with it.
//!
//! | part | holds |
//! |---|---|
//! | `page` | the pages, as bytes |
//! | `served_file` | what tells the file that is served from another, and from what it was |

mod page;
mod served_file;

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use logical_unit::change_marks::{ChangeStore, MarkUpdate, SavedMarks, Saving};

use self::page::{FILE_BYTES_MAX, HeaderRaw, PAGE_BYTES, Page, header_page, marks_in, opened, page_of};
use self::served_file::{FileBirth, Stamp};

use crate::error::{Error, Result};
use crate::record_file::sync_directory_of;
use crate::regular_file;

pub use self::served_file::FoundFile;

/// The marks of one LUN, in a file of their own, which is made with the first of them.
pub struct MarksFile {
    shared: Arc<Shared>,
    /// The LUN's file or block device.
    lun: PathBuf,
}

struct Shared {
    path: PathBuf,
    serial: String,
    range_bytes: u32,
    /// The LUN's file, as in the header.
    birth: FileBirth,
    /// Held while something is written.
    file: Mutex<Option<File>>,
}

impl MarksFile {
    /// The marks kept at `path` for the LUN with this serial number, whose ranges have `range_bytes`, and what is
    /// there. `found` is its file, which is open by now. Marks of another LUN, of other ranges, of another file, or of
    /// one that was changed since it was closed are removed.
    ///
    /// # Errors
    /// When the file exists and cannot be read or written: changes could not be recorded then.
    pub fn open(path: PathBuf, serial: &str, range_bytes: u32, found: FoundFile) -> Result<(Self, SavedMarks)> {
        let birth = FileBirth::of(&found.path);
        let shared = Shared { path, serial: serial.to_owned(), range_bytes, birth, file: Mutex::default() };
        let marks = Self { shared: Arc::new(shared), lun: found.path.clone() };
        let context = |error: &std::io::Error| Error::io(format!("cannot use {}", marks.shared.path.display()), error);
        let bytes = match regular_file::read(&marks.shared.path, FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((marks, SavedMarks::default())),
            // What is no file of ours is void, as one with nothing in it.
            Err(error) if error.kind() == ErrorKind::InvalidData => Vec::new(),
            Err(error) => return Err(context(&error)),
        };
        let is_same = found.birth == birth || found.birth == FileBirth::default();
        let replaced = "the LUN's file was replaced while it was opened";
        if let Err(why) = marks.check(&bytes, &found).and_then(|()| is_same.then_some(()).ok_or(replaced)) {
            tracing::warn!("the change marks in {} are void: {why}", marks.shared.path.display());
            marks.shared.remove().map_err(|error| context(&error))?;
            return Ok((marks, SavedMarks::default()));
        }
        let page = header_page(serial, range_bytes, birth, None);
        marks.shared.write(&[(0, page)]).map_err(|error| context(&error))?;
        Ok((marks, marks_in(&bytes)))
    }

    /// Whether these marks fit the LUN in its present state.
    fn check(&self, bytes: &[u8], found: &FoundFile) -> std::result::Result<(), &'static str> {
        let header: HeaderRaw = opened(bytes, 0).ok_or("their first page is damaged, or of another version")?;
        if !header.is_of(&self.shared.serial) {
            return Err("they are another LUN's");
        }
        if header.range_bytes() != self.shared.range_bytes {
            return Err("the size of the LUN has changed");
        }
        if !header.birth().may_be(&found.birth) {
            return Err("the LUN's file is another one than was served");
        }
        if header.closed().is_some_and(|was| found.stamp != Some(was)) {
            return Err("the LUN's file was changed while it was not served");
        }
        Ok(())
    }

    /// The store for the unit's marks.
    pub fn store(&self) -> Arc<dyn ChangeStore> {
        Arc::new(Store(Arc::clone(&self.shared)))
    }

    /// Notes size and time of the LUN's file, which nothing changes any more. No effect for a LUN
    /// without marks. Where another file has taken its place, or there is none, removes the marks.
    ///
    /// # Errors
    /// When the note cannot be written: the next start does not check the file then.
    pub fn note_closed(&self) -> Result<()> {
        let shared = &self.shared;
        if shared.birth.inode == 0 || !shared.path.exists() {
            return Ok(());
        }
        let noted = match Stamp::of(&self.lun).filter(|_| FileBirth::of(&self.lun) == shared.birth) {
            Some(stamp) => {
                shared.write(&[(0, header_page(&shared.serial, shared.range_bytes, shared.birth, Some(stamp)))])
            }
            None => {
                let (marks, lun) = (shared.path.display(), self.lun.display());
                tracing::warn!("the change marks in {marks} are void: {lun} is not the file that was served");
                shared.remove()
            }
        };
        noted.map_err(|error| Error::io(format!("cannot write {}", shared.path.display()), &error))
    }
}

impl Shared {
    /// Writes pages, durably.
    fn write(&self, pages: &[(u32, Box<Page>)]) -> std::io::Result<()> {
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &mut *slot {
            Some(file) => file,
            none => none.insert(self.open_or_make()?),
        };
        for (place, page) in pages {
            file.write_all_at(&page[..], u64::from(*place) * PAGE_BYTES as u64)?;
        }
        file.sync_data()
    }

    /// Removes them for good: after a crash nothing would tell any more that they are void.
    fn remove(&self) -> std::io::Result<()> {
        fs::remove_file(&self.path)?;
        sync_directory_of(&self.path)
    }

    fn open_or_make(&self) -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        match options.open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => return opened,
        }
        let file = options.create_new(true).open(&self.path)?;
        file.write_all_at(&header_page(&self.serial, self.range_bytes, self.birth, None)[..], 0)?;
        file.sync_all()?;
        sync_directory_of(&self.path)?;
        Ok(file)
    }
}

/// A store that saves on a thread for blocking calls: one durable write, for which commands wait.
struct Store(Arc<Shared>);

impl ChangeStore for Store {
    fn save(&self, updates: Vec<MarkUpdate>) -> Saving {
        let shared = Arc::clone(&self.0);
        let written = tokio::task::spawn_blocking(move || {
            base::background::turn("marks-file");
            let pages = updates.iter().map(page_of).collect::<std::result::Result<Vec<_>, String>>()?;
            shared.write(&pages).map_err(|error| format!("cannot write {}: {error}", shared.path.display()))
        });
        Box::pin(async move { written.await.unwrap_or_else(|error| Err(error.to_string())) })
    }
}

#[cfg(test)]
mod tests {
    use super::page::tests::{mark, part};
    use super::*;

    fn save(marks: &MarksFile, update: MarkUpdate) {
        let (place, page) = page_of(&update).unwrap();
        marks.shared.write(&[(place, page)]).unwrap();
    }

    #[test]
    fn marks_stay_with_their_lun_as_long_as_its_file_is_what_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let (lun, path) = (directory.path().join("lun"), directory.path().join("lun.forebay-marks"));
        fs::write(&lun, "x").unwrap();
        let open = |serial: &str, range_bytes| {
            let opened = MarksFile::open(path.clone(), serial, range_bytes, FoundFile::at(&lun)).unwrap();
            (opened.0, opened.1.marks.len())
        };
        let make = || {
            let (marks, count) = open("s1", 1 << 20);
            assert_eq!(count, 0);
            save(&marks, MarkUpdate::Mark { slot: 2, mark: Some(mark(false)) });
            marks
        };
        let marks = make();
        // A crash: no note was written.
        drop(marks);
        fs::write(&lun, "xy").unwrap();
        let (marks, count) = open("s1", 1 << 20);
        assert_eq!(count, 1, "after a crash that is not checked");
        marks.note_closed().unwrap();
        assert_eq!(open("s1", 1 << 20).1, 1);
        open("s1", 1 << 20).0.note_closed().unwrap();
        fs::write(&lun, "xyz").unwrap();
        assert_eq!(open("s1", 1 << 20).1, 0, "it was changed while it was not served");
        assert!(!path.exists());
        drop(make());
        assert_eq!(open("s2", 1 << 20).1, 0, "another LUN");
        drop(make());
        assert_eq!(open("s1", 2 << 20).1, 0, "other ranges");
        drop(make());
        let mut bytes = fs::read(&path).unwrap();
        bytes[60] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(open("s1", 1 << 20).1, 0, "a damaged header");
    }

    /// A start does not wait for somebody who opens the other end of the pipe, nor for the end of a device.
    #[test]
    fn what_is_no_file_in_the_place_of_marks_is_void_and_removed_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let (lun, path) = (directory.path().join("lun"), directory.path().join("lun.forebay-marks"));
        fs::write(&lun, "x").unwrap();
        let open = || MarksFile::open(path.clone(), "s1", 1 << 20, FoundFile::at(&lun)).unwrap().1.marks.len();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!((open(), path.exists()), (0, false));
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!((open(), path.exists()), (0, false));
    }

    /// While the one was served, or after a crash: with the same name, size and time as far as can be.
    #[test]
    fn marks_say_nothing_of_a_file_that_took_the_place_of_theirs() {
        let directory = tempfile::tempdir().unwrap();
        let (lun, path) = (directory.path().join("lun"), directory.path().join("lun.forebay-marks"));
        let open = || MarksFile::open(path.clone(), "s1", 1 << 20, FoundFile::at(&lun)).unwrap();
        let make = || {
            fs::write(&lun, "x").unwrap();
            let (marks, found) = open();
            assert_eq!(found.marks.len(), 0);
            save(&marks, MarkUpdate::Mark { slot: 2, mark: Some(mark(false)) });
            marks
        };
        let replace = || {
            fs::write(directory.path().join("new"), "y").unwrap();
            fs::rename(directory.path().join("new"), &lun).unwrap();
        };
        let marks = make();
        replace();
        marks.note_closed().unwrap();
        assert_eq!(open().1.marks.len(), 0, "replaced while it was served");
        let marks = make();
        replace();
        drop(marks);
        assert_eq!(open().1.marks.len(), 0, "replaced, and the target was killed");
        let marks = make();
        fs::remove_file(&lun).unwrap();
        marks.note_closed().unwrap();
        fs::write(&lun, "y").unwrap();
        assert_eq!(open().1.marks.len(), 0, "removed while it was served, and another one made");
        make().note_closed().unwrap();
        assert_eq!(open().1.marks.len(), 1, "it is the same");
    }

    #[test]
    fn marks_say_nothing_of_a_file_that_was_replaced_while_it_was_opened() {
        let directory = tempfile::tempdir().unwrap();
        let (lun, path) = (directory.path().join("lun"), directory.path().join("lun.forebay-marks"));
        let open = |found| MarksFile::open(path.clone(), "s1", 1 << 20, found).unwrap();
        fs::write(&lun, "x").unwrap();
        let (marks, _) = open(FoundFile::at(&lun));
        save(&marks, MarkUpdate::Mark { slot: 2, mark: Some(mark(false)) });
        marks.note_closed().unwrap();
        let found = FoundFile::at(&lun);
        fs::write(directory.path().join("new"), "y").unwrap();
        fs::rename(directory.path().join("new"), &lun).unwrap();
        assert_eq!(open(found).1.marks.len(), 0);
    }

    /// The target was killed, the image is removed and a copy of it made in its place, which file systems give the same
    /// number.
    #[test]
    fn an_image_that_was_made_anew_with_the_same_inode_has_changed_everywhere() {
        let directory = tempfile::tempdir().unwrap();
        let (lun, path) = (directory.path().join("lun"), directory.path().join("lun.forebay-marks"));
        fs::write(&lun, "x").unwrap();
        let open = || MarksFile::open(path.clone(), "s1", 1 << 20, FoundFile::at(&lun)).unwrap();
        let (marks, _) = open();
        save(&marks, MarkUpdate::Mark { slot: 2, mark: Some(mark(false)) });
        drop(marks);
        assert_eq!(open().1.marks.len(), 1, "nothing has happened to it");
        let was = FileBirth::of(&lun);
        assert!(was.inode != 0 && was.file_system != 0, "{was:?}");
        // Clocks of file systems are coarse.
        std::thread::sleep(std::time::Duration::from_millis(50));
        fs::remove_file(&lun).unwrap();
        fs::write(&lun, "y").unwrap();
        let is = FileBirth::of(&lun);
        // Where births are not told, and the number is the same, nothing tells the two apart.
        if is.born_seconds == 0 && is.inode == was.inode {
            return;
        }
        assert_ne!(is, was);
        assert_eq!(open().1.marks.len(), 0);
    }

    /// Its writes change the time of the file, and so does whoever writes to it later: only what is noted at its end
    /// can be held against it.
    #[test]
    fn marks_that_were_closed_in_order_and_opened_again_outlive_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let (lun, path) = (directory.path().join("lun"), directory.path().join("lun.forebay-marks"));
        fs::write(&lun, "x").unwrap();
        let open = || MarksFile::open(path.clone(), "s1", 1 << 20, FoundFile::at(&lun)).unwrap();
        let (marks, _) = open();
        save(&marks, MarkUpdate::Mark { slot: 2, mark: Some(mark(false)) });
        marks.note_closed().unwrap();
        drop(open());
        fs::write(&lun, "xy").unwrap();
        assert_eq!(open().1.marks.len(), 1);
    }

    /// A device that accepts writes and cannot sync them: its content after a power loss is not
    /// known.
    #[test]
    fn a_mark_is_saved_only_when_it_is_synced() {
        let directory = tempfile::tempdir().unwrap();
        let (lun, path) = (directory.path().join("lun"), directory.path().join("lun.forebay-marks"));
        let (marks, _) = MarksFile::open(path.clone(), "s1", 1 << 20, FoundFile::at(&lun)).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let (place, page) = page_of(&part(&[(3, 0x10)])).unwrap();
        let error = marks.shared.write(&[(place, page)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "fsync of it is refused: {error}");
    }
}
