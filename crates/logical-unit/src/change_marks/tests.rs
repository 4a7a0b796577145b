//! The marks against a slow model: sets of ranges, by name and identifier.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use base::clock::{Instant, VirtualClock};
use futures_util::FutureExt;
use futures_util::lock::Mutex as AsyncMutex;
use proptest::prelude::*;
use scsi::Status;

use super::*;
use crate::limits::{MARK_COST_CREDIT, MARK_COST_PART, MARK_PARTS};

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

#[derive(Clone, Debug)]
enum Step {
    Take(usize, u8),
    Clear(usize, u8),
    Forget(usize, u8),
    Write(usize, u64, u64),
    Leave(usize),
    Name,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let place = prop_oneof![0..200_u64, 32_000..32_500_u64, 79_000..79_900_u64];
    prop_oneof![
        3 => (0..3_usize, 0..3_u8).prop_map(|(nexus, id)| Step::Take(nexus, id)),
        2 => (0..3_usize, 0..3_u8).prop_map(|(nexus, id)| Step::Clear(nexus, id)),
        1 => (0..3_usize, 0..3_u8).prop_map(|(nexus, id)| Step::Forget(nexus, id)),
        8 => (0..3_usize, place, 1..50_u64).prop_map(|(nexus, first, count)| Step::Write(nexus, first, count)),
        2 => (0..3_usize).prop_map(Step::Leave),
        1 => Just(Step::Name),
        1 => Just(Step::Restart),
    ]
}

/// A mark in the model.
#[derive(Default)]
struct Model {
    is_everything: bool,
    changed: BTreeSet<u64>,
    holders: BTreeSet<usize>,
}

impl Model {
    fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &range in self.changed.iter().filter(|_| !self.is_everything) {
            match runs.last_mut().filter(|(first, count)| first + count == range) {
                Some((_, count)) => *count += 1,
                None => runs.push((range, 1)),
            }
        }
        if self.is_everything { vec![(0, RANGES)] } else { runs }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_mark_tells_exactly_what_others_changed(steps in proptest::collection::vec(step(), 1..40)) {
        let kept = Arc::<Kept>::default();
        let mut marks = marks_over(&kept);
        let mut model: BTreeMap<(String, u8), Model> = BTreeMap::new();
        let mut is_named = false;
        (0..3).for_each(|index| marks.add_nexus(&nexus(index)));
        for step in steps {
            match step {
                Step::Take(index, id) => {
                    now(marks.take(&nexus(index), &of(id, 7, 0), false)).unwrap();
                    let key = (nexus(index).initiator_name().to_owned(), id);
                    let all = || Model { is_everything: true, ..Model::default() };
                    model.entry(key).or_insert_with(all).holders.insert(index);
                }
                Step::Clear(index, id) => {
                    let known = model.get_mut(&(nexus(index).initiator_name().to_owned(), id));
                    let sequence = find(&marks, &nexus(index), id).map_or(0, |mark| mark.sequence);
                    let result = now(marks.clear(&nexus(index), &of(id, 7, sequence), SIZE));
                    let held = known.filter(|known| known.holders.contains(&index));
                    prop_assert_eq!(result.is_ok(), held.is_some());
                    if let Some(known) = held {
                        known.changed.clear();
                        known.is_everything = false;
                        let old = now(marks.clear(&nexus(index), &of(id, 7, sequence), SIZE));
                        prop_assert_eq!(old, Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(24).into()));
                    }
                }
                Step::Forget(index, id) => {
                    let key = (nexus(index).initiator_name().to_owned(), id);
                    let result = now(marks.forget(&nexus(index), &of(id, 7, 0)));
                    let is_allowed = model.get(&key).is_none_or(|known| known.holders.contains(&index));
                    prop_assert_eq!(result.is_ok(), is_allowed);
                    if is_allowed {
                        model.remove(&key);
                    }
                }
                Step::Write(index, first, count) => {
                    write(&marks, &nexus(index), first, count).unwrap();
                    is_named = false;
                    for known in model.values_mut().filter(|known| !known.holders.contains(&index)) {
                        known.changed.extend(first..first + count);
                    }
                }
                Step::Leave(index) => {
                    marks.remove_nexus(&nexus(index));
                    marks.add_nexus(&nexus(index));
                    model.values_mut().for_each(|known| { known.holders.remove(&index); });
                }
                Step::Name if is_named => {}
                Step::Name => {
                    now(marks.name_content(NAME, false)).unwrap();
                    is_named = true;
                }
                Step::Restart => {
                    marks = marks_over(&kept);
                    (0..3).for_each(|index| marks.add_nexus(&nexus(index)));
                    model.values_mut().for_each(|known| known.holders.clear());
                }
            }
            prop_assert_eq!(marks.content(), is_named.then_some(NAME));
            for ((name, id), known) in &model {
                let asking = if name == "iqn.a" { nexus(0) } else { nexus(2) };
                let told = changed(&marks, &asking, *id);
                // Fewer than 64 recordings: nothing is grown to groups yet.
                prop_assert_eq!(told, Some(known.runs()));
                let mark = find(&marks, &asking, *id).unwrap();
                let index = if name == "iqn.a" { 0 } else { 2 };
                prop_assert_eq!(mark.is_held_here, known.holders.contains(&index));
                prop_assert_eq!(mark.is_held_elsewhere, known.holders.iter().any(|&holder| holder != index));
            }
        }
    }
}

