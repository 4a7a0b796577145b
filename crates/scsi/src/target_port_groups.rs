//! REPORT TARGET PORT GROUPS data (SPC-4 6.37): asymmetric logical unit access.

use crate::error::Malformed;
use crate::field::{u8_at, u16_at, u32_at};
use crate::limits::TARGET_PORT_GROUPS_MAX;

/// How a group's ports reach the logical unit (SPC-4 5.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessState {
    /// Every command, as fast as it gets.
    ActiveOptimized = 0x0,
    /// Every command, perhaps slower.
    ActiveNonOptimized = 0x1,
    /// Only commands that ask about the unit.
    Standby = 0x2,
    /// Only a few commands.
    Unavailable = 0x3,
    /// It depends on the block.
    BlockDependent = 0x4,
    /// Nothing.
    Offline = 0xe,
    /// On its way from one to another.
    Transitioning = 0xf,
}

impl AccessState {
    const ALL: [Self; 7] = [
        Self::ActiveOptimized,
        Self::ActiveNonOptimized,
        Self::Standby,
        Self::Unavailable,
        Self::BlockDependent,
        Self::Offline,
        Self::Transitioning,
    ];

    /// The state of a code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == code)
    }
}

/// One group of target ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number; iSCSI's target portal group tag.
    pub number: u16,
    /// How its ports reach the unit.
    pub access: AccessState,
    /// Relative target port identifiers of its ports.
    pub ports: Vec<u16>,
}

/// The data; `is_extended` asks for the header with an implicit transition time, which is zero: there are no
/// transitions.
pub fn emit(groups: &[Group], is_extended: bool) -> Vec<u8> {
    /// Active/optimized is all that this target has: only AO_SUP is set.
    const SUPPORTED: u8 = 0x01;
    let mut body = if is_extended { vec![0x10, 0, 0, 0] } else { Vec::new() };
    for group in groups {
        body.extend([group.access as u8, SUPPORTED]);
        body.extend(group.number.to_be_bytes());
        body.extend([0, 0, 0, group.ports.len() as u8]);
        body.extend(group.ports.iter().flat_map(|port| u32::from(*port).to_be_bytes()));
    }
    let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
    bytes.extend(body);
    bytes
}

/// The groups in data with the short header, from a target. Those in a state that no standard knows are left out; data
/// cut at the allocation length ends early.
///
/// # Errors
/// [`Malformed`] when not even the header is there.
pub fn parse(bytes: &[u8]) -> Result<Vec<Group>, Malformed> {
    let malformed = Malformed("target port groups");
    let length = u32_at(bytes, 0).ok_or(malformed)? as usize;
    let body = bytes.get(4..).ok_or(malformed)?;
    let mut rest = body.get(..length).unwrap_or(body);
    let mut groups = Vec::new();
    while let (Some(state), Some(number), Some(count)) = (u8_at(rest, 0), u16_at(rest, 2), u8_at(rest, 7)) {
        let end = 8 + 4 * usize::from(count);
        let Some(ports) = rest.get(8..end) else { break };
        if groups.len() == TARGET_PORT_GROUPS_MAX {
            break;
        }
        if let Some(access) = AccessState::from_code(state & 0x0f) {
            let ports = ports.as_chunks::<4>().0.iter().map(|&[_, _, high, low]| u16::from_be_bytes([high, low]));
            groups.push(Group { number, access, ports: ports.collect() });
        }
        rest = rest.get(end..).unwrap_or(&[]);
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(number: u16, access: AccessState, ports: &[u16]) -> Group {
        Group { number, access, ports: ports.to_vec() }
    }

    #[test]
    fn golden_bytes() {
        let groups = [group(2, AccessState::ActiveOptimized, &[1])];
        let descriptor = [0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1];
        assert_eq!(emit(&groups, false), [&[0, 0, 0, 12][..], &descriptor].concat());
        assert_eq!(emit(&groups, true), [&[0, 0, 0, 16, 0x10, 0, 0, 0][..], &descriptor].concat());
        assert_eq!(parse(&emit(&groups, false)).unwrap(), groups);
    }

    /// PREF and the supported states do not change the state read; a group in an unknown state is
    /// left out.
    #[test]
    fn states_of_other_targets() {
        #[rustfmt::skip]
        let bytes = [
            0, 0, 0, 40,
            0x82, 0xdf, 0, 1, 0, 2, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2,
            0x07, 0xdf, 0, 2, 0, 2, 0, 0,
            0x0f, 0xdf, 0, 3, 0, 2, 0, 1, 0, 0, 0, 7,
        ];
        let groups = [group(1, AccessState::Standby, &[1, 2]), group(3, AccessState::Transitioning, &[7])];
        assert_eq!(parse(&bytes).unwrap(), groups);
        assert_eq!(parse(&bytes[..27]).unwrap(), groups[..1], "cut in the second");
        assert_eq!(parse(&bytes[..3]), Err(Malformed("target port groups")));
    }

    #[test]
    fn of_very_many_groups_the_first_are_read() {
        let groups: Vec<Group> = (0..100).map(|number| group(number, AccessState::Standby, &[])).collect();
        assert_eq!(parse(&emit(&groups, false)).unwrap(), groups[..TARGET_PORT_GROUPS_MAX]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
