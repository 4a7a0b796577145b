//! What a server has done. Counting costs one relaxed addition; a snapshot is not one moment's truth across counters.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Kinds of requests that are counted apart, in the order of their numbers on the wire.
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

const KIND_COUNT: usize = 7;

#[derive(Default)]
pub(crate) struct Counters {
    kinds: [KindCounters; KIND_COUNT],
    pub(crate) connections_accepted: AtomicU64,
    pub(crate) connections_open: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
}

#[derive(Default)]
struct KindCounters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl Counters {
    pub(crate) fn count_request(&self, kind: RequestKind, bytes: u64) {
        let counters = &self.kinds[kind as usize];
        counters.requests.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self, kind: RequestKind) {
        self.kinds[kind as usize].errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> NbdCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let kind = |kind: RequestKind| {
            let counters = &self.kinds[kind as usize];
            RequestCounters {
                requests: load(&counters.requests),
                bytes: load(&counters.bytes),
                errors: load(&counters.errors),
            }
        };
        NbdCounters {
            connections_accepted: load(&self.connections_accepted),
            connections_open: load(&self.connections_open),
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

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NbdCounters {
    /// Connections that were served.
    pub connections_accepted: u64,
    /// Connections that are served now.
    pub connections_open: u64,
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

/// Requests of one kind that reached the device; those refused for their range or flags are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestCounters {
    /// Requests begun.
    pub requests: u64,
    /// Bytes they asked for.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}
