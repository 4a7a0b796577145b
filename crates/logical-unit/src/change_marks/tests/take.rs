//! TAKE: its nexus comes again while it is saved, or the mark was there before.

use futures_util::lock::Mutex as AsyncMutex;

use super::*;

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
