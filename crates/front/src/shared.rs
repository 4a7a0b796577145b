//! The state that all connections of a server share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::BufferPool;
use base::refusals::Refusals;
use block::Geometry;
use nbd::server::Export;
use nbd::{Abilities, BlockSize};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::counters::Counters;
use crate::exported::Exported;
use crate::flushes::Flushes;
use crate::handshake_turn::HandshakeLine;
use crate::handshakes::Handshakes;
use crate::holdings::{AwaitedPlace, Holdings, LargePlaces, Shares};
use crate::long_requests::LongRequests;
use crate::next_turn::TurnLine;
use crate::options::NbdOptions;

/// Smallest block that is announced as preferred: a page, which most programs write anyway.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// The state that all connections share.
pub(crate) struct Shared {
    /// The device, with the turns of changes of the same blocks over all connections.
    pub(crate) exported: Exported,
    pub(crate) pool: BufferPool,
    pub(crate) counters: Counters,
    pub(crate) large_places: Arc<LargePlaces>,
    pub(crate) long_requests: Arc<LongRequests>,
    pub(crate) shares: Shares,
    /// Places of connections that have finished the handshake.
    pub(crate) places: Arc<Semaphore>,
    pub(crate) handshakes: Arc<Handshakes>,
    pub(crate) handshake_line: HandshakeLine,
    pub(crate) turn_line: Arc<TurnLine>,
    pub(crate) refusals: Refusals,
    /// When the server was made: its log times count from then.
    pub(crate) begun: Instant,
    pub(crate) options: NbdOptions,
}

impl Shared {
    /// The holdings of a new connection.
    pub(crate) fn holdings(&self) -> Holdings {
        Holdings::new(self.shares.clone(), Arc::clone(&self.large_places))
    }

    /// The flushes of a client that may begin with requests.
    pub(crate) fn flushes(&self) -> Flushes {
        Flushes::new(self.exported.losses.reader())
    }

    /// A place for a request that is larger than a share.
    pub(crate) fn large_place(&self) -> AwaitedPlace {
        self.large_places.acquire()
    }

    /// Logs that a connection is refused, since all places are taken.
    pub(crate) fn refuse(&self) {
        self.counters.connections_refused.fetch_add(1, Ordering::Relaxed);
        if let Some(others) = self.note_refusal() {
            let connections = self.options.all_connections_max();
            tracing::warn!(connections, others, "too many NBD connections: one is refused");
        }
    }

    /// Counts a refused connection. If it is to be logged, returns how many were not logged before
    /// it.
    pub(crate) fn note_refusal(&self) -> Option<u64> {
        let now = base::clock::Instant::START + self.begun.elapsed();
        self.refusals.note(now)
    }

    /// The export that is offered to a new client.
    pub(crate) fn export(&self, geometry: &Geometry) -> Export {
        let is_read_only = geometry.is_read_only || self.options.is_read_only;
        let device_block = geometry.physical_block_bytes.max(geometry.logical_block_bytes);
        let preferred = device_block.clamp(PREFERRED_BYTES_MIN, nbd::limits::PAYLOAD_BYTES_MAX);
        Export {
            name: self.options.export_name.clone(),
            description: self.options.description.clone(),
            size_bytes: geometry.size_bytes,
            block_size: BlockSize { min: 1, preferred, payload_max: nbd::limits::PAYLOAD_BYTES_MAX },
            abilities: Abilities {
                is_read_only,
                can_flush: true,
                can_fua: true,
                is_rotational: false,
                can_trim: !is_read_only && geometry.discard_granularity_bytes.is_some(),
                can_write_zeroes: !is_read_only,
                can_dont_fragment: false,
                can_multi_conn: true,
                can_cache: true,
                can_fast_zero: !is_read_only,
            },
        }
    }
}
