//! The tag of an extent: whether it is dirty or lost, and the generation of its segment.

/// Whether an extent is dirty or lost, and the generation of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u32);

impl Tag {
    const DIRTY: u32 = 1;
    const LOST: u32 = 2;

    pub(crate) fn dirty(generation: u32) -> Self {
        Self(generation << 2 | Self::DIRTY)
    }

    pub(crate) fn is_dirty(self) -> bool {
        self.0 & Self::DIRTY != 0
    }

    /// Whether the bytes could not be read back.
    pub(crate) fn is_lost(self) -> bool {
        self.0 & Self::LOST != 0
    }

    pub(crate) fn to_clean(self) -> Self {
        Self(self.0 & !(Self::DIRTY | Self::LOST))
    }

    pub(crate) fn to_lost(self) -> Self {
        Self(self.0 | Self::LOST)
    }

    /// Whether the extent was made in this generation of its segment (of which 30 bits count).
    pub(crate) fn is_of(self, generation: u32) -> bool {
        self.0 >> 2 == generation & (u32::MAX >> 2)
    }
}
