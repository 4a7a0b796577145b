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

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use base::checksum::crc32c;
use logical_unit::change_marks::{ChangeStore, MarkUpdate, PartWords, SavedMark, SavedMarks, Saving};
use logical_unit::limits::{CHANGE_MARKS_MAX, MARK_PART_WORDS, MARK_PARTS};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};
use crate::record_file::sync_directory_of;
use crate::regular_file;

const PAGE_BYTES: usize = 4096;
/// The header, all marks, and the parts of each.
const FILE_BYTES_MAX: u64 = ((1 + CHANGE_MARKS_MAX * (1 + MARK_PARTS)) * PAGE_BYTES) as u64;
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"FBYMARKS";

/// The head of every page.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PageHead {
    checksum: U32, //  0  crc32c of bytes 4..4096
    version: U32,  //  4
    place: U32,    //  8  number of the page
    flags: U32,    // 12
}
const _: () = assert!(size_of::<PageHead>() == 16);

/// Page 0: the LUN of the marks.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HeaderRaw {
    head: PageHead,           //   0  flags: bit 0, closed in order: size and time count
    magic: [u8; 8],           //  16
    size_bytes: U64,          //  24  of the file, when it was closed
    changed_seconds: U64,     //  32  its status change time (ctime)
    changed_nanoseconds: U32, // 40
    range_bytes: U32,         //  44
    serial: [u8; 64],         //  48  of the LUN, filled with zeroes
    inode: U64,               // 112  of the file that is served; 0 for a block device, or where it was not noted
    born_seconds: U64,        // 120  when it was made; 0 where that is not told, or was not noted
    born_nanoseconds: U32,    // 128
    zero: U32,                // 132
    file_system: U64,         // 136  id of its file system; 0 where that has none, or it was not noted
    reserved: [u8; 3952],     // 144
}
const _: () = assert!(size_of::<HeaderRaw>() == PAGE_BYTES);
const _: () = assert!(offset_of!(HeaderRaw, serial) == 48);
const _: () = assert!(offset_of!(HeaderRaw, inode) == 112);
const _: () = assert!(offset_of!(HeaderRaw, file_system) == 136);

const CLOSED: u32 = 1;

/// Pages 1 to 16: a mark.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct MarkRaw {
    head: PageHead, //   0  flags: bit 0, there is one; bit 1, everything has changed; bit 2, of who may only read
    id: [u8; 16],   //  16
    token: U64,     //  32
    sequence: U64,  //  40
    order: U64,     //  48
    initiator_bytes: U32, //  56
    zero: U32,      //  60
    initiator: [u8; 256], //  64  iSCSI name, filled with zeroes
    reserved: [u8; 3776], // 320
}
const _: () = assert!(size_of::<MarkRaw>() == PAGE_BYTES);
const _: () = assert!(offset_of!(MarkRaw, initiator) == 64);

const OCCUPIED: u32 = 1;
const EVERYTHING: u32 = 2;
const OF_READER: u32 = 4;

/// The other pages: 33 for each mark, with the bits of its ranges.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PartRaw {
    head: PageHead,                // 0  flags: zero
    id: [u8; 16],                  // 16  of the mark
    reserved: [u8; 32],            // 32
    words: [U64; MARK_PART_WORDS], // 64  bit n of word w: range 64 * (504 * part + w) + n
}
const _: () = assert!(size_of::<PartRaw>() == PAGE_BYTES);
const _: () = assert!(offset_of!(PartRaw, words) == 64);

type Page = [u8; PAGE_BYTES];

fn head(place: u32, flags: u32) -> PageHead {
    PageHead { checksum: U32::ZERO, version: U32::new(VERSION), place: U32::new(place), flags: U32::new(flags) }
}

