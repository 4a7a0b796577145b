//! EXTENDED COPY(LID1) (SPC-4 6.3): parameter lists, the data of RECEIVE COPY RESULTS, and VPD page 8Fh which announces
//! them.
//!
//! ```text
//! list header   0 list identifier   1 LIST ID USAGE in bits 4, 3   2 bytes of target descriptors (2)   8 bytes of segment
//!               descriptors (4)     12 bytes of inline data (4)    16 target descriptors, segment descriptors
//! target E4h    0 type   4 code set   5 designator type   7 designator length   8 designator (20)   29 block length (3)
//! segment 02h   0 type   2 length (2)   4 source (2)   6 destination (2)   10 blocks (2)   12 source LBA (8)   20 destination LBA (8)
//! ```
//! Of the many descriptors there are, these two are supported: logical units by their names, and copies from block to
//! block.

use crate::error::Malformed;
use crate::field::{u8_at, u16_at, u32_at, u64_at};
use crate::sense::Sense;
use crate::vpd::{Designator, page, whole};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a target descriptor.
pub const TARGET_BYTES: usize = 32;
/// Bytes of a segment descriptor from block to block.
pub const SEGMENT_BYTES: usize = 28;
const IDENTIFICATION: u8 = 0xe4;
const BLOCK_TO_BLOCK: u8 = 0x02;

/// Service actions of RECEIVE COPY RESULTS.
pub mod action {
    #![expect(missing_docs, reason = "the standard's own names")]
    pub const COPY_STATUS: u8 = 0x00;
    pub const OPERATING_PARAMETERS: u8 = 0x03;
}

/// The limits of a copy manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Target descriptors of one list.
    pub targets_max: u16,
    /// Segment descriptors of one list.
    pub segments_max: u16,
    /// Bytes of all descriptors of one list.
    pub list_bytes_max: u32,
    /// Bytes of one segment.
    pub segment_bytes_max: u32,
    /// Copies at once.
    pub copies_max: u8,
}

/// A copy of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the source among the targets.
    pub source: u16,
    /// Index of the destination among the targets.
    pub destination: u16,
    /// Count of blocks.
    pub block_count: u16,
    /// First block read.
    pub source_lba: u64,
    /// First block written.
    pub destination_lba: u64,
}

/// A parameter list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyList {
    /// The identifier by which the results are requested; `None` when they are not to be kept.
    pub identifier: Option<u8>,
    /// Names of the logical units; `None` for a malformed name, which no unit has.
    pub targets: Vec<Option<Designator>>,
    /// The copies, in order.
    pub segments: Vec<Segment>,
}

impl CopyList {
    /// Parses a list.
    ///
    /// # Errors
    /// The sense data of SPC-4 6.3.1 to 6.3.3, for the answer.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self, Sense> {
        let header = Header::parse(bytes).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let descriptor_bytes = header.target_bytes + header.segment_bytes;
        if descriptor_bytes > limits.list_bytes_max as usize {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        let list = bytes.get(HEADER_BYTES..HEADER_BYTES + descriptor_bytes);
        let (targets, segments) = list.ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?.split_at(header.target_bytes);
        let targets = targets_in(targets, limits)?;
        Ok(Self { identifier: header.identifier, targets, segments: segments_in(segments, limits)? })
    }
}

struct Header {
    identifier: Option<u8>,
    target_bytes: usize,
    segment_bytes: usize,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let usage = u8_at(bytes, 1)? >> 3 & 0x03;
        // 00b keeps the results, 10b does not, 11b has no identifier at all.
        let identifier = u8_at(bytes, 0).filter(|_| usage == 0);
        u32_at(bytes, 12)?;
        let target_bytes = usize::from(u16_at(bytes, 2)?);
        Some(Self { identifier, target_bytes, segment_bytes: u32_at(bytes, 8)? as usize })
    }
}

