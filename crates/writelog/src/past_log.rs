//! Writes that go past a log whose device failed: to the origin, with force unit access, and the map forgets the range.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::Error;
use block::device::DeviceExt;
use block::range_lock::RangeLock;
use futures_util::lock::Mutex;

use crate::epoch::Epoch;
use crate::events::OriginEvents;
use crate::failure_note::FailureNotes;
use crate::log_state::LogState;
use crate::origin::Origin;
use crate::place::{PlaceView, Zeroed};
use crate::sectors::{range_of, sectors_of};

/// Brings changes to the origin that the log does not take.
pub(crate) struct PastLog {
    pub(crate) log: Arc<LogState>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) origin_events: Arc<OriginEvents>,
    pub(crate) notes: Arc<FailureNotes>,
    /// Held while no slot is to move: see [`SlotMover::moving`](crate::level1::SlotMover::moving).
    pub(crate) moving: Arc<Mutex<()>>,
    /// Held while level 2 is to send nothing: see [`Epochs::destaging`](crate::next_epoch::Epochs::destaging).
    pub(crate) destaging: Arc<Mutex<Option<Epoch>>>,
    /// Keeps reads of the origin from what changes there.
    pub(crate) below: RangeLock,
}

impl PastLog {
    /// Writes to the origin, durably. The log's data of the range never comes back: it is removed
    /// from the failure note, or the log is discarded.
    pub(crate) async fn write(&self, range: ByteRange, buffer: &Buffer) -> Result<(), Error> {
        self.notes.note().await?;
        // No slot is on its way to the log now.
        let _round = self.moving.lock().await;
        let _batch = self.destaging.lock().await;
        self.send_slots_of(range).await?;
        let _below = self.below.exclusive(range).await;
        self.origin.check()?;
        self.origin.device().write(range.offset, Buffer::copy_of(buffer), true).await?;
        let (sector, sectors) = sectors_of(range);
        self.log.state().contents.forget(sector, sectors);
        self.notes.keep().await
    }

    /// Sends what is still needed of the slots that touch a range to the origin, durably, and frees
    /// them. After a crash a slot comes back as a whole, also the part of it that was overwritten past
    /// the log. The caller lets no slot move.
    async fn send_slots_of(&self, range: ByteRange) -> Result<(), Error> {
        loop {
            let found = self.log.state().contents.piece_in_slot_of(sectors_of(range));
            let Some(piece) = found else { return Ok(()) };
            let bytes = range_of(&piece);
            let _below = self.below.exclusive(bytes).await;
            let mut buffer = Buffer::zeroed(bytes.length as usize);
            {
                let contents = &self.log.state().contents;
                let PlaceView::Slot(unit) = piece.place.view() else { continue };
                // Its slot may have been freed, and taken for other sectors, while this waited.
                let is_there = contents.map.pieces_at(&piece).any(|there| there.sectors == piece.sectors);
                let Some(stage) = contents.stage.as_ref().filter(|_| is_there) else { continue };
                stage.load(unit, &mut buffer);
            }
            self.origin.check()?;
            self.origin.device().write(bytes.offset, buffer, true).await?;
            self.log.state().contents.mark_clean(&piece);
        }
    }

    /// Makes a range of the origin zero, durably; otherwise as [`PastLog::write`].
    pub(crate) async fn zero(&self, range: ByteRange, zeroed: Zeroed) -> Result<(), Error> {
        self.notes.note().await?;
        let _round = self.moving.lock().await;
        let _batch = self.destaging.lock().await;
        self.send_slots_of(range).await?;
        let _below = self.below.exclusive(range).await;
        self.origin.check()?;
        let losses = self.origin_events.losses_until_now();
        self.origin.zero(range, zeroed).await?;
        self.origin_events.flush_origin_since(losses).await?;
        let (sector, sectors) = sectors_of(range);
        self.log.state().contents.forget(sector, sectors);
        self.notes.keep().await
    }
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;
    use crate::numbers::Sector;
    use crate::options::{DestageOrder, Durability};
    use crate::tests::Parts;

    #[test]
    fn what_goes_past_the_log_is_on_the_origin_and_in_the_log_no_more() {
        let mut parts = Parts::new(|options| {
            options.order = DestageOrder::Lba;
            options.durability = Durability::UnsafeVolatile;
        });
        let (records, loader) = (Arc::new(parts.assembly.records()), Arc::new(parts.assembly.loader()));
        let checkpoints = Arc::new(parts.assembly.checkpoints(parts.superblock.clone(), &records));
        let (notes, events) = (Arc::new(parts.assembly.notes(&checkpoints)), Arc::new(parts.assembly.origin_events()));
        let (mover, epochs) = (parts.assembly.mover(&records), parts.assembly.epochs(&records, &loader));
        let past_log = Arc::new(parts.assembly.past_log(&events, &notes, &mover, &epochs));
        parts.append(&records, 0, 8, 1);
        // A slot of which a part is written past the log comes back whole after a crash.
        parts.put_in_slot(7, 2, 2);
        records.give_up(&Error::new(ErrorKind::Media, "it took no record"));
        let range = ByteRange { offset: 0, length: 8 * 512 };
        let going = Arc::clone(&past_log);
        let gone = async move { going.write(range, &Buffer::copy_of(&[3; 8 * 512])).await };
        parts.executor.block_on(gone).expect("nothing fails");
        assert_eq!(parts.origin.durable_bytes(0, 9 * 512), [[3; 8 * 512].as_slice(), &[2; 512]].concat());
        let state = past_log.log.state();
        assert_eq!(state.contents.map.dirty_from(Sector::FIRST).count(), 0);
        assert!(state.contents.stage.as_ref().is_some_and(|stage| stage.is_empty()));
    }
}
