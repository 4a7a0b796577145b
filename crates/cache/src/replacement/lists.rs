//! Four doubly linked lists of frames per set, each from the oldest to the newest.
//!
//! A frame is in one list at most. In sets of up to 256 frames a link is one byte, the place in the set; a list ends
//! where a link points at itself.

use crate::numbers::{FrameNumber, SetNumber};

/// Lists of a set.
pub(super) const LIST_COUNT: usize = 4;

/// Frames of a set whose links fit in a byte.
const NARROW_WAYS_MAX: u32 = 256;

/// Towards the newer and the older neighbour, as places in the set.
enum Links {
    Narrow(Vec<[u8; 2]>),
    Wide(Vec<[u32; 2]>),
}

const NEWER: usize = 0;
const OLDER: usize = 1;

#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    oldest: FrameNumber,
    newest: FrameNumber,
    length: u32,
}

/// The lists of all sets, as links between frames.
pub(super) struct Lists {
    ways: u32,
    links: Links,
    ends: Vec<[Ends; LIST_COUNT]>,
}

impl Lists {
    pub(super) fn new(ways: u32, set_count: u32) -> Self {
        let frame_count = ways as usize * set_count as usize;
        Self {
            ways,
            links: if ways <= NARROW_WAYS_MAX {
                Links::Narrow(vec![[0; 2]; frame_count])
            } else {
                Links::Wide(vec![[0; 2]; frame_count])
            },
            ends: vec![[Ends::default(); LIST_COUNT]; set_count as usize],
        }
    }

    /// Frames in a list.
    pub(super) fn length(&self, set: SetNumber, list: usize) -> u32 {
        self.ends[set.index()][list].length
    }

    /// The oldest frame of a list.
    pub(super) fn oldest(&self, set: SetNumber, list: usize) -> Option<FrameNumber> {
        let ends = &self.ends[set.index()][list];
        (ends.length > 0).then_some(ends.oldest)
    }

    /// The next newer frame of the same list.
    pub(super) fn newer(&self, frame: FrameNumber) -> Option<FrameNumber> {
        Some(self.link(frame, NEWER)).filter(|&newer| newer != frame)
    }

    /// A list, from the oldest on.
    pub(super) fn iter(&self, set: SetNumber, list: usize) -> impl Iterator<Item = FrameNumber> + '_ {
        std::iter::successors(self.oldest(set, list), |&frame| self.newer(frame))
    }

    pub(super) fn push_newest(&mut self, list: usize, frame: FrameNumber) {
        self.push_newest_of(frame.set(self.ways), list, frame);
    }

    /// [`Lists::push_newest`] for a frame of which the set is known: finding it out takes longer than all the rest.
    #[inline]
    pub(super) fn push_newest_of(&mut self, set: SetNumber, list: usize, frame: FrameNumber) {
        let first = set.frame(0, self.ways);
        let ends = &mut self.ends[set.index()][list];
        if ends.length == 0 {
            ends.oldest = frame;
            ends.newest = frame;
        }
        let older = std::mem::replace(&mut ends.newest, frame);
        ends.length += 1;
        let (place, place_older) = (frame - first, older - first);
        match &mut self.links {
            Links::Narrow(links) => {
                links[older.index()][NEWER] = place as u8;
                links[frame.index()] = [place as u8, place_older as u8];
            }
            Links::Wide(links) => {
                links[older.index()][NEWER] = place;
                links[frame.index()] = [place, place_older];
            }
        }
    }

    pub(super) fn unlink(&mut self, list: usize, frame: FrameNumber) {
        let (newer, older) = (self.link(frame, NEWER), self.link(frame, OLDER));
        let (is_newest, is_oldest) = (newer == frame, older == frame);
        let ends = &mut self.ends[frame.set(self.ways).index()][list];
        ends.length -= 1;
        if is_newest {
            ends.newest = older;
        }
        if is_oldest {
            ends.oldest = newer;
        }
        if !is_newest {
            self.set_link(newer, OLDER, if is_oldest { newer } else { older });
        }
        if !is_oldest {
            self.set_link(older, NEWER, if is_newest { older } else { newer });
        }
    }

    fn link(&self, frame: FrameNumber, direction: usize) -> FrameNumber {
        let place = match &self.links {
            Links::Narrow(links) => u32::from(links[frame.index()][direction]),
            Links::Wide(links) => links[frame.index()][direction],
        };
        frame.set(self.ways).frame(place, self.ways)
    }

    fn set_link(&mut self, frame: FrameNumber, direction: usize, to: FrameNumber) {
        let place = to.way(self.ways);
        match &mut self.links {
            Links::Narrow(links) => links[frame.index()][direction] = place as u8,
            Links::Wide(links) => links[frame.index()][direction] = place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lists_equal_vectors(
            ways in prop_oneof![1u32..9, Just(256), 257u32..300],
            steps in proptest::collection::vec((any::<u32>(), 0usize..LIST_COUNT), 1..300),
        ) {
            let mut lists = Lists::new(ways, 2);
            let mut twins = vec![vec![Vec::new(); LIST_COUNT]; 2];
            for (frame, list) in steps {
                let frame = FrameNumber(frame % (2 * ways));
                let set = frame.set(ways).index();
                match (0..LIST_COUNT).find(|&list| twins[set][list].contains(&frame)) {
                    Some(list) => {
                        lists.unlink(list, frame);
                        twins[set][list].retain(|&other| other != frame);
                    }
                    None => {
                        lists.push_newest(list, frame);
                        twins[set][list].push(frame);
                    }
                }
            }
            for (set, twins) in (0..).map(SetNumber).zip(&twins) {
                for (list, twin) in twins.iter().enumerate() {
                    let found: Vec<FrameNumber> = lists.iter(set, list).collect();
                    prop_assert_eq!(&found, twin);
                    prop_assert_eq!(lists.length(set, list) as usize, found.len());
                }
            }
        }
    }
}