fn targets_in(bytes: &[u8], limits: &Limits) -> Result<Vec<Option<Designator>>, Sense> {
    let (descriptors, rest) = bytes.as_chunks::<TARGET_BYTES>();
    if !rest.is_empty() {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    if descriptors.len() > usize::from(limits.targets_max) {
        return Err(Sense::TOO_MANY_TARGET_DESCRIPTORS);
    }
    descriptors
        .iter()
        .map(|descriptor| match descriptor[0] {
            IDENTIFICATION => {
                let length = usize::from(descriptor[7]);
                Ok(descriptor[8..28].get(..length).and_then(|name| Designator::parse(descriptor[5] & 0x0f, name)))
            }
            _ => Err(Sense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE),
        })
        .collect()
}

fn segments_in(mut bytes: &[u8], limits: &Limits) -> Result<Vec<Segment>, Sense> {
    let mut segments = Vec::new();
    while let Some(&kind) = bytes.first() {
        if kind != BLOCK_TO_BLOCK {
            return Err(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE);
        }
        if segments.len() == usize::from(limits.segments_max) {
            return Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS);
        }
        segments.push(segment_in(bytes).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?);
        bytes = bytes.get(SEGMENT_BYTES..).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    }
    Ok(segments)
}

fn segment_in(bytes: &[u8]) -> Option<Segment> {
    u16_at(bytes, 2).filter(|&length| usize::from(length) + 4 == SEGMENT_BYTES)?;
    Some(Segment {
        source: u16_at(bytes, 4)?,
        destination: u16_at(bytes, 6)?,
        block_count: u16_at(bytes, 10)?,
        source_lba: u64_at(bytes, 12)?,
        destination_lba: u64_at(bytes, 20)?,
    })
}

/// A list of copies between logical units with NAA names; what an initiator sends.
///
/// # Panics
/// When there are more descriptors than their length fields say: the caller chose them.
pub fn emit_list(identifier: Option<u8>, targets: &[(u64, u32)], segments: &[Segment]) -> Vec<u8> {
    let target_bytes = u16::try_from(targets.len() * TARGET_BYTES).expect("a list has few targets");
    let mut bytes = vec![identifier.unwrap_or(0), if identifier.is_some() { 0 } else { 0x18 }];
    bytes.extend(target_bytes.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(((segments.len() * SEGMENT_BYTES) as u32).to_be_bytes());
    bytes.extend([0; 4]);
    for (name, block_bytes) in targets {
        bytes.extend([IDENTIFICATION, 0, 0, 0, 0x01, 0x03, 0, 8]);
        bytes.extend(name.to_be_bytes());
        bytes.extend([0; 12]);
        bytes.extend((block_bytes & 0x00ff_ffff).to_be_bytes());
    }
    for segment in segments {
        bytes.extend([BLOCK_TO_BLOCK, 0, 0, (SEGMENT_BYTES - 4) as u8]);
        bytes.extend(segment.source.to_be_bytes());
        bytes.extend(segment.destination.to_be_bytes());
        bytes.extend([0; 2]);
        bytes.extend(segment.block_count.to_be_bytes());
        bytes.extend(segment.source_lba.to_be_bytes());
        bytes.extend(segment.destination_lba.to_be_bytes());
    }
    bytes
}

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExtendedCopyState {
    /// Under way.
    InProgress = 0,
    /// Done, all of it.
    Completed = 1,
    /// Ended early.
    Failed = 2,
}

/// The progress of a copy, as in COPY STATUS data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// Whether it is over.
    pub state: ExtendedCopyState,
    /// Segments done.
    pub segment_count: u16,
    /// Bytes written.
    pub written_bytes: u64,
}

impl CopyStatus {
    /// The data (SPC-4 6.21): bytes in the smallest of units of 1024 to the power of 0, 1, 2 ... that can say them.
    pub fn emit(&self) -> [u8; 12] {
        let mut unit = 0u8;
        let mut count = self.written_bytes;
        while count > u64::from(u32::MAX) {
            unit += 1;
            count >>= 10;
        }
        let mut bytes = [0; 12];
        bytes[3] = 8;
        bytes[4] = self.state as u8;
        bytes[5..7].copy_from_slice(&self.segment_count.to_be_bytes());
        bytes[7] = unit;
        bytes[8..12].copy_from_slice(&(count as u32).to_be_bytes());
        bytes
    }

