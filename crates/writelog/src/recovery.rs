//! Recovery: the contents of a log from the checkpoint and the records behind it.
//!
//! Records are followed segment by segment: each is the *successor* of the one before (epoch, sequence, link,
//! checksum), and names the segment that comes next. The first that is not ends the replay. Two records may have been
//! on their way when the program stopped, so a hole followed by *one* record is a torn end; a hole followed by more is
//! damage: records after the second are written only after the missing one is durable. They may be
//! in any segment that the checkpoint does not name, since the damaged record may have been the
//! only one to name the next segment. So unless the log was closed, the start of each such segment
//! is read.
//!
//! A recovery reads the checkpoint, the records since and a sector of each segment, not the whole
//! log.

use base::buffer::Buffer;
use base::clock::{Clock, Instant};
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use futures_util::stream::{self, StreamExt};
use store::limits::SEQUENCE_MAX;
use store::record::parse_header;
use store::{LogPosition, Sequence, Superblock};

use crate::checkpoint_bytes::CheckpointReader;
use crate::format::{CHECKPOINT_FLAG_DISCARDS, ExtentRaw, ParametersRaw, STATE_CLOSED, SegmentRaw};
use crate::found::{Found, find_record};
use crate::layout::{Layout, LogPlace};
use crate::limits::{RECORDS_IN_FLIGHT_MAX, SEGMENT_STARTS_AT_ONCE, UNIT_BYTES};
use crate::map::{ExtentMap, Piece};
use crate::numbers::{Sector, SegmentNumber};
use crate::place::{Place, PlaceView};
use crate::segments::{SegmentState, Segments};
use crate::status::RecoveryReport;
use crate::tag::Tag;
use crate::unit::LogUnit;

/// The recovered contents of a log.
pub(crate) struct Recovered {
    pub(crate) map: ExtentMap,
    pub(crate) segments: Segments,
    /// Place of the next record: the start of a segment that was taken as the next one.
    pub(crate) start: LogPlace,
    pub(crate) report: RecoveryReport,
}

struct Replay<'a> {
    device: &'a SharedDevice,
    layout: &'a Layout,
    log_id: uuid::Uuid,
    now: Instant,
    recovered: Recovered,
}

pub(crate) async fn recover(
    device: &SharedDevice,
    layout: &Layout,
    superblock: &Superblock<ParametersRaw>,
    clock: &dyn Clock,
) -> Result<Recovered, Error> {
    let began = clock.now();
    let payload = &superblock.payload;
    let position: LogPosition = payload.position.into();
    let place =
        LogPlace { segment: payload.position_segment.into(), next_segment: payload.position_next.into(), position };
    let is_sane = layout.has_segment(place.segment)
        && layout.has_segment(place.next_segment)
        && position.offset <= layout.segment_bytes
        && position.offset.is_multiple_of(UNIT_BYTES)
        && (Sequence::FIRST..=Sequence::MAX).contains(&position.sequence)
        && position.epoch < SEQUENCE_MAX;
    if !is_sane {
        return Err(Error::new(ErrorKind::Corrupt, "the place where the log begins is damaged"));
    }
    let report = RecoveryReport { was_closed: payload.state == STATE_CLOSED, ..RecoveryReport::default() };
    let recovered =
        Recovered { map: ExtentMap::default(), segments: Segments::new(layout.segment_count), start: place, report };
    let mut replay = Replay { device, layout, log_id: superblock.uuid(), now: began, recovered };
    if payload.checkpoint_sequence.get() > 0 {
        replay.load_checkpoint(payload).await?;
    }
    replay.follow(place).await?;
    let mut recovered = replay.recovered;
    recovered.report.dirty_bytes = recovered.map.dirty_sectors() * UNIT_BYTES;
    recovered.report.time_ns = clock.now().since(began).as_nanos() as u64;
    Ok(recovered)
}

