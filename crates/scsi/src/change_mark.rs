//! Data of CHANGE MARK IN and OUT, and VPD page C0h: which ranges of a logical unit others have changed. These are
//! forebay's own commands; `docs/protocol/change-marks.md` says what they mean.
//!
//! What a target sends is checked here once: descriptors ascend, do not touch, and stay within the unit.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Malformed;
use crate::field::u32_at;
use crate::limits::REPORTED_MARKS_MAX;
use crate::vpd::{self, page};

/// Service actions of CHANGE MARK IN.
pub mod action_in {
    #![expect(missing_docs, reason = "the protocol's own names")]
    pub const REPORT_MARKS: u8 = 0x00;
    pub const REPORT_CHANGES: u8 = 0x01;
    pub const REPORT_CONTENT: u8 = 0x02;
}

/// Service actions of CHANGE MARK OUT.
pub mod action_out {
    #![expect(missing_docs, reason = "the protocol's own names")]
    pub const TAKE: u8 = 0x00;
    pub const CLEAR: u8 = 0x01;
    pub const FORGET: u8 = 0x02;
    pub const NAME_CONTENT: u8 = 0x03;
}

/// Smallest range, in bytes.
pub const RANGE_BYTES_MIN: u32 = 1 << 20;

const SIGNATURE: [u8; 8] = *b"FOREBAY\0";
const VERSION: u8 = 1;

/// The body of VPD page C0h.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SupportRaw {
    signature: [u8; 8], //  0
    version: u8,        //  8
    reserved: u8,       //  9
    marks_max: U16,     // 10
    range_bytes: U32,   // 12
    zero: [u8; 12],     // 16
}
const _: () = assert!(size_of::<SupportRaw>() == 28);
const _: () = assert!(offset_of!(SupportRaw, range_bytes) == 12);

/// VPD page C0h: that there are change marks, and how fine they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Marks the unit keeps at most.
    pub marks_max: u16,
    /// Bytes of a range: a power of two, at least [`RANGE_BYTES_MIN`].
    pub range_bytes: u32,
}

impl Support {
    /// The page.
    pub fn emit(&self) -> Vec<u8> {
        let raw = SupportRaw {
            signature: SIGNATURE,
            version: VERSION,
            reserved: 0,
            marks_max: U16::new(self.marks_max),
            range_bytes: U32::new(self.range_bytes),
            zero: [0; 12],
        };
        vpd::whole(page::CHANGE_MARKS, raw.as_bytes())
    }

    /// From a target's page. `None` where the page is another vendor's, or of a version that is not known here.
    ///
    /// # Errors
    /// [`Malformed`] when it is not that page, is short, or names a range that is none.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let malformed = Malformed("vital product data");
        let body = vpd::body(page::CHANGE_MARKS, bytes)?;
        if !body.starts_with(&SIGNATURE) {
            return Ok(None);
        }
        let (raw, _) = SupportRaw::read_from_prefix(body).map_err(|_| malformed)?;
        if raw.version != VERSION {
            return Ok(None);
        }
        let range_bytes = raw.range_bytes.get();
        if !range_bytes.is_power_of_two() || range_bytes < RANGE_BYTES_MIN {
            return Err(malformed);
        }
        Ok(Some(Self { marks_max: raw.marks_max.get(), range_bytes }))
    }
}

/// A mark in REPORT MARKS data.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct MarkRaw {
    id: [u8; 16],      //  0
    token: U64,        // 16
    sequence: U64,     // 24
    slot: U16,         // 32
    flags: u8,         // 34  bit 0: held by this nexus, bit 1: by another
    reserved: [u8; 5], // 35
}
const _: () = assert!(size_of::<MarkRaw>() == 40);
const _: () = assert!(offset_of!(MarkRaw, slot) == 32);

const HELD_HERE: u8 = 0x01;
const HELD_ELSEWHERE: u8 = 0x02;

/// A mark, as in REPORT MARKS data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Drawn by the initiator when it made the mark.
    pub id: [u8; 16],
    /// Drawn by the initiator at each attach.
    pub token: u64,
    /// Another for every content of the mark.
    pub sequence: u64,
    /// The number of its slot, by which its changes are requested.
    pub slot: u16,
    /// Whether the nexus that sent the command holds it.
    pub is_held_here: bool,
    /// Whether another nexus holds it.
    pub is_held_elsewhere: bool,
}

