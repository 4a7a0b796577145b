//! A stream over a link that is longer, and maybe thinner, than the real one.
//!
//! ```text
//! user ──write──► line ──(due: sent at the link's rate, plus one-way latency)──► pump ──► inner stream
//! user ◄──read──  line ◄──(the same the other way)──────────────────────────────  pump ◄── inner stream
//! ```
//! All bytes come out, in order, and not before they are due. Each direction holds a bounded count
//! of bytes; beyond it the writer waits, as with a full socket. The pump is a future that the owner
//! of the stack polls; it ends when both directions have ended. It uses no runtime, so the same
//! link runs in real and in virtual time.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::clock::{Clock, Instant, Sleep};
use initiator::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::limits::{LINK_CHUNK_BYTES_MAX, LINK_IN_FLIGHT_BYTES_MAX};

/// The properties of a link, for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkModel {
    /// From one end to the other. A round trip takes twice as long.
    pub one_way_latency: Duration,
    /// Bytes per second; `None` for as fast as the inner stream.
    pub bytes_per_second: Option<u64>,
}

impl LinkModel {
    /// A link of this round-trip time, as fast as the stream below.
    pub fn round_trip(time: Duration) -> Self {
        Self { one_way_latency: time / 2, bytes_per_second: None }
    }

    fn transfer(&self, length: usize) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let nanoseconds = length as u128 * 1_000_000_000 / u128::from(rate.max(1));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

impl Stream for DelayedStream {}

/// The user's end of a delayed link.
///
/// Dropping it closes it as a socket: what was written still goes out, as long as the pump is polled.
pub struct DelayedStream {
    outgoing: Line,
    incoming: Line,
    /// The wait of a read for bytes that are under way.
    sleep: Option<Sleep>,
}

impl DelayedStream {
    /// Wraps `inner` in a link. The second value is the pump, without which no byte moves; its
    /// errors are returned by the user's reads and writes.
    pub fn over<S>(
        inner: S,
        clock: Arc<dyn Clock>,
        model: LinkModel,
    ) -> (Self, impl Future<Output = ()> + Send + use<S>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (outgoing, incoming) = (Line::new(&clock, model), Line::new(&clock, model));
        let (reader, writer) = tokio::io::split(inner);
        let sending = pump_out(outgoing.clone(), writer);
        let receiving = pump_in(incoming.clone(), reader);
        let pump = async move {
            futures_util::future::join(sending, receiving).await;
        };
        (Self { outgoing, incoming, sleep: None }, pump)
    }
}

/// Writes due bytes to the inner stream, and closes it after the user closed.
async fn pump_out(line: Line, mut writer: impl AsyncWrite + Unpin) {
    let mut chunk = vec![0; LINK_CHUNK_BYTES_MAX];
    let mut sleep = None;
    let failure = loop {
        let length = match poll_fn(|context| line.poll_pull(context, &mut sleep, &mut chunk)).await {
            Ok(0) => break writer.shutdown().await.err(),
            Ok(length) => length,
            Err(_) => break None,
        };
        if let Err(error) = writer.write_all(&chunk[..length]).await {
            break Some(error);
        }
        // Flushed only when no more bytes are due: a batch goes out as one.
        if line.is_quiet()
            && let Err(error) = writer.flush().await
        {
            break Some(error);
        }
    };
    line.close(failure);
}

/// Reads the inner stream while there is room.
async fn pump_in(line: Line, mut reader: impl AsyncRead + Unpin) {
    let mut chunk = vec![0; LINK_CHUNK_BYTES_MAX];
    let failure = 'reading: loop {
        let mut rest = match reader.read(&mut chunk).await {
            Ok(0) => break None,
            Ok(length) => &chunk[..length],
            Err(error) => break Some(error),
        };
        while !rest.is_empty() {
            match poll_fn(|context| line.poll_push(context, rest)).await {
                Ok(length) => rest = &rest[length..],
                // The user's end is closed.
                Err(_) => break 'reading None,
            }
        }
    };
    line.close(failure);
}

