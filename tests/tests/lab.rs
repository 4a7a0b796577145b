//! The papers' experiments run, and their tables are complete. Times are not asserted.

use std::collections::BTreeSet;

use tests::World;

/// In the order of the registry.
const EXPERIMENTS: [&str; 12] = [
    "packet-sizes",
    "icache-postmark",
    "icache-counts",
    "icache-response",
    "icache-groups",
    "multi-throughput",
    "frame-size",
    "queue-depth",
    "metro",
    "connection-kinds",
    "share-overhead",
    "share-readers",
];

#[test]
fn every_experiment_runs_in_its_quick_form() {
    let world = World::new();
    let is_root = rustix::process::geteuid().is_root();
    let list = world.run(["lab", "list", "--json"]).json();
    let experiments = list["experiments"].as_array().unwrap();
    let names: Vec<&str> = experiments.iter().map(|experiment| experiment["name"].as_str().unwrap()).collect();
    assert_eq!(names, EXPERIMENTS, "an experiment that comes or goes changes this list");
    let mut chart_count = 0;
    for experiment in experiments {
        let name = experiment["name"].as_str().unwrap();
        let needs = experiment["needs"].as_str();
        if let Some(needs) = needs.filter(|_| !is_root) {
            println!("skipped: {name} needs {needs}");
            continue;
        }
        for clock in experiment["clocks"].as_array().unwrap() {
            let clock = clock.as_str().unwrap();
            let run = ["lab", "run", name, "--clock", clock, "--quick", "--out", "out", "--json"];
            let outcome = world.run(run).json();
            let rows = outcome["rows"].as_array().unwrap();
            assert!(rows.len() >= 2, "{name}: {outcome}");
            // A class of a histogram may be empty; a line of a chart is never all nothing.
            let may_be_zero = outcome["unit"] == "requests" || outcome["unit"].as_str().unwrap().starts_with("% of");
            let mut charts = BTreeSet::new();
            for row in rows {
                charts.insert(row["panel"].as_str().unwrap());
                let ours = row["ours"].as_f64().unwrap();
                assert!(ours.is_finite() && (ours > 0.0 || may_be_zero && ours == 0.0), "{name}: {row}");
                // What PostMark takes of the processor is not asked.
                let has_processor_time = clock == "real" && name != "icache-postmark";
                assert_eq!(row["client_cpu_us"].is_number(), has_processor_time, "{name}: {row}");
            }
            assert!(rows.iter().any(|row| row["ours"].as_f64().unwrap() > 0.0), "{name}: {outcome}");
            chart_count += charts.len();
        }
    }
    let report = world.run(["lab", "report", "--out", "out"]).success();
    let html = std::fs::read_to_string(world.path(report.trim())).unwrap();
    assert_eq!(html.matches("<svg").count(), chart_count, "a figure for each chart");
    world.run(["lab", "run", "nothing"]).failure(5, &["multi-throughput"]);
    world.run(["lab", "run", "multi-throughput", "--clock", "virtual"]).failure(2, &["real clock only"]);
    world.run(["lab", "run", "icache-response"]).failure(2, &["virtual clock only"]);
}