fn sealed(page: &(impl IntoBytes + Immutable)) -> Box<Page> {
    let mut bytes = Box::new([0; PAGE_BYTES]);
    page.write_to(&mut bytes[..]).expect("every structure here is a page");
    let checksum = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The structure in page `place`, if the page is intact.
fn opened<T: FromBytes>(bytes: &[u8], place: u32) -> Option<T> {
    let start = place as usize * PAGE_BYTES;
    let page = bytes.get(start..start + PAGE_BYTES)?;
    let head = PageHead::read_from_prefix(page).ok()?.0;
    let is_whole = head.checksum.get() == crc32c(&page[4..]) && head.version.get() == VERSION;
    if is_whole && head.place.get() == place { T::read_from_bytes(page).ok() } else { None }
}

fn mark_place(slot: u16) -> u32 {
    1 + u32::from(slot)
}

fn part_place(slot: u16, part: u16) -> u32 {
    (1 + CHANGE_MARKS_MAX as u32) + u32::from(slot) * MARK_PARTS as u32 + u32::from(part)
}

/// Size and change time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size_bytes: u64,
    changed_seconds: u64,
    changed_nanoseconds: u32,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let status = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            size_bytes: status.len(),
            changed_seconds: status.ctime().cast_unsigned(),
            changed_nanoseconds: u32::try_from(status.ctime_nsec()).unwrap_or(0),
        })
    }
}

/// What tells a file from another one in its place. What is not told is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FileBirth {
    /// Its inode; zero where there is no file, or a block device.
    inode: u64,
    /// When it was made, since 1970.
    born_seconds: u64,
    born_nanoseconds: u32,
    /// Id of its file system.
    file_system: u64,
}

impl FileBirth {
    fn of(path: &Path) -> Self {
        let Some(status) = fs::metadata(path).ok().filter(fs::Metadata::is_file) else { return Self::default() };
        let born = status.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        Self {
            inode: status.ino(),
            born_seconds: born.as_secs(),
            born_nanoseconds: born.subsec_nanos(),
            file_system: rustix::fs::statvfs(path).map_or(0, |file_system| file_system.f_fsid),
        }
    }

    fn in_header(header: &HeaderRaw) -> Self {
        Self {
            inode: header.inode.get(),
            born_seconds: header.born_seconds.get(),
            born_nanoseconds: header.born_nanoseconds.get(),
            file_system: header.file_system.get(),
        }
    }

    /// Whether nothing that this tells is another in `found`.
    fn may_be(&self, found: &Self) -> bool {
        let is_same = |was: u64, is: u64| was == 0 || was == is;
        let born = |birth: &Self| (birth.born_seconds, birth.born_nanoseconds);
        is_same(self.inode, found.inode)
            && (born(self) == (0, 0) || born(self) == born(found))
            && is_same(self.file_system, found.file_system)
    }
}

/// The file of a LUN as it was found, before it was opened to be served: opening may change its size and time.
pub struct FoundFile {
    path: PathBuf,
    birth: FileBirth,
    /// `None` where none was, or for a block device, which does not tell when it was changed.
    stamp: Option<Stamp>,
}

impl FoundFile {
    /// Reads the file at `path`.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), birth: FileBirth::of(path), stamp: Stamp::of(path) }
    }
}

fn header_page(serial: &str, range_bytes: u32, birth: FileBirth, closed: Option<Stamp>) -> Box<Page> {
    let mut raw = HeaderRaw::new_zeroed();
    raw.head = head(0, if closed.is_some() { CLOSED } else { 0 });
    raw.magic = MAGIC;
    raw.range_bytes = U32::new(range_bytes);
    raw.serial = filled(serial.as_bytes());
    raw.inode = U64::new(birth.inode);
    raw.born_seconds = U64::new(birth.born_seconds);
    raw.born_nanoseconds = U32::new(birth.born_nanoseconds);
    raw.file_system = U64::new(birth.file_system);
    if let Some(stamp) = closed {
        raw.size_bytes = U64::new(stamp.size_bytes);
        raw.changed_seconds = U64::new(stamp.changed_seconds);
        raw.changed_nanoseconds = U32::new(stamp.changed_nanoseconds);
    }
    sealed(&raw)
}

fn filled<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    field.iter_mut().zip(bytes).for_each(|(place, &byte)| *place = byte);
    field
}

