//! Changes on their way into marks: what is recorded, in which marks, and at what cost.

use std::collections::BTreeSet;

use super::*;

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
