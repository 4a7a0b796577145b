//! Owned I/O buffers.
//!
//! A [`Buffer`] is a contiguous run of bytes that starts on a 4 KiB boundary (so `O_DIRECT` accepts
//! it) and has one owner. Requests carry it down a stack of devices and completions carry it back
//! up; it is never borrowed across an `await`. When it is dropped its memory returns to the
//! [`BufferPool`] it came from.
//!
//! A pool bounds the bytes that are *out* at any time. [`BufferPool::try_acquire`] returns `None`
//! when the bound is reached; [`BufferPool::acquire`] waits its turn, first come first served.
//! Returned memory is kept, by size class, for the next buffer.
//!
//! New memory is zeroed; recycled memory holds what was there before, so a consumer that does not fill a buffer must
//! clear it. [`Buffer::zeroed`] always is zero.
//!
//! A large buffer may be filled piece by piece: its memory is made when a piece first comes into
//! its window ([`Buffer::set_window`]). Making memory takes about as long as filling it.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::limits::{BUFFER_ALIGNMENT, BUFFER_BYTES_MAX, POOL_IDLE_BYTES_PER_CLASS_MAX};

/// The unit of allocation; its only purpose is its alignment.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; BUFFER_ALIGNMENT]);
const _: () = assert!(size_of::<Page>() == BUFFER_ALIGNMENT);
const _: () = assert!(align_of::<Page>() == BUFFER_ALIGNMENT);

/// An owned, page-aligned, contiguous run of bytes.
///
/// Dereferences to `[u8]`: to its first bytes, or to the window that was set. The length can shrink and grow inside the
/// capacity.
pub struct Buffer {
    /// The memory made so far, from the front; the capacity is reserved.
    pages: Vec<Page>,
    /// First byte of the window.
    start: usize,
    length: usize,
    pool: Option<Arc<PoolShared>>,
}

impl Buffer {
    /// A buffer without bytes and without memory, for requests that carry none.
    pub const fn empty() -> Self {
        Self { pages: Vec::new(), start: 0, length: 0, pool: None }
    }

    /// `length` zero bytes outside any pool.
    ///
    /// # Panics
    /// When `length` exceeds [`BUFFER_BYTES_MAX`]: callers bound what they take from outside first.
    pub fn zeroed(length: usize) -> Self {
        assert!(length <= BUFFER_BYTES_MAX, "a buffer of {length} bytes was asked for");
        let pages =
            Page::new_vec_zeroed(length.div_ceil(BUFFER_ALIGNMENT)).expect("the allocator has this much memory");
        Self { pages, start: 0, length, pool: None }
    }

    /// A copy of `bytes` outside any pool.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Bytes that fit without a new allocation.
    pub fn capacity(&self) -> usize {
        self.pages.capacity() * BUFFER_ALIGNMENT
    }

    /// First byte of the window.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Bytes that fit behind the first one of the window.
    pub fn room(&self) -> usize {
        self.capacity() - self.start
    }

    /// Bytes from the first one of the window on whose memory is made: with more of them the next window costs time.
    pub fn made(&self) -> usize {
        (self.pages.len() * BUFFER_ALIGNMENT).saturating_sub(self.start)
    }

    /// Makes the window `length` bytes long, unless it is longer. Bytes that appear hold whatever the memory held.
    ///
    /// # Panics
    /// When there is no [`room`](Self::room) for them.
    pub fn extend_to(&mut self, length: usize) {
        if length > self.length {
            self.set_length(length);
        }
    }

    /// Whether its memory belongs to a pool.
    pub fn is_lent(&self) -> bool {
        self.pool.is_some()
    }

    /// Changes the length inside the capacity. Bytes that appear hold whatever the memory held.
    ///
    /// # Panics
    /// When the window's end exceeds the capacity.
    pub fn set_length(&mut self, length: usize) {
        self.set_window(self.start, length);
    }

    /// Sets the window to the `length` bytes from `start`, which must begin a page. Bytes that were
    /// not in a window before are zero, or what recycled memory held.
    ///
    /// # Panics
    /// When `start` does not begin a page, or the window's end exceeds the capacity.
    pub fn set_window(&mut self, start: usize, length: usize) {
        let (end, capacity) = (start.saturating_add(length), self.capacity());
        assert!(start.is_multiple_of(BUFFER_ALIGNMENT), "a window at {start}");
        assert!(end <= capacity, "the window ends at {end}, over the capacity {capacity}");
        let page_count = end.div_ceil(BUFFER_ALIGNMENT);
        if page_count > self.pages.len() {
            self.pages.resize(page_count, Page([0; BUFFER_ALIGNMENT]));
        }
        (self.start, self.length) = (start, length);
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pages.as_bytes()[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_slice().as_mut_bytes()[self.start..self.start + self.length]
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.length, self.capacity())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put_back(std::mem::take(&mut self.pages));
        }
    }
}