/// A CLEAR names a content by its number: no number is used for two contents, also over crashes.
#[test]
fn a_sequence_is_never_counted_twice() {
    let kept = Arc::<Kept>::default();
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let marks = marks_over(&kept);
        let (own, other) = (nexus(0), nexus(2));
        marks.add_nexus(&own);
        marks.add_nexus(&other);
        now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
        let sequence = || find(&marks, &own, 1).unwrap().sequence;
        assert!(seen.insert(sequence()));
        now(marks.clear(&own, &of(1, 1, sequence()), SIZE)).unwrap();
        assert!(seen.insert(sequence()));
        for first in 0..5 {
            write(&marks, &other, first, 1).unwrap();
            assert!(seen.insert(sequence()));
        }
        // The process ends here; the numbers used since the last durable one are lost.
    }
}

/// The cost of random writes: one durable write each at first, and fewer and fewer.
#[test]
fn recordings_grow_coarser_until_about_a_thousand_cover_the_unit() {
    let kept = Arc::<Kept>::default();
    let marks = marks_over(&kept);
    let (own, other) = (nexus(0), nexus(2));
    marks.add_nexus(&own);
    marks.add_nexus(&other);
    now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
    let sequence = find(&marks, &own, 1).unwrap().sequence;
    now(marks.clear(&own, &of(1, 1, sequence), SIZE)).unwrap();
    let before = kept.save_count.load(Ordering::Relaxed);
    for index in 0..RANGES {
        // 7919 is prime to the count: every range once, far apart.
        write(&marks, &other, index * 7919 % RANGES, 1).unwrap();
    }
    let saves = kept.save_count.load(Ordering::Relaxed) - before;
    assert!(saves < 1000, "{saves}");
    assert_eq!(changed(&marks, &own, 1), Some(vec![(0, RANGES)]));
}

#[test]
fn a_change_that_cannot_be_recorded_is_not_seen_as_recorded() {
    let kept = Arc::<Kept>::default();
    let marks = marks_over(&kept);
    let (own, other) = (nexus(0), nexus(2));
    marks.add_nexus(&own);
    now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
    let sequence = find(&marks, &own, 1).unwrap().sequence;
    now(marks.clear(&own, &of(1, 1, sequence), SIZE)).unwrap();
    marks.add_nexus(&other);
    kept.is_failing.store(true, Ordering::Relaxed);
    assert!(write(&marks, &other, 4, 1).is_err());
    assert!(now(marks.take(&other, &of(2, 1, 0), false)).is_err());
    assert_eq!(changed(&marks, &own, 1), Some(vec![]));
    kept.is_failing.store(false, Ordering::Relaxed);
    write(&marks, &other, 4, 1).unwrap();
    assert_eq!(changed(&marks, &own, 1), Some(vec![(4, 1)]));
}

