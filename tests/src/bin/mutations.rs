//! Tries the mutations in the checkout that is the working directory: a copy that nobody else uses, see
//! `tests/tools/mutations`.
//!
//! `mutations [PART]` takes those whose name contains PART. It fails when one survives that should not, when one that
//! is said to survive is noticed, and when the program does not build with one: then the list is wrong. The tests of
//! each are first run without it: those that fail then say nothing. Tests that do not come to an end notice a mutation,
//! too, and are counted by themselves: a slow machine looks the same.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

use tests::mutation::{Mutation, read_list};

fn main() -> io::Result<ExitCode> {
    let root = env::current_dir()?;
    let part = env::args().nth(1).unwrap_or_default();
    let (mut caught, mut timed_out, mut survived, mut wrong) = (0, 0, 0, 0);
    let mutations: Vec<Mutation> =
        read_list(&root)?.into_iter().filter(|mutation| mutation.name.contains(&part)).collect();
    let tests: BTreeSet<&str> = mutations.iter().map(|mutation| mutation.test.as_str()).collect();
    for test in tests {
        if cargo_test(test, &[])? != Ended::Well {
            return Err(io::Error::other(format!("cargo test {test} fails without any mutation")));
        }
    }
    for mutation in &mutations {
        let outcome = try_one(&root, mutation)?;
        let is_known = mutation.survives_because.is_some();
        let word = match (outcome, is_known) {
            (Outcome::Caught, false) => "caught",
            (Outcome::TimedOut, false) => "timed out, which is noticed, but no test says what is wrong",
            (Outcome::Survived, true) => "survives, as is known",
            (Outcome::Caught | Outcome::TimedOut, true) => "CAUGHT, though the list says that it survives",
            (Outcome::Survived, false) => "SURVIVED",
            (Outcome::NotBuilt, _) => "DOES NOT BUILD, which says nothing about tests",
        };
        println!("{}: {word}", mutation.name);
        caught += u32::from(outcome == Outcome::Caught);
        timed_out += u32::from(outcome == Outcome::TimedOut);
        survived += u32::from(outcome == Outcome::Survived);
        let is_expected = match outcome {
            Outcome::Caught | Outcome::TimedOut => !is_known,
            Outcome::Survived => is_known,
            Outcome::NotBuilt => false,
        };
        wrong += u32::from(!is_expected);
    }
    println!("{caught} caught, {timed_out} timed out, {survived} survived; {wrong} are not as they should be");
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Caught,
    /// It hangs what it breaks, or the machine was too slow for its tests.
    TimedOut,
    Survived,
    NotBuilt,
}

/// How `cargo test` ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Well,
    Badly,
    /// Not by itself.
    TimedOut,
}

/// Seconds for a build and for the tests: a mutation may hang what it breaks.
const TEST_SECONDS_MAX: &str = "900";

/// The code with which timeout(1) ends after it had to end what it ran.
const TIMED_OUT_CODE: i32 = 124;

/// What the tests of a mutation say of it. The file is as it was afterwards.
fn try_one(root: &Path, mutation: &Mutation) -> io::Result<Outcome> {
    let (changed, text) = mutation.texts(root)?;
    let path = root.join(&mutation.file);
    fs::write(&path, changed)?;
    let built = cargo_test(&mutation.test, &["--no-run"]);
    let passed = cargo_test(&mutation.test, &[]);
    fs::write(&path, text)?;
    Ok(match (built?, passed?) {
        (Ended::Badly | Ended::TimedOut, _) => Outcome::NotBuilt,
        (Ended::Well, Ended::Badly) => Outcome::Caught,
        (Ended::Well, Ended::TimedOut) => Outcome::TimedOut,
        (Ended::Well, Ended::Well) => Outcome::Survived,
    })
}

fn cargo_test(test: &str, more: &[&str]) -> io::Result<Ended> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = test.split_whitespace();
    let status = Command::new("timeout")
        .arg(TEST_SECONDS_MAX)
        .arg(cargo)
        .args(["test", "--quiet"])
        .args(more)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    Ok(match status.code() {
        Some(0) => Ended::Well,
        Some(TIMED_OUT_CODE) => Ended::TimedOut,
        _ => Ended::Badly,
    })
}
