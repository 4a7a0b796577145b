//! A cache of unchanged blocks, bounded by their count; the least recently used one is evicted.

use std::collections::BTreeMap;

use ext2::{Block, BlockNumber};

/// Unchanged blocks. Changed ones are kept by their transaction.
pub struct Cache {
    count_max: usize,
    /// Each with the value of `uses` at its last use.
    blocks: BTreeMap<BlockNumber, (Block, u64)>,
    by_use: BTreeMap<u64, BlockNumber>,
    /// Count of all uses; orders blocks by their last use.
    uses: u64,
}

impl Cache {
    /// A cache of at most `count_max` blocks.
    pub fn new(count_max: usize) -> Self {
        Self { count_max, blocks: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// Count of cached blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The block `number`, which counts as used now; `None` where it is not cached.
    pub fn get(&mut self, number: BlockNumber) -> Option<Block> {
        let (block, used) = self.blocks.get_mut(&number)?;
        self.by_use.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.by_use.insert(self.uses, number);
        Some(block.clone())
    }

    /// Caches a block, in place of an older content of the same number.
    pub fn insert(&mut self, number: BlockNumber, block: Block) {
        self.remove(number);
        self.uses += 1;
        self.blocks.insert(number, (block, self.uses));
        self.by_use.insert(self.uses, number);
        while self.blocks.len() > self.count_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.blocks.remove(&oldest);
        }
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.by_use.clear();
    }

    /// Removes a block.
    pub fn remove(&mut self, number: BlockNumber) {
        if let Some((_, used)) = self.blocks.remove(&number) {
            self.by_use.remove(&used);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::random::Random;

    use super::*;

    fn block(byte: u8) -> Block {
        Block::copy_of(&[byte])
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let mut cache = Cache::new(2);
        cache.insert(BlockNumber(1), block(1));
        cache.insert(BlockNumber(2), block(2));
        assert_eq!(cache.get(BlockNumber(1)), Some(block(1)));
        cache.insert(BlockNumber(3), block(3));
        assert_eq!(cache.get(BlockNumber(2)), None);
        assert_eq!((cache.get(BlockNumber(1)), cache.get(BlockNumber(3))), (Some(block(1)), Some(block(3))));
    }

    #[test]
    fn it_answers_as_a_list_in_the_order_of_use_does() {
        let test = block::crash_test!();
        for seed in test.seeds(0, 20, 1) {
            let _printed = test.on_panic(seed, None);
            let (mut cache, mut twin, mut random) = (Cache::new(5), Vec::new(), Random::new(seed));
            for step in 0..500 {
                let number = BlockNumber(random.below(9) as u32);
                let found = twin.iter().position(|(at, _)| *at == number);
                match random.below(3) {
                    0 => {
                        cache.insert(number, block(step as u8));
                        found.map(|at| twin.remove(at));
                        twin.push((number, block(step as u8)));
                        if twin.len() > 5 {
                            twin.remove(0);
                        }
                    }
                    1 => {
                        cache.remove(number);
                        found.map(|at| twin.remove(at));
                    }
                    _ => {
                        let expected = found.map(|at| twin.remove(at));
                        assert_eq!(cache.get(number), expected.clone().map(|(_, block)| block));
                        twin.extend(expected);
                    }
                }
                assert_eq!((cache.len(), cache.by_use.len()), (twin.len(), twin.len()));
            }
        }
    }
}
