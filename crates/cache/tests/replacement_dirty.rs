//! Replacement while part of a cache is dirty: its miss ratios are those of a slow obvious model in which the shares of
//! the lists are shares of what can be evicted, and such shares serve better than shares of all frames.

mod common;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use base::buffer::Buffer;
use base::executor::Executor;
use block::memory::MemoryDevice;
use block::{Completion, Device, Geometry, Identity, Operation, Request, SharedDevice};
use cache::{Associativity, Cache, DirtyLimits, FormatOptions, Mode, OpenOptions, Percent, Replacement};
use common::lists::{Lists, take};
use common::{format, format_options, memory, open_options, try_open};
use futures_util::future::join_all;
use workload::access::{Access, AccessKind};
use workload::trace::kinds::Kind;
use workload::trace::{Options, Record, TraceReader};

const BLOCK: u64 = 4096;
const WAYS: usize = 256;
/// The lines of which the first list has a share.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ShareOf {
    CleanLines,
    AllFrames,
}

/// Lists of the lines that can be evicted, and the dirty blocks, oldest first, with whether they
/// were used again.
#[derive(Clone, Default)]
struct Set {
    clean: Lists,
    dirty: Vec<(u64, bool)>,
    /// Frames that lines are about to move to.
    reserved_count: usize,
    /// Clean lines that a write under way will change: they keep their places, and are not evicted.
    held: Vec<u64>,
}

/// A write that was submitted.
struct Writer {
    /// The part that is not planned yet.
    rest: Range<u64>,
    /// Blocks whose writes to the cache device are under way.
    group: Vec<u64>,
}

struct Model {
    policy: Replacement,
    share_of: ShareOf,
    sets: Vec<Set>,
    dirty_max: usize,
    /// What the cache cleaned during these requests, batch by batch.
    cleaned: VecDeque<Vec<u64>>,
    accesses: u64,
    misses: u64,
}

impl Model {
    fn new(policy: Replacement, share_of: ShareOf, line_count: usize, dirty_max: usize) -> Self {
        let sets = vec![Set::default(); line_count / WAYS];
        Self { policy, share_of, sets, dirty_max, cleaned: VecDeque::new(), accesses: 0, misses: 0 }
    }

    fn set(&mut self, block: u64) -> &mut Set {
        let count = self.sets.len() as u64;
        &mut self.sets[(block / 16 % count) as usize]
    }

    /// Carries out requests that were in flight together, in their order. Each finds or gets its
    /// frames when it is submitted, and the part of a write that has room is under way then. All
    /// that is under way becomes dirty together; then the waiting parts are planned.
    fn requests(&mut self, records: &[Record], cleaned: &[Vec<u64>]) {
        self.cleaned = cleaned.to_vec().into();
        let mut writers: Vec<Writer> = Vec::new();
        for record in records {
            let range = record.access.range;
            let blocks = range.offset / BLOCK..range.end().div_ceil(BLOCK);
            self.submit(blocks.clone());
            if record.access.kind == AccessKind::Write {
                let mut writer = Writer { rest: blocks, group: Vec::new() };
                self.plan_after(&writers, &mut writer);
                writers.push(writer);
            }
        }
        while !writers.is_empty() {
            if writers.iter().all(|writer| writer.group.is_empty()) {
                self.clean_next(writers[0].rest.start);
            }
            writers.iter_mut().for_each(|writer| self.commit(&mut writer.group));
            writers.retain(|writer| !writer.rest.is_empty());
            for index in 0..writers.len() {
                let (before, from_here) = writers.split_at_mut(index);
                self.plan_after(before, &mut from_here[0]);
            }
        }
        while let Some(batch) = self.cleaned.pop_front() {
            self.clean(batch);
        }
    }

