//! Marks over a store that keeps what it gets, and fails when a test says so.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use base::clock::VirtualClock;
use futures_util::FutureExt;

use super::*;
use crate::limits::MARK_PARTS;

mod clear;
mod content_id;
mod costs;
mod model;
mod recording;
mod take;

const MIB: u64 = 1 << 20;
/// Three parts of a bitmap.
const RANGES: u64 = 80_000;
const SIZE: u64 = RANGES * MIB;

/// The result of a future that does not wait: the stores of these tests are ready at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("nothing is waited for")
}

/// Slot, mark and part.
type PartKey = (u16, [u8; 16], u16);

/// A store that keeps what it gets, and fails when the test says so.
#[derive(Default)]
struct Kept {
    marks: Mutex<BTreeMap<u16, SavedMark>>,
    parts: Mutex<BTreeMap<PartKey, Box<PartWords>>>,
    is_failing: std::sync::atomic::AtomicBool,
    /// The next save with a mark in it keeps all or nothing of the mark, and fails in any case.
    fails_at_mark: std::sync::atomic::AtomicBool,
    /// A save with a mark in it never ends.
    stops_at_mark: std::sync::atomic::AtomicBool,
    /// There is no room for parts.
    is_full: std::sync::atomic::AtomicBool,
    save_count: std::sync::atomic::AtomicUsize,
    /// Each save takes [`SAVE_TIME`] of it.
    clock: Option<VirtualClock>,
}

const SAVE_TIME: Duration = Duration::from_millis(2);

impl Kept {
    fn saved(&self) -> SavedMarks {
        let of = |(slot, mark): (&u16, &SavedMark)| {
            let part = |part: u16| self.parts.lock().unwrap().get(&(*slot, mark.id, part)).cloned();
            let words = (0..MARK_PARTS as u16).flat_map(|index| match part(index) {
                Some(words) => words.to_vec(),
                None => vec![u64::MAX; crate::limits::MARK_PART_WORDS],
            });
            (*slot, mark.clone(), words.collect())
        };
        SavedMarks { marks: self.marks.lock().unwrap().iter().map(of).collect() }
    }
}

struct SharedStore(Arc<Kept>);

impl ChangeStore for SharedStore {
    fn save(&self, updates: Vec<MarkUpdate>) -> Saving {
        let kept = Arc::clone(&self.0);
        Box::pin(async move {
            kept.save_count.fetch_add(1, Ordering::Relaxed);
            kept.clock.iter().for_each(|clock| clock.advance(SAVE_TIME));
            if kept.is_failing.load(Ordering::Relaxed) {
                return Err("the disk is full".into());
            }
            let has_mark = updates.iter().any(|update| matches!(update, MarkUpdate::Mark { .. }));
            if has_mark && kept.stops_at_mark.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if has_mark && kept.fails_at_mark.swap(false, Ordering::Relaxed) {
                return Err("the disk failed once".into());
            }
            for update in updates {
                let is_part = matches!(update, MarkUpdate::Part { .. });
                if is_part && kept.is_full.load(Ordering::Relaxed) {
                    return Err("no space left on device".into());
                }
                match update {
                    MarkUpdate::Mark { slot, mark: Some(mark) } => {
                        kept.marks.lock().unwrap().insert(slot, mark);
                    }
                    MarkUpdate::Mark { slot, mark: None } => {
                        kept.marks.lock().unwrap().remove(&slot);
                    }
                    MarkUpdate::Part { slot, id, part, words } => {
                        kept.parts.lock().unwrap().insert((slot, id, part), words);
                    }
                }
            }
            Ok(())
        })
    }
}

fn marks_over(kept: &Arc<Kept>) -> ChangeMarks {
    let store = Arc::new(SharedStore(Arc::clone(kept)));
    let clock = kept.clock.clone().map(|clock| Arc::new(clock) as Arc<dyn Clock>);
    ChangeMarks::restored(store, &kept.saved(), range_bytes_for(SIZE), clock)
}

fn nexus(index: usize) -> NexusId {
    // Two of one initiator, one of another.
    NexusId::new(&format!("iqn.{},i,0x{index},t,t,0x1", ["a", "a", "b"][index]))
}

fn of(id: u8, token: u64, sequence: u64) -> Parameters {
    Parameters { id: [id; 16], token, sequence }
}

fn find(marks: &ChangeMarks, nexus: &NexusId, id: u8) -> Option<Mark> {
    marks.report_marks(nexus).into_iter().find(|mark| mark.id == [id; 16])
}

/// The changes that a mark reports, read in small parts.
fn changed(marks: &ChangeMarks, nexus: &NexusId, id: u8) -> Option<Vec<(u64, u64)>> {
    let slot = find(marks, nexus, id)?.slot;
    let mut all = Vec::new();
    let mut first = 0;
    loop {
        let part = marks.report_changes(nexus, slot, first, (SIZE, 3)).expect("it was just reported");
        let of = |run: &scsi::change_mark::Run| (u64::from(run.first), u64::from(run.count));
        all.extend(part.runs.iter().map(of));
        let Some(last) = part.runs.last().filter(|_| part.has_more) else { return Some(all) };
        first = last.first + last.count;
    }
}

fn write(marks: &ChangeMarks, nexus: &NexusId, first: u64, count: u64) -> Result<(), String> {
    let held = marks.held_by(nexus);
    let range = ByteRange { offset: first * MIB, length: count * MIB };
    now(marks.record(held, &[range]))?;
    assert!(marks.is_recorded(held, range));
    Ok(())
}

impl ChangeMarks {
    /// CLEAR, with nothing between its parts.
    async fn clear(&self, nexus: &NexusId, parameters: &Parameters, size_bytes: u64) -> Result<(), Failure> {
        let _cost = self.open_clear(nexus, parameters)?;
        self.begin_clear(nexus, parameters)?;
        self.finish_clear(nexus, parameters, size_bytes).await
    }
}

/// A mark that "own" has cleared, and "other", which holds no mark.
fn cleared_mark(kept: &Arc<Kept>) -> (ChangeMarks, NexusId, NexusId) {
    let marks = marks_over(kept);
    let (own, other) = (nexus(0), nexus(2));
    marks.add_nexus(&own);
    marks.add_nexus(&other);
    now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
    clear(&marks, &own).unwrap();
    (marks, own, other)
}

fn clear(marks: &ChangeMarks, own: &NexusId) -> Result<(), Failure> {
    let sequence = find(marks, own, 1).unwrap().sequence;
    now(marks.clear(own, &of(1, 1, sequence), SIZE))
}

/// A UUID of version 8.
const NAME: ContentId = [0x89; 16];
