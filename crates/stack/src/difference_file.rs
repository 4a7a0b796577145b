//! The file of a difference while it is used: nobody else has what it holds.
//!
//! | the file | reads of it | writes, flushes | the end |
//! |---|---|---|---|
//! | was cut, or holes were made in it | fail | fail | an error; refused from then on |
//! | was removed, or another was put over it | go on | fail | refused by `detach`: what it holds can still be copied |
//! | was moved away | go on | go on | an error; refused until it is back |
//!
//! The device of the file finds the first two out, with a read or a flush. The name is looked at from
//! time to time. What is found is [noted](crate::difference_note) before anybody is told of an error.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use block::ErrorKind;
use block::device::DeviceExt;
use difference::Difference;
use file::FileLoss;
use uuid::Uuid;

use crate::content::uuid_at;
use crate::difference_note::{DifferenceNote, Fate};
use crate::error::Result;
use crate::limits::WATCH_INTERVAL;
use crate::place::Place;

/// The file of a difference that is used.
pub(crate) struct DifferenceFile {
    place: Place,
    /// The name of the attachment.
    name: String,
    note: DifferenceNote,
    uuid: Uuid,
    /// Device and inode; `None` for a block device, whose name may change.
    inode: Option<(u64, u64)>,
    difference: Weak<Difference>,
    /// Held while the fate changes, here and in the note; never across an await.
    noting: Mutex<()>,
    /// Short sections, never across an await.
    fate: Mutex<Option<Fate>>,
}

impl DifferenceFile {
    /// The file at `place`, which `difference` has open.
    pub(crate) fn new(difference: &Arc<Difference>, place: &Place, name: &str, note: DifferenceNote) -> Arc<Self> {
        let file = Arc::new(Self {
            place: place.clone(),
            name: name.to_owned(),
            note,
            uuid: uuid_at(place).unwrap_or_default(),
            inode: fs::metadata(&place.path).ok().filter(fs::Metadata::is_file).map(|found| (found.dev(), found.ino())),
            difference: Arc::downgrade(difference),
            noting: Mutex::default(),
            fate: Mutex::default(),
        });
        if let Err(error) = file.note.make_room() {
            tracing::warn!(%error, "if {place} is cut, removed or moved while it is in use, that may not be noted");
        }
        let noted = Arc::clone(&file);
        difference.on_error(move |error| match FileLoss::of(error) {
            Some(FileLoss::Cut) => noted.lose(Fate::Cut),
            Some(FileLoss::Removed) => noted.lose(Fate::Removed),
            None => {}
        });
        file
    }

    /// Strikes the note of what became of the file before: nothing can refuse the attach any more. What was found since
    /// stays noted.
    ///
    /// # Errors
    /// When the note cannot be removed.
    pub(crate) fn accept(&self) -> Result<()> {
        // Held, so that what is found meanwhile is noted afterwards.
        let fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        if fate.is_none() { self.note.strike() } else { Ok(()) }
    }

