//! Data-in of all sessions: which may start to read, and which wait for room.
//!
//! | a session | may start a command whose data-in takes that many bytes of memory |
//! |---|---|
//! | has nothing queued or being read | up to `DATA_IN_FIRST_BYTES` always; more, when the total has room for it |
//! | has something | within its share, when the total has room and no other session waits for it |
//!
//! Buffers count with their full size. Sessions report their usage in steps, so that threads do not
//! contend for this count at each command.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use base::buffer::BufferPool;
use base::limits::BUFFER_BYTES_MAX;

use crate::limits::{DATA_IN_FIRST_BYTES, DATA_IN_STEP_BYTES};
use crate::quota::Quota;

/// The bounds of data-in, and their present usage.
pub(crate) struct DataIn {
    session_bytes: AtomicUsize,
    total_bytes: AtomicUsize,
    /// Bytes that all sessions have reported.
    used_bytes: AtomicUsize,
    /// Count of `waiting`, changed under its lock.
    waiting_count: AtomicUsize,
    /// Sessions that wait for room, by their TSIH.
    waiting: Mutex<BTreeMap<u16, Waker>>,
}

impl DataIn {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            session_bytes: AtomicUsize::new(quota.session_data_in_bytes),
            total_bytes: AtomicUsize::new(quota.data_in_bytes),
            used_bytes: AtomicUsize::new(0),
            waiting_count: AtomicUsize::new(0),
            waiting: Mutex::default(),
        }
    }

    pub(crate) fn set(&self, quota: &Quota) {
        self.session_bytes.store(quota.session_data_in_bytes, Ordering::Relaxed);
        self.total_bytes.store(quota.data_in_bytes, Ordering::Relaxed);
        self.wake_waiting();
    }

    /// The share of one session.
    pub(crate) fn session_bytes(&self) -> usize {
        self.session_bytes.load(Ordering::Relaxed)
    }

    /// Whether a session that uses `used` bytes, of which it reported `charged`, may start a
    /// command with `bytes` more.
    pub(crate) fn has_room_for(&self, bytes: usize, used: usize, charged: usize) -> bool {
        if used == 0 && bytes <= DATA_IN_FIRST_BYTES {
            return true;
        }
        let total = self.total_bytes.load(Ordering::Relaxed);
        let others = self.used_bytes.load(Ordering::Relaxed).saturating_sub(charged);
        if used == 0 {
            // A command larger than the whole bound also gets its turn, when half of the bound is
            // free.
            return others + bytes.min(total / 2) <= total;
        }
        used + bytes <= self.session_bytes() && others + used + bytes <= total && !self.has_waiting()
    }

    /// Whether the total is exceeded, so that a session with more than one command should not be
    /// read from.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.used_bytes.load(Ordering::Relaxed) > self.total_bytes.load(Ordering::Relaxed)
    }

    /// Reports that a session which had reported `charged` bytes uses `used` now. Returns what it
    /// has reported by now.
    pub(crate) fn tell(&self, charged: usize, used: usize) -> usize {
        let is_step = used.abs_diff(charged) >= DATA_IN_STEP_BYTES || used == 0;
        if used == charged || !is_step {
            return charged;
        }
        if used > charged {
            self.used_bytes.fetch_add(used - charged, Ordering::Relaxed);
        } else {
            self.used_bytes.fetch_sub(charged - used, Ordering::Relaxed);
            self.wake_waiting();
        }
        used
    }

    /// Whether a session waits for room.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting_count.load(Ordering::Relaxed) > 0
    }

    /// Notes that a session waits for room; it is woken whenever there is more, and must check once
    /// more after this call.
    pub(crate) fn wait(&self, tsih: u16, waker: &Waker) {
        let mut waiting = self.lock();
        waiting.insert(tsih, waker.clone());
        self.waiting_count.store(waiting.len(), Ordering::SeqCst);
    }

    /// Notes that a session does not wait any more.
    pub(crate) fn leave(&self, tsih: u16) {
        let mut waiting = self.lock();
        waiting.remove(&tsih);
        self.waiting_count.store(waiting.len(), Ordering::SeqCst);
    }

    fn wake_waiting(&self) {
        if self.waiting_count.load(Ordering::SeqCst) > 0 {
            self.lock().values().for_each(Waker::wake_by_ref);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u16, Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory for data-in of at most this many bytes.
pub(crate) fn buffer_bytes(data_in_bytes_max: u32) -> usize {
    match data_in_bytes_max as usize {
        0 => 0,
        bytes => BufferPool::capacity_of(bytes).unwrap_or(BUFFER_BYTES_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_session_has_a_share_and_all_have_a_bound() {
        let quota = Quota { session_data_in_bytes: 4 * MIB, data_in_bytes: 8 * MIB, ..Quota::default() };
        let data_in = DataIn::new(&quota);
        assert!(data_in.has_room_for(3 * MIB, MIB, 0) && !data_in.has_room_for(4 * MIB, MIB, 0), "the share");
        assert_eq!(data_in.tell(0, 6 * MIB), 6 * MIB);
        assert!(data_in.has_room_for(MIB, MIB, 0) && !data_in.has_room_for(2 * MIB, MIB, 0), "what is left");
        assert!(data_in.has_room_for(2 * MIB, 0, 0) && !data_in.has_room_for(3 * MIB, 0, 0), "the first one, too");
        data_in.tell(0, 2 * MIB);
        assert!(data_in.has_room_for(MIB, 0, 0), "but a small one");
        data_in.wait(7, Waker::noop());
        data_in.tell(6 * MIB, 0);
        assert!(!data_in.has_room_for(MIB, MIB, 0), "somebody waits");
        data_in.leave(7);
        assert!(data_in.has_room_for(MIB, MIB, 0));
    }

    #[test]
    fn data_in_is_counted_as_its_buffer() {
        assert_eq!([0, 1, 4097, u32::MAX].map(buffer_bytes), [0, 4096, 8192, BUFFER_BYTES_MAX]);
    }
}
