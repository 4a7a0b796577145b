//! Checkpoints: the map is stored on the device, so that replay begins later and segments may be
//! used again.
//!
//! ```text
//!   1. under one lock: segments in use, end of the last applied record, segments to free; then extents, step by step
//!   2. all of it to the older slot ─► 3. flush ─► 4. superblock, both copies ─► 5. those segments may be used again
//! ```
//! Requests go on meanwhile. A power loss before step 4 leaves the old checkpoint and everything it refers to.
//!
//! A checkpoint costs about as much as the log has extents, however few segments it frees. So while
//! room is short the next one waits until it frees many times what it writes, or, when records
//! wait, for some multiple of the duration of the last one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use futures_util::lock::Mutex;
use store::{Life, Superblock, Tokens};
use uuid::Uuid;
use zerocopy::little_endian::U32;

use crate::append::RecordSender;
use crate::counters::Counters;
use crate::format::{
    CHECKPOINT_FLAG_DISCARDS, CHECKPOINT_MAGIC, CheckpointRaw, ExtentRaw, ParametersRaw, STATE_CLOSED, STATE_IN_USE,
};
use crate::limits::{CHECKPOINT_REST_TIMES, CHECKPOINT_WORTH_TIMES, TAIL_INTERVALS_MAX};
use crate::log_state::{LogState, State};
use crate::options::DestageOrder;
use crate::snapshot::{Snapshot, Snapshots};

/// Stores the map of the log on its device, and says when that is due.
pub(crate) struct Checkpoints {
    pub(crate) log: Arc<LogState>,
    pub(crate) log_device: SharedDevice,
    pub(crate) uuid: Uuid,
    /// Held while a checkpoint runs.
    pub(crate) superblock: Mutex<Superblock<ParametersRaw>>,
    pub(crate) snapshots: Snapshots,
    /// Wait for what a checkpoint frees.
    pub(crate) records: Arc<RecordSender>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) life: Arc<Life>,
    /// The order that the superblock names from now on.
    pub(crate) order: DestageOrder,
    pub(crate) tokens: Option<Tokens>,
    /// Bytes of log behind the last checkpoint at which the next one begins.
    pub(crate) interval_bytes: u64,
    /// Least time between two such checkpoints.
    pub(crate) pause: Duration,
}

impl Checkpoints {
    /// Runs checkpoints as they become due. Ends when the log closes.
    pub(crate) async fn run(&self) {
        loop {
            let count = self.log.background.count();
            if self.life.is_stopped() {
                return;
            }
            if self.log.has_failed() || self.make_if_due().await.is_err() {
                // The log has failed, and the failure was logged.
                self.log.background.changed_since(count).await;
                continue;
            }
            let due_in = self.due_in(&self.log.state());
            match due_in {
                None => self.log.background.changed_since(count).await,
                Some(Duration::ZERO) => {}
                Some(time) => self.log.wait_for_work(self.clock.as_ref(), count, time).await,
            }
        }
    }

    /// Time until a checkpoint is due unless something changes; `None` when none is.
    fn due_in(&self, state: &State) -> Option<Duration> {
        let interval = self.interval_bytes;
        let rested = state.checkpointed.rested(self.clock.now());
        let is_paused = rested < self.pause;
        if state.checkpointed.tail_bytes() >= if is_paused { interval * TAIL_INTERVALS_MAX } else { interval } {
            return Some(Duration::ZERO);
        }
        // Writers that wait for room in the checkpoint wait for level 2 only.
        if state.contents.segments.reusable_count() >= state.contents.segments.count().div_ceil(8) {
            return None;
        }
        let freed = state.releasable(self.snapshots.keeps_order).len() as u64 * self.log.layout.segment_bytes;
        let written = state.contents.owed_extents_max() as u64 * size_of::<ExtentRaw>() as u64;
        if freed > 0 && freed >= written * CHECKPOINT_WORTH_TIMES {
            return Some(Duration::ZERO);
        }
        let rest = state.checkpointed.took() * CHECKPOINT_REST_TIMES;
        (freed > 0 && state.room.is_wanted()).then(|| rest.saturating_sub(rested))
    }