    /// Looks at the name again and again, without end.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(WATCH_INTERVAL).await;
            self.look().await;
        }
    }

    /// Looks whether the name still leads to the file.
    pub(crate) async fn look(&self) {
        let (is_there, fate) = (self.is_at_its_place(), self.fate());
        match (is_there, fate) {
            (true, Some(Fate::Moved)) => self.note_return(),
            (false, None) => {
                // Whether it has another name: if not, this finds it.
                let _ = match self.difference.upgrade() {
                    Some(difference) => difference.flush().await,
                    None => return,
                };
                self.set_fate(Fate::Moved);
            }
            _ => {}
        }
    }

    /// What became of the file, if it is not whole at its place.
    pub(crate) fn fate(&self) -> Option<Fate> {
        *self.fate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message for the status.
    pub(crate) fn trouble(&self) -> Option<String> {
        let (place, name) = (&self.place, &self.name);
        self.fate().map(|fate| match fate {
            Fate::Cut => format!(
                "the difference {place} {fate} while it is in use: what it held is lost, and nothing of it is read or \
                 written any more"
            ),
            Fate::Removed => format!(
                "the difference {place} {fate} while it is in use: it is read, and takes no writes; there is no other \
                 copy of what it holds: copy that now, it goes with this process"
            ),
            Fate::Moved => format!(
                "the difference {place} {fate} while it is in use: what is written goes to a file of another name; \
                 bring it back before `forebay detach {name}`"
            ),
        })
    }

    /// What is told at the end of the attachment. `used_bytes` are in the difference.
    pub(crate) fn end(&self, used_bytes: u64) -> Option<String> {
        let place = &self.place;
        self.fate().map(|fate| match fate {
            Fate::Cut => format!(
                "of {used_bytes} bytes some, or all, are lost: {place}, which held them, was cut, or holes made in it; \
                 the next attach is refused without `--set difference.accept-loss=on`"
            ),
            Fate::Removed => format!("{used_bytes} bytes are lost: {place}, which held them, {fate} before"),
            Fate::Moved => format!(
                "what it wrote is in another file than {place}, which {fate}: bring it back before you attach it again"
            ),
        })
    }

    /// Why what is removed does not end yet: what it holds can still be copied.
    pub(crate) fn last_copy(&self, used_bytes: u64) -> Option<String> {
        let (place, name, pid) = (&self.place, &self.name, std::process::id());
        (self.fate() == Some(Fate::Removed)).then(|| {
            format!(
                "{place} was removed while \"{name}\" uses it, and there is no other copy of the {used_bytes} bytes in \
                 it: it stays attached, to be read; copy what it shows, then end process {pid} with SIGTERM, which \
                 loses it"
            )
        })
    }

    /// A name that cannot be looked at counts as there.
    fn is_at_its_place(&self) -> bool {
        let Some(inode) = self.inode else { return true };
        match fs::metadata(&self.place.path) {
            Ok(found) => (found.dev(), found.ino()) == inode,
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }

    fn lose(&self, fate: Fate) {
        let Some(difference) = self.difference.upgrade().filter(|_| self.set_fate(fate)) else { return };
        let words = self.trouble().unwrap_or_default();
        let error = block::Error::new(ErrorKind::Media, words);
        match fate {
            Fate::Cut => difference.give_up(error),
            Fate::Removed | Fate::Moved => difference.refuse_writes(error),
        }
    }

    /// Notes what became of the file, unless something worse is known. Returns whether that is new.
    fn set_fate(&self, fate: Fate) -> bool {
        let _noting = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut known = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
            if !matches!((*known, fate), (None, _) | (Some(Fate::Moved), Fate::Cut | Fate::Removed)) {
                return false;
            }
            *known = Some(fate);
        }
        tracing::error!("{}", self.trouble().unwrap_or_default());
        if let Err(error) = self.note.write(fate, &self.name, self.uuid) {
            tracing::error!(%error, "the next attach of the difference {} does not know of it", self.place);
        }
        true
    }

    /// Strikes the note that it was moved. What a thread that reads it has noted since, that it was cut, stays.
    fn note_return(&self) {
        let _noting = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut known = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
            if *known != Some(Fate::Moved) {
                return;
            }
            *known = None;
        }
        tracing::info!("the difference {} is at its place again", self.place);
        if let Err(error) = self.note.strike() {
            tracing::warn!(%error, "the next attach of the difference {} may be refused", self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use block::memory::MemoryDevice;
    use block::{Buffer, Identity, SharedDevice};
    use difference::DifferenceOptions;
    use rustix::fs::FallocateFlags;

    use super::*;
    use crate::error::Failure;
    use crate::paths::Paths;
    use crate::place_device::{PlaceKind, Space, open_as};
    use crate::unfinished::Unfinished;

    const SIZE: u64 = 1 << 20;

    struct Used {
        difference: Arc<Difference>,
        file: Arc<DifferenceFile>,
        note: DifferenceNote,
        place: Place,
    }

    /// A difference in `directory` that holds 64 KiB of ones, made where there is none.
    async fn used(directory: &Path) -> Used {
        let paths = Paths::new(directory.join("run"), directory.join("state")).unwrap();
        let place = Place::new(&directory.join("own"), None).unwrap();
        let note = DifferenceNote::of(&paths, &place).unwrap();
        let base: SharedDevice = Arc::new(MemoryDevice::new(4 * SIZE, Identity::default()));
        let device = if place.path.exists() {
            open_as(PlaceKind::Difference, &place.path, Space::Whole, None).unwrap()
        } else {
            let options = DifferenceOptions::new(Uuid::new_v4());
            let format = async |device: &SharedDevice| Difference::format(device, &base, options).await;
            let made = Unfinished::make(PlaceKind::Difference, &place.path, SIZE, None, format).await.unwrap();
            made.put_in_free_place().unwrap()
        };
        let difference = Arc::new(Difference::open(device, base, None).await.unwrap());
        tokio::spawn(difference.run());
        let file = DifferenceFile::new(&difference, &place, "disk", note.clone());
        difference.write(0, Buffer::copy_of(&[1; 1 << 16]), true).await.unwrap();
        Used { difference, file, note, place }
    }

    impl Used {
        async fn reads(&self) -> bool {
            let read = self.difference.read(0, Buffer::zeroed(4096)).await;
            read.is_ok_and(|bytes| {
                assert_eq!(bytes[..], [1; 4096], "nothing else is served");
                true
            })
        }

        async fn writes(&self) -> bool {
            self.difference.write(SIZE, Buffer::zeroed(4096), false).await.is_ok()
        }

        fn refusal(&self) -> Option<Failure> {
            self.note.check(false).err().map(|error| error.failure())
        }
    }

    fn punch(path: &Path) {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, SIZE / 4, SIZE / 4).unwrap();
    }

    #[tokio::test]
    async fn a_difference_whose_file_was_cut_is_not_used_and_refused_until_the_loss_is_accepted() {
        let cut = |path: &Path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(SIZE / 2).unwrap();
            file.set_len(SIZE).unwrap();
        };
        for wound in [&punch as &dyn Fn(&Path), &cut] {
            let directory = tempfile::tempdir().unwrap();
            let used = used(directory.path()).await;
            used.file.look().await;
            assert!(used.file.fate().is_none() && used.refusal().is_none());
            wound(&used.place.path);
            assert!(!used.reads().await);
            assert_eq!((used.file.fate(), used.refusal()), (Some(Fate::Cut), Some(Failure::WouldLoseData)));
            assert!(!used.writes().await && used.difference.flush().await.is_err());
            assert!(used.file.end(65536).is_some_and(|words| words.contains("lost")));
            used.note.check(true).unwrap();
            used.file.accept().unwrap();
            assert_eq!(used.refusal(), Some(Failure::WouldLoseData), "it was found since");
            used.note.strike().unwrap();
            assert_eq!(used.refusal(), None);
        }
    }

    /// `/dev/full` is in the place of a new file.
    #[tokio::test]
    async fn a_difference_that_was_cut_is_noted_on_a_full_disk() {
        let directory = tempfile::tempdir().unwrap();
        let used = used(directory.path()).await;
        let folder = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap().differences();
        let rooms: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(rooms.len(), 1);
        std::os::unix::fs::symlink("/dev/full", rooms[0].with_extension("new")).unwrap();
        fs::OpenOptions::new().write(true).open(&used.place.path).unwrap().set_len(SIZE / 2).unwrap();
        assert!(!used.reads().await);
        assert_eq!(used.refusal(), Some(Failure::WouldLoseData));
        used.note.strike().unwrap();
        assert_eq!(used.refusal(), None);
    }

    /// A read on another thread finds it, after the name was looked at and before its return is noted.
    #[tokio::test]
    async fn a_cut_that_is_found_while_a_moved_difference_comes_back_is_not_struck() {
        let directory = tempfile::tempdir().unwrap();
        let used = used(directory.path()).await;
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&used.place.path, &elsewhere).unwrap();
        used.file.look().await;
        fs::rename(&elsewhere, &used.place.path).unwrap();
        assert_eq!(used.file.fate(), Some(Fate::Moved));
        punch(&used.place.path);
        assert!(!used.reads().await);
        used.file.note_return();
        assert_eq!((used.file.fate(), used.refusal()), (Some(Fate::Cut), Some(Failure::WouldLoseData)));
    }

    /// Also when nobody asks anything of it.
    #[tokio::test]
    async fn a_difference_that_was_removed_can_be_copied_and_takes_nothing_more() {
        for is_replaced in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let used = used(directory.path()).await;
            fs::remove_file(&used.place.path).unwrap();
            if is_replaced {
                fs::write(&used.place.path, vec![0; SIZE as usize]).unwrap();
            }
            used.file.look().await;
            assert_eq!((used.file.fate(), used.refusal()), (Some(Fate::Removed), Some(Failure::WouldLoseData)));
            assert!(used.reads().await && !used.writes().await && used.difference.flush().await.is_err());
            assert!(used.reads().await, "also after a flush that failed");
            assert!(used.file.last_copy(65536).is_some_and(|words| words.contains("65536 bytes")));
        }
    }

    #[tokio::test]
    async fn a_difference_that_was_moved_goes_on_and_is_taken_when_it_is_back() {
        let directory = tempfile::tempdir().unwrap();
        let used = used(directory.path()).await;
        let elsewhere = directory.path().join("elsewhere");
        for _ in 0..2 {
            fs::rename(&used.place.path, &elsewhere).unwrap();
            used.file.look().await;
            assert_eq!((used.file.fate(), used.refusal()), (Some(Fate::Moved), Some(Failure::WouldLoseData)));
            assert!(used.reads().await && used.writes().await && used.file.last_copy(0).is_none());
            fs::rename(&elsewhere, &used.place.path).unwrap();
            assert_eq!(used.refusal(), None, "by its UUID");
            used.file.look().await;
            assert_eq!(used.file.fate(), None);
        }
        fs::rename(&used.place.path, &elsewhere).unwrap();
        used.file.look().await;
        fs::remove_file(&elsewhere).unwrap();
        assert!(used.difference.flush().await.is_err());
        assert_eq!(used.file.fate(), Some(Fate::Removed), "that is worse");
    }
}
