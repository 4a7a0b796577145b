//! A link between two ends in virtual time, with delay, rate, loss, and a cut at the border of a
//! PDU.
//!
//! It models TCP as its users see it: bytes come in order or not at all, and a lost segment is seen
//! as a *stall* of everything behind it. Links are independent of each other, so bytes of two
//! connections overtake each other. A cut is the worst case: bytes sent before the cut still
//! arrive, possibly after the near end has begun anew over another link.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::clock::{Clock, Instant, Sleep};
use base::random::Random;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes on their way in one direction before the writer must wait: a socket buffer.
const WINDOW_BYTES: usize = 256 << 10;

/// Bytes that are lost together.
const SEGMENT_BYTES: usize = 1460;

/// Parameters of a link, for both directions.
#[derive(Clone, Debug)]
pub struct FaultyLinkModel {
    /// Delay in one direction.
    pub delay: Duration,
    /// Rate of the line.
    pub bytes_per_second: u64,
    /// Probability that a segment is lost.
    pub loss: f64,
    /// Delay of everything behind a lost segment: a retransmission timeout, or a round trip.
    pub stall: Duration,
    /// Whether headers have digests after a login, which moves the borders of PDUs.
    pub header_digest: bool,
    /// Whether data segments have digests.
    pub data_digest: bool,
    /// The cut, if there is one.
    pub cut: Option<Cut>,
}

/// When and how a link is cut.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Whether the PDUs of the far end are counted.
    pub by_far_end: bool,
    /// After this many PDUs of that end...
    pub pdus: u64,
    /// ...and this many bytes of the next one.
    pub bytes: u64,
    /// How the ends notice it.
    pub kind: CutKind,
}

/// How the ends of a link notice that it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutKind {
    /// The near end at once; bytes on the way to it are lost.
    Reset,
    /// Both, after the bytes on the way to them.
    Closed,
    /// Neither: bytes are accepted and never arrive.
    Silent,
}

/// One end of a link.
pub struct LinkEnd {
    shared: Arc<Mutex<Link>>,
    clock: Arc<dyn Clock>,
    /// The direction in which it sends: 0 from the near end to the far one.
    outgoing: usize,
    alarm: Option<(Instant, Sleep)>,
}

struct Link {
    model: FaultyLinkModel,
    random: Random,
    directions: [Direction; 2],
    cut: Option<CutKind>,
}

#[derive(Default)]
struct Direction {
    /// Bytes under way, with the time of their arrival.
    pieces: VecDeque<(Instant, VecDeque<u8>)>,
    bytes: usize,
    line_free: Instant,
    last_arrival: Instant,
    /// No more bytes are sent.
    is_closed: bool,
    /// The reader has gone.
    is_abandoned: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    pdus: PduCounter,
}

/// Finds the borders of PDUs (RFC 7143 11.2.1).
#[derive(Default)]
struct PduCounter {
    header_digest: bool,
    data_digest: bool,
    header: Vec<u8>,
    /// Bytes of the present PDU after its basic header.
    rest: u64,
    pdus: u64,
    /// Bytes since the last border.
    bytes: u64,
}

impl PduCounter {
    fn step(&mut self, byte: u8) {
        self.bytes += 1;
        if self.header.len() < 48 {
            self.header.push(byte);
            if self.header.len() == 48 {
                let segment = self.header[5..8].iter().fold(0, |length, &byte| length << 8 | u64::from(byte));
                self.rest = u64::from(self.header[4]) * 4 + segment.next_multiple_of(4);
                // Login requests and responses never have any (13.1).
                if !matches!(self.header[0] & 0x3f, 0x03 | 0x23) {
                    self.rest += 4 * u64::from(self.header_digest) + 4 * u64::from(self.data_digest && segment > 0);
                }
            }
        } else {
            self.rest -= 1;
        }
        if self.header.len() == 48 && self.rest == 0 {
            self.header.clear();
            self.pdus += 1;
            self.bytes = 0;
        }
    }
}

/// Makes a link. Returns its ends, the near one first.
pub fn link(clock: &Arc<dyn Clock>, model: FaultyLinkModel, seed: u64) -> (LinkEnd, LinkEnd) {
    let direction = || {
        let FaultyLinkModel { header_digest, data_digest, .. } = model;
        Direction { pdus: PduCounter { header_digest, data_digest, ..PduCounter::default() }, ..Direction::default() }
    };
    let directions = [direction(), direction()];
    let shared = Arc::new(Mutex::new(Link { model, random: Random::new(seed), directions, cut: None }));
    let end = |outgoing| LinkEnd { shared: Arc::clone(&shared), clock: Arc::clone(clock), outgoing, alarm: None };
    (end(0), end(1))
}

impl Link {
    fn wake_all(&mut self) -> Vec<Waker> {
        let wakers =
            self.directions.iter_mut().flat_map(|direction| [direction.reader.take(), direction.writer.take()]);
        wakers.flatten().collect()
    }