fn damaged(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

impl Replay<'_> {
    async fn load_checkpoint(&mut self, payload: &ParametersRaw) -> Result<(), Error> {
        let offset = self.layout.checkpoint_slot(payload.checkpoint_slot);
        let (bytes_max, sequence) = (self.layout.checkpoint_bytes, payload.checkpoint_sequence.get());
        let (mut rows, head) = CheckpointReader::open(self.device, offset, bytes_max, self.log_id, sequence).await?;
        let cannot_be = || damaged("the log's checkpoint holds what cannot be");
        for _ in 0..head.segment_count.get() {
            let raw: SegmentRaw = rows.next().await?;
            let (segment, first, last) = (
                SegmentNumber::from(raw.segment),
                Sequence::from(raw.first_sequence),
                Sequence::from(raw.last_sequence),
            );
            let is_sane =
                self.layout.has_segment(segment) && Sequence::NONE < first && first <= last && last <= Sequence::MAX;
            if !is_sane || !self.recovered.segments.restore(segment, first, last, self.now) {
                return Err(cannot_be());
            }
        }
        let has_discards = head.flags.get() & CHECKPOINT_FLAG_DISCARDS != 0;
        let mut last_end = Sector::FIRST;
        for _ in 0..head.extent_count.get() {
            let raw: ExtentRaw = rows.next().await?;
            let (sector, sectors) = (Sector::from(raw.sector), u64::from(raw.sectors.get()));
            let place = Place::decode(raw.place.get(), has_discards);
            let is_behind = sector >= last_end && sectors > 0 && sector < Sector::END;
            let generation = match place.view() {
                PlaceView::Zeroes(_) => Some(0),
                PlaceView::Segment(unit) if is_behind => self.add_dirty(unit, sectors),
                PlaceView::Segment(_) | PlaceView::Slot(_) => None,
            };
            let tag = Tag::dirty(generation.filter(|_| is_behind).ok_or_else(cannot_be)?);
            self.recovered.map.append(Piece { sector, sectors, place, tag });
            last_end = sector + sectors;
        }
        self.recovered.report.checkpoint_extents = u64::from(head.extent_count.get());
        rows.finish()
    }

    /// Adds dirty sectors of a checkpoint at `unit`. Returns the segment's generation; `None` where
    /// the row is impossible.
    fn add_dirty(&mut self, unit: LogUnit, sectors: u64) -> Option<u32> {
        let end = unit + sectors;
        if end > self.layout.end() {
            return None;
        }
        let segment = self.layout.segment_of(unit);
        let segments = &mut self.recovered.segments;
        // Records begin with a header, so no extent reaches into another segment.
        if segments.get(segment).state != SegmentState::Used || end > self.layout.unit_behind(segment) {
            return None;
        }
        let dirty = u64::from(segments.get(segment).dirty_sectors) + sectors;
        if dirty * UNIT_BYTES > self.layout.segment_bytes {
            return None;
        }
        segments.add_dirty(segment, sectors);
        Some(segments.get(segment).generation)
    }

    /// Applies the records from `place` on.
    async fn follow(&mut self, mut place: LogPlace) -> Result<(), Error> {
        let mut image = self.image(place.segment).await?;
        loop {
            if let Some(found) = self.successor(&image, place.segment, &place) {
                self.take(&mut place, found)?;
                continue;
            }
            self.refuse_damage(&image, place.segment, place.position.offset, &place.position)?;
            // Not in this segment: at the start of the next one, or nowhere.
            if place.position.offset == 0 {
                break;
            }
            let next = self.image(place.next_segment).await?;
            let start = LogPlace {
                segment: place.next_segment,
                position: LogPosition { offset: 0, ..place.position },
                ..place
            };
            (image, place) = (next, start);
        }
        if !self.recovered.report.was_closed {
            self.refuse_later_records(&place).await?;
        }
        let segments = &mut self.recovered.segments;
        let is_taken = segments.get(place.segment).state == SegmentState::Next || segments.take_named(place.segment);
        if !is_taken {
            return Err(damaged(format!("the log goes on in segment {}, which is in use", place.segment)));
        }
        self.recovered.start = place;
        Ok(())
    }

    fn take(&mut self, place: &mut LogPlace, found: Found) -> Result<(), Error> {
        let segments = &mut self.recovered.segments;
        if segments.get(place.segment).state == SegmentState::Free && !segments.take_named(place.segment) {
            return Err(damaged(format!("the log goes on in segment {}, which is in use", place.segment)));
        }
        if segments.get(place.segment).state == SegmentState::Next {
            segments.open(place.segment, self.now);
            segments.close(place.segment);
        }
        segments.add_record(place.segment, found.sequence);
        if !self.layout.has_segment(found.next_segment) {
            return Err(damaged("a record of the log names a segment that is not there"));
        }
        let tag = Tag::dirty(segments.get(place.segment).generation);
        for piece in found.pieces {
            self.index(Piece { tag, ..piece });
        }
        let report = &mut self.recovered.report;
        report.records += 1;
        report.record_bytes += found.end - place.position.offset;
        place.next_segment = found.next_segment;
        place.position = LogPosition {
            offset: found.end,
            epoch: place.position.epoch,
            sequence: found.sequence.next(),
            link: found.checksum,
        };
        Ok(())
    }

    fn index(&mut self, piece: Piece) {
        let Recovered { map, segments, .. } = &mut self.recovered;
        let layout = self.layout;
        map.insert(piece, |old| {
            if old.is_in_segment() {
                segments.remove_dirty(layout.segment_of(old.unit()), old.sectors);
            }
        });
        if piece.is_in_segment() {
            segments.add_dirty(layout.segment_of(piece.unit()), piece.sectors);
        }
    }

    fn successor(&self, image: &[u8], segment: SegmentNumber, place: &LogPlace) -> Option<Found> {
        let position = &place.position;
        let found = find_record(image, position.offset, segment, self.log_id, self.layout.unit(segment, 0))?;
        let is_successor =
            found.epoch == position.epoch && found.sequence == position.sequence && found.link == position.link;
        is_successor.then_some(found)
    }

    /// Refuses a log with a record of this epoch, from `offset` of this segment on, that proves a
    /// missing one to have been durable.
    fn refuse_damage(&self, image: &[u8], segment: SegmentNumber, offset: u64, end: &LogPosition) -> Result<(), Error> {
        let first = self.layout.unit(segment, 0);
        for offset in (offset.min(self.layout.segment_bytes)..self.layout.segment_bytes).step_by(UNIT_BYTES as usize) {
            let Some(found) = find_record(image, offset, segment, self.log_id, first) else { continue };
            if found.epoch == end.epoch && found.sequence >= end.sequence + RECORDS_IN_FLIGHT_MAX as u64 {
                let context = format!(
                    "the log is damaged: record {} is missing, but record {} after it is there",
                    end.sequence, found.sequence
                );
                return Err(damaged(context));
            }
        }
        Ok(())
    }

    /// Refuses a log in which another segment begins with a record that proves a missing one to
    /// have been durable.
    async fn refuse_later_records(&self, end: &LogPlace) -> Result<(), Error> {
        let segments = &self.recovered.segments;
        let others = self
            .layout
            .segments()
            .filter(|&segment| segment != end.segment && segments.get(segment).state == SegmentState::Free);
        let starts = others.map(async |segment| {
            let offset = self.layout.segment(segment).offset;
            (segment, self.device.read(offset, Buffer::zeroed(UNIT_BYTES as usize)).await)
        });
        let mut starts = stream::iter(starts).buffered(SEGMENT_STARTS_AT_ONCE);
        while let Some((segment, start)) = starts.next().await {
            // Only the header of the record is in RAM; whether all of it is whole is checked where
            // it matters.
            let is_later = start.is_ok_and(|start| {
                parse_header(&start, self.log_id).is_some_and(|(header, _)| {
                    header.epoch.get() == end.position.epoch && Sequence::from(header.sequence) > end.position.sequence
                })
            });
            if is_later {
                self.refuse_damage(&self.image(segment).await?, segment, 0, &end.position)?;
            }
        }
        Ok(())
    }

    async fn image(&self, segment: SegmentNumber) -> Result<Buffer, Error> {
        let range = self.layout.segment(segment);
        self.device.read(range.offset, Buffer::zeroed(range.length as usize)).await
    }
}
