//! Tries the mutations in the checkout that is the working directory: a copy that nobody else uses, see
//! `tests/tools/mutations`.
//!
//! `mutations [PART]` takes those whose name contains PART. It fails when one survives that should not, when one that
//! is said to survive is noticed, and when the program does not build with one: then the list is wrong. The tests of
//! each are first run without it: those that fail then say nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

use tests::mutation::{Mutation, read_list};

fn main() -> io::Result<ExitCode> {
    let root = env::current_dir()?;
    let part = env::args().nth(1).unwrap_or_default();
    let (mut caught, mut survived, mut wrong) = (0, 0, 0);
    let mutations: Vec<Mutation> =
        read_list(&root)?.into_iter().filter(|mutation| mutation.name.contains(&part)).collect();
    let tests: BTreeSet<&str> = mutations.iter().map(|mutation| mutation.test.as_str()).collect();
    for test in tests {
        if !cargo_test(test, &[])? {
            return Err(io::Error::other(format!("cargo test {test} fails without any mutation")));
        }
    }
    for mutation in &mutations {
        let outcome = try_one(&root, mutation)?;
        let is_known = mutation.survives_because.is_some();
        let word = match (outcome, is_known) {
            (Outcome::Caught, false) => "caught",
            (Outcome::Survived, true) => "survives, as is known",
            (Outcome::Caught, true) => "CAUGHT, though the list says that it survives",
            (Outcome::Survived, false) => "SURVIVED",
            (Outcome::NotBuilt, _) => "DOES NOT BUILD, which says nothing about tests",
        };
        println!("{}: {word}", mutation.name);
        caught += u32::from(outcome == Outcome::Caught);
        survived += u32::from(outcome == Outcome::Survived);
        let is_expected = if is_known { Outcome::Survived } else { Outcome::Caught } == outcome;
        wrong += u32::from(!is_expected);
    }
    println!("{caught} caught, {survived} survived; {wrong} are not as they should be");
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Caught,
    Survived,
    NotBuilt,
}

/// What the tests of a mutation say of it. The file is as it was afterwards.
fn try_one(root: &Path, mutation: &Mutation) -> io::Result<Outcome> {
    let (changed, text) = mutation.texts(root)?;
    let path = root.join(&mutation.file);
    fs::write(&path, changed)?;
    let built = cargo_test(&mutation.test, &["--no-run"]);
    let passed = cargo_test(&mutation.test, &[]);
    fs::write(&path, text)?;
    Ok(match (built?, passed?) {
        (false, _) => Outcome::NotBuilt,
        (true, false) => Outcome::Caught,
        (true, true) => Outcome::Survived,
    })
}

fn cargo_test(test: &str, more: &[&str]) -> io::Result<bool> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = test.split_whitespace();
    // A mutation may hang what it breaks.
    let status = Command::new("timeout")
        .arg("900")
        .arg(cargo)
        .args(["test", "--quiet"])
        .args(more)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    Ok(status.success())
}
