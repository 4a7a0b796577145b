//! Which block each place holds, in four bytes where the numbers allow it.
//!
//! A block is known within its set by its *tag* ([`Layout::tag_of`](crate::layout::Layout::tag_of)), which is smaller
//! than the block by the count of sets. Tags of four bytes reach to 16 TiB for one set, and as many times further as
//! there are sets; the first larger tag widens all.

/// Tags by place.
#[derive(Clone, Debug)]
pub(crate) enum Tags {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
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

    pub(crate) fn get(&self, place: usize) -> Option<u64> {
        match self {
            Self::Narrow(tags) => Some(tags[place]).filter(|&tag| tag != u32::MAX).map(u64::from),
            Self::Wide(tags) => Some(tags[place]).filter(|&tag| tag != u64::MAX),
        }
    }

    pub(crate) fn set(&mut self, place: usize, tag: u64) {
        match self {
            Self::Wide(tags) => tags[place] = tag,
            Self::Narrow(tags) => match u32::try_from(tag) {
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
            Self::Wide(tags) => tags[place] = u64::MAX,
        }
    }

    /// The first place in `places` that holds `tag`.
    pub(crate) fn position(&self, places: std::ops::Range<usize>, tag: u64) -> Option<usize> {
        let first = places.start;
        let found = match self {
            Self::Narrow(tags) => {
                let tag = u32::try_from(tag).ok()?;
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
        *self = Self::Wide((0..self.len()).map(|place| self.get(place).unwrap_or(u64::MAX)).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_tag_widens_all_and_changes_none() {
        let mut tags = Tags::new(4);
        tags.set(0, 0);
        tags.set(1, u64::from(u32::MAX) - 1);
        assert!(matches!(tags, Tags::Narrow(_)));
        tags.set(3, u64::from(u32::MAX));
        assert!(matches!(tags, Tags::Wide(_)));
        let all: Vec<_> = (0..4).map(|place| tags.get(place)).collect();
        assert_eq!(all, [Some(0), Some(u64::from(u32::MAX) - 1), None, Some(u64::from(u32::MAX))]);
        assert_eq!(tags.position(1..4, u64::from(u32::MAX)), Some(3));
        tags.clear(3);
        assert_eq!(tags.position(0..4, u64::from(u32::MAX)), None);
    }
}
