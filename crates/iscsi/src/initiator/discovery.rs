//! SendTargets (RFC 7143 appendix C): the list of targets and their addresses.
//!
//! The answer is a list of TargetName keys, each followed by the TargetAddress keys of that target. A target without
//! addresses is at the portal that was asked.

use crate::limits::DISCOVERED_TARGETS_MAX;
use crate::text::Keys;
use crate::url::{Portal, UrlError};

/// A target and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// TargetName.
    pub name: String,
    /// TargetAddress values; empty means the portal that was asked.
    pub addresses: Vec<TargetAddress>,
}

/// One TargetAddress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetAddress {
    /// The portal.
    pub portal: Portal,
    /// Target portal group tag.
    pub portal_group_tag: Option<u16>,
}

impl TargetAddress {
    /// Reads `domainname[:port][,portal-group-tag]` (RFC 7143 13.8).
    ///
    /// # Errors
    /// When it is malformed.
    pub fn parse(value: &str) -> Result<Self, UrlError> {
        let (place, tag) = match value.split_once(',') {
            Some((place, tag)) => (place, Some(tag.parse().map_err(|_| UrlError::Portal(value.to_owned()))?)),
            None => (value, None),
        };
        Ok(Self { portal: place.parse()?, portal_group_tag: tag })
    }
}

/// The targets of an answer, unless there are too many. Malformed addresses are left out: one bad
/// entry should not hide the others.
pub(super) fn targets(keys: &Keys) -> Option<Vec<DiscoveredTarget>> {
    let mut targets: Vec<DiscoveredTarget> = Vec::new();
    for (name, value) in keys.iter() {
        match name {
            "TargetName" if targets.len() == DISCOVERED_TARGETS_MAX => return None,
            "TargetName" => targets.push(DiscoveredTarget { name: value.to_owned(), addresses: Vec::new() }),
            "TargetAddress" => {
                if let Some(target) = targets.last_mut() {
                    target.addresses.extend(TargetAddress::parse(value));
                }
            }
            _ => {}
        }
    }
    Some(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_belong_to_the_name_before_them() {
        let keys = Keys::parse_send_targets(
            b"TargetAddress=lost:1,1\0TargetName=iqn.a\0TargetAddress=10.0.0.1:3260,1\0TargetAddress=[::1]:5,2\0\
              TargetAddress=?\0TargetName=iqn.b\0",
        )
        .unwrap();
        let targets = targets(&keys).unwrap();
        assert_eq!(targets.len(), 2);
        let places: Vec<String> = targets[0].addresses.iter().map(|address| address.portal.to_string()).collect();
        assert_eq!(places, ["10.0.0.1:3260", "[::1]:5"]);
        assert_eq!(targets[0].addresses[1].portal_group_tag, Some(2));
        assert!(targets[1].addresses.is_empty());
    }
}
