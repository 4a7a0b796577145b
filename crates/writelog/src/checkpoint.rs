//! Checkpoints: the map on the device, so that replay begins later and segments may be used again.
//!
//! ```text
//!   1. under one lock: dirty extents, segments in use, where the last applied record ended, and which segments nobody needs any more
//!   2. all of it to the older slot ─► 3. flush ─► 4. superblock, both copies ─► 5. those segments may be used again
//! ```
//! Requests go on meanwhile. A power loss before step 4 leaves the old checkpoint and everything it refers to.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::device::DeviceExt;
use block::{Error, ErrorKind};
use store::LogPosition;
use zerocopy::little_endian::U32;

use crate::append::LogPlace;
use crate::checkpoint_bytes::CheckpointBytes;
use crate::core::{Core, State};
use crate::format::{CHECKPOINT_MAGIC, CheckpointRaw, ExtentRaw, STATE_CLOSED, STATE_FAILED, STATE_IN_USE, SegmentRaw};
use crate::limits::{TAIL_INTERVALS_MAX, UNIT_BYTES};

/// What a checkpoint stores.
struct Snapshot {
    bytes: CheckpointBytes,
    segment_count: u32,
    extent_count: u32,
    place: LogPlace,
    destaged_sequence: u64,
    dirty_bytes: u64,
    tail_bytes: u64,
    released: Vec<u32>,
    has_nvram: bool,
}

impl Core {
    /// Runs checkpoints as they become due. Ends when the log closes.
    pub(crate) async fn checkpoint_in_background(self: Arc<Self>) {
        loop {
            let count = self.background.count();
            if self.is_stopped.load(Ordering::Acquire) {
                return;
            }
            if self.has_failed() || self.checkpoint_if_it_helps().await.is_err() {
                // It has failed for good, and said so.
                self.background.changed_since(count).await;
                continue;
            }
            if !self.is_checkpoint_due(&self.state()) {
                self.background.changed_since(count).await;
            }
        }
    }

    fn is_checkpoint_due(&self, state: &State) -> bool {
        let interval = self.options.checkpoint_interval_bytes;
        let is_paused = self.clock.now().since(state.checkpointed_at) < self.options.checkpoint_pause;
        if state.tail_bytes >= if is_paused { interval * TAIL_INTERVALS_MAX } else { interval } {
            return true;
        }
        let is_low = state.wants_room || state.segments.reusable_count() < state.segments.count() / 4;
        is_low && !self.releasable(state).is_empty()
    }

    pub(crate) async fn checkpoint_if_it_helps(self: &Arc<Self>) -> Result<(), Error> {
        if self.is_checkpoint_due(&self.state()) { self.checkpoint(STATE_IN_USE).await } else { Ok(()) }
    }

    pub(crate) fn releasable(&self, state: &State) -> Vec<u32> {
        let destaged = self.keeps_order().then_some(state.destaged_sequence);
        state.segments.releasable(state.applied.position.sequence, destaged)
    }

