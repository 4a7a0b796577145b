//! Counters of a server. Counting costs one relaxed addition; a snapshot is not taken at one moment
//! across counters.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::kind_counters::{KindCounters, RequestCounters};

/// Kinds of requests that are counted separately, in the order of their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Read,
    Write,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
}

impl RequestKind {
    /// Whether requests of this kind transfer data.
    pub(crate) fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

const KIND_COUNT: usize = 7;

#[derive(Default)]
pub(crate) struct Counters {
    kinds: [KindCounters; KIND_COUNT],
    /// Count of open connections by the size reported to them. Sections are short and never await.
    sizes: Mutex<BTreeMap<u64, u64>>,
    connections_accepted: AtomicU64,
    connections_open: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
}

impl Counters {
    /// The counters of one kind.
    pub(crate) fn of(&self, kind: RequestKind) -> &KindCounters {
        &self.kinds[kind as usize]
    }

    /// Counts a new connection with this reported size.
    pub(crate) fn note_opened(&self, size_bytes: u64) {
        self.connections_accepted.fetch_add(1, Ordering::Relaxed);
        self.connections_open.fetch_add(1, Ordering::Relaxed);
        *self.lock_sizes().entry(size_bytes).or_default() += 1;
    }

    /// Removes a closed connection with this reported size.
    pub(crate) fn note_closed(&self, size_bytes: u64) {
        self.connections_open.fetch_sub(1, Ordering::Relaxed);
        self.forget_size(size_bytes);
    }

    /// Notes that a new size was reported to a connection that knew `before_bytes`.
    pub(crate) fn note_size_sent(&self, before_bytes: u64, size_bytes: u64) {
        self.forget_size(before_bytes);
        *self.lock_sizes().entry(size_bytes).or_default() += 1;
    }

    fn forget_size(&self, size_bytes: u64) {
        let mut sizes = self.lock_sizes();
        if let Some(count) = sizes.get_mut(&size_bytes) {
            *count -= 1;
        }
        sizes.retain(|_, count| *count > 0);
    }

    /// Open connections that know another size.
    fn outdated(&self, size_bytes: u64) -> u64 {
        self.lock_sizes().iter().filter(|(told, _)| **told != size_bytes).map(|(_, count)| count).sum()
    }

    fn lock_sizes(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts now, for a device of this size.
    pub(crate) fn snapshot(&self, size_bytes: u64) -> NbdCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let kind = |kind: RequestKind| self.of(kind).snapshot();
        NbdCounters {
            connections_accepted: load(&self.connections_accepted),
            connections_open: load(&self.connections_open),
            connections_outdated: self.outdated(size_bytes),
            connections_refused: load(&self.connections_refused),
            protocol_errors: load(&self.protocol_errors),
            read: kind(RequestKind::Read),
            write: kind(RequestKind::Write),
            flush: kind(RequestKind::Flush),
            trim: kind(RequestKind::Trim),
            cache: kind(RequestKind::Cache),
            write_zeroes: kind(RequestKind::WriteZeroes),
            block_status: kind(RequestKind::BlockStatus),
        }
    }
}

/// The counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NbdCounters {
    /// Connections served so far.
    pub connections_accepted: u64,
    /// Connections served now.
    pub connections_open: u64,
    /// Connections served now that know another size than the device's present one: NBD cannot
    /// report a change to a client, which must connect again.
    pub connections_outdated: u64,
    /// Connections closed at once because there were too many.
    pub connections_refused: u64,
    /// Connections closed because the client broke the protocol or took too long for the handshake.
    pub protocol_errors: u64,
    /// Reads.
    pub read: RequestCounters,
    /// Writes.
    pub write: RequestCounters,
    /// Flushes.
    pub flush: RequestCounters,
    /// Discards.
    pub trim: RequestCounters,
    /// Cache requests.
    pub cache: RequestCounters,
    /// Writes of zeroes.
    pub write_zeroes: RequestCounters,
    /// Questions for block status.
    pub block_status: RequestCounters,
}

impl AddAssign for NbdCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            connections_accepted,
            connections_open,
            connections_outdated,
            connections_refused,
            protocol_errors,
            read,
            write,
            flush,
            trim,
            cache,
            write_zeroes,
            block_status,
        } = other;
        self.connections_accepted += connections_accepted;
        self.connections_open += connections_open;
        self.connections_outdated += connections_outdated;
        self.connections_refused += connections_refused;
        self.protocol_errors += protocol_errors;
        self.read += read;
        self.write += write;
        self.flush += flush;
        self.trim += trim;
        self.cache += cache;
        self.write_zeroes += write_zeroes;
        self.block_status += block_status;
    }
}
