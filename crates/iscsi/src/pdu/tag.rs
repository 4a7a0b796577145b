//! Task tags: 32 bits that name a task or a transfer. FFFFFFFFh is reserved for "none" in both (RFC 7143 11.2.1.8,
//! 11.8.5), so the types cannot hold it and a field that may be absent is an `Option`.

use std::fmt;

/// The value on the wire that stands for no tag.
pub const RESERVED_TAG: u32 = 0xffff_ffff;

macro_rules! tag {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// The tag, or `None` for the reserved value.
            pub const fn new(value: u32) -> Option<Self> {
                if value == RESERVED_TAG { None } else { Some(Self(value)) }
            }

            /// Its value, never the reserved one.
            pub const fn get(self) -> u32 {
                self.0
            }

            /// The tag after this one, skipping the reserved value.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(if self.0 >= RESERVED_TAG - 1 { 0 } else { self.0 + 1 })
            }

            /// The value on the wire of a tag or of none.
            pub fn to_wire(tag: Option<Self>) -> u32 {
                tag.map_or(RESERVED_TAG, Self::get)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#010x}", self.0)
            }
        }
    };
}

tag! {
    /// Initiator Task Tag: names a task session-wide (RFC 7143 11.2.1.8).
    InitiatorTaskTag
}

tag! {
    /// Target Transfer Tag: the target's name for a transfer, a ping or a text exchange (RFC 7143 11.8.5).
    TargetTransferTag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserved_value_is_no_tag() {
        assert_eq!(InitiatorTaskTag::new(RESERVED_TAG), None);
        assert_eq!(TargetTransferTag::to_wire(None), RESERVED_TAG);
        let last = TargetTransferTag::new(RESERVED_TAG - 1).unwrap();
        assert_eq!(last.next().get(), 0);
    }
}
