//! COMPARE AND WRITE where this unit is not the only way to the blocks: then it is atomic only where all ways meet, at
//! whatever is behind the device.

use std::future::Future;
use std::pin::Pin;

use block::{Buffer, Error};

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The bytes were the expected ones, and were replaced.
    Written,
    /// They were not, and nothing was changed.
    Different {
        /// The first byte that is another one, from the beginning of the range, where that is known.
        at: Option<u64>,
    },
}

/// A comparison under way.
pub type Comparing = Pin<Box<dyn Future<Output = Result<Comparison, Error>> + Send>>;

/// Who compares and writes for a unit.
pub trait CompareAndWrite: Send + Sync {
    /// Replaces the bytes at `offset` by the second half of `data` if they are the first half: atomically for all who
    /// reach them, and durably.
    ///
    /// The future fails with `Unsupported` where that cannot be done, with nothing changed: then the unit does it
    /// itself.
    fn compare_and_write(&self, offset: u64, data: Buffer) -> Comparing;
}
