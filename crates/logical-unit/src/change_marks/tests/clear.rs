//! CLEAR: others come between its steps, and it fails or is dropped halfway.

use super::*;

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