    pub(crate) async fn make_if_due(&self) -> Result<(), Error> {
        let due_in = self.due_in(&self.log.state());
        if due_in == Some(Duration::ZERO) { self.make(STATE_IN_USE).await } else { Ok(()) }
    }

    /// Makes the map durable, and frees segments that nothing refers to any more. `next_state` is
    /// the superblock's state afterwards.
    pub(crate) async fn make(&self, next_state: u8) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        let payload = &superblock.payload;
        if payload.state == STATE_CLOSED && self.life.is_stopped() {
            return Ok(());
        }
        if let Some(error) = self.log.failure().filter(|_| next_state != STATE_CLOSED) {
            return Err(error);
        }
        let began_at = self.clock.now();
        let snapshot = self.snapshots.take();
        if let Err(error) = self.commit(&mut superblock, snapshot, next_state).await {
            self.records.give_up(&error);
            return Err(error);
        }
        self.log.state().checkpointed.note_end(began_at, self.clock.now());
        drop(superblock);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.records.start();
        self.log.changed.notify();
        Ok(())
    }

    /// Makes a snapshot the start of replay, and releases the segments that it does not name.
    pub(crate) async fn commit(
        &self,
        superblock: &mut Superblock<ParametersRaw>,
        mut snapshot: Snapshot,
        next_state: u8,
    ) -> Result<(), Error> {
        if superblock.is_undecided() {
            // The last superblock write failed, so either slot may count after a crash. First make
            // the last whole one count.
            superblock.write(&self.log_device).await?;
        }
        let slot = superblock.payload.checkpoint_slot ^ 1;
        let sequence = superblock.payload.checkpoint_sequence.get() + 1;
        let mut result = self.write(slot, sequence, &mut snapshot).await;
        if result.is_ok() {
            let payload = &mut superblock.payload;
            payload.checkpoint_slot = slot;
            payload.checkpoint_sequence = sequence.into();
            payload.position = snapshot.place.position.into();
            payload.position_segment = snapshot.place.segment.into();
            payload.position_next = snapshot.place.next_segment.into();
            payload.destaged_sequence = snapshot.destaged_sequence.into();
            payload.dirty_bytes = snapshot.dirty_bytes.into();
            let has_leftovers = self.log.state().destaged.has_leftovers_behind(snapshot.destaged_sequence);
            payload.order = match (snapshot.has_failed || snapshot.has_lost, has_leftovers) {
                // After a failure newer data went to the origin in no order, so the rest is no part
                // of any epoch. Likewise data that could not be read in its turn: it is not on the
                // origin, whatever record it is in, and a later opening may read it.
                (true, _) => DestageOrder::Lba.code(),
                (false, true) => payload.order,
                (false, false) => self.order.code(),
            };
            payload.has_nvram = u8::from(snapshot.has_nvram);
            payload.state = next_state;
            superblock.set_token(self.tokens, next_state == STATE_CLOSED);
            result = superblock.write(&self.log_device).await;
        }
        result?;
        {
            let state = &mut *self.log.state();
            state.contents.segments.release(&snapshot.released);
            snapshot.released.iter().for_each(|&segment| state.contents.sums.forget(segment));
            state.releasable_count = state.releasable(self.snapshots.keeps_order).len() as u32;
            state.checkpointed.note_durable(self.clock.now(), snapshot.tail_bytes);
        }
        Ok(())
    }

    async fn write(&self, slot: u8, sequence: u64, snapshot: &mut Snapshot) -> Result<(), Error> {
        let bytes = std::mem::take(&mut snapshot.bytes);
        if bytes.length() as u64 > self.log.layout.checkpoint_bytes {
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
            flags: CHECKPOINT_FLAG_DISCARDS.into(),
            reserved: [0; 20],
        };
        let mut offset = self.log.layout.checkpoint_slot(slot);
        let end = offset + bytes.length() as u64;
        for piece in bytes.seal(head) {
            let (length, began_at) = (piece.len() as u64, self.clock.now());
            self.log_device.write(offset, piece, false).await?;
            offset += length;
            let is_waited_for = {
                let state = self.log.state();
                state.room.is_wanted() || state.failure.has_come()
            };
            let is_urgent = is_waited_for || self.life.is_stopped();
            if offset < end && !is_urgent {
                // Records get the device for as long as they had to share it.
                self.clock.sleep_until(self.clock.now() + self.clock.now().since(began_at)).await;
            }
        }
        self.log_device.flush().await
    }
}

