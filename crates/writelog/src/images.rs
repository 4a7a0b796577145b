//! Bytes of the log in RAM, on their way to the origin.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::buffer::Buffer;

use crate::limits::UNIT_BYTES;
use crate::unit::LogUnit;

/// Runs of bytes of the log, by the unit of the first.
#[derive(Default)]
pub(crate) struct Images(BTreeMap<LogUnit, Arc<Buffer>>);

impl Images {
    /// One run.
    pub(crate) fn of(unit: LogUnit, bytes: Buffer) -> Self {
        Self(BTreeMap::from([(unit, Arc::new(bytes))]))
    }

    pub(crate) fn insert(&mut self, unit: LogUnit, bytes: Arc<Buffer>) {
        self.0.insert(unit, bytes);
    }

    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// The `length` bytes at `unit`, if they are here.
    pub(crate) fn get(&self, unit: LogUnit, length: usize) -> Option<&[u8]> {
        let (&start, bytes) = self.0.range(..=unit).next_back()?;
        let at = ((unit - start) * UNIT_BYTES) as usize;
        bytes.get(at..at.checked_add(length)?)
    }
}

impl FromIterator<(LogUnit, Arc<Buffer>)> for Images {
    fn from_iter<T: IntoIterator<Item = (LogUnit, Arc<Buffer>)>>(runs: T) -> Self {
        Self(runs.into_iter().collect())
    }
}
