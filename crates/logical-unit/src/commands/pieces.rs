//! How much of a long command is done at a time.
//!
//! Where a device answers on the spot, the work is done by the thread that serves others, and a piece holds them up: it is small. Where a device
//! takes its time, others go on meanwhile, and large pieces cost it less.

use std::future::Future;
use std::pin::pin;

use futures_util::FutureExt;

use crate::limits::READ_PIECE_BYTES;

pub(super) struct Pieces {
    small_bytes: u64,
    large_bytes: u64,
    /// Nothing of the last piece was waited for.
    is_on_the_spot: bool,
}

impl Pieces {
    /// Pieces of whole blocks of `block_bytes`, at most `bytes_max` each where that is a block.
    pub(super) fn new(block_bytes: u64, bytes_max: u64) -> Self {
        let whole = |bytes: u64| (bytes / block_bytes).max(1) * block_bytes;
        Self {
            small_bytes: whole(READ_PIECE_BYTES.min(bytes_max)),
            large_bytes: whole(bytes_max),
            is_on_the_spot: true,
        }
    }

    /// Bytes of the next piece, where so many are left.
    pub(super) fn next(&mut self, left: u64) -> u64 {
        let bytes = if self.is_on_the_spot { self.small_bytes } else { self.large_bytes };
        self.is_on_the_spot = true;
        bytes.min(left)
    }

    /// Carries out something of a piece.
    pub(super) async fn wait_for<T>(&mut self, part: impl Future<Output = T>) -> T {
        let mut part = pin!(part);
        if let Some(done) = part.as_mut().now_or_never() {
            return done;
        }
        self.is_on_the_spot = false;
        part.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;

    #[test]
    fn pieces_are_large_where_a_device_takes_its_time() {
        let mut pieces = Pieces::new(512, 1 << 20);
        assert_eq!(pieces.next(u64::MAX), READ_PIECE_BYTES);
        assert_eq!(pieces.wait_for(ready(7)).now_or_never(), Some(7));
        assert_eq!(pieces.next(u64::MAX), READ_PIECE_BYTES);
        assert_eq!(pieces.wait_for(std::future::pending::<u8>()).now_or_never(), None);
        assert_eq!(pieces.next(u64::MAX), 1 << 20);
        assert_eq!((pieces.next(u64::MAX), pieces.next(512)), (READ_PIECE_BYTES, 512));
    }

    #[test]
    fn pieces_are_of_whole_blocks() {
        assert_eq!(Pieces::new(4096, 10_000).next(u64::MAX), 8192);
        assert_eq!(Pieces::new(128 << 10, 1 << 20).next(u64::MAX), 128 << 10);
    }
}
