//! Notes: newer records behind the one with which a file was made. They are written over what the file has already, so
//! they need no room on the disk, however many there are.
//!
//! A note is a line: a number, `crc32c`, the checksum of number and record, and the record. The whole one with the
//! highest number counts. In turn one is written at the beginning of the room behind the first record, and one at its
//! end. So none is written over the one that counts, and a torn one leaves that.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::checksum::crc32c;
use serde::de::IgnoredAny;
use serde_json::Deserializer;

use super::syncing::sync_file;

/// Bytes of the room for a record: a block of most file systems.
pub(super) const ROOM_BYTES: usize = 4096;

/// Bytes by which each of two notes may be longer than the first record: there the tokens of a store are fewer, and a
/// mark may have no candidate.
const GROWTH_BYTES: usize = 512;

/// Bytes by which a note of a loss may be longer than the record before it.
const LOSS_BYTES: usize = 32;

/// What a note says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Anything else. It leaves room for a loss.
    State,
    /// That something was lost.
    Loss,
}

/// A whole note in a file.
struct Note {
    number: u64,
    /// With the line breaks before and behind it.
    line: Range<usize>,
    record: Range<usize>,
}

/// The content of a file.
pub(super) struct Records {
    /// The records that are no notes.
    first: Range<usize>,
    /// The note that counts.
    note: Option<Note>,
}

impl Records {
    /// Those in `bytes`; `None` where these do not begin with one.
    pub(super) fn in_file(bytes: &[u8]) -> Option<Self> {
        let first = last_object(bytes)?;
        let mut start = first.end;
        let lines = bytes[first.end..].split_inclusive(|&byte| byte == b'\n');
        let notes = lines.filter_map(|line| {
            start += line.len();
            Note::parse(line, start - line.len())
        });
        let note = notes.max_by_key(|note| note.number);
        Some(Self { first, note })
    }

    /// Where the record that counts is.
    pub(super) fn newest(&self) -> Range<usize> {
        self.note.as_ref().map_or_else(|| self.first.clone(), |note| note.record.clone())
    }

    /// The next note, and where it goes in a file of `file_bytes`; `None` where there is no room.
    fn next(&self, file_bytes: usize, record: &str, subject: Subject) -> Option<(usize, String)> {
        let number = self.note.as_ref().map_or(1, |note| note.number.saturating_add(1));
        let line = format!("\n{number} crc32c {} {record}\n", checksum(number, record));
        let room = self.first.end..file_bytes.next_multiple_of(ROOM_BYTES);
        if subject == Subject::State && 2 * (line.len() + LOSS_BYTES) > room.len() {
            return None;
        }
        let taken = self.note.as_ref().map_or(room.end..room.end, |note| note.line.clone());
        let at_end = room.end.checked_sub(line.len()).filter(|start| *start >= taken.end);
        let start = if room.start + line.len() <= taken.start { Some(room.start) } else { at_end };
        start.map(|start| (start, line))
    }
}

impl Note {
    /// The one in a line that begins at `start` in its file.
    fn parse(line: &[u8], start: usize) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
        let (digits, rest) = text.split_once(" crc32c ")?;
        let (found, record) = rest.split_once(' ')?;
        let number = digits.parse().ok()?;
        let end = start + text.len();
        let note = Self { number, line: start - 1..end + 1, record: end - record.len()..end };
        (found == checksum(number, record)).then_some(note)
    }
}

fn checksum(number: u64, record: &str) -> String {
    format!("{:08x}", crc32c(format!("{number} {record}").as_bytes()))
}