/// A command of a nexus that held the mark at its arrival is the holder's own change, however late
/// it executes. That of a nexus that did not hold it is recorded, even when every nexus holds the
/// mark by then.
#[test]
fn a_command_counts_as_its_nexus_stood_when_it_came() {
    let kept = Arc::<Kept>::default();
    let marks = marks_over(&kept);
    let (own, other) = (nexus(0), nexus(2));
    marks.add_nexus(&own);
    marks.add_nexus(&other);
    now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
    let sequence = find(&marks, &own, 1).unwrap().sequence;
    now(marks.clear(&own, &of(1, 1, sequence), SIZE)).unwrap();
    let (of_own, of_other) = (marks.held_by(&own), marks.held_by(&other));
    marks.remove_nexus(&other);
    let range = |first: u64| ByteRange { offset: first * MIB, length: 1 };
    now(marks.record(of_other, &[range(5)])).unwrap();
    assert_eq!(changed(&marks, &own, 1), Some(vec![(5, 1)]));
    marks.remove_nexus(&own);
    marks.add_nexus(&own);
    now(marks.record(of_own, &[range(6)])).unwrap();
    assert_eq!(changed(&marks, &own, 1), Some(vec![(5, 1)]));
    write(&marks, &own, 7, 1).unwrap();
    assert_eq!(changed(&marks, &own, 1), Some(vec![(5, 1), (7, 1)]), "it came again and has not taken it");
}