    fn send(&mut self, outgoing: usize, now: Instant, bytes: &[u8]) -> Vec<Waker> {
        let segments = bytes.len().div_ceil(SEGMENT_BYTES);
        let losses = (0..segments).filter(|_| self.random.chance(self.model.loss)).count() as u32;
        let line_time = Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / self.model.bytes_per_second);
        let cut = self.model.cut.filter(|cut| cut.by_far_end == (outgoing == 1) && self.cut.is_none());
        let direction = &mut self.directions[outgoing];
        let mut taken = bytes.len();
        let mut is_cut_here = false;
        for (index, &byte) in bytes.iter().enumerate() {
            if cut.is_some_and(|cut| (direction.pdus.pdus, direction.pdus.bytes) >= (cut.pdus, cut.bytes)) {
                (taken, is_cut_here) = (index, true);
                break;
            }
            direction.pdus.step(byte);
        }
        if self.cut != Some(CutKind::Silent) && taken > 0 {
            direction.line_free = direction.line_free.max(now) + line_time;
            let arrival = direction.line_free + self.model.delay + self.model.stall * losses;
            direction.last_arrival = direction.last_arrival.max(arrival);
            direction.pieces.push_back((direction.last_arrival, bytes[..taken].iter().copied().collect()));
            direction.bytes += taken;
        }
        if let Some(cut) = cut.filter(|_| is_cut_here) {
            self.end(cut.kind);
            return self.wake_all();
        }
        direction.reader.take().into_iter().collect()
    }

    fn end(&mut self, kind: CutKind) {
        self.cut = Some(kind);
        if kind != CutKind::Silent {
            self.directions.iter_mut().for_each(|direction| direction.is_closed = true);
        }
        if kind == CutKind::Reset {
            self.directions[1].pieces.clear();
        }
    }
}

/// Counts the PDUs of a link from outside, and cuts it by hand.
pub struct Breaker(Arc<Mutex<Link>>);

impl Breaker {
    /// PDUs that its ends have sent, the near one first.
    pub fn pdus(&self) -> [u64; 2] {
        let link = lock(&self.0);
        [link.directions[0].pdus.pdus, link.directions[1].pdus.pdus]
    }

    /// Cuts it, if it is not cut yet.
    pub fn cut(&self, kind: CutKind) {
        let mut link = lock(&self.0);
        if link.cut.is_none() {
            link.end(kind);
        }
        let wakers = link.wake_all();
        drop(link);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl LinkEnd {
    /// A breaker for its link.
    pub fn breaker(&self) -> Breaker {
        Breaker(Arc::clone(&self.shared))
    }
}

fn lock(link: &Mutex<Link>) -> MutexGuard<'_, Link> {
    link.lock().unwrap_or_else(PoisonError::into_inner)
}

impl initiator::Stream for LinkEnd {}

impl AsyncRead for LinkEnd {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let end = self.get_mut();
        loop {
            let now = end.clock.now();
            let arrival = {
                let mut link = lock(&end.shared);
                let is_reset = link.cut == Some(CutKind::Reset) && end.outgoing == 0;
                let direction = &mut link.directions[1 - end.outgoing];
                direction.reader = Some(context.waker().clone());
                match direction.pieces.front_mut() {
                    _ if is_reset => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                    Some((arrival, piece)) if *arrival <= now => {
                        let length = piece.len().min(into.remaining());
                        let bytes: Vec<u8> = piece.drain(..length).collect();
                        into.put_slice(&bytes);
                        if piece.is_empty() {
                            direction.pieces.pop_front();
                        }
                        direction.bytes -= length;
                        let writer = direction.writer.take();
                        drop(link);
                        writer.into_iter().for_each(Waker::wake);
                        return Poll::Ready(Ok(()));
                    }
                    Some((arrival, _)) => *arrival,
                    None if direction.is_closed => return Poll::Ready(Ok(())),
                    None => return Poll::Pending,
                }
            };
            if end.alarm.as_ref().is_none_or(|(at, _)| *at != arrival) {
                end.alarm = Some((arrival, end.clock.sleep_until(arrival)));
            }
            let Some((_, sleep)) = &mut end.alarm else { continue };
            std::task::ready!(sleep.as_mut().poll(context));
            end.alarm = None;
        }
    }
}

impl AsyncWrite for LinkEnd {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let end = self.get_mut();
        let now = end.clock.now();
        let mut link = lock(&end.shared);
        let direction = &mut link.directions[end.outgoing];
        if direction.is_closed || direction.is_abandoned {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if direction.bytes >= WINDOW_BYTES {
            direction.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let length = bytes.len().min(WINDOW_BYTES - direction.bytes);
        let wakers = link.send(end.outgoing, now, &bytes[..length]);
        drop(link);
        wakers.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut link = lock(&self.shared);
        // On a silent link the other end does not notice that either.
        if link.cut != Some(CutKind::Silent) {
            link.directions[self.outgoing].is_closed = true;
        }
        let wakers = link.wake_all();
        drop(link);
        wakers.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }
}

impl Drop for LinkEnd {
    fn drop(&mut self) {
        let mut link = lock(&self.shared);
        if link.cut != Some(CutKind::Silent) {
            link.directions[self.outgoing].is_closed = true;
            link.directions[1 - self.outgoing].is_abandoned = true;
        }
        let wakers = link.wake_all();
        drop(link);
        wakers.into_iter().for_each(Waker::wake);
    }
}