#[cfg(test)]
mod tests {
    use base::buffer::Buffer;
    use base::executor::Executor;
    use base::random::Random;
    use block::completion::Workers;
    use block::layer::crash::CrashLayer;
    use block::layer::delay::Latency;
    use block::{Request, SharedDevice};

    use store::Sequence;

    use super::*;
    use crate::batch::Goal;
    use crate::core::Core;
    use crate::numbers::Sector;
    use crate::options::{DestageOrder, Durability, FormatOptions, OpenOptions};
    use crate::segments::SegmentState;
    use crate::tests::Parts;

    const BLOCKS: u64 = 64;
    const BLOCK_BYTES: u64 = 2048;
    const LOG_BYTES: u64 = 4 << 20;

    struct World {
        executor: Executor,
        random: Random,
        core: Arc<Core>,
        /// The contents that each block may have after a power loss: that of the last flush, and
        /// those written since. The last one is its present content.
        blocks: Vec<Vec<u8>>,
    }

    impl World {
        fn open(log: &CrashLayer, origin: &CrashLayer, seed: u64, is_new: bool) -> Self {
            let mut executor = Executor::new(seed);
            let (log, origin): (SharedDevice, SharedDevice) = (Arc::new(log.clone()), Arc::new(origin.clone()));
            if is_new {
                let (log, origin) = (Arc::clone(&log), Arc::clone(&origin));
                let formatted = async move { crate::open::format(&log, &origin, FormatOptions::paper()).await };
                executor.block_on(formatted).expect("nothing fails");
            }
            let mut options = OpenOptions::new(Arc::new(executor.clock()));
            options.order = [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst][seed as usize % 3];
            options.durability = [Durability::Log, Durability::UnsafeVolatile][seed as usize / 3 % 2];
            options.volatile_bytes = 64 << 10;
            options.level2.batch_bytes = 64 << 10;
            let core = executor.block_on(crate::open::open(log, origin, options)).expect("it can be opened");
            let workers = core.workers.clone();
            executor.spawn(async move { workers.run().await });
            let mover = Arc::clone(&core.mover);
            executor.spawn(async move { mover.run().await });
            Self { executor, random: Random::new(seed), core, blocks: vec![vec![0]; BLOCKS as usize] }
        }

        fn submit(&mut self, request: Request) -> Buffer {
            let response = self.executor.block_on(self.core.submit(request));
            response.result.expect("nothing fails");
            response.buffer
        }

        /// Writes, zeroes, moves slots or destages.
        fn act(&mut self) {
            let (first, count) = (self.random.below(BLOCKS), 1 + self.random.below(4));
            let count = count.min(BLOCKS - first);
            let (offset, length) = (first * BLOCK_BYTES, count * BLOCK_BYTES);
            let core = Arc::clone(&self.core);
            let byte = match self.random.below(10) {
                0 => {
                    let sent = async move { core.destager.destage(Goal::Background, false).await };
                    self.executor.block_on(sent).expect("nothing fails");
                    return;
                }
                1 => {
                    self.executor.block_on(async move { core.mover.move_round(0.5).await }).expect("nothing fails");
                    return;
                }
                2 => {
                    self.submit(Request::write_zeroes(offset, length, false, false));
                    0
                }
                byte => {
                    let byte = (byte + 10 * self.random.below(20)) as u8;
                    self.submit(Request::write(offset, Buffer::copy_of(&vec![byte; length as usize]), false));
                    byte
                }
            };
            let is_durable = !self.core.settings.is_staged();
            for block in &mut self.blocks[first as usize..(first + count) as usize] {
                if is_durable {
                    block.clear();
                }
                block.push(byte);
            }
        }

