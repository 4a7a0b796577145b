//! Bytes of the log in RAM, on their way to the origin.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::buffer::Buffer;

use crate::limits::UNIT_BYTES;

/// Runs of bytes of the log, by the place of the first.
#[derive(Default)]
pub(crate) struct Images(BTreeMap<u32, Arc<Buffer>>);

impl Images {
    /// One run.
    pub(crate) fn of(place: u32, bytes: Buffer) -> Self {
        Self(BTreeMap::from([(place, Arc::new(bytes))]))
    }

    pub(crate) fn insert(&mut self, place: u32, bytes: Arc<Buffer>) {
        self.0.insert(place, bytes);
    }

    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// The `length` bytes at `place`, if they are here.
    pub(crate) fn get(&self, place: u32, length: usize) -> Option<&[u8]> {
        let (&start, bytes) = self.0.range(..=place).next_back()?;
        let at = (u64::from(place - start) * UNIT_BYTES) as usize;
        bytes.get(at..at.checked_add(length)?)
    }
}

impl FromIterator<(u32, Arc<Buffer>)> for Images {
    fn from_iter<T: IntoIterator<Item = (u32, Arc<Buffer>)>>(runs: T) -> Self {
        Self(runs.into_iter().collect())
    }
}
