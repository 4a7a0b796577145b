//! The pieces in which a long request is carried out.
//!
//! Where a device answers on the spot, the work is done by a thread that serves other requests,
//! too, and each piece delays them: it is small. Where a device takes time, others are served
//! meanwhile, and large pieces cost less.

use std::future::Future;
use std::pin::pin;

use futures_util::FutureExt;

/// The sizes of the pieces of one request.
pub struct Pieces {
    small_bytes: u64,
    large_bytes: u64,
    /// Whether the last piece was answered on the spot.
    was_immediate: bool,
}

impl Pieces {
    /// Pieces in whole blocks of `block_bytes`: of at most `small_bytes_max` while the device
    /// answers on the spot, else of `large_bytes_max`; at least a block.
    pub fn new(block_bytes: u64, small_bytes_max: u64, large_bytes_max: u64) -> Self {
        let whole = |bytes: u64| (bytes / block_bytes).max(1) * block_bytes;
        Self {
            small_bytes: whole(small_bytes_max.min(large_bytes_max)),
            large_bytes: whole(large_bytes_max),
            was_immediate: true,
        }
    }

    /// Bytes of the next piece, when `left` bytes are left.
    pub fn next(&mut self, left: u64) -> u64 {
        let bytes = if self.was_immediate { self.small_bytes } else { self.large_bytes };
        self.was_immediate = true;
        bytes.min(left)
    }

    /// Like [`next`](Self::next), but always a small one: other requests are carried out beside it.
    pub fn next_small(&mut self, left: u64) -> u64 {
        self.was_immediate = true;
        self.next(left)
    }

    /// Whether the last piece was answered on the spot.
    pub fn was_immediate(&self) -> bool {
        self.was_immediate
    }

    /// Awaits a part of a piece, and notes whether it was answered on the spot.
    pub async fn wait_for<T>(&mut self, part: impl Future<Output = T>) -> T {
        let mut part = pin!(part);
        if let Some(done) = part.as_mut().now_or_never() {
            return done;
        }
        self.was_immediate = false;
        part.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;

    const KIB: u64 = 1 << 10;

    #[test]
    fn pieces_are_large_where_a_device_takes_its_time() {
        let mut pieces = Pieces::new(512, 64 * KIB, 1 << 20);
        assert_eq!(pieces.next(u64::MAX), 64 * KIB);
        assert_eq!(pieces.wait_for(ready(7)).now_or_never(), Some(7));
        assert_eq!(pieces.next(u64::MAX), 64 * KIB);
        assert_eq!(pieces.wait_for(std::future::pending::<u8>()).now_or_never(), None);
        assert_eq!(pieces.next(u64::MAX), 1 << 20);
        assert_eq!((pieces.next(u64::MAX), pieces.next(512)), (64 * KIB, 512));
        assert_eq!(pieces.wait_for(std::future::pending::<u8>()).now_or_never(), None);
        assert_eq!(pieces.next_small(u64::MAX), 64 * KIB);
    }

    #[test]
    fn pieces_are_of_whole_blocks() {
        assert_eq!(Pieces::new(4096, 64 * KIB, 10_000).next(u64::MAX), 8192);
        assert_eq!(Pieces::new(128 << 10, 64 * KIB, 1 << 20).next(u64::MAX), 128 << 10);
    }
}
