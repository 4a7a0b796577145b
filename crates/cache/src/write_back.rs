//! Writes acknowledged by the cache device.
//!
//! ```text
//!   line not resident, or all its dirty sectors written again     line resident, the written sectors not dirty
//!   ─────────────────────────────────────────────────────────     ────────────────────────────────────────────
//!   into a fresh frame of the set                                 in place
//!   with what else the old frame holds, read locally
//!            │ data, FUA ──────┐
//!            │ log record, FUA ┴─► both durable ─► map changes, old frame is free ─► acknowledged
//! ```
//! Small writes are *deferred*: see [`deferred`](crate::deferred).
//! ```text
//!   log record with the data, FUA ─► durable ─► map changes, the data stays in memory ─► acknowledged   ...   written to its frame, in place
//! ```
//! - Dirty sectors are never overwritten: until the record and the data are durable, the old frame
//!   holds what was acknowledged before. Only sectors that are clean or invalid are written in
//!   place; the origin has their data.
//! - A deferred write overwrites dirty sectors in place, since that happens when its record is durable, which has all
//!   of the data.
//! - Data and record travel at the same time. After a crash a record whose data did not land is recognised by its
//!   checksum; such a write was never acknowledged.
//! - A write reads the cache device at most, and only when it replaces part of a dirty line; it never reads the origin.
//! - When there is no frame, or too much is dirty, the write cleans some lines itself, and holds
//!   nothing that cleaning needs.
//! - Data that the cache device refuses goes to the origin, after a second record has taken the first one back. A log
//!   that fails is the end of write-back: see [`Lines::fail`](crate::lines::Lines::fail).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::RangeGuard;
use block::{Completion, Error, ErrorKind, Request, Response};
use futures_util::future::{join, join_all};
use store::Hold;

use crate::core::Core;
use crate::counters::{RequestKind, Serving};
use crate::format::{Line, LogEntry};
use crate::journal::unmapping;
use crate::limits::WRITE_GROUP_LINES_MAX;
use crate::line_checksum::LineChecksum;
use crate::line_size::LineSize;
use crate::line_write::LineWrite;
use crate::lines::State;
use crate::mappings::Mappings;
use crate::numbers::{BlockNumber, FrameNumber, each_of};
use crate::pins::Pins;
use crate::room::Room;
use crate::sectors::Sectors;

/// Lines written with one record.
struct Group {
    lines: Vec<LineWrite>,
    /// Memory reserved for its data when it is deferred.
    room: Option<usize>,
    _pins: Pins,
}

/// The next step of a write.
enum Plan {
    Write(Group),
    MakeRoom(Room),
    /// The line has deferred data, and this write is not deferred.
    Place(ByteRange),
    /// The cache can take none of this part: it goes to the origin.
    GoThrough(ByteRange),
}

/// The failure of a group's write.
enum Failure {
    /// The record was taken back or never written: the lines are what they were.
    Undone(Error),
    /// The record may or may not be durable.
    Unknown(Error),
}

pub(crate) async fn write(core: Arc<Core>, range: ByteRange, mut buffer: Buffer, guard: RangeGuard) -> Response {
    let mut rest = range;
    while !rest.is_empty() {
        let count = core.lines.changed.count();
        match core.plan_write(range, rest) {
            Plan::MakeRoom(room) => {
                // If the cache device fails meanwhile, no room is needed: the origin gets this
                // write.
                if let Err(error) = core.make_room(room, count).await
                    && core.lines.state().failure.is_none()
                {
                    return Response::failed(error, buffer);
                }
            }
            Plan::Place(part) => core.journal.place_range(part).await,
            Plan::GoThrough(part) => {
                if let Err(error) = core.write_part_through(range, part, &buffer).await {
                    return Response::failed(error, buffer);
                }
                rest = behind(range, part);
            }
            Plan::Write(group) => {
                let done = group.range(core.line_size(), range);
                let is_hit = group.lines.iter().all(|line| !line.before.valid.is_empty());
                let serving = if is_hit { Serving::Hit } else { Serving::Miss };
                let (result, returned) = core.carry_out(group, range, buffer).await;
                buffer = returned;
                match result {
                    Ok(()) => core.counters.of(RequestKind::Write).served(serving),
                    Err(Failure::Unknown(error)) => return Response::failed(error, buffer),
                    Err(Failure::Undone(error)) => {
                        core.refused_writes.note(&error, "it goes to the origin", core.clock.now());
                        if let Err(error) = core.write_part_through(range, done, &buffer).await {
                            return Response::failed(error, buffer);
                        }
                    }
                }
                rest = behind(range, done);
            }
        }
    }
    drop(guard);
    Response::done(buffer)
}