/// REPORT MARKS data.
pub fn emit_marks(marks: &[Mark]) -> Vec<u8> {
    let mut bytes = ((marks.len() * size_of::<MarkRaw>()) as u32).to_be_bytes().to_vec();
    for mark in marks {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let raw = MarkRaw {
            id: mark.id,
            token: U64::new(mark.token),
            sequence: U64::new(mark.sequence),
            slot: U16::new(mark.slot),
            flags: flag(mark.is_held_here, HELD_HERE) | flag(mark.is_held_elsewhere, HELD_ELSEWHERE),
            reserved: [0; 5],
        };
        bytes.extend(raw.as_bytes());
    }
    bytes
}

/// The marks in a target's data.
///
/// [`Malformed`] when it is cut short, because a mark left out would be taken for unknown. Also
/// above [`REPORTED_MARKS_MAX`].
pub fn parse_marks(bytes: &[u8]) -> Result<Vec<Mark>, Malformed> {
    let malformed = Malformed("REPORT MARKS data");
    let length = u32_at(bytes, 0).ok_or(malformed)? as usize;
    let list = bytes.get(4..).and_then(|list| list.get(..length)).ok_or(malformed)?;
    let (entries, rest) =
        <[MarkRaw]>::ref_from_prefix_with_elems(list, length / size_of::<MarkRaw>()).map_err(|_| malformed)?;
    if !rest.is_empty() || entries.len() > REPORTED_MARKS_MAX {
        return Err(malformed);
    }
    let of = |raw: &MarkRaw| Mark {
        id: raw.id,
        token: raw.token.get(),
        sequence: raw.sequence.get(),
        slot: raw.slot.get(),
        is_held_here: raw.flags & HELD_HERE != 0,
        is_held_elsewhere: raw.flags & HELD_ELSEWHERE != 0,
    };
    Ok(entries.iter().map(of).collect())
}

/// Names what is on a unit: drawn by its target, void from the first change on.
pub type ContentId = [u8; 16];

/// The id that a target makes of bytes at random: a UUID of version 8 (RFC 9562, 5.8). No initiator has a part in it,
/// so none can give a content the id of another one.
pub fn content_id(random: [u8; 16]) -> ContentId {
    let mut id = random;
    id[6] = id[6] & 0x0f | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// Whether a target has made this id. An earlier kind was given by initiators, who could give one again, and counts as
/// none.
pub fn is_content_id(id: &ContentId) -> bool {
    content_id(*id) == *id
}

/// Bytes of REPORT CONTENT data at most.
pub const CONTENT_BYTES: usize = 4 + size_of::<ContentId>();

/// REPORT CONTENT data: no id where the content has none.
pub fn emit_content(id: Option<ContentId>) -> Vec<u8> {
    let id = id.as_ref().map_or(&[][..], |id| &id[..]);
    [&(id.len() as u32).to_be_bytes(), id].concat()
}

/// The id in a target's data; `None` where the content has none, or one of the earlier kind.
///
/// # Errors
/// [`Malformed`] when it is cut short, or is neither.
pub fn parse_content(bytes: &[u8]) -> Result<Option<ContentId>, Malformed> {
    let malformed = Malformed("REPORT CONTENT data");
    let length = u32_at(bytes, 0).ok_or(malformed)? as usize;
    match bytes.get(4..).and_then(|rest| rest.get(..length)).ok_or(malformed)? {
        [] => Ok(None),
        id => id.try_into().map(|id| Some(id).filter(is_content_id)).map_err(|_| malformed),
    }
}

/// The bytes before the descriptors of REPORT CHANGES data.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ChangesRaw {
    length: U32,       //  0  bytes after this field
    flags: u8,         //  4  bit 0: more follows
    reserved: [u8; 3], //  5
    id: [u8; 16],      //  8
    token: U64,        // 24
    sequence: U64,     // 32
    range_count: U64,  // 40
}
const _: () = assert!(size_of::<ChangesRaw>() == CHANGES_HEADER_BYTES);
const _: () = assert!(offset_of!(ChangesRaw, range_count) == 40);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DescriptorRaw {
    first: U32, // 0
    count: U32, // 4
}

/// Bytes before the descriptors of REPORT CHANGES data.
pub const CHANGES_HEADER_BYTES: usize = 48;
/// Bytes of one descriptor.
pub const DESCRIPTOR_BYTES: usize = 8;
const _: () = assert!(size_of::<DescriptorRaw>() == DESCRIPTOR_BYTES);

/// A run of changed ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first range.
    pub first: u32,
    /// Count of ranges, at least one.
    pub count: u32,
}