    /// Parses COPY STATUS data.
    ///
    /// # Errors
    /// [`Malformed`] when it is cut short or has an unknown state or unit.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("COPY STATUS data");
        let state = match u8_at(bytes, 4).ok_or(malformed)? & 0x7f {
            0 => ExtendedCopyState::InProgress,
            1 => ExtendedCopyState::Completed,
            2 => ExtendedCopyState::Failed,
            _ => return Err(malformed),
        };
        let unit = u8_at(bytes, 7).filter(|&unit| unit <= 3).ok_or(malformed)?;
        let count = u64::from(u32_at(bytes, 8).ok_or(malformed)?);
        let segment_count = u16_at(bytes, 5).ok_or(malformed)?;
        Ok(Self { state, segment_count, written_bytes: count << (10 * unit) })
    }
}

impl Limits {
    /// OPERATING PARAMETERS data (SPC-4 6.22): no inline data, nothing held, granularity of one byte.
    pub fn emit_operating_parameters(&self) -> Vec<u8> {
        let mut bytes = vec![0; 44];
        bytes[8..10].copy_from_slice(&self.targets_max.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.segments_max.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.list_bytes_max.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.segment_bytes_max.to_be_bytes());
        bytes[34..36].copy_from_slice(&u16::from(self.copies_max).to_be_bytes());
        bytes[36] = self.copies_max;
        bytes[43] = 2;
        bytes.extend([BLOCK_TO_BLOCK, IDENTIFICATION]);
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    /// VPD page 8Fh (SPC-4 7.8.17), with the descriptors that are mandatory.
    pub fn emit_page(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let commands = [0x83, 1, 0x00, 0x84, 2, action::COPY_STATUS, action::OPERATING_PARAMETERS];
        descriptor(&mut body, SUPPORTED_COMMANDS, &[&[commands.len() as u8][..], &commands].concat());
        let mut parameters = vec![0; 4];
        parameters.extend(self.targets_max.to_be_bytes());
        parameters.extend(self.segments_max.to_be_bytes());
        parameters.extend(self.list_bytes_max.to_be_bytes());
        parameters.resize(0x1c, 0);
        descriptor(&mut body, PARAMETER_DATA, &parameters);
        descriptor(&mut body, SUPPORTED_DESCRIPTORS, &[2, BLOCK_TO_BLOCK, IDENTIFICATION]);
        descriptor(&mut body, SUPPORTED_IDENTIFIERS, &[0, 0]);
        let mut general = u32::from(self.copies_max).to_be_bytes().to_vec();
        general.extend(u32::from(self.copies_max).to_be_bytes());
        general.extend(self.segment_bytes_max.to_be_bytes());
        general.resize(0x20, 0);
        descriptor(&mut body, GENERAL_COPY_OPERATIONS, &general);
        whole(page::THIRD_PARTY_COPY, &body)
    }
}

const SUPPORTED_COMMANDS: u16 = 0x0001;
const PARAMETER_DATA: u16 = 0x0004;
const SUPPORTED_DESCRIPTORS: u16 = 0x0008;
const SUPPORTED_IDENTIFIERS: u16 = 0x000c;
const GENERAL_COPY_OPERATIONS: u16 = 0x8001;

/// A third-party copy descriptor: type, length, value filled to a multiple of four.
fn descriptor(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = value.len().next_multiple_of(4);
    body.extend(kind.to_be_bytes());
    body.extend((length as u16).to_be_bytes());
    body.extend(value);
    body.resize(body.len() + length - value.len(), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { targets_max: 2, segments_max: 2, list_bytes_max: 200, segment_bytes_max: 1 << 20, copies_max: 4 };
    const SEGMENT: Segment =
        Segment { source: 0, destination: 1, block_count: 2048, source_lba: 1, destination_lba: 1 << 40 };

    #[test]
    fn golden_list() {
        let bytes = emit_list(Some(7), &[(0x3000_0000_0000_0001, 512)], &[SEGMENT]);
        assert_eq!(bytes[..16], [7, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0]);
        assert_eq!(bytes[16..32], [0xe4, 0, 0, 0, 1, 3, 0, 8, 0x30, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[44..48], [0, 0, 2, 0]);
        assert_eq!(bytes[48..60], [2, 0, 0, 24, 0, 0, 0, 1, 0, 0, 8, 0]);
        let list = CopyList {
            identifier: Some(7),
            targets: vec![Some(Designator::Naa(0x3000_0000_0000_0001))],
            segments: vec![SEGMENT],
        };
        assert_eq!(CopyList::parse(&bytes, &LIMITS), Ok(list));
        let unnamed = CopyList::parse(&emit_list(None, &[], &[]), &LIMITS);
        assert_eq!(unnamed.map(|list| list.identifier), Ok(None));
    }

    /// libiscsi ExtendedCopy.ParamHdr, DescrLimits, DescrType.
    #[test]
    fn what_is_wrong_is_said() {
        let parse = |bytes: &[u8]| CopyList::parse(bytes, &LIMITS).map(|_| ());
        let bytes = emit_list(Some(1), &[(1, 512)], &[SEGMENT]);
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Err(Sense::PARAMETER_LIST_LENGTH_ERROR), "{cut}");
        }
        let many_targets = emit_list(Some(1), &[(1, 512); 3], &[SEGMENT]);
        assert_eq!(parse(&many_targets), Err(Sense::TOO_MANY_TARGET_DESCRIPTORS));
        let many_segments = emit_list(Some(1), &[(1, 512)], &[SEGMENT; 3]);
        assert_eq!(parse(&many_segments), Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS));
        assert_eq!(parse(&emit_list(Some(1), &[(1, 512); 6], &[])), Err(Sense::TOO_MANY_TARGET_DESCRIPTORS));
        assert_eq!(parse(&emit_list(Some(1), &[(1, 512); 7], &[])), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        let mut other = bytes.clone();
        other[16] = 0xe0;
        assert_eq!(parse(&other), Err(Sense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE));
        let mut other = bytes;
        other[48] = 0x03;
        assert_eq!(parse(&other), Err(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE));
    }

    #[test]
    fn golden_results() {
        let status = CopyStatus { state: ExtendedCopyState::Completed, segment_count: 1, written_bytes: 1 << 20 };
        assert_eq!(status.emit(), [0, 0, 0, 8, 1, 0, 1, 0, 0, 0x10, 0, 0]);
        assert_eq!(CopyStatus::parse(&status.emit()), Ok(status));
        let large = CopyStatus { written_bytes: 1 << 40, ..status };
        assert_eq!(CopyStatus::parse(&large.emit()), Ok(large));
        let parameters = LIMITS.emit_operating_parameters();
        assert_eq!((parameters.len(), &parameters[..4]), (46, &[0, 0, 0, 42][..]));
        assert_eq!(parameters[8..20], [0, 2, 0, 2, 0, 0, 0, 200, 0, 0x10, 0, 0]);
        assert_eq!(parameters[43..], [2, 0x02, 0xe4]);
    }

    #[test]
    fn golden_page() {
        let bytes = LIMITS.emit_page();
        assert_eq!(bytes[..4], [0, 0x8f, 0, (bytes.len() - 4) as u8]);
        assert_eq!(bytes[4..16], [0, 1, 0, 8, 7, 0x83, 1, 0x00, 0x84, 2, 0x00, 0x03]);
        assert_eq!(bytes[16..20], [0, 4, 0, 0x1c]);
        assert_eq!(bytes[48..56], [0, 8, 0, 4, 2, 0x02, 0xe4, 0]);
        assert_eq!(bytes[56..64], [0, 0x0c, 0, 4, 0, 0, 0, 0]);
        assert_eq!(bytes[64..68], [0x80, 1, 0, 0x20]);
    }
}