/// One direction. Clones are the same direction.
#[derive(Clone)]
struct Line {
    clock: Arc<dyn Clock>,
    model: LinkModel,
    state: Arc<Mutex<LineState>>,
}

#[derive(Default)]
struct LineState {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// When the sending end has put the last byte on the link.
    sent_at: Instant,
    is_closed: bool,
    failure: Option<io::Error>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    taken: usize,
}

impl Line {
    fn new(clock: &Arc<dyn Clock>, model: LinkModel) -> Self {
        Self { clock: Arc::clone(clock), model, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts bytes on the link, as many as there is room for.
    fn poll_push(&self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        if state.is_closed {
            return Poll::Ready(Err(state.failure.take().unwrap_or(io::ErrorKind::BrokenPipe.into())));
        }
        let room = LINK_IN_FLIGHT_BYTES_MAX - state.bytes;
        if room == 0 {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let length = bytes.len().min(room).min(LINK_CHUNK_BYTES_MAX);
        state.sent_at = state.sent_at.max(self.clock.now()) + self.model.transfer(length);
        let due = state.sent_at + self.model.one_way_latency;
        state.chunks.push_back(Chunk { due, bytes: bytes[..length].to_vec(), taken: 0 });
        state.bytes += length;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(length))
    }

    /// Takes bytes that are due; 0 when the link is closed and empty.
    fn poll_pull(
        &self,
        context: &mut Context<'_>,
        sleep: &mut Option<Sleep>,
        target: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let due = {
                let mut state = self.lock();
                let Some(chunk) = state.chunks.front() else {
                    if let Some(failure) = state.failure.take() {
                        return Poll::Ready(Err(failure));
                    }
                    if state.is_closed {
                        return Poll::Ready(Ok(0));
                    }
                    state.reader = Some(context.waker().clone());
                    return Poll::Pending;
                };
                if chunk.due <= self.clock.now() {
                    let (length, writer) = (state.take(target), state.writer.take());
                    drop(state);
                    *sleep = None;
                    writer.into_iter().for_each(Waker::wake);
                    return Poll::Ready(Ok(length));
                }
                chunk.due
            };
            let waiting = sleep.get_or_insert_with(|| self.clock.sleep_until(due));
            std::task::ready!(waiting.as_mut().poll(context));
            *sleep = None;
        }
    }

    /// Whether no byte is due now.
    fn is_quiet(&self) -> bool {
        let now = self.clock.now();
        self.lock().chunks.front().is_none_or(|chunk| chunk.due > now)
    }

    /// Accepts no more bytes; those inside still come out, and after them the failure, if there is
    /// one.
    fn close(&self, failure: Option<io::Error>) {
        let mut state = self.lock();
        state.is_closed = true;
        if failure.is_some() {
            state.failure = failure;
        }
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl LineState {
    /// Copies from the first chunk.
    fn take(&mut self, target: &mut [u8]) -> usize {
        let Some(chunk) = self.chunks.front_mut() else { return 0 };
        let rest = &chunk.bytes[chunk.taken..];
        let length = rest.len().min(target.len());
        target[..length].copy_from_slice(&rest[..length]);
        chunk.taken += length;
        if chunk.taken == chunk.bytes.len() {
            self.chunks.pop_front();
        }
        self.bytes -= length;
        length
    }
}

impl AsyncRead for DelayedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let Self { incoming, sleep, .. } = &mut *self;
        let length = std::task::ready!(incoming.poll_pull(context, sleep, buffer.initialize_unfilled()))?;
        buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for DelayedStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.outgoing.poll_push(context, bytes)
    }

    /// Written bytes are under way already.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.close(None);
        Poll::Ready(Ok(()))
    }
}