/// The part of `range` behind `part`.
fn behind(range: ByteRange, part: ByteRange) -> ByteRange {
    ByteRange { offset: part.end(), length: range.end() - part.end() }
}

impl Core {
    /// Plans as many lines from the start of `rest` on as can be written at once.
    fn plan_write(self: &Arc<Self>, range: ByteRange, rest: ByteRange) -> Plan {
        let mut group = Group { lines: Vec::new(), room: None, _pins: Pins::none(&self.lines) };
        let lines_max = WRITE_GROUP_LINES_MAX.min(self.journal.entries_max());
        let state = &mut *self.lines.state();
        if state.failure.is_some() {
            return Plan::GoThrough(rest);
        }
        group.room = self.take_room(state, rest);
        for block in each_of(self.line_size().blocks_of(rest)).take(lines_max) {
            match self.plan_line(state, block, range, &mut group) {
                Ok(line) => group.lines.push(line),
                Err(plan) if group.lines.is_empty() => {
                    state.deferred.give_room_back(group.room.unwrap_or_default());
                    return plan;
                }
                Err(_) => break,
            }
        }
        Plan::Write(group)
    }

    /// Reserves memory for a write that can be deferred.
    fn take_room(&self, state: &mut State, range: ByteRange) -> Option<usize> {
        let blocks = self.line_size().blocks_of(range);
        let line_count = blocks.start.count_up_to(blocks.end) as usize;
        if range.length > state.deferred.write_bytes_max() || !self.journal.has_room_for(line_count, range.length) {
            return None;
        }
        // Part of a lost line in its frame must not count as good again.
        let is_lost = |block| state.frames.find(block).is_some_and(|(_, line)| line.is_lost);
        if state.frames.lost_count() > 0 && each_of(blocks).any(is_lost) {
            return None;
        }
        state.deferred.take_room(range.length, line_count)
    }

    fn plan_line(
        &self,
        state: &mut State,
        block: BlockNumber,
        range: ByteRange,
        group: &mut Group,
    ) -> Result<LineWrite, Plan> {
        let (is_deferred, pins) = (group.room.is_some(), &mut group._pins);
        let (mask, at) = self.line_size().part_of(block, range);
        let found = state.frames.find(block);
        let before = found.map_or(Line { block, ..Line::default() }, |(_, line)| line);
        if found.is_some_and(|(frame, _)| state.frames.is_busy(frame)) {
            return Err(Plan::MakeRoom(Room::LineAtRest));
        }
        let part = self.line_size().line_range(block).intersection(&range).expect("the lines of a request touch it");
        if !is_deferred && found.is_some_and(|(frame, _)| state.deferred.contains(frame)) {
            return Err(Plan::Place(part));
        }
        if before.is_lost && !mask.contains(before.dirty) {
            return Err(Plan::GoThrough(part));
        }
        let dirty_lines_max = state.dirty.max.of(u64::from(self.layout.frame_count())).max(1);
        if before.dirty.is_empty() && state.frames.counts().dirty_lines >= dirty_lines_max {
            return Err(Plan::MakeRoom(Room::LessDirty));
        }
        let is_in_place = found.is_some() && (is_deferred || (before.dirty & mask).is_empty());
        let frame = match found {
            Some((frame, _)) if is_in_place => {
                // Whatever the outcome of the write, these sectors change now. For a deferred write
                // they change only when its record is durable.
                if !is_deferred {
                    state.frames.set_sectors(frame, before.valid & !mask, before.dirty);
                }
                frame
            }
            _ => match state.frames.reserve(block) {
                Some(reserved) => {
                    self.counters.evictions.fetch_add(u64::from(reserved.has_evicted), Ordering::Relaxed);
                    reserved.frame
                }
                None => {
                    let set = self.layout.set_of(block);
                    let has_frames = state.frames.has_frames(set);
                    return Err(if has_frames { Plan::MakeRoom(Room::Frame { set }) } else { Plan::GoThrough(part) });
                }
            },
        };
        pins.add(&mut state.frames, frame);
        let old_frame = found.map(|(frame, _)| frame).filter(|_| !is_in_place);
        if let Some((frame, _)) = found {
            state.frames.set_busy(frame, true);
            if !is_in_place {
                pins.add(&mut state.frames, frame);
            }
        }
        state.supersede_cleaning(block, mask);
        let copied = if old_frame.is_some() && !before.is_lost { before.valid & !mask } else { Sectors::NONE };
        Ok(LineWrite {
            block,
            mask,
            at,
            frame,
            is_in_place,
            old_frame,
            before,
            copied,
            merged: Buffer::empty(),
            checksum: LineChecksum::UNKNOWN,
        })
    }

