//! Reads a log again after its program stopped.
//!
//! From a position on, each record must be the *successor* of the one before: same log, same epoch, next sequence,
//! right link, right checksum. It stands where the one before ended or, when it did not fit there, at the start of the
//! region. The first that is not ends the replay; it is one of these:
//!
//! | found | means |
//! |---|---|
//! | anything else, and no later record of this epoch proves that it was there | the end: never written, left from an earlier lap, or torn by the power loss |
//! | anything else, but a record of this epoch says that it was made when all up to here were durable | damage |
//!
//! Records behind the end may be whole: they were on their way together with the missing one, and were never
//! acknowledged. They count no more, and the next opening begins a new epoch, so they never will.
//!
//! The second is an error and never a shorter log: what was acknowledged would be silently gone. (Damage to the *last*
//! record, or to one of those that were on their way together with it, cannot be told from a torn write; a checkpoint
//! bounds what this can cost, and media that rot need their own redundancy.)

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use uuid::Uuid;

use crate::limits::{RECORD_BYTES_MAX, RECORD_UNIT_BYTES, REPLAY_WINDOW_BYTES, SEQUENCE_MAX};
use crate::log::check_region;
use crate::record::{LogPosition, RecordHeaderRaw, parse_header, parse_payload, record_bytes};
use crate::sequence::Sequence;

/// One record, as the visitor of [`replay`] sees it.
pub struct Record<'a> {
    /// Its number.
    pub sequence: Sequence,
    /// Everything that records up to this number announce was on stable storage before this one was written.
    pub settled: Sequence,
    /// What was appended, one behind the other.
    pub payload: &'a [u8],
}

/// What a replay found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Where the next record would stand.
    pub end: LogPosition,
    /// Count of records.
    pub record_count: u64,
    /// Bytes of the records.
    pub record_bytes: u64,
    /// The largest `settled` of all records; 0 without records.
    pub settled: Sequence,
}

/// Visits all records from `from` on, oldest first.
///
/// # Errors
/// `Corrupt` when a record is missing or damaged although a later one proves that it was durable; the device's own; the
/// visitor's.
pub async fn replay(
    device: &SharedDevice,
    region: ByteRange,
    log_id: Uuid,
    from: LogPosition,
    mut visit: impl FnMut(Record<'_>) -> Result<(), Error>,
) -> Result<Replayed, Error> {
    check_region(region, device.geometry().size_bytes)?;
    if from.sequence > Sequence::MAX || from.epoch > SEQUENCE_MAX {
        return Err(Error::new(ErrorKind::Corrupt, "the place where the log begins is damaged"));
    }
    let mut window = Window { device, region, buffer: Buffer::empty(), offset: 0 };
    let mut replayed = Replayed { end: from, record_count: 0, record_bytes: 0, settled: Sequence::NONE };
    while let Some((offset, header)) = find_successor(&mut window, log_id, replayed.end).await? {
        let bytes = record_bytes(header.payload_bytes.get() as usize);
        let payload = parse_payload(window.at(offset), &header).ok_or(ErrorKind::Corrupt)?;
        let (sequence, settled) = (Sequence::from(header.sequence), Sequence::from(header.settled));
        visit(Record { sequence, settled, payload })?;
        replayed.record_count += 1;
        replayed.record_bytes += bytes;
        replayed.settled = replayed.settled.max(settled);
        replayed.end = LogPosition {
            offset: (offset + bytes) % region.length,
            epoch: from.epoch,
            sequence: sequence.0.checked_add(1).map(Sequence).ok_or(ErrorKind::Corrupt)?,
            link: header.checksum.get(),
        };
    }
    refuse_damage(&mut window, log_id, replayed.end).await?;
    Ok(replayed)
}

/// The successor and its offset: behind the last record, or at the start of the region.
async fn find_successor(
    window: &mut Window<'_>,
    log_id: Uuid,
    position: LogPosition,
) -> Result<Option<(u64, RecordHeaderRaw)>, Error> {
    for offset in [position.offset, 0] {
        let Some(header) = window.record_at(offset, log_id).await? else { continue };
        let is_successor = header.epoch.get() == position.epoch
            && Sequence::from(header.sequence) == position.sequence
            && header.link.get() == position.link;
        if is_successor {
            return Ok(Some((offset, header)));
        }
    }
    Ok(None)
}

/// Refuses a log whose end is followed by a record of the same epoch that was made when more than this was durable.
async fn refuse_damage(window: &mut Window<'_>, log_id: Uuid, end: LogPosition) -> Result<(), Error> {
    for offset in (0..window.region.length).step_by(RECORD_UNIT_BYTES) {
        let Some(header) = window.record_at(offset, log_id).await? else { continue };
        if header.epoch.get() == end.epoch && header.proves_before() > end.sequence {
            let context = format!(
                "the log is damaged: record {} is missing, but record {}, made when it was durable, is there",
                end.sequence, header.sequence
            );
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
    }
    Ok(())
}

/// A piece of the region in memory.
struct Window<'a> {
    device: &'a SharedDevice,
    region: ByteRange,
    buffer: Buffer,
    /// Offset of the buffer's first byte in the region.
    offset: u64,
}

impl Window<'_> {
    /// The header of the whole record at `offset`, if there is one.
    async fn record_at(&mut self, offset: u64, log_id: Uuid) -> Result<Option<RecordHeaderRaw>, Error> {
        if !offset.is_multiple_of(RECORD_UNIT_BYTES as u64) || offset >= self.region.length {
            return Ok(None);
        }
        let bytes = (self.region.length - offset).min(RECORD_BYTES_MAX as u64);
        self.load(offset, RECORD_UNIT_BYTES as u64).await?;
        if parse_header(self.at(offset), log_id).is_none() {
            return Ok(None);
        }
        self.load(offset, bytes).await?;
        let header = parse_header(self.at(offset), log_id).map(|(header, _)| header);
        Ok(header.filter(|header| parse_payload(self.at(offset), header).is_some()))
    }

    /// Loads `bytes` from `offset` on into the buffer, if they are not in it.
    async fn load(&mut self, offset: u64, bytes: u64) -> Result<(), Error> {
        if offset >= self.offset && offset + bytes <= self.offset + self.buffer.len() as u64 {
            return Ok(());
        }
        let length = (self.region.length - offset).min(REPLAY_WINDOW_BYTES);
        let buffer = Buffer::zeroed(length as usize);
        self.buffer = self.device.read(self.region.offset + offset, buffer).await?;
        self.offset = offset;
        Ok(())
    }

    /// The bytes from `offset` on that are in the buffer.
    fn at(&self, offset: u64) -> &[u8] {
        let start = offset.checked_sub(self.offset).and_then(|start| usize::try_from(start).ok());
        start.and_then(|start| self.buffer.get(start..)).unwrap_or(&[])
    }
}