impl Drop for DelayedStream {
    fn drop(&mut self) {
        self.outgoing.close(None);
        self.incoming.close(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::executor::Executor;
    use base::random::Random;
    use tokio::io::DuplexStream;

    /// A delayed end, its far end, and the executor whose time they live in.
    fn link(model: LinkModel) -> (Executor, DelayedStream, DuplexStream) {
        let mut executor = Executor::in_order();
        let (near, far) = tokio::io::duplex(1 << 16);
        let (stream, pump) = DelayedStream::over(near, Arc::new(executor.clock()), model);
        executor.spawn(pump);
        (executor, stream, far)
    }

    #[test]
    fn a_round_trip_takes_twice_the_latency() {
        let (mut executor, mut stream, mut far) = link(LinkModel::round_trip(Duration::from_millis(1)));
        let clock = executor.clock();
        executor.spawn(async move {
            let mut byte = [0];
            while far.read(&mut byte).await.is_ok_and(|length| length == 1) {
                far.write_all(&byte).await.expect("the near end is there");
            }
        });
        executor.block_on(async move {
            for round in 1..=5u8 {
                stream.write_all(&[round]).await.expect("the far end is there");
                let mut byte = [0];
                stream.read_exact(&mut byte).await.expect("the far end is there");
                assert_eq!(byte, [round]);
                assert_eq!(clock.now(), Instant::START + Duration::from_millis(u64::from(round)));
            }
        });
    }

    #[test]
    fn a_rate_spreads_bytes_over_time() {
        let model = LinkModel { one_way_latency: Duration::from_millis(5), bytes_per_second: Some(1_000_000) };
        let (mut executor, mut stream, mut far) = link(model);
        let clock = executor.clock();
        executor.spawn(async move {
            stream.write_all(&[7; 100_000]).await.expect("the far end is there");
        });
        let took = executor.block_on(async move {
            let mut bytes = Vec::new();
            far.read_to_end(&mut bytes).await.expect("the near end closes");
            assert_eq!(bytes, [7; 100_000]);
            clock.now() - Instant::START
        });
        assert_eq!(took, Duration::from_millis(105), "100,000 bytes at 1 MB/s, and 5 ms on the way");
    }

    /// More than the link holds, in pieces of all sizes, both ways at once: everything comes out, whole and in order.
    #[test]
    fn contents_and_order_are_kept_under_backpressure() {
        let model = LinkModel { one_way_latency: Duration::from_micros(500), bytes_per_second: Some(500_000_000) };
        let (mut executor, stream, far) = link(model);
        let total = 2 * LINK_IN_FLIGHT_BYTES_MAX;
        let (near_reader, near_writer) = tokio::io::split(stream);
        let (far_reader, far_writer) = tokio::io::split(far);
        executor.spawn(send(near_writer, 1, total));
        executor.spawn(send(far_writer, 2, total));
        executor.block_on(async move {
            futures_util::future::join(receive(far_reader, 1, total), receive(near_reader, 2, total)).await;
        });
    }

    async fn send(mut writer: impl AsyncWrite + Unpin, seed: u64, total: usize) {
        let (mut content, mut sizes) = (Random::new(seed), Random::new(seed + 100));
        let mut sent = 0;
        while sent < total {
            let mut piece = vec![0; 8 * (1 + sizes.below(8192) as usize).min((total - sent) / 8)];
            content.fill(&mut piece);
            writer.write_all(&piece).await.expect("the other end is there");
            sent += piece.len();
        }
        writer.shutdown().await.expect("the other end is there");
    }

    async fn receive(mut reader: impl AsyncRead + Unpin, seed: u64, total: usize) {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).await.expect("the other end closes");
        let mut expected = vec![0; total];
        Random::new(seed).fill(&mut expected);
        assert!(bytes == expected);
    }

    #[test]
    fn a_lost_stream_is_met_by_reads_and_writes() {
        let (mut executor, mut stream, far) = link(LinkModel::round_trip(Duration::from_millis(1)));
        drop(far);
        executor.block_on(async move {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).await.expect("an end is no error"), 0);
            while let Ok(length) = stream.write(&[1]).await {
                assert_eq!(length, 1);
                tokio::task::yield_now().await;
            }
        });
    }
}
