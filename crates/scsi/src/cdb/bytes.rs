//! CDB bytes that own themselves: inline as long as they are one of our commands.

use std::fmt;
use std::ops::Deref;

use crate::limits::{CDB_BYTES_INLINE, CDB_BYTES_MAX};

/// A CDB of up to 260 bytes.
#[derive(Clone)]
pub struct CdbBytes(Repr);

#[derive(Clone)]
enum Repr {
    Inline { bytes: [u8; CDB_BYTES_INLINE], length: u8 },
    Long(Box<[u8]>),
}

impl CdbBytes {
    /// A copy of `bytes`, or `None` when there are more than 260 of them.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > CDB_BYTES_MAX {
            return None;
        }
        let mut inline = [0; CDB_BYTES_INLINE];
        match inline.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                Some(Self(Repr::Inline { bytes: inline, length: bytes.len() as u8 }))
            }
            None => Some(Self(Repr::Long(bytes.into()))),
        }
    }

    /// The first `length` of `bytes`.
    pub(super) fn inline(bytes: [u8; CDB_BYTES_INLINE], length: u8) -> Self {
        assert!(usize::from(length) <= CDB_BYTES_INLINE, "the table holds no longer CDB");
        Self(Repr::Inline { bytes, length })
    }
}

impl From<[u8; CDB_BYTES_INLINE]> for CdbBytes {
    /// The CDB field of an iSCSI command, which is always 16 bytes long.
    fn from(bytes: [u8; CDB_BYTES_INLINE]) -> Self {
        Self::inline(bytes, CDB_BYTES_INLINE as u8)
    }
}

impl Deref for CdbBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { bytes, length } => &bytes[..usize::from(*length)],
            Repr::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for CdbBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for CdbBytes {}

impl fmt::Debug for CdbBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_allowed_length_is_kept() {
        for length in [0, 6, 16, 17, CDB_BYTES_MAX] {
            let bytes: Vec<u8> = (0..length).map(|index| index as u8).collect();
            assert_eq!(CdbBytes::new(&bytes).as_deref(), Some(&bytes[..]));
        }
        assert!(CdbBytes::new(&[0; CDB_BYTES_MAX + 1]).is_none());
    }
}