fn mark_page(slot: u16, mark: Option<&SavedMark>) -> std::result::Result<Box<Page>, String> {
    let mut raw = MarkRaw::new_zeroed();
    raw.head = head(mark_place(slot), 0);
    if let Some(mark) = mark {
        if mark.initiator.len() > raw.initiator.len() {
            return Err(format!("the initiator name {} is longer than any", mark.initiator));
        }
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = OCCUPIED | flag(mark.is_everything, EVERYTHING) | flag(mark.is_of_reader, OF_READER);
        raw.head = head(mark_place(slot), flags);
        raw.id = mark.id;
        raw.token = U64::new(mark.token);
        raw.sequence = U64::new(mark.sequence);
        raw.order = U64::new(mark.order);
        raw.initiator_bytes = U32::new(mark.initiator.len() as u32);
        raw.initiator = filled(mark.initiator.as_bytes());
    }
    Ok(sealed(&raw))
}

fn part_page(slot: u16, part: u16, id: [u8; 16], words: &PartWords) -> Box<Page> {
    let mut raw = PartRaw::new_zeroed();
    raw.head = head(part_place(slot, part), 0);
    raw.id = id;
    raw.words.iter_mut().zip(words).for_each(|(place, &word)| *place = U64::new(word));
    sealed(&raw)
}

/// The page for an update.
fn page_of(update: &MarkUpdate) -> std::result::Result<(u32, Box<Page>), String> {
    match update {
        MarkUpdate::Mark { slot, mark } => Ok((mark_place(*slot), mark_page(*slot, mark.as_ref())?)),
        MarkUpdate::Part { slot, id, part, words } => {
            Ok((part_place(*slot, *part), part_page(*slot, *part, *id, words)))
        }
    }
}

