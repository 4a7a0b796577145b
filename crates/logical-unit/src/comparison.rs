//! COMPARE AND WRITE where other paths lead to the blocks without this unit: it is atomic only
//! where all paths meet, in the layer behind the device.

use std::future::Future;
use std::pin::Pin;

use block::{Buffer, Error};

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The bytes were the expected ones, and were replaced.
    Written,
    /// They were not the expected ones, and nothing was changed.
    Different {
        /// Offset of the first byte that differs, from the beginning of the range, where that is
        /// known.
        at: Option<u64>,
    },
}

/// A comparison under way.
pub type Comparing = Pin<Box<dyn Future<Output = Result<Comparison, Error>> + Send>>;

/// The layer below, which compares and writes for a unit.
pub trait CompareAndWrite: Send + Sync {
    /// Replaces the bytes at `offset` by the second half of `data` if they equal the first half:
    /// atomically on all paths, and durably.
    ///
    /// The future fails with `Unsupported` where that cannot be done, with nothing changed; the
    /// unit does it itself then.
    fn compare_and_write(&self, offset: u64, data: Buffer) -> Comparing;
}
