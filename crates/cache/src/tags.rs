//! The tags of all places, in four bytes each where the numbers allow it.
//!
//! A block is known within its set by its *tag* ([`Layout::tag_of`](crate::layout::Layout::tag_of)), which is smaller
//! than the block by the count of sets. Tags of four bytes reach to 16 TiB for one set, and as many times further as
//! there are sets; the first larger tag widens all.

use crate::numbers::Tag;

/// Tags by place.
#[derive(Clone, Debug)]
pub(crate) enum Tags {
    Narrow(Vec<u32>),
    Wide(Vec<Tag>),
}

impl Tags {
    /// `count` places that hold nothing.
    pub(crate) fn new(count: usize) -> Self {
        Self::Narrow(vec![u32::MAX; count])
    }

    /// Count of places.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Narrow(tags) => tags.len(),
            Self::Wide(tags) => tags.len(),
        }
    }

    pub(crate) fn get(&self, place: usize) -> Option<Tag> {
        match self {
            Self::Narrow(tags) => Some(tags[place]).filter(|&tag| tag != u32::MAX).map(|tag| Tag(tag.into())),
            Self::Wide(tags) => Some(tags[place]).filter(|&tag| tag != Tag::NONE),
        }
    }

    pub(crate) fn set(&mut self, place: usize, tag: Tag) {
        match self {
            Self::Wide(tags) => tags[place] = tag,
            Self::Narrow(tags) => match u32::try_from(tag.0) {
                Ok(tag) if tag != u32::MAX => tags[place] = tag,
                _ => {
                    self.widen();
                    self.set(place, tag);
                }
            },
        }
    }

    pub(crate) fn clear(&mut self, place: usize) {
        match self {
            Self::Narrow(tags) => tags[place] = u32::MAX,
            Self::Wide(tags) => tags[place] = Tag::NONE,
        }
    }

    /// The first place in `places` that holds `tag`.
    pub(crate) fn position(&self, places: std::ops::Range<usize>, tag: Tag) -> Option<usize> {
        let first = places.start;
        let found = match self {
            Self::Narrow(tags) => {
                let tag = u32::try_from(tag.0).ok()?;
                tags[places].iter().position(|&other| other == tag)
            }
            Self::Wide(tags) => tags[places].iter().position(|&other| other == tag),
        };
        found.map(|at| first + at)
    }

    /// Copies what `places` hold to the places from `to` on.
    pub(crate) fn copy_within(&mut self, places: std::ops::Range<usize>, to: usize) {
        match self {
            Self::Narrow(tags) => tags.copy_within(places, to),
            Self::Wide(tags) => tags.copy_within(places, to),
        }
    }

    fn widen(&mut self) {
        *self = Self::Wide((0..self.len()).map(|place| self.get(place).unwrap_or(Tag::NONE)).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Tag = Tag(u32::MAX as u64);
    const BELOW: Tag = Tag(LARGE.0 - 1);

    #[test]
    fn a_large_tag_widens_all_and_changes_none() {
        let mut tags = Tags::new(4);
        tags.set(0, Tag(0));
        tags.set(1, BELOW);
        assert!(matches!(tags, Tags::Narrow(_)));
        tags.set(3, LARGE);
        assert!(matches!(tags, Tags::Wide(_)));
        let all: Vec<_> = (0..4).map(|place| tags.get(place)).collect();
        assert_eq!(all, [Some(Tag(0)), Some(BELOW), None, Some(LARGE)]);
        assert_eq!(tags.position(1..4, LARGE), Some(3));
        tags.clear(3);
        assert_eq!(tags.position(0..4, LARGE), None);
    }
}