/// The marks in a file; damaged ones count as changed.
fn marks_in(bytes: &[u8]) -> SavedMarks {
    let mut marks = Vec::new();
    for slot in 0..CHANGE_MARKS_MAX as u16 {
        let Some(raw) = opened::<MarkRaw>(bytes, mark_place(slot)) else { continue };
        let flags = raw.head.flags.get();
        let initiator = raw.initiator.get(..raw.initiator_bytes.get() as usize);
        let initiator = initiator.and_then(|name| str::from_utf8(name).ok());
        let (Some(initiator), true) = (initiator, flags & OCCUPIED != 0) else { continue };
        let mark = SavedMark {
            id: raw.id,
            token: raw.token.get(),
            sequence: raw.sequence.get(),
            initiator: initiator.to_owned(),
            order: raw.order.get(),
            is_everything: flags & EVERYTHING != 0,
            is_of_reader: flags & OF_READER != 0,
        };
        let words = (0..MARK_PARTS as u16).flat_map(|part| {
            let found = opened::<PartRaw>(bytes, part_place(slot, part)).filter(|found| found.id == mark.id);
            found.map_or([u64::MAX; MARK_PART_WORDS], |found| found.words.map(U64::get))
        });
        let words = words.collect();
        marks.push((slot, mark, words));
    }
    SavedMarks { marks }
}

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
        if header.magic != MAGIC || header.serial != filled(self.shared.serial.as_bytes()) {
            return Err("they are another LUN's");
        }
        if header.range_bytes.get() != self.shared.range_bytes {
            return Err("the size of the LUN has changed");
        }
        if !FileBirth::in_header(&header).may_be(&found.birth) {
            return Err("the LUN's file is another one than was served");
        }
        let was = Stamp {
            size_bytes: header.size_bytes.get(),
            changed_seconds: header.changed_seconds.get(),
            changed_nanoseconds: header.changed_nanoseconds.get(),
        };
        if header.head.flags.get() & CLOSED != 0 && found.stamp != Some(was) {
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
    use super::*;

    const ID: [u8; 16] = [0xab; 16];

    fn mark(is_everything: bool) -> SavedMark {
        SavedMark {
            id: ID,
            token: 5,
            sequence: 6,
            initiator: "iqn.a".into(),
            order: 7,
            is_everything,
            is_of_reader: false,
        }
    }

    fn part(words: &[(usize, u64)]) -> MarkUpdate {
        let mut all = Box::new([0; MARK_PART_WORDS]);
        words.iter().for_each(|&(at, word)| all[at] = word);
        MarkUpdate::Part { slot: 2, id: ID, part: 1, words: all }
    }

    fn put(image: &mut Vec<u8>, update: &MarkUpdate) {
        let (place, page) = page_of(update).unwrap();
        let start = place as usize * PAGE_BYTES;
        image.resize(image.len().max(start + PAGE_BYTES), 0);
        image[start..start + PAGE_BYTES].copy_from_slice(&page[..]);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_pages() {
        let stamp = Stamp { size_bytes: 0x0102, changed_seconds: 0x0304, changed_nanoseconds: 0x05 };
        let birth = FileBirth { inode: 0x0607, born_seconds: 0x0809, born_nanoseconds: 0x0a, file_system: 0x0b0c };
        let page = header_page("s1", 1 << 20, birth, Some(stamp));
        let expected = concat!(
            "01000000",
            "00000000",
            "01000000",
            "4642594d41524b53",
            "0201000000000000",
            "0403000000000000",
            "05000000",
            "00001000",
            "7331",
        );
        assert_eq!(hex(&page[4..50]), expected);
        assert_eq!(hex(&page[112..144]), "070600000000000009080000000000000a000000000000000c0b000000000000");
        assert_eq!(hex(&page[..4]), GOLDEN_HEADER_CHECKSUM);
        let page = mark_page(2, Some(&mark(true))).unwrap();
        let expected = concat!(
            "01000000",
            "03000000",
            "03000000",
            "abababababababababababababababab",
            "0500000000000000",
            "0600000000000000",
            "0700000000000000",
            "05000000",
            "00000000",
            "69716e2e61",
        );
        assert_eq!(hex(&page[4..69]), expected);
        let (place, page) = page_of(&part(&[(0, 0x80), (503, 1)])).unwrap();
        assert_eq!((place, hex(&page[4..16])), (1 + 16 + 2 * 33 + 1, "010000005400000000000000".to_owned()));
        assert_eq!((hex(&page[64..72]), hex(&page[4088..])), ("8000000000000000".into(), "0100000000000000".into()));
    }
    const GOLDEN_HEADER_CHECKSUM: &str = "e25e8561";

    #[test]
    fn marks_are_read_back() {
        let mut image = header_page("s1", 1 << 20, FileBirth::default(), None).to_vec();
        put(&mut image, &MarkUpdate::Mark { slot: 2, mark: Some(mark(false)) });
        put(&mut image, &part(&[(3, 0x10)]));
        let saved = marks_in(&image);
        let (slot, found, words) = &saved.marks[0];
        assert_eq!((saved.marks.len(), *slot, found), (1, 2, &mark(false)));
        assert_eq!(words[MARK_PART_WORDS + 3], 0x10);
        assert_eq!((words[MARK_PART_WORDS + 4], words[0]), (0, u64::MAX), "a part that was never written has changed");
        let of_reader = SavedMark { is_of_reader: true, ..mark(false) };
        put(&mut image, &MarkUpdate::Mark { slot: 2, mark: Some(of_reader.clone()) });
        assert_eq!(marks_in(&image).marks[0].1, of_reader);
        let other = SavedMark { id: [0xcd; 16], ..mark(false) };
        put(&mut image, &MarkUpdate::Mark { slot: 2, mark: Some(other) });
        let words = &marks_in(&image).marks[0].2;
        assert!(words.iter().all(|&word| word == u64::MAX), "a part of the mark that was there before has changed");
        put(&mut image, &MarkUpdate::Mark { slot: 2, mark: None });
        assert_eq!(marks_in(&image), SavedMarks::default());
    }

    /// The power fails at a write, of which any sectors are stored: earlier records are still
    /// reported, or the mark is missing.
    #[test]
    fn a_torn_write_loses_no_recorded_change() {
        let mut before = header_page("s1", 1 << 20, FileBirth::default(), None).to_vec();
        put(&mut before, &MarkUpdate::Mark { slot: 2, mark: Some(mark(false)) });
        put(&mut before, &part(&[(3, 0x10)]));
        let retaken = MarkUpdate::Mark { slot: 2, mark: Some(SavedMark { token: 99, sequence: 100, ..mark(false) }) };
        for update in [part(&[(3, 0x10), (400, 1)]), retaken] {
            let mut after = before.clone();
            put(&mut after, &update);
            let start = page_of(&update).unwrap().0 as usize * PAGE_BYTES;
            for written in 0..=u8::MAX {
                let mut torn = before.clone();
                for sector in (0..8).filter(|sector| written & 1 << sector != 0) {
                    let at = start + sector * 512;
                    torn[at..at + 512].copy_from_slice(&after[at..at + 512]);
                }
                for (_, found, words) in marks_in(&torn).marks {
                    assert!([5, 99].contains(&found.token));
                    assert_ne!(words[MARK_PART_WORDS + 3] & 0x10, 0, "sectors {written:08b}");
                }
            }
            // A file that ends early, or was cut in the middle.
            for length in [0, 1, PAGE_BYTES, start, start + 512, before.len() - 1] {
                for (_, _, words) in marks_in(&before[..length.min(before.len())]).marks {
                    assert_ne!(words[MARK_PART_WORDS + 3] & 0x10, 0);
                }
            }
        }
    }

    /// Flips any bit of any page.
    #[test]
    fn a_damaged_page_has_changed() {
        let mut image = header_page("s1", 1 << 20, FileBirth::default(), None).to_vec();
        put(&mut image, &MarkUpdate::Mark { slot: 2, mark: Some(mark(false)) });
        put(&mut image, &part(&[(3, 0x10)]));
        let start = part_place(2, 1) as usize * PAGE_BYTES;
        for at in (0..PAGE_BYTES).step_by(97) {
            let mut damaged = image.clone();
            damaged[start + at] ^= 4;
            assert_eq!(marks_in(&damaged).marks[0].2[MARK_PART_WORDS..2 * MARK_PART_WORDS], [u64::MAX; 504]);
        }
        // A page that the disk stored in another's place.
        let mut misplaced = image.clone();
        let other = part_place(2, 0) as usize * PAGE_BYTES;
        misplaced.copy_within(start..start + PAGE_BYTES, other);
        assert_eq!(marks_in(&misplaced).marks[0].2[..MARK_PART_WORDS], [u64::MAX; 504]);
    }

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

    /// A removed file's inode is given to the next one, and the first file of a file system has the number of the first
    /// one of another. What is not noted, as in files from before it was, or is not told, says nothing.
    #[test]
    fn a_file_with_the_inode_of_another_is_not_taken_for_it() {
        let was = FileBirth { inode: 12, born_seconds: 7, born_nanoseconds: 0, file_system: 5 };
        let header = |birth| opened::<HeaderRaw>(&header_page("s1", 1 << 20, birth, None)[..], 0).unwrap();
        let is_taken = |was, found| FileBirth::in_header(&header(was)).may_be(&found);
        assert!(is_taken(was, was));
        for found in [
            FileBirth { inode: 13, ..was },
            FileBirth { born_seconds: 8, ..was },
            FileBirth { born_nanoseconds: 1, ..was },
            FileBirth { file_system: 6, ..was },
            FileBirth { born_seconds: 0, ..was },
            FileBirth { file_system: 0, ..was },
            FileBirth::default(),
        ] {
            assert!(!is_taken(was, found), "{found:?}");
        }
        let from_before = FileBirth { inode: 12, ..FileBirth::default() };
        assert!(is_taken(from_before, was) && !is_taken(from_before, FileBirth { inode: 13, ..was }));
        assert!(is_taken(FileBirth::default(), was));
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