#[test]
fn ranges_fit_in_a_mark_whatever_the_size() {
    assert_eq!(range_bytes_for(0), 1 << 20);
    assert_eq!(range_bytes_for(1 << 40), 1 << 20);
    assert_eq!(range_bytes_for((1 << 40) + 512), 2 << 20);
    assert_eq!(range_bytes_for(u64::MAX), 1 << 31);
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

/// The grown unit needs a part of the bitmap for which the store has no room.
#[test]
fn a_mark_whose_bits_have_no_room_says_that_everything_has_changed_and_writes_go_on() {
    let kept = Arc::<Kept>::default();
    let (marks, own, other) = cleared_mark(&kept);
    let before = of(1, 1, find(&marks, &own, 1).unwrap().sequence);
    kept.is_full.store(true, Ordering::Relaxed);
    write(&marks, &other, 4, 1).unwrap();
    assert!(marks.open_clear(&own, &before).is_err(), "its holder has not heard of it");
    let all = Some(vec![(0, RANGES)]);
    assert_eq!((changed(&marks, &own, 1), changed(&marks_over(&kept), &own, 1)), (all.clone(), all.clone()));
    assert!(clear(&marks, &own).is_err());
    write(&marks, &other, 4, 1).unwrap();
    assert_eq!((changed(&marks, &own, 1), changed(&marks_over(&kept), &own, 1)), (all.clone(), all));
    kept.is_full.store(false, Ordering::Relaxed);
    clear(&marks, &own).unwrap();
    write(&marks, &other, 5, 1).unwrap();
    assert_eq!(changed(&marks_over(&kept), &own, 1), Some(vec![(5, 1)]));
}

/// CLEAR is dropped between parts and mark: a target that ends, a connection that is torn down.
#[test]
fn a_clear_that_is_dropped_halfway_does_not_leave_changes_recorded_in_memory_alone() {
    let kept = Arc::<Kept>::default();
    let (marks, own, other) = cleared_mark(&kept);
    write(&marks, &other, 4, 1).unwrap();
    kept.stops_at_mark.store(true, Ordering::Relaxed);
    let sequence = find(&marks, &own, 1).unwrap().sequence;
    assert!(marks.clear(&own, &of(1, 1, sequence), SIZE).now_or_never().is_none(), "it is dropped on the way");
    kept.stops_at_mark.store(false, Ordering::Relaxed);
    write(&marks, &other, 4, 1).unwrap();
    assert_eq!(changed(&marks_over(&kept), &own, 1), Some(vec![(4, 1)]));
}

/// CLEAR has emptied the parts in the store and then fails: bits that are set in memory are not
/// durable any more.
#[test]
fn a_clear_that_fails_halfway_does_not_leave_changes_recorded_in_memory_alone() {
    let kept = Arc::<Kept>::default();
    let marks = marks_over(&kept);
    let (own, other) = (nexus(0), nexus(2));
    marks.add_nexus(&own);
    marks.add_nexus(&other);
    now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
    let sequence = || find(&marks, &own, 1).unwrap().sequence;
    now(marks.clear(&own, &of(1, 1, sequence()), SIZE)).unwrap();
    write(&marks, &other, 4, 1).unwrap();
    // The next attach reads the changes and clears them; the store fails once, between parts and
    // mark.
    kept.fails_at_mark.store(true, Ordering::Relaxed);
    assert!(now(marks.clear(&own, &of(1, 1, sequence()), SIZE)).is_err());
    marks.remove_nexus(&own);
    // The holder is away. Another host writes there again, and its writes are acknowledged.
    write(&marks, &other, 4, 1).unwrap();
    // The target starts again.
    let marks = marks_over(&kept);
    marks.add_nexus(&own);
    let told = changed(&marks, &own, 1).unwrap();
    assert!(
        told.iter().any(|&(first, count)| (first..first + count).contains(&4)),
        "{told:?}: the last write is not there"
    );
}

/// A save takes all waiting recordings, and may fail.
#[test]
fn a_recording_that_another_took_along_and_failed_with_is_made_again() {
    let kept = Arc::<Kept>::default();
    let marks = marks_over(&kept);
    let (own, other) = (nexus(0), nexus(2));
    marks.add_nexus(&own);
    marks.add_nexus(&other);
    now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
    let sequence = find(&marks, &own, 1).unwrap().sequence;
    now(marks.clear(&own, &of(1, 1, sequence), SIZE)).unwrap();
    let held = marks.held_by(&other);
    let range = |first: u64| [ByteRange { offset: first * MIB, length: 1 }];
    let (fourth, ninth) = (range(4), range(9));
    let saving = now(marks.saving.exclusive(TURN));
    let (mut first, mut second) = (Box::pin(marks.record(held, &fourth)), Box::pin(marks.record(held, &ninth)));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    drop(saving);
    kept.is_failing.store(true, Ordering::Relaxed);
    assert!(now(first).is_err());
    kept.is_failing.store(false, Ordering::Relaxed);
    now(second).unwrap();
    assert_eq!(changed(&marks_over(&kept), &own, 1), Some(vec![(9, 1)]));
}

/// Its command was aborted, or another has recorded the same range meanwhile: the next change is
/// recorded alone, in whichever marks exist then.
#[test]
fn what_waited_to_be_recorded_and_does_not_any_more_is_in_no_later_mark() {
    let kept = Arc::<Kept>::default();
    let (marks, own, other) = cleared_mark(&kept);
    let held = marks.held_by(&other);
    let range = |first: u64| [ByteRange { offset: first * MIB, length: 1 }];
    let (fourth, ninth) = (range(4), range(9));
    let saving = now(marks.saving.exclusive(TURN));
    let mut given_up = Box::pin(marks.record(held, &fourth));
    assert!(given_up.as_mut().now_or_never().is_none());
    drop(given_up);
    drop(saving);
    now(marks.record(held, &ninth)).unwrap();
    assert_eq!(changed(&marks_over(&kept), &own, 1), Some(vec![(9, 1)]));
}

/// The slot of a mark that a nexus held when its command arrived may have another mark when the
/// command executes.
#[test]
fn a_command_is_recorded_in_a_mark_that_took_the_slot_of_one_that_its_nexus_held() {
    let kept = Arc::<Kept>::default();
    let marks = marks_over(&kept);
    let (own, other) = (nexus(0), nexus(2));
    marks.add_nexus(&own);
    marks.add_nexus(&other);
    now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
    let of_own = marks.held_by(&own);
    now(marks.forget(&own, &of(1, 1, 0))).unwrap();
    now(marks.take(&other, &of(2, 1, 0), false)).unwrap();
    let mark = find(&marks, &other, 2).unwrap();
    now(marks.clear(&other, &of(2, 1, mark.sequence), SIZE)).unwrap();
    now(marks.record(of_own, &[ByteRange { offset: 5 * MIB, length: 1 }])).unwrap();
    assert_eq!(changed(&marks, &other, 2), Some(vec![(5, 1)]));
}

/// It waits for the commands under way, and one of them may record what its holder has not heard of.
#[test]
fn a_clear_that_waited_while_a_change_was_recorded_is_refused() {
    let kept = Arc::<Kept>::default();
    let (marks, own, other) = cleared_mark(&kept);
    let parameters = of(1, 1, find(&marks, &own, 1).unwrap().sequence);
    let _cost = marks.open_clear(&own, &parameters).unwrap();
    write(&marks, &other, 4, 1).unwrap();
    let refused = Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(24);
    assert_eq!(marks.begin_clear(&own, &parameters), Err(refused));
    assert_eq!(changed(&marks, &own, 1), Some(vec![(4, 1)]));
}

/// While the unit is flushed, nothing is deleted yet, and what is changed again stays recorded.
#[test]
fn what_is_changed_while_a_mark_is_cleared_stays_recorded() {
    let kept = Arc::<Kept>::default();
    let (marks, own, other) = cleared_mark(&kept);
    write(&marks, &other, 4, 2).unwrap();
    let begin = || {
        let parameters = of(1, 1, find(&marks, &own, 1).unwrap().sequence);
        marks.begin_clear(&own, &parameters).unwrap();
        parameters
    };
    let parameters = begin();
    let both = |expected: &[(u64, u64)]| {
        assert_eq!(changed(&marks, &own, 1).as_deref(), Some(expected));
        let restarted = marks_over(&kept);
        assert_eq!(changed(&restarted, &own, 1).as_deref(), Some(expected), "after a crash of the target");
    };
    both(&[(4, 2)]);
    write(&marks, &other, 5, 1).unwrap();
    write(&marks, &other, 9, 1).unwrap();
    both(&[(4, 2), (9, 1)]);
    now(marks.finish_clear(&own, &parameters, SIZE)).unwrap();
    both(&[(5, 1), (9, 1)]);
    // A CLEAR that fails after it has begun, and the next one.
    begin();
    both(&[(5, 1), (9, 1)]);
    let parameters = begin();
    now(marks.finish_clear(&own, &parameters, SIZE)).unwrap();
    both(&[]);
}

/// A store that saves nothing before the test allows it.
struct GatedStore(Arc<AsyncMutex<()>>);

impl ChangeStore for GatedStore {
    fn save(&self, _: Vec<MarkUpdate>) -> Saving {
        let gate = Arc::clone(&self.0);
        Box::pin(async move {
            drop(gate.lock().await);
            Ok(())
        })
    }
}

/// Changes by others between the two must be recorded: the nexus's new incarnation was never
/// granted the mark.
#[test]
fn a_nexus_that_came_again_while_its_take_was_saved_does_not_hold_the_mark() {
    let gate = Arc::<AsyncMutex<()>>::default();
    let saved = SavedMarks::default();
    let marks = ChangeMarks::restored(Arc::new(GatedStore(Arc::clone(&gate))), &saved, range_bytes_for(SIZE), None);
    let own = nexus(0);
    marks.add_nexus(&own);
    let closed = now(gate.lock());
    let parameters = of(1, 1, 0);
    let mut taking = Box::pin(marks.take(&own, &parameters, false));
    assert!(taking.as_mut().now_or_never().is_none(), "it is being saved");
    marks.add_nexus(&own);
    drop(closed);
    now(taking).unwrap();
    assert!(find(&marks, &own, 1).is_some_and(|mark| !mark.is_held_here));
    now(marks.take(&own, &of(1, 2, 0), false)).unwrap();
    assert!(find(&marks, &own, 1).is_some_and(|mark| mark.is_held_here));
}

/// A mark that was forgotten and is taken again starts anew, though parts of its first life are
/// still in the store. A session that comes back takes a mark by its old name, whatever happened to
/// it meanwhile.
#[test]
fn a_mark_that_is_taken_anew_does_not_take_over_the_parts_of_its_first_life() {
    let kept = Arc::<Kept>::default();
    let (marks, own, other) = cleared_mark(&kept);
    write(&marks, &other, 4, 1).unwrap();
    now(marks.forget(&own, &of(1, 1, 0))).unwrap();
    write(&marks, &other, 5, 1).unwrap();
    now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
    assert_eq!(changed(&marks_over(&kept), &own, 1), Some(vec![(0, RANGES)]));
}

/// During a flood of TAKEs, each with a save, a write that waits to be recorded gets its turn
/// between them.
#[test]
fn who_comes_later_does_not_overtake_who_waits_for_something_to_be_saved() {
    let (marks, own, other) = cleared_mark(&Arc::default());
    let held = marks.held_by(&other);
    let range = [ByteRange { offset: 0, length: 1 }];
    let parameters = of(1, 2, 0);
    let saving = now(marks.saving.exclusive(TURN));
    let mut recording = Box::pin(marks.record(held, &range));
    assert!(recording.as_mut().now_or_never().is_none());
    drop(saving);
    let mut taking = Box::pin(marks.take(&own, &parameters, false));
    assert!(taking.as_mut().now_or_never().is_none(), "the write is before it");
    now(recording).unwrap();
    now(taking).unwrap();
}

/// The counts of saves in a minute: of one `flood` after another, and of as many changes by another
/// name; a millisecond passes between two.
fn saves_in_a_minute(mut flood: impl FnMut(&ChangeMarks, &NexusId)) -> (usize, usize) {
    let clock = VirtualClock::new();
    let kept = Arc::new(Kept { clock: Some(clock.clone()), ..Kept::default() });
    let (marks, own, other) = cleared_mark(&kept);
    let (mut writes, before) = (0, kept.save_count.load(Ordering::Relaxed));
    while clock.now().since(Instant::START) < Duration::from_mins(1) {
        flood(&marks, &own);
        write(&marks, &other, writes % RANGES, 1).unwrap();
        writes += 1;
        clock.advance(Duration::from_millis(1));
    }
    (kept.save_count.load(Ordering::Relaxed) - before, writes as usize)
}

/// A tenth of a minute, and the credit.
const SAVES_MAX: usize =
    ((60_000 + MARK_COST_CREDIT.as_millis()) / MARK_COST_PART as u128 / SAVE_TIME.as_millis()) as usize;

#[test]
fn who_clears_a_mark_again_and_again_costs_others_a_tenth_of_their_time() {
    let (saves, writes) = saves_in_a_minute(|marks, own| {
        let _ = clear(marks, own);
    });
    assert!(saves <= SAVES_MAX + 1000, "{saves} saves: those that cover the unit come on top, once");
    assert!(writes > 50_000, "{writes} writes");
}

#[test]
fn who_takes_a_mark_again_and_again_costs_others_a_tenth_of_their_time() {
    let (mut taken, mut busy) = (0_u32, 0_u32);
    let (saves, _) = saves_in_a_minute(|marks, own| match now(marks.take(own, &of(1, 2, 0), false)) {
        Ok(()) => taken += 1,
        Err(failure) => {
            assert_eq!(failure, Failure::Status(Status::Busy));
            busy += 1;
        }
    });
    assert!(saves <= SAVES_MAX + 1000, "{saves} saves: those that cover the unit come on top, once");
    assert!(taken > 2000 && busy > taken, "{taken} taken, {busy} busy");
}

/// A host that comes back takes its mark first, however much others wrote and however often it was
/// cleared meanwhile.
#[test]
fn who_has_to_wait_to_clear_a_mark_need_not_wait_to_take_it() {
    let kept = Arc::new(Kept { clock: Some(VirtualClock::new()), ..Kept::default() });
    let (marks, own, other) = cleared_mark(&kept);
    while clear(&marks, &own).is_ok() {}
    assert_eq!(clear(&marks, &own), Err(Failure::Status(Status::Busy)));
    now(marks.take(&own, &of(1, 1, 0), false)).unwrap();
    marks.add_nexus(&other);
    now(marks.take(&other, &of(2, 1, 0), false)).unwrap();
    let sequence = find(&marks, &other, 2).unwrap().sequence;
    now(marks.clear(&other, &of(2, 1, sequence), SIZE)).expect("another name has another account");
}

/// A UUID of version 8.
const NAME: ContentId = [0x89; 16];

/// Whoever asks gets the same id, until somebody changes something: also who made it, and who holds a
/// mark. It outlives the target.
#[test]
fn a_content_keeps_its_id_until_the_first_change_by_whomever() {
    for writer in 0..2 {
        let kept = Arc::<Kept>::default();
        let (marks, own, other) = cleared_mark(&kept);
        assert_eq!(marks.content(), None);
        now(marks.name_content(NAME, false)).unwrap();
        assert_eq!((marks.content(), marks_over(&kept).content()), (Some(NAME), Some(NAME)));
        assert_eq!(marks.report_marks(&own).len(), 1, "it is no mark of anybody");
        let saves = kept.save_count.load(Ordering::Relaxed);
        let writing = [&own, &other][writer];
        write(&marks, writing, 4, 1).unwrap();
        assert_eq!((marks.content(), marks_over(&kept).content()), (None, None));
        write(&marks, writing, 4, 1).unwrap();
        assert!(kept.save_count.load(Ordering::Relaxed) <= saves + 2, "the first change pays");
        let told = if writer == 0 { vec![] } else { vec![(4, 1)] };
        assert_eq!(changed(&marks, &own, 1), Some(told), "the holder's changes stay its own");
    }
}

#[test]
fn a_change_whose_removal_of_the_id_cannot_be_saved_is_refused() {
    let kept = Arc::<Kept>::default();
    let (marks, _, other) = cleared_mark(&kept);
    now(marks.name_content(NAME, false)).unwrap();
    kept.is_failing.store(true, Ordering::Relaxed);
    assert!(write(&marks, &other, 4, 1).is_err());
    assert_eq!(marks.content(), Some(NAME));
    assert!(now(marks.name_content([8; 16], false)).is_err());
    kept.is_failing.store(false, Ordering::Relaxed);
    write(&marks, &other, 4, 1).unwrap();
    assert_eq!(marks.content(), None);
}

/// A program that knows no ids takes it for a mark that nobody holds, and records changes in it. A part
/// that is damaged has changed. An id that an initiator has given may stand for several contents.
#[test]
fn an_id_in_whose_mark_something_is_recorded_is_void() {
    let kept = Arc::<Kept>::default();
    let (marks, ..) = cleared_mark(&kept);
    now(marks.name_content(NAME, false)).unwrap();
    let saved = kept.saved();
    let restored = |saved: &SavedMarks| {
        let store = Arc::new(SharedStore(Arc::default()));
        ChangeMarks::restored(store, saved, range_bytes_for(SIZE), None).content()
    };
    assert_eq!(restored(&saved), Some(NAME));
    let at = saved.marks.iter().position(|(_, mark, _)| mark.initiator == CONTENT_OWNER).unwrap();
    for void in [
        |(_, _, words): &mut (u16, SavedMark, Vec<u64>)| words[40] |= 8,
        |(_, _, words): &mut (u16, SavedMark, Vec<u64>)| words.truncate(100),
        |(_, mark, _): &mut (u16, SavedMark, Vec<u64>)| mark.is_everything = true,
        |(_, mark, _): &mut (u16, SavedMark, Vec<u64>)| mark.id = [9; 16],
    ] {
        let mut changed = saved.clone();
        void(&mut changed.marks[at]);
        assert_eq!(restored(&changed), None);
    }
}

/// Marks come and go, as many as there is room for.
#[test]
fn no_mark_takes_the_place_of_the_id_and_a_reader_takes_none_of_a_writer_for_it() {
    let marks = marks_over(&Arc::default());
    let name = |index: usize| NexusId::new(&format!("iqn.{index},i,0x1,t,t,0x1"));
    let take = |index: usize| {
        marks.add_nexus(&name(index));
        let taken = now(marks.take(&name(index), &of(1, 1, 0), false));
        marks.remove_nexus(&name(index));
        taken
    };
    now(marks.name_content(NAME, true)).unwrap();
    (0..40).for_each(|index| take(index).unwrap());
    assert_eq!(marks.content(), Some(NAME));
    write(&marks, &name(0), 4, 1).unwrap();
    take(40).unwrap();
    assert!(now(marks.name_content(NAME, true)).is_err(), "all slots are taken by writers");
    now(marks.name_content(NAME, false)).unwrap();
    assert_eq!(marks.content(), Some(NAME));
}

/// Marks of nexuses that are gone, each with everything changed, until `count` slots are taken.
fn fill_slots(marks: &ChangeMarks, count: usize) {
    for index in 0..count {
        let name = NexusId::new(&format!("iqn.{index},i,0x1,t,t,0x1"));
        marks.add_nexus(&name);
        now(marks.take(&name, &of(1, 1, 0), false)).unwrap();
        marks.remove_nexus(&name);
    }
}

/// A change that counts as recorded there is no change of the content.
#[test]
fn an_id_in_the_place_of_a_mark_with_changes_is_removed_by_the_first_change() {
    let marks = marks_over(&Arc::default());
    fill_slots(&marks, CHANGE_MARKS_MAX);
    let own = NexusId::new("iqn.own,i,0x1,t,t,0x1");
    marks.add_nexus(&own);
    now(marks.name_content(NAME, false)).unwrap();
    assert_eq!(marks.content(), Some(NAME));
    write(&marks, &own, 4, 1).unwrap();
    assert_eq!(marks.content(), None);
}

/// It holds what was in the slot when it came, and not what is there by then.
#[test]
fn a_command_from_the_holder_of_the_mark_that_gave_way_to_the_id_removes_it() {
    let marks = marks_over(&Arc::default());
    fill_slots(&marks, CHANGE_MARKS_MAX - 2);
    let own = NexusId::new("iqn.own,i,0x1,t,t,0x1");
    marks.add_nexus(&own);
    (1..=2).for_each(|id| now(marks.take(&own, &of(id, 1, 0), false)).unwrap());
    let held = marks.held_by(&own);
    marks.remove_nexus(&own);
    now(marks.name_content(NAME, false)).unwrap();
    assert_eq!(marks.content(), Some(NAME));
    now(marks.record(held, &[ByteRange { offset: 4 << 20, length: 4096 }])).unwrap();
    assert_eq!(marks.content(), None);
}

/// As with a mark: naming, and what the next change pays for it.
#[test]
fn who_names_the_content_again_and_again_costs_others_a_tenth_of_their_time() {
    let (saves, writes) = saves_in_a_minute(|marks, _| {
        if let Ok(_cost) = marks.open_naming() {
            now(marks.name_content(NAME, false)).unwrap();
        }
    });
    assert!(saves <= SAVES_MAX + 1000, "{saves} saves: those that cover the unit come on top, once");
    assert!(writes > 50_000, "{writes} writes");
}
