//! Every experiment that has a model runs in virtual time, its table is complete, and it repeats to the digit.

use std::path::Path;

use lab::{Clock, REGISTRY, Scale};

#[test]
fn models_repeat_to_the_digit() {
    let modelled = REGISTRY.iter().filter(|experiment| experiment.clocks().contains(&Clock::Virtual));
    let mut count = 0;
    for experiment in modelled {
        let run = || experiment.run(Clock::Virtual, Scale::Quick, Path::new("")).expect("nothing fails in a model");
        let outcome = run();
        assert_eq!(outcome, run(), "{}", experiment.name);
        // A class of a histogram may be empty; nothing else is nothing.
        let may_be_zero = outcome.unit.starts_with("% of") || outcome.unit == "requests";
        let is_possible = |ours: f64| ours.is_finite() && (ours > 0.0 || may_be_zero && ours == 0.0);
        assert!(outcome.rows.len() >= 3 && outcome.rows.iter().all(|row| is_possible(row.ours)), "{}", outcome.table());
        assert!(outcome.rows.iter().any(|row| row.ours > 0.0), "{}", outcome.table());
        // Figure 5a of iCache is a drawing without numbers.
        let has_numbers = outcome.rows.iter().any(|row| row.paper.is_some());
        assert_eq!(has_numbers, experiment.name != "icache-counts", "{}", outcome.table());
        println!("{}", outcome.table());
        count += 1;
    }
    assert_eq!(count, 6);
}

/// What the models were set by comes out of them again, through our protocol: within a tenth.
#[test]
fn models_meet_the_numbers_they_were_set_by() {
    for name in ["frame-size", "queue-depth"] {
        let experiment = lab::find(name).expect("it is in the registry");
        let outcome = experiment.run(Clock::Virtual, Scale::Full, Path::new("")).expect("nothing fails in a model");
        for ratio in outcome.rows.iter().filter_map(lab::Row::ratio) {
            assert!((0.9..=1.1).contains(&ratio), "{}", outcome.table());
        }
    }
}