    /// See the module. `next_state` is what the superblock says afterwards.
    pub(crate) async fn checkpoint(self: &Arc<Self>, next_state: u8) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        let payload = &superblock.payload;
        if payload.state == STATE_CLOSED && self.is_stopped.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some(error) = self.failure().filter(|_| next_state != STATE_CLOSED) {
            return Err(error);
        }
        let slot = payload.checkpoint_slot ^ 1;
        let sequence = payload.checkpoint_sequence.get() + 1;
        let mut snapshot = self.snapshot();
        let mut result = self.write_checkpoint(slot, sequence, &mut snapshot).await;
        if result.is_ok() {
            let payload = &mut superblock.payload;
            payload.checkpoint_slot = slot;
            payload.checkpoint_sequence = sequence.into();
            payload.position = snapshot.place.position.into();
            payload.position_segment = snapshot.place.segment.into();
            payload.position_next = snapshot.place.next_segment.into();
            payload.destaged_sequence = snapshot.destaged_sequence.into();
            payload.dirty_bytes = snapshot.dirty_bytes.into();
            payload.order = self.options.order.code();
            payload.has_nvram = u8::from(snapshot.has_nvram);
            payload.state = next_state;
            result = superblock.write(&self.log_device).await;
        }
        if let Err(error) = &result {
            self.give_up_log(error);
            return result;
        }
        {
            let state = &mut *self.state();
            state.segments.release(&snapshot.released);
            snapshot.released.iter().for_each(|&segment| state.sums.forget(segment));
            state.releasable_count = self.releasable(state).len() as u32;
            state.tail_bytes -= snapshot.tail_bytes;
            state.checkpointed_at = self.clock.now();
        }
        drop(superblock);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.start_records();
        self.changed.notify();
        Ok(())
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.state().failure.clone()
    }

    fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let applied = state.applied.position.sequence;
        let released = self.releasable(&state);
        let mut bytes = CheckpointBytes::new();
        let (mut segment_count, mut extent_count) = (0, 0);
        let is_released: HashSet<u32> = released.iter().copied().collect();
        for segment in state.segments.by_age().filter(|segment| !is_released.contains(segment)) {
            let entry = state.segments.get(segment);
            if entry.first_sequence >= applied {
                continue;
            }
            bytes.push(&SegmentRaw {
                segment: segment.into(),
                reserved: U32::ZERO,
                first_sequence: entry.first_sequence.into(),
                last_sequence: entry.last_sequence.min(applied - 1).into(),
            });
            segment_count += 1;
        }
        for piece in state.owed_from(0) {
            bytes.push(&ExtentRaw {
                sector: piece.sector.into(),
                sectors: (piece.sectors as u32).into(),
                place: piece.place.into(),
            });
            extent_count += 1;
        }
        let mut place = state.applied;
        if state.failure.is_some() {
            // Records of this epoch may have landed that nobody was told of: none of them may ever count.
            place.position.epoch += 1;
        }
        if is_released.contains(&place.segment) {
            // Nothing more comes in this segment, which may be used again: replay begins where the next record goes.
            let position = LogPosition { offset: 0, ..place.position };
            place = LogPlace { segment: place.next_segment, position, ..place };
        }
        debug_assert!(!is_released.contains(&place.segment), "a segment that is used again is no place to begin");
        let is_stage_used = state.stage.as_ref().is_some_and(|stage| !stage.is_empty());
        Snapshot {
            bytes,
            segment_count,
            extent_count,
            place,
            destaged_sequence: state.destaged_sequence,
            dirty_bytes: state.map.dirty_sectors() * UNIT_BYTES,
            tail_bytes: state.tail_bytes,
            released,
            has_nvram: self.options.nvram.is_some() && (is_stage_used || !self.is_stopped.load(Ordering::Acquire)),
        }
    }

    async fn write_checkpoint(&self, slot: u8, sequence: u64, snapshot: &mut Snapshot) -> Result<(), Error> {
        let bytes = std::mem::take(&mut snapshot.bytes);
        if bytes.length() as u64 > self.layout.checkpoint_bytes {
            let context = format!("a checkpoint of {} bytes does not fit in its slot", bytes.length());
            return Err(Error::new(ErrorKind::NoSpace, context));
        }
        let head = CheckpointRaw {
            checksum: U32::ZERO,
            magic: CHECKPOINT_MAGIC.into(),
            log_id: self.uuid.into_bytes(),
            sequence: sequence.into(),
            segment_count: snapshot.segment_count.into(),
            extent_count: snapshot.extent_count.into(),
            reserved: [0; 24],
        };
        let mut offset = self.layout.checkpoint_slot(slot);
        for piece in bytes.seal(head) {
            let length = piece.len() as u64;
            self.log_device.write(offset, piece, false).await?;
            offset += length;
        }
        self.log_device.flush().await
    }

    /// Says durably that the origin may have newer data than the log: on the log device, if it still can, or where the user of the log
    /// keeps such notes. Without that nothing may go past the log: a later start would bring older data back.
    ///
    /// # Errors
    /// When nobody could note it.
    pub(crate) async fn note_failure(&self) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        let is_noted = self.state().is_failure_noted;
        let is_noted = match is_noted {
            Some(is_noted) => is_noted,
            None => {
                superblock.payload.state = STATE_FAILED;
                let on_device = superblock.write(&self.log_device).await.is_ok();
                let elsewhere = self.options.failure_note.as_ref().is_some_and(|note| note());
                if !on_device && !elsewhere {
                    tracing::error!("the log device's failure could be noted nowhere: writes are refused");
                }
                self.state().is_failure_noted = Some(on_device || elsewhere);
                on_device || elsewhere
            }
        };
        if is_noted {
            return Ok(());
        }
        let context = "the log device failed, and that could be noted nowhere: a write past the log could be undone by the next start";
        Err(Error::new(ErrorKind::Media, context))
    }
}