/// Where the last of the whole JSON objects is with which `bytes` begin. Programs from before there were notes wrote a
/// newer record behind the older one as it is.
fn last_object(bytes: &[u8]) -> Option<Range<usize>> {
    let mut objects = Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
    let (mut last, mut end) = (None, 0);
    while let Some(Ok(_)) = objects.next() {
        let space = bytes[end..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let start = end + space;
        if bytes.get(start) != Some(&b'{') {
            break;
        }
        end = objects.byte_offset();
        last = Some(start..end);
    }
    last
}

/// The first record of a file, with room for two notes that are somewhat longer.
pub(super) fn with_room(mut record: Vec<u8>) -> Vec<u8> {
    let bytes = record.len() + 2 * (record.len() + GROWTH_BYTES);
    record.resize(bytes.next_multiple_of(ROOM_BYTES), b' ');
    record
}

/// Writes a note to the file `path`, durably.
///
/// # Errors
/// Those of the file system; `StorageFull` where the file has no room for it.
pub(super) fn write(path: &Path, record: &str, subject: Subject) -> Result<()> {
    let bytes = fs::read(path)?;
    let records = Records::in_file(&bytes).ok_or(ErrorKind::InvalidData)?;
    let (start, line) = records.next(bytes.len(), record, subject).ok_or(ErrorKind::StorageFull)?;
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(line.as_bytes(), start as u64)?;
    sync_file(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record that differs from the others, with this many bytes more.
    fn record(number: u64, more: usize) -> String {
        format!("{{\"number\":{number},\"text\":\"{}\"}}", "x".repeat(more))
    }

    fn newest(bytes: &[u8]) -> &str {
        std::str::from_utf8(&bytes[Records::in_file(bytes).unwrap().newest()]).unwrap()
    }

    /// `bytes` with the next note.
    fn noted(bytes: &[u8], record: &str, subject: Subject) -> Option<Vec<u8>> {
        let (start, line) = Records::in_file(bytes).unwrap().next(bytes.len(), record, subject)?;
        let mut noted = bytes.to_vec();
        noted.resize(bytes.len().max(start + line.len()), 0);
        noted[start..start + line.len()].copy_from_slice(line.as_bytes());
        Some(noted)
    }

    #[test]
    fn golden_bytes() {
        let mut bytes = with_room(b"{\"number\": 0}".to_vec());
        assert_eq!(bytes, [&b"{\"number\": 0}"[..], &[b' '; 4083]].concat());
        for number in 1..4 {
            bytes = noted(&bytes, &format!("{{\"number\":{number}}}"), Subject::State).unwrap();
        }
        let third = b"{\"number\": 0}\n3 crc32c 52d9d7cb {\"number\":3}\n";
        let second = b"\n2 crc32c 157c1afa {\"number\":2}\n";
        assert_eq!(bytes, [&third[..], &vec![b' '; 4096 - third.len() - second.len()], second].concat());
    }

    /// What is to be written got there up to any byte, or in any of its sectors; of the rest there is what was before,
    /// or zeroes where the file did not reach as far. Then another one is written.
    #[test]
    fn a_power_failure_at_any_write_leaves_the_note_or_the_one_before_it_whole() {
        for mut bytes in [with_room(record(0, 0).into_bytes()), record(0, 700).into_bytes()] {
            for (number, more) in (1..).zip([0, 90, 400, 80, 0, 450]) {
                let (before, now) = (newest(&bytes).to_owned(), record(number, more));
                let next = noted(&bytes, &now, Subject::State).unwrap();
                let old = [&bytes[..], &vec![0; next.len() - bytes.len()]].concat();
                let check = |torn: &[u8]| {
                    let found = newest(torn);
                    assert_eq!(found, if torn == next { &now } else { &before });
                    let later = noted(torn, &record(99, 0), Subject::State).expect("there is room");
                    assert_eq!(newest(&later), record(99, 0));
                };
                (0..=next.len()).for_each(|end| check(&[&next[..end], &old[end..]].concat()));
                for sectors in 0..1_u32 << next.len().div_ceil(512) {
                    let byte = |index: usize| if sectors >> (index / 512) & 1 == 1 { next[index] } else { old[index] };
                    check(&(0..next.len()).map(byte).collect::<Vec<_>>());
                }
                bytes = next;
            }
        }
    }

    #[test]
    fn a_loss_has_room_wherever_the_record_before_it_had() {
        let lengths: Vec<usize> = (0..6000).collect();
        for more in (0..4096).step_by(61) {
            let first = with_room(record(0, more).into_bytes());
            let two = |longer: usize| {
                let one = noted(&first, &record(1, more + longer), Subject::State)?;
                noted(&one, &record(2, more + longer), Subject::State)
            };
            let longest = lengths.partition_point(|&longer| two(longer).is_some()) - 1;
            assert!(longest + 80 >= GROWTH_BYTES, "{longest} with {more}");
            let mut bytes = two(longest).expect("there is room");
            for number in 3..6 {
                let lost = record(number, more + longest + LOSS_BYTES);
                assert_eq!(noted(&bytes, &lost, Subject::State), None);
                bytes = noted(&bytes, &lost, Subject::Loss).expect("there is room for a loss");
                assert_eq!(newest(&bytes), lost);
            }
        }
    }

    /// Whatever part of it is written: the one before counts until it is whole.
    #[test]
    fn a_loss_that_does_not_fit_beside_the_note_that_counts_has_no_room() {
        let first = with_room(record(0, 0).into_bytes());
        for notes in [1, 2] {
            let noted_before = |bytes: Vec<u8>, number| noted(&bytes, &record(number, 0), Subject::State).unwrap();
            let bytes = (1..=notes).fold(first.clone(), noted_before);
            let lost = |more: usize| noted(&bytes, &record(9, more), Subject::Loss);
            let longest = (0..first.len()).rev().find(|&more| lost(more).is_some()).expect("a short one fits");
            assert!(longest > first.len() / 2, "it has all the room but that of the note");
            let line = Records::in_file(&bytes).unwrap().note.unwrap().line;
            let written = lost(longest).unwrap();
            assert_eq!(written[line.clone()], bytes[line], "the note that counts");
            assert_eq!(newest(&written), record(9, longest));
        }
    }

    #[test]
    fn a_newer_record_behind_the_first_as_earlier_programs_wrote_it_counts() {
        let bytes = b"{\"a\": 1}\n{\"a\":2}";
        assert_eq!(newest(bytes), "{\"a\":2}");
        let next = noted(bytes, "{\"a\":3}", Subject::State).unwrap();
        assert!(next.starts_with(bytes) && newest(&next) == "{\"a\":3}");
        // A torn one of theirs.
        let bytes = b"{\"a\": 1}\n{\"a\":2, \"b\": {}";
        assert_eq!(newest(bytes), "{\"a\": 1}");
        assert_eq!(newest(&noted(bytes, "{\"a\":3}", Subject::State).unwrap()), "{\"a\":3}");
        assert!(Records::in_file(b"").is_none() && Records::in_file(b"{").is_none());
    }
}
