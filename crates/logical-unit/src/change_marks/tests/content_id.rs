//! The id of the content: how long it stays, and what voids it.

use super::*;

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