        fn flush(&mut self) {
            let core = Arc::clone(&self.core);
            self.executor.block_on(async move { core.flusher.flush().await }).expect("nothing fails");
            self.blocks.iter_mut().for_each(|block| drop(block.drain(..block.len() - 1)));
        }

        fn bytes(&mut self) -> Vec<u8> {
            let length = (BLOCKS * BLOCK_BYTES) as usize;
            self.submit(Request::read(0, Buffer::zeroed(length))).to_vec()
        }
    }

    /// Extents are collected a few at a time, and anything happens in between. With the records
    /// behind the checkpoint every block is as it was acknowledged.
    #[test]
    fn a_checkpoint_of_extents_that_change_meanwhile_is_whole() {
        let test = block::crash_test!();
        for seed in test.seeds(0, 600, 1) {
            let _printed = test.on_panic(seed, None);
            let (log, origin) = (CrashLayer::new(LOG_BYTES, seed), CrashLayer::new(BLOCKS * BLOCK_BYTES, seed + 1));
            let mut world = World::open(&log, &origin, seed, true);
            for _ in 0..world.random.below(120) {
                world.act();
            }
            world.flush();
            let core = Arc::clone(&world.core);
            let mut snapshot = core.checkpoints.snapshots.without_extents(&core.log.state());
            while !core.checkpoints.snapshots.collect(&mut snapshot, 1 + (seed as usize / 6) % 3) {
                for _ in 0..world.random.below(4) {
                    world.act();
                }
            }
            let committed = async move {
                let mut superblock = core.checkpoints.superblock.lock().await;
                core.checkpoints.commit(&mut superblock, snapshot, STATE_IN_USE).await
            };
            world.executor.block_on(committed).expect("nothing fails");
            for _ in 0..world.random.below(20) {
                world.act();
            }
            if world.random.below(2) == 0 {
                world.flush();
            }
            let (log, origin) = (log.after_power_loss(), origin.after_power_loss());
            let mut after = World::open(&log, &origin, seed, false);
            let bytes = after.bytes();
            for (block, (held, may_be)) in bytes.chunks(BLOCK_BYTES as usize).zip(&world.blocks).enumerate() {
                assert!(held.iter().all(|byte| may_be.contains(byte)), "block {block}, seed {seed}");
            }
            // Check also what the origin gets of it.
            let core = Arc::clone(&after.core);
            after.executor.block_on(async move { core.destager.destage_all(|_| {}).await }).expect("nothing fails");
            assert!(origin.durable_bytes(0, bytes.len()) == bytes, "the origin, seed {seed}");
        }
    }