/// A bounded source of buffers. Clones share one bound.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    bytes_max: AtomicUsize,
    state: Mutex<PoolState>,
}

/// Guarded by `PoolShared::state`; sections are short and never await.
struct PoolState {
    /// Capacity of the buffers that are out.
    bytes_out: usize,
    /// `idle[class]` holds memory of `BUFFER_ALIGNMENT << class` bytes.
    idle: Vec<Vec<Vec<Page>>>,
    waiting: VecDeque<Arc<Ticket>>,
}

/// One waiter in line. `waker` is guarded by its own mutex, taken after the pool's.
struct Ticket {
    capacity: usize,
    waker: Mutex<Option<Waker>>,
}

impl BufferPool {
    /// A pool that lets at most `bytes_max` bytes be out at once (at least one page).
    pub fn new(bytes_max: usize) -> Self {
        let bytes_max = AtomicUsize::new(bytes_max.max(BUFFER_ALIGNMENT));
        let state = PoolState { bytes_out: 0, idle: Vec::new(), waiting: VecDeque::new() };
        Self { shared: Arc::new(PoolShared { bytes_max, state: Mutex::new(state) }) }
    }

    /// Changes the bound. Buffers that are out stay out; with a smaller bound none is lent until
    /// enough came back.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        self.shared.bytes_max.store(bytes_max.max(BUFFER_ALIGNMENT), Ordering::Relaxed);
        wake_first(&self.shared.lock());
    }

    /// A buffer of `length` bytes now; `None` when the bound is reached or other callers wait in
    /// line.
    pub fn try_acquire(&self, length: usize) -> Option<Buffer> {
        let capacity = class_capacity(length)?;
        let mut state = self.shared.lock();
        if !state.waiting.is_empty() {
            return None;
        }
        let pages = self.shared.take(&mut state, capacity)?;
        drop(state);
        Some(self.lend(pages, length))
    }

    /// Room for `capacity` bytes with an empty window, for one of several owners of many buffers,
    /// each of which must leave some to the others. Once the others have more than half of the
    /// bound, an owner with `own_bytes` out gets no more than is then left.
    pub fn try_acquire_beside_others(&self, capacity: usize, own_bytes: usize) -> Option<Buffer> {
        let capacity = class_capacity(capacity)?;
        let mut state = self.shared.lock();
        let bytes_max = self.shared.bytes_max.load(Ordering::Relaxed);
        let is_scarce = state.bytes_out.saturating_sub(own_bytes) > bytes_max / 2;
        let own_after = own_bytes + capacity;
        if !state.waiting.is_empty() || (is_scarce && state.bytes_out + capacity + own_after > bytes_max) {
            return None;
        }
        let pages = self.shared.take(&mut state, capacity)?;
        drop(state);
        Some(self.lend(pages, 0))
    }

    /// Bytes of the pool that a buffer of `length` bytes takes; `None` above the largest buffer.
    pub fn capacity_of(length: usize) -> Option<usize> {
        class_capacity(length)
    }

    /// A buffer of `length` bytes, waiting until the pool may lend it. A request above the pool's whole bound is
    /// served alone, when nothing else is out, so that it can never wait for ever.
    ///
    /// # Panics
    /// When `length` exceeds [`BUFFER_BYTES_MAX`].
    pub fn acquire(&self, length: usize) -> Acquire {
        let capacity = class_capacity(length).expect("callers bound a length before they ask for a buffer");
        Acquire { pool: self.clone(), length, capacity, ticket: None }
    }

    /// Like [`acquire`](Self::acquire), with room for `capacity` bytes and an empty window: for a
    /// buffer that is filled piece by piece.
    ///
    /// # Panics
    /// When `capacity` exceeds [`BUFFER_BYTES_MAX`].
    pub fn acquire_unfilled(&self, capacity: usize) -> Acquire {
        let mut acquire = self.acquire(capacity);
        acquire.length = 0;
        acquire
    }

    /// Bytes lent and not yet returned.
    pub fn bytes_out(&self) -> usize {
        self.shared.lock().bytes_out
    }

    /// Makes the missing memory; without the lock, since it may be much.
    fn lend(&self, pages: Vec<Page>, length: usize) -> Buffer {
        let mut buffer = Buffer { pages, start: 0, length: 0, pool: Some(Arc::clone(&self.shared)) };
        buffer.set_length(length);
        buffer
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, state: &mut PoolState, capacity: usize) -> Option<Vec<Page>> {
        let is_alone = state.bytes_out == 0;
        if state.bytes_out + capacity > self.bytes_max.load(Ordering::Relaxed) && !is_alone {
            return None;
        }
        state.bytes_out += capacity;
        let recycled = state.idle.get_mut(class_of(capacity)).and_then(Vec::pop);
        Some(recycled.unwrap_or_else(|| Vec::with_capacity(capacity / BUFFER_ALIGNMENT)))
    }

    fn put_back(&self, pages: Vec<Page>) {
        let capacity = pages.capacity() * BUFFER_ALIGNMENT;
        let mut state = self.lock();
        assert!(state.bytes_out >= capacity, "more bytes came back than were lent");
        state.bytes_out -= capacity;
        let class = class_of(capacity);
        if state.idle.len() <= class {
            state.idle.resize_with(class + 1, Vec::new);
        }
        if capacity > 0 && (state.idle[class].len() + 1) * capacity <= POOL_IDLE_BYTES_PER_CLASS_MAX.max(capacity) {
            state.idle[class].push(pages);
        }
        wake_first(&state);
    }
}

