//! Every experiment that has a model runs in virtual time, its table is complete, and it repeats to the digit.

use std::path::Path;

use lab::{Clock, Outcome, REGISTRY, Row, Scale};

#[test]
fn models_repeat_to_the_digit() {
    let modelled = REGISTRY.iter().filter(|experiment| experiment.clocks().contains(&Clock::Virtual));
    let mut count = 0;
    for experiment in modelled {
        let run = || experiment.run(Clock::Virtual, Scale::Quick, Path::new("")).expect("nothing fails in a model");
        let outcome = run();
        assert_eq!(outcome, run(), "{}", experiment.name);
        // A class of a histogram may be empty; no other value is zero.
        let may_be_zero = outcome.unit.starts_with("% of") || outcome.unit == "requests";
        let is_possible = |ours: f64| ours.is_finite() && (ours > 0.0 || may_be_zero && ours == 0.0);
        assert!(outcome.rows.len() >= 3 && outcome.rows.iter().all(|row| is_possible(row.ours)), "{}", outcome.table());
        assert!(outcome.rows.iter().any(|row| row.ours > 0.0), "{}", outcome.table());
        // Two figures are drawings without numbers.
        let has_numbers = outcome.rows.iter().any(|row| row.paper.is_some());
        let is_drawing = ["icache-counts", "share-overhead"].contains(&experiment.name);
        assert_eq!(has_numbers, !is_drawing, "{}", outcome.table());
        println!("{}", outcome.table());
        count += 1;
    }
    assert_eq!(count, 8);
}

/// The numbers that the models were set by come out of them again, through our protocol: within a
/// tenth.
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

fn ours(outcome: &Outcome, panel: &str, series: &str) -> Vec<f64> {
    let is_it = |row: &&Row| row.panel == panel && row.series == series;
    outcome.rows.iter().filter(is_it).map(|row| row.ours).collect()
}

fn quick(name: &str) -> Outcome {
    let experiment = lab::find(name).expect("it is in the registry");
    experiment.run(Clock::Virtual, Scale::Quick, Path::new("")).expect("nothing fails in a model")
}

/// Disk and links are those of the paper's tables, and nothing else was set: a block takes as long
/// as in table 4, within a fiftieth.
#[test]
fn a_writer_waits_the_longer_the_more_others_read() {
    let outcome = quick("share-readers");
    let ratio = outcome.rows.iter().find_map(Row::ratio).expect("one number is the paper's");
    assert!((0.98..=1.02).contains(&ratio), "{}", outcome.table());
    for profile in ["paper's profile", "ours"] {
        let times = ours(&outcome, "a write", profile);
        assert!(times.len() == 4 && times.is_sorted_by(|fewer, more| fewer * 1.1 < *more), "{}", outcome.table());
        let times = ours(&outcome, "a write", &format!("{profile}, block"));
        assert!(times.is_sorted_by(|fewer, more| fewer < more), "the wait is for the block: {}", outcome.table());
    }
}

#[test]
fn sharing_costs_less_with_larger_blocks_and_groups() {
    let outcome = quick("share-overhead");
    for profile in ["paper's profile", "ours"] {
        for panel in outcome.panels() {
            let locks = ours(&outcome, panel, &format!("{profile}, locks"));
            assert!(locks.len() == 4 && locks.is_sorted_by(|small, large| small >= large), "{}", outcome.table());
        }
    }
    let whole = outcome.panels().into_iter().map(|panel| ours(&outcome, panel, "paper's profile")).collect::<Vec<_>>();
    let falls = |group: usize| whole.is_sorted_by(|small, large| small[group] > large[group]);
    assert!((0..4).all(falls), "{}", outcome.table());
}
