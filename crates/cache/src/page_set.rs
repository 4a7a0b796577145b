//! Table pages that no longer agree with what is in memory.

/// A set of table pages: one bit each.
pub(crate) struct PageSet(Vec<u64>);

impl PageSet {
    pub(crate) fn new(page_count: u64) -> Self {
        Self(vec![0; (page_count as usize).div_ceil(64)])
    }

    pub(crate) fn insert(&mut self, page: u64) {
        self.0[page as usize / 64] |= 1 << (page % 64);
    }

    /// Its pages, ascending; it is empty afterwards.
    pub(crate) fn take(&mut self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (index, word) in self.0.iter_mut().enumerate() {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                pages.push(index as u64 * 64 + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
        pages
    }
}
