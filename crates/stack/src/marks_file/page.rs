//! The pages of the file, as bytes: a header, the marks, and the parts of their bits.

use std::mem::{offset_of, size_of};

use base::checksum::crc32c;
use logical_unit::change_marks::{MarkUpdate, PartWords, SavedMark, SavedMarks};
use logical_unit::limits::{CHANGE_MARKS_MAX, MARK_PART_WORDS, MARK_PARTS};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::served_file::{FileBirth, Stamp};

pub(super) const PAGE_BYTES: usize = 4096;
/// The header, all marks, and the parts of each.
pub(super) const FILE_BYTES_MAX: u64 = ((1 + CHANGE_MARKS_MAX * (1 + MARK_PARTS)) * PAGE_BYTES) as u64;
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
pub(super) struct HeaderRaw {
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

pub(super) type Page = [u8; PAGE_BYTES];

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
pub(super) fn opened<T: FromBytes>(bytes: &[u8], place: u32) -> Option<T> {
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

impl HeaderRaw {
    /// Whether it is of a LUN with this serial number.
    pub(super) fn is_of(&self, serial: &str) -> bool {
        self.magic == MAGIC && self.serial == filled(serial.as_bytes())
    }

    /// The size in bytes of the ranges.
    pub(super) fn range_bytes(&self) -> u32 {
        self.range_bytes.get()
    }

    /// The file that was served.
    pub(super) fn birth(&self) -> FileBirth {
        FileBirth {
            inode: self.inode.get(),
            born_seconds: self.born_seconds.get(),
            born_nanoseconds: self.born_nanoseconds.get(),
            file_system: self.file_system.get(),
        }
    }

    /// Size and change time of that file at its end; `None` unless it was closed in order.
    pub(super) fn closed(&self) -> Option<Stamp> {
        let stamp = Stamp {
            size_bytes: self.size_bytes.get(),
            changed_seconds: self.changed_seconds.get(),
            changed_nanoseconds: self.changed_nanoseconds.get(),
        };
        (self.head.flags.get() & CLOSED != 0).then_some(stamp)
    }
}

/// The page of a header; `closed` is the file at its end, where it was closed in order.
pub(super) fn header_page(serial: &str, range_bytes: u32, birth: FileBirth, closed: Option<Stamp>) -> Box<Page> {
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
pub(super) fn page_of(update: &MarkUpdate) -> std::result::Result<(u32, Box<Page>), String> {
    match update {
        MarkUpdate::Mark { slot, mark } => Ok((mark_place(*slot), mark_page(*slot, mark.as_ref())?)),
        MarkUpdate::Part { slot, id, part, words } => {
            Ok((part_place(*slot, *part), part_page(*slot, *part, *id, words)))
        }
    }
}

/// The marks in a file; damaged ones count as changed.
pub(super) fn marks_in(bytes: &[u8]) -> SavedMarks {
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const ID: [u8; 16] = [0xab; 16];

    pub(crate) fn mark(is_everything: bool) -> SavedMark {
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

    pub(crate) fn part(words: &[(usize, u64)]) -> MarkUpdate {
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

    /// A removed file's inode is given to the next one, and the first file of a file system has the number of the first
    /// one of another. What is not noted, as in files from before it was, or is not told, says nothing.
    #[test]
    fn a_file_with_the_inode_of_another_is_not_taken_for_it() {
        let was = FileBirth { inode: 12, born_seconds: 7, born_nanoseconds: 0, file_system: 5 };
        let header = |birth| opened::<HeaderRaw>(&header_page("s1", 1 << 20, birth, None)[..], 0).unwrap();
        let is_taken = |was, found| header(was).birth().may_be(&found);
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
}
