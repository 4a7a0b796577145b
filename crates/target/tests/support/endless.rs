//! A peer that always has more to send and takes all it is sent, and a clock by which every portion
//! of work is over after its first turn.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::{Clock, Instant, Sleep};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Sends `first`, then `again` for ever.
pub struct Endless {
    first: Vec<u8>,
    again: Vec<u8>,
    said: usize,
    /// Bytes in both directions.
    moved: Arc<AtomicUsize>,
}

impl Endless {
    pub fn new(first: Vec<u8>, again: Vec<u8>) -> (Self, Arc<AtomicUsize>) {
        let moved = Arc::<AtomicUsize>::default();
        (Self { first, again, said: 0, moved: Arc::clone(&moved) }, moved)
    }
}

impl AsyncRead for Endless {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while buffer.remaining() > 0 {
            let rest = match self.said.checked_sub(self.first.len()) {
                None => &self.first[self.said..],
                Some(said) => &self.again[said % self.again.len()..],
            };
            let length = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..length]);
            self.said += length;
            self.moved.fetch_add(length, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.moved.fetch_add(bytes.len(), Ordering::Relaxed);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        self.moved.fetch_add(length, Ordering::Relaxed);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A clock that advances at each look, and wakes no task.
pub struct AdvancingClock {
    now_us: AtomicU64,
    step_us: u64,
}

impl AdvancingClock {
    pub fn by(step: Duration) -> Self {
        Self { now_us: AtomicU64::new(0), step_us: step.as_micros() as u64 }
    }
}

impl Clock for AdvancingClock {
    fn now(&self) -> Instant {
        Instant::START + Duration::from_micros(self.now_us.fetch_add(self.step_us, Ordering::Relaxed))
    }

    fn sleep_until(&self, _: Instant) -> Sleep {
        Box::pin(std::future::pending())
    }
}