/// REPORT CHANGES data: all of it, or one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The identifier of the mark.
    pub id: [u8; 16],
    /// The token of the mark.
    pub token: u64,
    /// The sequence of the mark; parts of one report have the same.
    pub sequence: u64,
    /// Size of the unit in ranges.
    pub range_count: u64,
    /// More follows behind the last run.
    pub has_more: bool,
    /// Ascending, not touching.
    pub runs: Vec<Run>,
}

impl Changes {
    /// The data.
    pub fn emit(&self) -> Vec<u8> {
        let rest_bytes = CHANGES_HEADER_BYTES - 4 + self.runs.len() * DESCRIPTOR_BYTES;
        let raw = ChangesRaw {
            length: U32::new(rest_bytes as u32),
            flags: u8::from(self.has_more),
            reserved: [0; 3],
            id: self.id,
            token: U64::new(self.token),
            sequence: U64::new(self.sequence),
            range_count: U64::new(self.range_count),
        };
        let mut bytes = raw.as_bytes().to_vec();
        for run in &self.runs {
            let raw = DescriptorRaw { first: U32::new(run.first), count: U32::new(run.count) };
            bytes.extend(raw.as_bytes());
        }
        bytes
    }

    /// From a target's data.
    ///
    /// [`Malformed`] when it is cut short, because a change left out would cause a stale read. Also
    /// when runs do not ascend or touch.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("REPORT CHANGES data");
        let (raw, rest) = ChangesRaw::read_from_prefix(bytes).map_err(|_| malformed)?;
        let length = (raw.length.get() as usize).checked_sub(CHANGES_HEADER_BYTES - 4).ok_or(malformed)?;
        let list = rest.get(..length).ok_or(malformed)?;
        let (entries, tail) =
            <[DescriptorRaw]>::ref_from_prefix_with_elems(list, length / DESCRIPTOR_BYTES).map_err(|_| malformed)?;
        let runs: Vec<Run> =
            entries.iter().map(|entry| Run { first: entry.first.get(), count: entry.count.get() }).collect();
        let ends_before = |pair: &[Run]| u64::from(pair[0].first) + u64::from(pair[0].count) < u64::from(pair[1].first);
        if !tail.is_empty() || runs.iter().any(|run| run.count == 0) || !runs.windows(2).all(ends_before) {
            return Err(malformed);
        }
        Ok(Self {
            id: raw.id,
            token: raw.token.get(),
            sequence: raw.sequence.get(),
            range_count: raw.range_count.get(),
            has_more: raw.flags & 0x01 != 0,
            runs,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ParametersRaw {
    id: [u8; 16],      //  0
    token: U64,        // 16
    sequence: U64,     // 24
    reserved: [u8; 8], // 32
}
const _: () = assert!(size_of::<ParametersRaw>() == Parameters::BYTES);

/// The parameter list of CHANGE MARK OUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The mark.
    pub id: [u8; 16],
    /// TAKE: the new token of the mark.
    pub token: u64,
    /// CLEAR: the sequence of the content to be forgotten.
    pub sequence: u64,
}

impl Parameters {
    /// Bytes of the list.
    pub const BYTES: usize = 40;

    /// The list.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(ParametersRaw {
            id: self.id,
            token: U64::new(self.token),
            sequence: U64::new(self.sequence),
            reserved: [0; 8],
        })
    }

    /// Parses a list.
    ///
    /// # Errors
    /// [`Malformed`] when the length is not [`BYTES`](Self::BYTES), or a reserved byte is not zero.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let raw = ParametersRaw::read_from_bytes(bytes).map_err(|_| Malformed("CHANGE MARK OUT parameter list"))?;
        if raw.reserved != [0; 8] {
            return Err(Malformed("CHANGE MARK OUT parameter list"));
        }
        Ok(Self { id: raw.id, token: raw.token.get(), sequence: raw.sequence.get() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

    #[test]
    fn golden_page() {
        let support = Support { marks_max: 16, range_bytes: 2 << 20 };
        let mut expected = vec![0, 0xc0, 0, 28];
        expected.extend(b"FOREBAY\0");
        expected.extend([1, 0, 0, 16, 0, 0x20, 0, 0]);
        expected.extend([0; 12]);
        assert_eq!(support.emit(), expected);
        assert_eq!(Support::parse(&expected), Ok(Some(support)));
        let mut other = expected.clone();
        other[4] = b'X';
        assert_eq!(Support::parse(&other), Ok(None), "another vendor's page");
        let mut later = expected.clone();
        later[12] = 2;
        assert_eq!(Support::parse(&later), Ok(None), "a version that is not known");
        for (at, value) in [(17, 0x30), (17, 0x08)] {
            let mut wrong = expected.clone();
            wrong[at] = value;
            assert!(Support::parse(&wrong).is_err());
        }
        assert!(Support::parse(&expected[..31]).is_err());
    }

    #[test]
    fn golden_marks() {
        let mark = Mark { id: ID, token: 0x0a, sequence: 0x0b, slot: 3, is_held_here: true, is_held_elsewhere: false };
        let mut expected = vec![0, 0, 0, 40];
        expected.extend(ID);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0, 3, 1, 0, 0, 0, 0, 0]);
        assert_eq!(emit_marks(&[mark]), expected);
        assert_eq!(parse_marks(&expected), Ok(vec![mark]));
        assert_eq!(parse_marks(&[0; 4]), Ok(vec![]));
        for cut in 0..expected.len() {
            assert!(parse_marks(&expected[..cut]).is_err(), "{cut}");
        }
        expected[3] = 39;
        assert!(parse_marks(&expected).is_err());
    }

    #[test]
    fn a_report_of_more_marks_than_any_target_keeps_is_none() {
        let mark = Mark { id: ID, token: 1, sequence: 1, slot: 0, is_held_here: false, is_held_elsewhere: false };
        let marks = vec![mark; REPORTED_MARKS_MAX + 1];
        assert_eq!(parse_marks(&emit_marks(&marks[1..])).map(|marks| marks.len()), Ok(REPORTED_MARKS_MAX));
        assert!(parse_marks(&emit_marks(&marks)).is_err(), "one that is left out would be taken for unknown");
    }

    #[test]
    fn golden_changes() {
        let changes = Changes {
            id: ID,
            token: 1,
            sequence: 2,
            range_count: 0x100,
            has_more: true,
            runs: vec![Run { first: 4, count: 2 }, Run { first: 7, count: 1 }],
        };
        let mut expected = vec![0, 0, 0, 60, 1, 0, 0, 0];
        expected.extend(ID);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1, 0]);
        expected.extend([0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 1]);
        assert_eq!(changes.emit(), expected);
        assert_eq!(Changes::parse(&expected), Ok(changes));
        for cut in 0..expected.len() {
            assert!(Changes::parse(&expected[..cut]).is_err(), "{cut}");
        }
        let mut touching = expected.clone();
        touching[59] = 6;
        assert!(Changes::parse(&touching).is_err());
        let mut empty = expected;
        empty[63] = 0;
        assert!(Changes::parse(&empty).is_err());
    }

    #[test]
    fn golden_content() {
        let id = content_id(ID);
        assert_eq!(id, [1, 2, 3, 4, 5, 6, 0x87, 8, 0x89, 10, 11, 12, 13, 14, 15, 16]);
        let expected = [&[0, 0, 0, 16][..], &id].concat();
        assert_eq!(emit_content(Some(id)), expected);
        assert_eq!((parse_content(&expected), parse_content(&emit_content(None))), (Ok(Some(id)), Ok(None)));
        for by_an_initiator in [ID, [0; 16], [0xff; 16]] {
            assert_eq!(parse_content(&emit_content(Some(by_an_initiator))), Ok(None));
        }
        assert_eq!(expected.len(), CONTENT_BYTES);
        for cut in 0..expected.len() {
            assert!(parse_content(&expected[..cut]).is_err(), "{cut}");
        }
        assert!(parse_content(&[0, 0, 0, 1, 7]).is_err());
    }

    #[test]
    fn golden_parameters() {
        let parameters = Parameters { id: ID, token: 0x0102, sequence: 0x0304 };
        let mut expected = ID.to_vec();
        expected.extend([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parameters.emit()[..], expected);
        assert_eq!(Parameters::parse(&expected), Ok(parameters));
        assert!(Parameters::parse(&expected[..39]).is_err());
        expected[39] = 1;
        assert!(Parameters::parse(&expected).is_err());
    }

    proptest! {
        #[test]
        fn foreign_bytes_end_in_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Support::parse(&bytes), parse_marks(&bytes), Parameters::parse(&bytes), parse_content(&bytes));
            if let Ok(changes) = Changes::parse(&bytes) {
                prop_assert_eq!(Changes::parse(&changes.emit()), Ok(changes));
            }
        }
    }
}