/// Wakes the first waiter in line if the pool may now serve it; it takes its buffer when it is
/// polled.
fn wake_first(state: &PoolState) {
    if let Some(first) = state.waiting.front()
        && let Some(waker) = first.waker.lock().unwrap_or_else(PoisonError::into_inner).take()
    {
        waker.wake();
    }
}

/// The future of [`BufferPool::acquire`].
pub struct Acquire {
    pool: BufferPool,
    length: usize,
    capacity: usize,
    ticket: Option<Arc<Ticket>>,
}

impl Future for Acquire {
    type Output = Buffer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Buffer> {
        let this = &mut *self;
        let mut state = this.pool.shared.lock();
        let is_first = match (&this.ticket, state.waiting.front()) {
            (None, front) => front.is_none(),
            (Some(ticket), Some(front)) => Arc::ptr_eq(ticket, front),
            (Some(_), None) => unreachable!("a ticket leaves the line only with its future"),
        };
        if is_first && let Some(pages) = this.pool.shared.take(&mut state, this.capacity) {
            if this.ticket.take().is_some() {
                state.waiting.pop_front();
                wake_first(&state);
            }
            drop(state);
            return Poll::Ready(this.pool.lend(pages, this.length));
        }
        let ticket = this.ticket.get_or_insert_with(|| {
            let ticket = Arc::new(Ticket { capacity: this.capacity, waker: Mutex::new(None) });
            state.waiting.push_back(Arc::clone(&ticket));
            ticket
        });
        debug_assert_eq!(ticket.capacity, this.capacity);
        *ticket.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let mut state = self.pool.shared.lock();
            state.waiting.retain(|other| !Arc::ptr_eq(other, &ticket));
            wake_first(&state);
        }
    }
}

/// The power-of-two capacity that holds `length`, or `None` above the largest buffer.
fn class_capacity(length: usize) -> Option<usize> {
    (length <= BUFFER_BYTES_MAX).then(|| length.max(1).next_power_of_two().max(BUFFER_ALIGNMENT))
}