    fn submit(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.accesses += 1;
            if !self.touch(block) {
                self.misses += 1;
                if self.make_place(block) {
                    let lists = &mut self.set(block).clean;
                    let is_known = lists.recall(block);
                    lists.insert(block, is_known);
                }
            }
        }
    }

    /// Plans as many lines of a write as there is room for, except lines of a write before it.
    fn plan_after(&mut self, before: &[Writer], writer: &mut Writer) {
        let overlaps = |other: &Writer| {
            let start = other.group.first().copied().unwrap_or(other.rest.start);
            start < writer.rest.end && writer.rest.start < other.rest.end
        };
        if before.iter().any(overlaps) {
            return;
        }
        while !writer.rest.is_empty() && self.plan(writer.rest.start) {
            writer.group.extend(writer.rest.next());
        }
    }

    fn touch(&mut self, block: u64) -> bool {
        let policy = self.policy;
        let set = self.set(block);
        if let Some((_, _)) = take(&mut set.dirty, block) {
            set.dirty.push((block, true));
            return true;
        }
        set.clean.touch(policy, block)
    }

    /// Whether a frame can be had now.
    fn make_place(&mut self, block: u64) -> bool {
        let (policy, share_of) = (self.policy, self.share_of);
        let set = self.set(block);
        loop {
            let clean_count = set.clean.count();
            if clean_count + set.dirty.len() + set.reserved_count < WAYS {
                return true;
            }
            if clean_count == set.held.len() {
                return false;
            }
            let count = if share_of == ShareOf::AllFrames { WAYS } else { clean_count };
            set.clean.step(policy, count, WAYS, &set.held);
        }
    }

    /// Whether a line can be written now.
    fn plan(&mut self, block: u64) -> bool {
        let is_dirty = self.set(block).is_dirty(block);
        if !is_dirty && self.sets.iter().map(|set| set.dirty.len()).sum::<usize>() >= self.dirty_max {
            return false;
        }
        // Dirty data is not overwritten: the line moves to another frame.
        let has_place = !is_dirty && self.set(block).clean.has(block) || self.make_place(block);
        let set = self.set(block);
        match set.clean.has(block) {
            true => set.held.push(block),
            false => set.reserved_count += usize::from(has_place),
        }
        has_place
    }

    fn commit(&mut self, group: &mut Vec<u64>) {
        for block in group.drain(..) {
            let set = self.set(block);
            set.held.retain(|&held| held != block);
            if let Some((_, hits)) = take(&mut set.clean.first, block) {
                set.dirty.push((block, hits > 0));
            } else if take(&mut set.clean.second, block).is_some() {
                set.dirty.push((block, true));
            } else {
                set.reserved_count = set.reserved_count.saturating_sub(1);
                if !set.is_dirty(block) {
                    set.dirty.push((block, false));
                }
            }
        }
    }

    /// Cleans what the cache cleaned when it waited at this point. Where the cache did not wait the
    /// model differs, and cleans the least recently used lines.
    fn clean_next(&mut self, block: u64) {
        let batch = self.cleaned.pop_front().unwrap_or_else(|| {
            let set = self.set(block);
            set.dirty.iter().map(|(block, _)| *block).collect()
        });
        self.clean(batch);
    }

    fn clean(&mut self, mut blocks: Vec<u64>) {
        blocks.sort_unstable();
        for block in blocks {
            let policy = self.policy;
            let set = self.set(block);
            let Some((_, is_used_again)) = take(&mut set.dirty, block) else { continue };
            let goes_into_main = match policy {
                Replacement::Lru | Replacement::Clock => false,
                Replacement::TwoQueue => is_used_again,
                Replacement::S3Fifo => true,
            };
            if goes_into_main { set.clean.second.push((block, 0)) } else { set.clean.first.push((block, 0)) }
        }
    }

    fn ratio(&self) -> f64 {
        self.misses as f64 / self.accesses as f64
    }
}

impl Set {
    fn is_dirty(&self, block: u64) -> bool {
        self.dirty.iter().any(|(other, _)| *other == block)
    }
}

/// The miss ratio of a write-back cache that keeps as much dirty as it may, and what it cleaned
/// during each group of `depth` requests.
fn measured(
    trace: &[Record],
    policy: Replacement,
    (line_count, depth): (u64, usize),
    dirty: Percent,
) -> (f64, Vec<Vec<Vec<u64>>>) {
    let mut executor = Executor::new(1);
    let origin_bytes =
        trace.iter().map(|record| record.access.range.end()).max().unwrap_or(0).next_multiple_of(1 << 20);
    let cache_device = memory(line_count * BLOCK * 2 + (1 << 20));
    let inner = MemoryDevice::new(origin_bytes, Identity::default());
    let noting = Arc::new(Noting { inner, batches: Mutex::default() });
    let origin: SharedDevice = Arc::clone(&noting) as SharedDevice;
    let options = FormatOptions {
        associativity: Associativity::Ways(WAYS as u32),
        frames_max: Some(line_count),
        ..format_options()
    };
    format(&mut executor, &cache_device, &origin, options);
    let limits = DirtyLimits { clean_above: dirty, max: dirty };
    let options = OpenOptions { replacement: policy, dirty: limits, ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &cache_device, &origin, options).expect("it was just made");
    let cleaned = run(&mut executor, &cache, &noting, (trace, depth));
    let status = cache.status();
    let hits = status.reads.tag_hits + status.writes.tag_hits;
    let misses = status.reads.tag_misses + status.writes.tag_misses;
    (misses as f64 / (hits + misses) as f64, cleaned)
}

