//! REPORT TARGET PORT GROUPS data (SPC-4 6.37): asymmetric logical unit access.

/// One group of target ports, all active and optimized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number; iSCSI's target portal group tag.
    pub number: u16,
    /// Relative target port identifiers of its ports.
    pub ports: Vec<u16>,
}

/// The data; `is_extended` asks for the header with an implicit transition time, which is zero: there are no transitions.
pub fn emit(groups: &[Group], is_extended: bool) -> Vec<u8> {
    /// Active/optimized is all there is: only AO_SUP is set.
    const SUPPORTED: u8 = 0x01;
    let mut body = if is_extended { vec![0x10, 0, 0, 0] } else { Vec::new() };
    for group in groups {
        body.extend([0x00, SUPPORTED]);
        body.extend(group.number.to_be_bytes());
        body.extend([0, 0, 0, group.ports.len() as u8]);
        body.extend(group.ports.iter().flat_map(|port| u32::from(*port).to_be_bytes()));
    }
    let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
    bytes.extend(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let groups = [Group { number: 2, ports: vec![1] }];
        let descriptor = [0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1];
        assert_eq!(emit(&groups, false), [&[0, 0, 0, 12][..], &descriptor].concat());
        assert_eq!(emit(&groups, true), [&[0, 0, 0, 16, 0x10, 0, 0, 0][..], &descriptor].concat());
    }
}
