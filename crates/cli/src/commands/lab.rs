//! `lab`: the papers' experiments.

use std::path::{Path, PathBuf};

use lab::{Clock, Experiment, LabError, Outcome, REGISTRY, Scale};
use serde_json::{Value, json};
use stack::{Error, Failure, Result};

use crate::arguments::{Lab, LabReport, LabRun};
use crate::output::{print_json, print_line};

/// `forebay lab`.
pub fn run(command: Lab) -> Result<()> {
    match command {
        Lab::List(arguments) => {
            list(arguments.json);
            Ok(())
        }
        Lab::Run(arguments) => run_one(&arguments),
        Lab::Report(arguments) => report(&arguments),
    }
}

fn list(is_json: bool) {
    if is_json {
        let all: Vec<Value> = REGISTRY.iter().map(describe).collect();
        return print_json(&json!({ "experiments": all }));
    }
    for experiment in REGISTRY {
        let clocks: Vec<&str> = experiment.clocks().into_iter().map(Clock::as_str).collect();
        print_line(&format!("{:<18} {} ({})", experiment.name, experiment.source, clocks.join(", ")));
        print_line(&format!("{:<18} {}", "", experiment.found));
        if let Some(needs) = experiment.needs {
            print_line(&format!("{:<18} needs {needs}", ""));
        }
    }
}

fn describe(experiment: &Experiment) -> Value {
    let clocks: Vec<&str> = experiment.clocks().into_iter().map(Clock::as_str).collect();
    json!({
        "name": experiment.name,
        "source": experiment.source,
        "found": experiment.found,
        "clocks": clocks,
        "needs": experiment.needs
    })
}

fn run_one(arguments: &LabRun) -> Result<()> {
    let experiment = lab::find(&arguments.name).ok_or_else(|| {
        let names: Vec<&str> = REGISTRY.iter().map(|experiment| experiment.name).collect();
        let words = format!("there is no experiment \"{}\": there are {}", arguments.name, names.join(", "));
        Error::new(Failure::NotFound, words)
    })?;
    let program = std::env::current_exe().map_err(|error| Error::io("the path of this program", &error))?;
    let scale = if arguments.quick { Scale::Quick } else { Scale::Full };
    let outcome = experiment.run(arguments.clock, scale, &program).map_err(failure)?;
    save(&arguments.out, &outcome)?;
    if arguments.json.json {
        print_json(&json!(outcome))
    } else {
        print_line(outcome.table().trim_end())
    }
    Ok(())
}

fn failure(error: LabError) -> Error {
    match error {
        LabError::NoModel(_) | LabError::NoStage(_) => Error::new(Failure::Usage, error.to_string()),
        LabError::Needs(..) | LabError::Run(..) | LabError::Device(_) | LabError::Other(_) => {
            Error::new(Failure::Other, error.to_string())
        }
    }
}

/// Saves the outcome for a later `report`.
fn save(folder: &Path, outcome: &Outcome) -> Result<()> {
    let path = folder.join(format!("{}-{}.json", outcome.name, outcome.clock.as_str()));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(&path, serde_json::to_vec_pretty(outcome)?)
    };
    write().map_err(|error| Error::io(format!("cannot write {}", path.display()), &error))
}

fn report(arguments: &LabReport) -> Result<()> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for experiment in REGISTRY {
        let file = |clock: Clock| arguments.out.join(format!("{}-{}.json", experiment.name, clock.as_str()));
        paths.extend(experiment.clocks().into_iter().map(file).filter(|path| path.exists()));
    }
    if paths.is_empty() {
        let words = format!("{} holds no outcome: run an experiment first", arguments.out.display());
        return Err(Error::new(Failure::NotFound, words));
    }
    let outcomes = paths.iter().map(|path| read(path)).collect::<Result<Vec<Outcome>>>()?;
    let html = lab::page::page(&outcomes).map_err(failure)?;
    let path = arguments.out.join("report.html");
    std::fs::write(&path, html).map_err(|error| Error::io(format!("cannot write {}", path.display()), &error))?;
    print_line(&path.display().to_string());
    Ok(())
}

fn read(path: &Path) -> Result<Outcome> {
    let bytes = std::fs::read(path).map_err(|error| Error::io(format!("cannot read {}", path.display()), &error))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::new(Failure::Mismatch, format!("{} is no outcome: {error}", path.display())))
}