fn run(
    executor: &mut Executor,
    cache: &Arc<Cache>,
    origin: &Arc<Noting>,
    (trace, depth): (&[Record], usize),
) -> Vec<Vec<Vec<u64>>> {
    let (cache, origin, trace) = (Arc::clone(cache), Arc::clone(origin), trace.to_vec());
    executor.block_on(async move {
        let mut cleaned = Vec::new();
        for group in trace.chunks(depth) {
            let submitted = group.iter().map(|Record { access: Access { kind, range }, .. }| {
                let buffer = Buffer::zeroed(range.length as usize);
                cache.submit(match kind {
                    AccessKind::Write => Request::write(range.offset, buffer, false),
                    _ => Request::read(range.offset, buffer),
                })
            });
            for response in join_all(submitted).await {
                response.result.expect("nothing fails");
            }
            cleaned.push(origin.take());
        }
        cleaned
    })
}

/// An origin that notes which blocks were written, flush by flush.
struct Noting {
    inner: MemoryDevice,
    batches: Mutex<Vec<Vec<u64>>>,
}

impl Noting {
    fn take(&self) -> Vec<Vec<u64>> {
        let mut batches = std::mem::take(&mut *self.batches.lock().unwrap());
        batches.retain(|batch| !batch.is_empty());
        batches
    }
}

impl Device for Noting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let mut batches = self.batches.lock().unwrap();
        match &request.operation {
            Operation::Write { buffer, .. } => {
                let blocks = request.offset / BLOCK..(request.offset + buffer.len() as u64).div_ceil(BLOCK);
                if batches.is_empty() {
                    batches.push(Vec::new());
                }
                batches.last_mut().expect("there is one").extend(blocks);
            }
            Operation::Flush => batches.push(Vec::new()),
            _ => {}
        }
        self.inner.submit(request)
    }
}

fn modelled(
    trace: &[Record],
    cleaned: &[Vec<Vec<u64>>],
    policy: Replacement,
    share_of: ShareOf,
    (line_count, depth): (u64, usize),
    dirty: Percent,
) -> f64 {
    let dirty_max = (line_count as f64 * dirty.share()) as usize;
    let mut model = Model::new(policy, share_of, line_count as usize, dirty_max);
    trace.chunks(depth).zip(cleaned).for_each(|(group, cleaned)| model.requests(group, cleaned));
    model.ratio()
}

/// The kinds of traces; and the one that `FOREBAY_TRACE` names, its whole blocks.
fn traces() -> Vec<(String, Vec<Record>)> {
    let kinds = [Kind::ZipfAndScan, Kind::Loop, Kind::Shifting, Kind::Server];
    let mut traces: Vec<_> = kinds.map(|kind| (format!("{kind:?}"), kind.trace(1, 8000, 6000))).into();
    if let Some(path) = std::env::var_os("FOREBAY_TRACE").filter(|path| !path.is_empty()) {
        let file = std::fs::File::open(&path).expect("FOREBAY_TRACE names a file");
        let reader = TraceReader::new(std::io::BufReader::new(file), Options::default());
        let records = reader.map(|record| whole_blocks(record.expect("it is a trace")));
        traces.push((path.display().to_string(), records.collect()));
    } else {
        println!("skipped: FOREBAY_TRACE names no trace");
    }
    traces
}

fn whole_blocks(mut record: Record) -> Record {
    let range = &mut record.access.range;
    let end = range.end().next_multiple_of(BLOCK);
    range.offset = range.offset / BLOCK * BLOCK;
    range.length = end - range.offset;
    record
}

/// Largest difference between the miss ratios of cache and model.
const ALLOWED: f64 = 0.005;

fn compare(name: &str, trace: &[Record], depth: usize) {
    let line_count = if trace.len() > 50_000 { 13_312 } else { 1024 };
    let size = (line_count, depth);
    for percent in [50, 85] {
        let dirty = Percent::new(percent);
        for policy in Replacement::ALL {
            let (found, cleaned) = measured(trace, policy, size, dirty);
            let of_clean = modelled(trace, &cleaned, policy, ShareOf::CleanLines, size, dirty);
            let of_all = modelled(trace, &cleaned, policy, ShareOf::AllFrames, size, dirty);
            let what = format!("{name}, depth {depth}, {percent} % dirty, {policy}");
            println!("{what}: {found:.4}, model {of_clean:.4}, with shares of all frames {of_all:.4}");
            assert!((found - of_clean).abs() < ALLOWED, "{what}: {found:.4}, model {of_clean:.4}");
            let has_shares = matches!(policy, Replacement::S3Fifo | Replacement::TwoQueue);
            if name == "Server" && has_shares {
                assert!(of_clean < of_all, "{what}: {of_clean:.4}, with shares of all frames {of_all:.4}");
            }
        }
    }
}

#[test]
fn while_lines_are_dirty_the_shares_are_of_what_can_be_evicted() {
    for (name, trace) in &traces() {
        compare(name, trace, 1);
        // The recorded trace takes minutes each time.
        if trace.len() <= 50_000 {
            compare(name, trace, 8);
        }
    }
}