    /// Writes a planned group. The buffer comes back whatever happens.
    async fn carry_out(&self, group: Group, range: ByteRange, buffer: Buffer) -> (Result<(), Failure>, Buffer) {
        match group.room {
            Some(room) => (self.carry_out_deferred(group, room, &buffer).await, buffer),
            None => self.carry_out_in_frames(group, range, buffer).await,
        }
    }

    /// Writes a group whose data goes into the log alone.
    async fn carry_out_deferred(&self, mut group: Group, room: usize, buffer: &Buffer) -> Result<(), Failure> {
        let result = match self.unmap_group(&group).await {
            Ok(()) => {
                let lines = group.lines.iter_mut();
                let entries: Vec<_> = lines.map(|line| line.deferred_entry(self.line_size(), buffer)).collect();
                match self.journal.append_data(&entries).await {
                    Ok(hold) => {
                        // The record holds all that it announces, so it is settled.
                        self.commit(&group, Some((buffer, &hold.settle())));
                        self.counters.writes_deferred.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    }
                    Err(error) => Err(self.give_up(&group, error)),
                }
            }
            Err(error) => {
                self.abandon(&group);
                Err(Failure::Undone(error))
            }
        };
        self.lines.state().deferred.give_room_back(room);
        self.lines.changed.notify();
        result
    }