fn class_of(capacity: usize) -> usize {
    (capacity / BUFFER_ALIGNMENT).max(1).trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Executor;

    #[test]
    fn buffers_start_on_a_page_and_have_the_length_asked_for() {
        for length in [0, 1, 512, 4096, 4097, 1 << 20] {
            let buffer = Buffer::zeroed(length);
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer.as_ptr() as usize % BUFFER_ALIGNMENT, 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn a_buffer_that_is_filled_piece_by_piece_takes_its_memory_so() {
        const PIECE: usize = 2 * BUFFER_ALIGNMENT;
        let pool = BufferPool::new(4 * PIECE);
        let acquire = || crate::executor::block_on(pool.acquire_unfilled(4 * PIECE));
        let mut buffer = acquire();
        assert_eq!((buffer.len(), buffer.capacity(), pool.bytes_out()), (0, 4 * PIECE, 4 * PIECE));
        for number in 0..3 {
            buffer.set_window(number * PIECE, PIECE - 1);
            assert_eq!(buffer.pages.len() * BUFFER_ALIGNMENT, (number + 1) * PIECE, "no more than was in a window");
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(number as u8 + 1);
        }
        buffer.set_window(0, 3 * PIECE);
        assert_eq!([PIECE - 2, PIECE - 1, PIECE, 3 * PIECE - 2].map(|at| buffer[at]), [1, 0, 2, 3]);
        drop(buffer);
        assert_eq!(pool.bytes_out(), 0, "it counts with all of its room");
        assert_eq!(acquire().pages.len() * BUFFER_ALIGNMENT, 3 * PIECE, "what was made stays made");
    }

    #[test]
    #[should_panic(expected = "over the capacity")]
    fn a_window_ends_inside_the_capacity() {
        Buffer::zeroed(BUFFER_ALIGNMENT).set_window(BUFFER_ALIGNMENT, 1);
    }

    #[test]
    fn a_pool_lends_up_to_its_bound_and_takes_back() {
        let pool = BufferPool::new(8192);
        let first = pool.try_acquire(512).expect("the pool is full of nothing");
        let second = pool.try_acquire(4096).expect("one page is left");
        assert!(pool.try_acquire(1).is_none());
        drop(first);
        assert_eq!(pool.bytes_out(), 4096);
        assert!(pool.try_acquire(1).is_some());
        drop(second);
        assert_eq!(pool.bytes_out(), 0);
    }

    /// However many owners ask for all they can get, the next one still gets some.
    #[test]
    fn who_has_much_leaves_some_to_others() {
        const PAGES: usize = 64;
        let pool = BufferPool::new(PAGES * BUFFER_ALIGNMENT);
        let take_all = || {
            let mut held = Vec::new();
            while held.len() < PAGES / 4
                && let Some(buffer) = pool.try_acquire_beside_others(1, held.len() * BUFFER_ALIGNMENT)
            {
                held.push(buffer);
            }
            held
        };
        let greedy: Vec<Vec<Buffer>> = (0..5).map(|_| take_all()).collect();
        let counts: Vec<usize> = greedy.iter().map(Vec::len).collect();
        assert_eq!(counts, [16, 16, 16, 8, 4], "all within half, then half of what is left");
        assert!(pool.try_acquire_beside_others(1, 0).is_some());
    }

    #[test]
    fn a_pool_takes_another_bound() {
        let mut executor = Executor::in_order();
        let pool = BufferPool::new(4096);
        let first = pool.try_acquire(1).expect("there is one");
        let waiting = pool.acquire(1);
        let kept = Arc::new(Mutex::new(None));
        let place = Arc::clone(&kept);
        executor.spawn(async move { *place.lock().unwrap() = Some(waiting.await) });
        executor.run_until_stalled();
        assert!(kept.lock().unwrap().is_none());
        pool.set_bytes_max(8192);
        executor.run_until_stalled();
        assert!(kept.lock().unwrap().is_some(), "who waits is served");
        pool.set_bytes_max(4096);
        drop(first);
        assert!(pool.try_acquire(1).is_none(), "there is still as much out as there may be");
        kept.lock().unwrap().take();
        assert!(pool.try_acquire(1).is_some());
    }

    #[test]
    fn waiters_are_served_in_their_order() {
        let mut executor = Executor::in_order();
        let pool = BufferPool::new(8192);
        let held = pool.try_acquire(8192).expect("nothing is out");
        let order = Arc::new(Mutex::new(Vec::new()));
        for (name, length) in [(0, 8192), (1, 4096), (2, 4096)] {
            let (pool, order) = (pool.clone(), Arc::clone(&order));
            executor.spawn(async move {
                let _buffer = pool.acquire(length).await;
                order.lock().unwrap().push(name);
            });
        }
        executor.run_until_stalled();
        assert!(pool.try_acquire(1).is_none(), "nobody jumps the line");
        drop(held);
        executor.run_until_stalled();
        assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
        assert_eq!(pool.bytes_out(), 0);
    }

    #[test]
    fn a_request_above_the_bound_is_served_alone() {
        let pool = BufferPool::new(4096);
        let large = pool.try_acquire(1 << 20).expect("alone, it is served");
        assert!(pool.try_acquire(1).is_none());
        drop(large);
        assert!(pool.try_acquire(1).is_some());
    }
}
