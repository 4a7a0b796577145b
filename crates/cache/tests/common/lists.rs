//! A model of the lines of a set that can be evicted, by policy: vectors, the oldest first. Slow
//! and obvious.

use cache::Replacement;

/// Blocks with their hits, and ghosts.
#[derive(Clone, Default)]
pub struct Lists {
    pub first: Vec<(u64, u32)>,
    pub second: Vec<(u64, u32)>,
    pub ghosts: Vec<u64>,
}

impl Lists {
    pub fn count(&self) -> usize {
        self.first.len() + self.second.len()
    }

    pub fn has(&self, block: u64) -> bool {
        self.first.iter().chain(&self.second).any(|(other, _)| *other == block)
    }

    /// Uses a block. Returns whether it is resident.
    pub fn touch(&mut self, policy: Replacement, block: u64) -> bool {
        for (list, moves) in
            [(&mut self.first, policy == Replacement::Lru), (&mut self.second, policy == Replacement::TwoQueue)]
        {
            if moves && let Some(line) = take(list, block) {
                list.push(line);
                return true;
            }
            if let Some(line) = list.iter_mut().find(|(other, _)| *other == block) {
                line.1 += u32::from(policy != Replacement::TwoQueue);
                return true;
            }
        }
        false
    }

    /// Removes a block's ghost. Returns whether it had one.
    pub fn recall(&mut self, block: u64) -> bool {
        let is_known = self.ghosts.contains(&block);
        self.ghosts.retain(|&other| other != block);
        is_known
    }

    pub fn insert(&mut self, block: u64, is_known: bool) {
        if is_known { self.second.push((block, 0)) } else { self.first.push((block, 0)) }
    }

    /// Evicts a line, or moves one to another list, among those that are not `held` (at least one).
    /// The lists have shares of `count` lines, the ghosts of `ways`.
    pub fn step(&mut self, policy: Replacement, count: usize, ways: usize, held: &[u64]) {
        let oldest = |list: &[(u64, u32)]| list.iter().position(|(block, _)| !held.contains(block));
        let (first, second) = (oldest(&self.first), oldest(&self.second));
        match (policy, first, second) {
            (Replacement::Lru, Some(at), _) => drop(self.first.remove(at)),
            (Replacement::Clock, Some(at), _) => {
                let (block, hits) = self.first.remove(at);
                if hits > 0 {
                    self.first.push((block, 0));
                }
            }
            (Replacement::TwoQueue, Some(at), _) if self.first.len() > count / 4 || second.is_none() => {
                let (block, _) = self.first.remove(at);
                self.remember(block, ways / 2);
            }
            (Replacement::TwoQueue, _, Some(at)) => drop(self.second.remove(at)),
            (Replacement::S3Fifo, _, Some(at)) if self.second.len() > count - count / 10 || first.is_none() => {
                let (block, hits) = self.second.remove(at);
                if hits > 0 {
                    self.second.push((block, hits.min(3) - 1));
                }
            }
            // As in libCacheSim, it looks through all of *small* before it looks at *main* again.
            (Replacement::S3Fifo, ..) => {
                while let Some(at) = oldest(&self.first) {
                    let (block, hits) = self.first.remove(at);
                    if hits < 2 {
                        return self.remember(block, ways * 9 / 10);
                    }
                    self.second.push((block, 0));
                }
            }
            (Replacement::Lru | Replacement::Clock, None, _) | (Replacement::TwoQueue, ..) => {
                panic!("no line can be evicted")
            }
        }
    }

    fn remember(&mut self, block: u64, count_max: usize) {
        self.ghosts.push(block);
        if self.ghosts.len() > count_max {
            self.ghosts.remove(0);
        }
    }
}

/// Removes a block from a list. Returns its entry.
pub fn take<T: Copy>(list: &mut Vec<(u64, T)>, block: u64) -> Option<(u64, T)> {
    let at = list.iter().position(|(other, _)| *other == block)?;
    Some(list.remove(at))
}