    /// Writes a group whose data goes into frames at the same time as its record into the log.
    async fn carry_out_in_frames(
        &self,
        mut group: Group,
        range: ByteRange,
        buffer: Buffer,
    ) -> (Result<(), Failure>, Buffer) {
        let ready = match self.unmap_group(&group).await {
            Ok(()) => self.read_copied(&mut group).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ready {
            self.abandon(&group);
            return (Err(Failure::Undone(error)), buffer);
        }
        group.lines.iter_mut().for_each(|line| line.merge(&buffer));
        let entries: Vec<LogEntry> = group.lines.iter_mut().map(|line| line.entry(self.line_size(), &buffer)).collect();
        let (data, direct) = self.start_data_writes(&mut group, range, buffer);
        let record = self.journal.append(&entries);
        let ((data, buffer), record) = join(finish_data_writes(data, direct), record).await;
        let result = match (data, record) {
            (Ok(()), Ok(hold)) => {
                self.commit(&group, None);
                drop(hold);
                Ok(())
            }
            (Err(error), Ok(hold)) => self.take_back(&group, error, hold).await,
            (_, Err(error)) => Err(self.give_up(&group, error)),
        };
        self.lines.changed.notify();
        (result, buffer)
    }

    /// Makes mappings of these frames and blocks void after a crash: both are about to change.
    async fn unmap_group(&self, group: &Group) -> Result<(), Error> {
        if !self.crash_mode.keeps_clean() {
            return Ok(());
        }
        let entries: Vec<LogEntry> = {
            let state = &mut *self.lines.state();
            // A deferred write changes its frame only after its own record, which voids the mapping
            // as well.
            let in_frames = group.lines.iter().filter(|_| group.room.is_none());
            let in_place = in_frames.filter(|line| line.is_in_place && state.frames.is_mapped(line.frame));
            let frames: Vec<FrameNumber> = in_place.map(|line| line.frame).collect();
            frames.into_iter().map(|frame| unmapping(state, frame, state.frames.line(frame))).collect()
        };
        if !entries.is_empty()
            && let Err(error) = self.journal.append(&entries).await
        {
            entries.iter().for_each(|entry| self.lines.state().frames.set_mapped(entry.frame, true));
            self.journal.fail(&error);
            return Err(error);
        }
        let is_concerned = |mappings: &Mappings| {
            let mut lines = group.lines.iter();
            lines.any(|line| mappings.is_unmapped(line.block) || mappings.is_frame_unmapped(line.frame))
        };
        self.journal.settle(is_concerned).await
    }

    /// Reads the sectors to copy along from the old frames.
    async fn read_copied(&self, group: &mut Group) -> Result<(), Error> {
        let reads = group.lines.iter_mut().filter(|line| !line.copied.is_empty()).map(|line| async move {
            let old_frame = line.old_frame.expect("only a line that moves has something to copy");
            let run = line.copied.hull().expect("something is copied");
            let offset = self.layout.frame_offset(old_frame) + run.offset();
            let is_intact = self.is_line_intact(line.block, old_frame, line.before.checksum).await;
            let read = match is_intact {
                true => self.cache_device.read(offset, Buffer::zeroed(run.length() as usize)).await,
                false => {
                    // The write changes part of the line, which forgets the checksum.
                    self.note_damage(&[(line.block, old_frame)]);
                    Err(Error::new(ErrorKind::Media, "its data does not match its checksum"))
                }
            };
            match read {
                Ok(read) => {
                    line.merged = Buffer::zeroed(self.line_size().bytes() as usize);
                    line.merged[run.bytes()].copy_from_slice(&read);
                    Ok(())
                }
                // Clean sectors need not be copied: the origin has them.
                Err(_) if (line.copied & line.before.dirty).is_empty() => {
                    line.copied = Sectors::NONE;
                    Ok(())
                }
                Err(error) => {
                    let range = self.line_size().line_range(line.block);
                    let context = format!("{range} are dirty in the cache and its device cannot return them");
                    Err(Error::with_source(ErrorKind::Media, context, error))
                }
            }
        });
        join_all(reads).await.into_iter().collect()
    }

    /// Starts the writes of a group, as few as possible. The second result is the request's buffer when it was not sent
    /// itself.
    fn start_data_writes(
        &self,
        group: &mut Group,
        range: ByteRange,
        buffer: Buffer,
    ) -> (Vec<Completion>, Option<Buffer>) {
        let mut writes: Vec<(u64, std::ops::Range<usize>)> = Vec::new();
        let mut merged_writes = Vec::new();
        for line in &mut group.lines {
            let part = line.part();
            let run = line.run();
            let offset = self.layout.frame_offset(line.frame) + run.offset();
            if !line.copied.is_empty() {
                merged_writes.push((offset, line.take_merged()));
                continue;
            }
            match writes.last_mut() {
                Some((last_offset, last)) if *last_offset + last.len() as u64 == offset && last.end == part.start => {
                    last.end = part.end;
                }
                _ => writes.push((offset, part)),
            }
        }
        let submit = |offset, buffer| self.cache_device.submit(Request::write(offset, buffer, true));
        if let [(offset, part)] = &writes[..]
            && merged_writes.is_empty()
            && part.len() as u64 == range.length
        {
            return (vec![submit(*offset, buffer)], None);
        }
        let mut completions: Vec<Completion> =
            writes.into_iter().map(|(offset, part)| submit(offset, Buffer::copy_of(&buffer[part]))).collect();
        completions.extend(merged_writes.into_iter().map(|(offset, merged)| submit(offset, merged)));
        (completions, Some(buffer))
    }

    /// Applies a group that is durable. `deferred`: the data that stays in memory, and the hold of
    /// the record that has it.
    fn commit(&self, group: &Group, deferred: Option<(&Buffer, &Hold)>) {
        let state = &mut *self.lines.state();
        state.note_clean();
        for line in &group.lines {
            if let Some((buffer, hold)) = deferred {
                state.deferred.add(line.frame, line.block, line.mask, line.data(buffer), Some(hold.clone()));
            }
            if line.is_in_place {
                state.frames.set_busy(line.frame, false);
                // Other sectors may have become clean meanwhile, never the written ones.
                let now = state.frames.line(line.frame);
                state.frames.set_sectors(line.frame, now.valid | line.mask, now.dirty | line.mask);
                state.frames.set_checksum(line.frame, line.checksum);
                continue;
            }
            let after = line.after();
            let mut valid = after.valid;
            if let Some(old_frame) = line.old_frame {
                // Copied sectors that the origin lost meanwhile were dropped there.
                valid &= !line.copied | state.frames.line(old_frame).valid;
                state.frames.mappings.note_copied(old_frame, line.frame);
            }
            // The frame of the block now: the old one, or the empty one of a request that waits for
            // this.
            if let Some(there) = state.frames.lookup(line.block) {
                // The record of this write frees that frame.
                state.frames.set_mapped(there, false);
                state.frames.release(there);
            }
            // A device that failed since may have dropped the clean sectors that were copied.
            if state.failure.is_some() {
                valid = after.dirty;
            }
            state.frames.attach(line.frame, Line { valid, ..after });
        }
        if state.is_much_dirty() || state.deferred.is_due() {
            self.lines.background.notify();
        }
    }

    /// Undoes a group of which nothing was written to the log: the lines stay what they were.
    fn abandon(&self, group: &Group) {
        {
            let state = &mut *self.lines.state();
            for line in &group.lines {
                self.forget_reservation(state, line, false);
            }
        }
        self.lines.changed.notify();
    }

    fn forget_reservation(&self, state: &mut State, line: &LineWrite, has_frame_failed: bool) {
        if let Some(frame) = line.busy_frame() {
            state.frames.set_busy(frame, false);
        }
        match (line.is_in_place, has_frame_failed) {
            (false, false) => state.frames.release(line.frame),
            (false, true) => state.frames.give_up(line.frame),
            (true, _) => {}
        }
    }

    /// Undoes a group whose record is durable but whose data is not: a second record restores the
    /// lines.
    async fn take_back(&self, group: &Group, error: Error, hold: Hold) -> Result<(), Failure> {
        self.counters.cache_write_errors.fetch_add(1, Ordering::Relaxed);
        let entries: Vec<LogEntry> = group.lines.iter().map(LineWrite::entry_back).collect();
        match self.journal.append_now(&entries).await {
            Ok(second_hold) => {
                {
                    let state = &mut *self.lines.state();
                    for line in &group.lines {
                        self.forget_reservation(state, line, true);
                    }
                }
                drop((hold, second_hold));
                Err(Failure::Undone(error))
            }
            Err(error) => Err(self.give_up(group, error)),
        }
    }

    /// The log failed, so the record may or may not be durable: these lines must not change any
    /// more.
    fn give_up(&self, group: &Group, error: Error) -> Failure {
        self.journal.fail(&error);
        let state = &mut *self.lines.state();
        for frame in group.lines.iter().filter_map(LineWrite::busy_frame) {
            state.frames.set_busy(frame, false);
        }
        state.uncertain.extend(group.lines.iter().map(|line| line.block));
        let context = "the cache device failed during this write; whether it is durable is not known".to_owned();
        Failure::Unknown(Error::with_source(ErrorKind::OutcomeUnknown, context, error))
    }

    /// Writes one part of a request to the origin, durably.
    async fn write_part_through(
        self: &Arc<Self>,
        range: ByteRange,
        part: ByteRange,
        buffer: &Buffer,
    ) -> Result<(), Error> {
        self.journal.prepare_supersede(part).await?;
        let start = (part.offset - range.offset) as usize;
        let bytes = buffer.get(start..start + part.length as usize);
        let bytes = bytes
            .ok_or_else(|| Error::new(ErrorKind::Media, "the cache device kept the data of a write it refused"))?;
        self.write_origin(part, Buffer::copy_of(bytes), true).await.result
    }
}

async fn finish_data_writes(completions: Vec<Completion>, direct: Option<Buffer>) -> (Result<(), Error>, Buffer) {
    let mut result = Ok(());
    let mut returned = Buffer::empty();
    for response in join_all(completions).await {
        if let Err(error) = response.result {
            result = Err(error);
        }
        returned = response.buffer;
    }
    (result, direct.unwrap_or(returned))
}

impl Group {
    /// The bytes of the request that this group writes.
    fn range(&self, line_size: LineSize, range: ByteRange) -> ByteRange {
        let lines = self.lines.first().zip(self.lines.last());
        let (first, last) = lines.expect("a group has a line");
        let hull = ByteRange {
            offset: line_size.line_range(first.block).offset,
            length: line_size.line_range(last.block).end() - line_size.line_range(first.block).offset,
        };
        hull.intersection(&range).expect("the lines of a request touch it")
    }
}
