//! What marks cost others: a tenth of their time.

use base::clock::Instant;
use scsi::Status;

use super::*;
use crate::limits::{MARK_COST_CREDIT, MARK_COST_PART};

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
