//! The lines of a set that can be evicted, by policy: vectors, the oldest first. Slow and obvious.

use cache::Replacement;

/// Blocks and their hits, and blocks that are remembered.
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

    /// Uses a block. Whether it is there.
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

    /// Whether a block is remembered; it is not any more.
    pub fn recall(&mut self, block: u64) -> bool {
        let is_known = self.ghosts.contains(&block);
        self.ghosts.retain(|&other| other != block);
        is_known
    }

    pub fn insert(&mut self, block: u64, is_known: bool) {
        if is_known { self.second.push((block, 0)) } else { self.first.push((block, 0)) }
    }

    /// Evicts a line, or moves one. The lists have shares of `count` lines, what is remembered of `ways`.
    pub fn step(&mut self, policy: Replacement, count: usize, ways: usize) {
        match policy {
            Replacement::Lru => drop(self.first.remove(0)),
            Replacement::Clock => {
                let (block, hits) = self.first.remove(0);
                if hits > 0 {
                    self.first.push((block, 0));
                }
            }
            Replacement::TwoQueue if self.first.len() > count / 4 || self.second.is_empty() => {
                let (block, _) = self.first.remove(0);
                self.remember(block, ways / 2);
            }
            Replacement::TwoQueue => drop(self.second.remove(0)),
            Replacement::S3Fifo if self.second.len() > count - count / 10 || self.first.is_empty() => {
                let (block, hits) = self.second.remove(0);
                if hits > 0 {
                    self.second.push((block, hits.min(3) - 1));
                }
            }
            // As in libCacheSim, it looks through all of *small* before it looks at *main* again.
            Replacement::S3Fifo => {
                while !self.first.is_empty() {
                    let (block, hits) = self.first.remove(0);
                    if hits < 2 {
                        return self.remember(block, ways * 9 / 10);
                    }
                    self.second.push((block, 0));
                }
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

/// Takes a block out of a list, with what is noted of it.
pub fn take<T: Copy>(list: &mut Vec<(u64, T)>, block: u64) -> Option<(u64, T)> {
    let at = list.iter().position(|(other, _)| *other == block)?;
    Some(list.remove(at))
}
