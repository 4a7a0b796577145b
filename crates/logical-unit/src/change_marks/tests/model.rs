//! The marks against a slow model: sets of ranges, by name and identifier.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

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
