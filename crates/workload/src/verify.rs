//! Reads back everything that a run wrote, and checks every unit.
//!
//! Large requests, many at a time: nothing is measured here. Units between written ones are read
//! along and must still have their content of the start.

use std::ops::ControlFlow;

use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Buffer, Error, SharedDevice};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::ledger::{Ledger, Mismatch};
use crate::limits::{MISMATCHES_DESCRIBED_MAX, VERIFY_DEPTH, VERIFY_REQUEST_BYTES};

/// Counts of a check without faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Reads issued.
    pub requests: u64,
    /// Bytes read and checked.
    pub bytes: u64,
}

/// The error of a check.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// Wrong data.
    #[error("{count} blocks of 512 bytes are wrong; the first: {}", first_of(.described))]
    Mismatches {
        /// Count of wrong units.
        count: u64,
        /// The first of them, by offset.
        described: Vec<Mismatch>,
    },
    /// The device failed.
    #[error("reading {range} back failed: {error}")]
    Device {
        /// The range that was read.
        range: ByteRange,
        /// Its error.
        #[source]
        error: Error,
    },
    /// The progress callback asked to stop.
    #[error("stopped before everything was checked")]
    Stopped,
}

fn first_of(described: &[Mismatch]) -> String {
    described.first().map_or_else(String::new, Mismatch::to_string)
}

/// Reads every written unit of `ledger` from `device`. `progress` is called after each request with
/// the share that is done (0.0 to 1.0).
///
/// # Errors
/// Wrong data (everything is read and counted all the same), a failed device, or a stop.
pub async fn verify_all(
    device: &SharedDevice,
    ledger: &Ledger,
    mut progress: impl FnMut(f64) -> ControlFlow<()>,
) -> Result<Verified, VerifyError> {
    let geometry = device.geometry();
    let window = window_bytes(geometry.transfer_bytes_max, geometry.logical_block_bytes);
    let windows: Vec<ByteRange> =
        ledger.written_windows(window).map(|range| whole_blocks(range, geometry.logical_block_bytes)).collect();
    let mut waiting = windows.iter();
    let mut reading = FuturesUnordered::new();
    let mut verified = Verified::default();
    let mut wrong = Wrong::default();
    loop {
        while reading.len() < VERIFY_DEPTH
            && let Some(range) = waiting.next()
        {
            let read = device.read(range.offset, Buffer::zeroed(range.length as usize));
            reading.push(async move { (*range, read.await) });
        }
        let Some((range, result)) = reading.next().await else { break };
        let buffer = result.map_err(|error| VerifyError::Device { range, error })?;
        wrong.check(ledger, range.offset, &buffer);
        verified.requests += 1;
        verified.bytes += range.length;
        if progress(verified.requests as f64 / windows.len() as f64).is_break() {
            return Err(VerifyError::Stopped);
        }
    }
    wrong.into_result().map(|()| verified)
}

/// The size of a request: whole blocks, and no more than the device takes.
fn window_bytes(transfer_bytes_max: u32, block_bytes: u32) -> u64 {
    let block = u64::from(block_bytes);
    VERIFY_REQUEST_BYTES.min(u64::from(transfer_bytes_max)).max(block) / block * block
}

fn whole_blocks(range: ByteRange, block_bytes: u32) -> ByteRange {
    let block = u64::from(block_bytes);
    let offset = range.offset / block * block;
    ByteRange { offset, length: (range.end() - offset).next_multiple_of(block) }
}

#[derive(Default)]
struct Wrong {
    count: u64,
    described: Vec<Mismatch>,
}

impl Wrong {
    fn check(&mut self, ledger: &Ledger, offset: u64, bytes: &[u8]) {
        let Ok(()) = ledger.check_each(offset, bytes, |mismatch| {
            self.count += 1;
            self.described.push(mismatch);
            Ok::<(), std::convert::Infallible>(())
        });
        // Requests end in any order; the faults with the lowest offsets are described.
        self.described.sort_by_key(|mismatch| mismatch.offset);
        self.described.truncate(MISMATCHES_DESCRIBED_MAX);
    }

    fn into_result(self) -> Result<(), VerifyError> {
        match self.count {
            0 => Ok(()),
            count => Err(VerifyError::Mismatches { count, described: self.described }),
        }
    }
}