    /// It is dirty in the checkpoint, but the record number read last says that it is on the
    /// origin.
    #[test]
    fn what_became_clean_while_a_checkpoint_was_collected_is_clean_when_the_log_is_opened() {
        const ORDERED_SEED: u64 = 0;
        let (log, origin) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(BLOCKS * BLOCK_BYTES, 2));
        let mut world = World::open(&log, &origin, ORDERED_SEED, true);
        let core = Arc::clone(&world.core);
        assert!(core.settings.keeps_order() && !core.settings.is_staged());
        let write =
            |block: u64| Request::write(block * BLOCK_BYTES, Buffer::copy_of(&[1; BLOCK_BYTES as usize]), false);
        (0..3).for_each(|block| drop(world.submit(write(2 * block))));
        let mut snapshot = core.checkpoints.snapshots.collect_all();
        assert_eq!(snapshot.extent_count, 3);
        let sending = Arc::clone(&core);
        world
            .executor
            .block_on(async move { sending.destager.destage(Goal::Background, false).await })
            .expect("nothing fails");
        snapshot.destaged_sequence = core.log.state().destaged.sequence();
        world.submit(write(20));
        let committed = async move {
            let mut superblock = core.checkpoints.superblock.lock().await;
            core.checkpoints.commit(&mut superblock, snapshot, STATE_IN_USE).await
        };
        world.executor.block_on(committed).expect("nothing fails");
        let after = World::open(&log.after_power_loss(), &origin.after_power_loss(), ORDERED_SEED, false);
        assert_eq!(after.core.recovery.checkpoint_extents, 3, "it names them");
        let dirty: Vec<Sector> =
            after.core.log.state().contents.owed_from(Sector::FIRST).map(|piece| piece.sector).collect();
        assert_eq!(dirty, [Sector::at(20 * BLOCK_BYTES)], "what was written last is all that the origin lacks");
    }

    /// A slot moves what it covers from the map to the shadow, where it joins an extent that was
    /// collected before: the rest begins in the middle of an extent.
    #[test]
    fn an_extent_that_grew_behind_what_was_collected_is_collected() {
        const VOLATILE_SEED: u64 = 3;
        let (log, origin) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(BLOCKS * BLOCK_BYTES, 2));
        let mut world = World::open(&log, &origin, VOLATILE_SEED, true);
        assert!(world.core.settings.is_staged());
        let write = |world: &mut World, block: u64, count: u64, byte| {
            let bytes = vec![byte; (count * BLOCK_BYTES) as usize];
            world.submit(Request::write(block * BLOCK_BYTES, Buffer::copy_of(&bytes), false));
        };
        write(&mut world, 0, 4, 1);
        world.flush();
        write(&mut world, 0, 1, 2);
        let core = Arc::clone(&world.core);
        let mut snapshot = core.checkpoints.snapshots.without_extents(&core.log.state());
        assert!(!core.checkpoints.snapshots.collect(&mut snapshot, 1), "there is more");
        write(&mut world, 1, 1, 2);
        while !core.checkpoints.snapshots.collect(&mut snapshot, 1) {}
        let committed = async move {
            let mut superblock = core.checkpoints.superblock.lock().await;
            core.checkpoints.commit(&mut superblock, snapshot, STATE_IN_USE).await
        };
        world.executor.block_on(committed).expect("nothing fails");
        let mut after = World::open(&log.after_power_loss(), &origin.after_power_loss(), VOLATILE_SEED, false);
        let bytes = after.bytes();
        assert!(bytes[..4 * BLOCK_BYTES as usize].iter().all(|&byte| byte == 1), "what was flushed is there");
    }

    /// A log whose device takes a millisecond, without level 2.
    fn slow(log: &CrashLayer, origin: &CrashLayer) -> (Executor, Arc<Core>) {
        let (mut executor, workers) = (Executor::in_order(), Workers::new());
        let latency = Latency::Fixed(Duration::from_millis(1));
        let timed = log.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let (log, origin): (SharedDevice, SharedDevice) = (Arc::new(timed), Arc::new(origin.clone()));
        let mut options = OpenOptions::new(Arc::new(executor.clock()));
        options.order = DestageOrder::Lba;
        let opening = async move {
            crate::open::format(&log, &origin, FormatOptions::paper()).await?;
            crate::open::open(log, origin, options).await
        };
        let core = executor.block_on(opening).expect("nothing fails");
        let workers = core.workers.clone();
        executor.spawn(async move { workers.run().await });
        (executor, core)
    }

    /// Begins a write and makes a checkpoint while its record is under way.
    fn commit_under_way(executor: &mut Executor, core: &Arc<Core>, request: Request) {
        let writing = core.submit(request);
        executor.spawn(async move { drop(writing.await) });
        executor.run_until_stalled();
        let snapshot = core.checkpoints.snapshots.take();
        let core = Arc::clone(core);
        let committed = async move {
            let mut superblock = core.checkpoints.superblock.lock().await;
            core.checkpoints.commit(&mut superblock, snapshot, STATE_IN_USE).await
        };
        executor.block_on(committed).expect("nothing fails");
    }

    /// The record may never land, and the next opening gives its number to another one.
    #[test]
    fn a_checkpoint_counts_no_record_that_is_under_way() {
        let (log, origin) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(BLOCKS * BLOCK_BYTES, 2));
        let (mut executor, core) = slow(&log, &origin);
        let write = |block: u64, byte: u8| {
            Request::write(block * BLOCK_BYTES, Buffer::copy_of(&[byte; BLOCK_BYTES as usize]), false)
        };
        executor.block_on(core.submit(write(1, 11))).result.expect("nothing fails");
        commit_under_way(&mut executor, &core, write(2, 22));
        let bytes = log.durable_bytes(0, LOG_BYTES as usize);
        let torn = bytes.windows(BLOCK_BYTES as usize).position(|window| window == [22; BLOCK_BYTES as usize]);
        log.corrupt(torn.expect("it has landed since") as u64, &[0; 512]);
        let after = World::open(&log.after_power_loss(), &origin.after_power_loss(), 1, false);
        let state = after.core.log.state();
        let last =
            state.contents.segments.by_age().map(|segment| state.contents.segments.get(segment).last_sequence).max();
        assert_eq!(last, Some(Sequence::FIRST));
    }

    /// The note may say by then that the log must be discarded, and later writes past the log are
    /// not noted any more.
    #[test]
    fn a_log_that_has_failed_takes_no_checkpoint_of_its_own_accord() {
        let (log, origin) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(BLOCKS * BLOCK_BYTES, 2));
        let mut world = World::open(&log, &origin, 0, true);
        let core = Arc::clone(&world.core);
        core.checkpoints.records.give_up(&Error::new(ErrorKind::Media, "the log device failed"));
        let before = log.writes_seen();
        let error =
            world.executor.block_on(async move { core.checkpoints.make(STATE_IN_USE).await }).expect_err("it failed");
        assert_eq!((error.kind(), log.writes_seen()), (ErrorKind::Media, before));
    }

    /// All of a segment is on the origin, and the next record is under way in another one.
    #[test]
    fn replay_never_begins_in_a_segment_that_is_used_again() {
        let (log, origin) = (CrashLayer::new(LOG_BYTES, 1), CrashLayer::new(BLOCKS * BLOCK_BYTES, 2));
        let (mut executor, core) = slow(&log, &origin);
        let write = |byte: u8| Request::write(0, Buffer::copy_of(&[byte; 14 * BLOCK_BYTES as usize]), false);
        // Two of these fill a segment.
        for byte in [1, 2] {
            executor.block_on(core.submit(write(byte))).result.expect("nothing fails");
        }
        let sending = Arc::clone(&core);
        executor
            .block_on(async move { sending.destager.destage(Goal::Background, false).await })
            .expect("nothing fails");
        let applied = core.log.state().contents.applied.segment;
        commit_under_way(&mut executor, &core, write(3));
        assert_eq!(core.log.state().contents.segments.get(applied).state, SegmentState::Valid, "it may be used again");
        let mut after = World::open(&log.after_power_loss(), &origin.after_power_loss(), 1, false);
        assert_eq!(after.bytes()[..14 * BLOCK_BYTES as usize], [3; 14 * BLOCK_BYTES as usize]);
    }

    /// Alone, without the levels and requests of a log.
    #[test]
    fn a_checkpoint_lets_clean_segments_be_used_again() {
        let mut parts = Parts::new(|options| options.order = DestageOrder::Lba);
        let (superblock, records) = (parts.superblock.clone(), Arc::new(parts.assembly.records()));
        let checkpoints = Arc::new(parts.assembly.checkpoints(superblock, &records));
        // Two of these fill a segment.
        let pieces = [0, 1, 2, 3, 4].map(|index| parts.append(&records, 64 * index, 56, 1));
        let log = Arc::clone(&parts.assembly.log);
        for piece in &pieces[..4] {
            log.state().contents.mark_clean(piece);
        }
        let before = log.state().contents.segments.reusable_count();
        let making = Arc::clone(&checkpoints);
        parts.executor.block_on(async move { making.make(STATE_IN_USE).await }).expect("nothing fails");
        assert_eq!(log.state().contents.segments.reusable_count(), before + 2);
        assert_eq!(log.state().checkpointed.tail_bytes(), 0);
        assert_eq!(checkpoints.superblock.try_lock().expect("it is made").payload.checkpoint_sequence.get(), 1);
    }
}
