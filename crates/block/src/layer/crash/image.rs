//! A sparse image that is cheap to copy: copies share pages until one of them is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::range::ByteRange;

const PAGE_BYTES: usize = 4096;

/// The content of a medium. Bytes that were never written read as zero.
#[derive(Clone, Default)]
pub(super) struct Image {
    pages: BTreeMap<u64, Arc<[u8; PAGE_BYTES]>>,
}

impl Image {
    pub(super) fn load(&self, offset: u64, bytes: &mut [u8]) {
        for (page, at, piece) in pieces(ByteRange { offset, length: bytes.len() as u64 }) {
            let target = &mut bytes[piece];
            match self.pages.get(&page) {
                Some(page) => target.copy_from_slice(&page[at..at + target.len()]),
                None => target.fill(0),
            }
        }
    }

    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) {
        for (page, at, piece) in pieces(ByteRange { offset, length: bytes.len() as u64 }) {
            let source = &bytes[piece];
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[at..at + source.len()].copy_from_slice(source);
        }
    }

    pub(super) fn clear(&mut self, range: ByteRange) {
        let (first, last) = (range.offset / PAGE_BYTES as u64, range.end().div_ceil(PAGE_BYTES as u64));
        let touched: Vec<u64> = self.pages.range(first..last.max(first)).map(|(page, _)| *page).collect();
        for page in touched {
            let whole = ByteRange { offset: page * PAGE_BYTES as u64, length: PAGE_BYTES as u64 };
            if range.contains(&whole) {
                self.pages.remove(&page);
            } else if let (Some(part), Some(content)) = (range.intersection(&whole), self.pages.get_mut(&page)) {
                let at = (part.offset - whole.offset) as usize;
                Arc::make_mut(content)[at..at + part.length as usize].fill(0);
            }
        }
    }
}

/// Cuts `range` at page borders: (page, offset inside the page, place inside the range).
fn pieces(range: ByteRange) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let remaining = range.length.checked_sub(done).filter(|&remaining| remaining > 0)?;
        let offset = range.offset + done;
        let at = (offset % PAGE_BYTES as u64) as usize;
        let length = remaining.min((PAGE_BYTES - at) as u64);
        let piece = done as usize..(done + length) as usize;
        done += length;
        Some((offset / PAGE_BYTES as u64, at, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 5 * PAGE_BYTES;

    proptest! {
        /// Stores and clears anywhere equal those on a plain vector, and a copy does not see what comes after it.
        #[test]
        fn an_image_equals_a_vector(
            changes in proptest::collection::vec((0..SIZE, 0..SIZE, proptest::option::of(any::<u8>())), 0..24),
        ) {
            let (mut image, mut twin) = (Image::default(), vec![0; SIZE]);
            for (from, to, fill) in changes {
                let (from, to) = (from.min(to), from.max(to));
                let (copy, before) = (image.clone(), twin.clone());
                twin[from..to].fill(fill.unwrap_or(0));
                match fill {
                    Some(byte) => image.store(from as u64, &vec![byte; to - from]),
                    None => image.clear(ByteRange { offset: from as u64, length: (to - from) as u64 }),
                }
                for (image, twin) in [(&image, &twin), (&copy, &before)] {
                    let mut bytes = vec![0xa5; SIZE];
                    image.load(0, &mut bytes);
                    prop_assert!(&bytes == twin);
                }
            }
        }
    }
}
