//! Tries the mutations in the checkout that is the working directory: a copy that nobody else uses, see `tests/tools/mutations`.
//!
//! `mutations [PART]` takes those whose name contains PART. It fails when one survives that should not, and when one that is said to survive is
//! noticed: then the list is wrong. The tests of each are first run without it: those that fail
//! then say nothing.

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
        let is_caught = is_noticed(&root, mutation)?;
        let word = match (is_caught, &mutation.survives_because) {
            (true, None) => "caught",
            (false, Some(_)) => "survives, as is known",
            (true, Some(_)) => "CAUGHT, though the list says that it survives",
            (false, None) => "SURVIVED",
        };
        println!("{}: {word}", mutation.name);
        caught += u32::from(is_caught);
        survived += u32::from(!is_caught);
        wrong += u32::from(is_caught == mutation.survives_because.is_some());
    }
    println!("{caught} caught, {survived} survived, {wrong} of them not as they should");
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the tests of a mutation fail with it. The file is as it was afterwards.
///
/// # Errors
/// When the mutation does not fit its file, or the program does not build with it: then it says nothing about tests.
fn is_noticed(root: &Path, mutation: &Mutation) -> io::Result<bool> {
    let (changed, text) = mutation.texts(root)?;
    let path = root.join(&mutation.file);
    fs::write(&path, changed)?;
    let built = cargo_test(&mutation.test, &["--no-run"]);
    let passed = cargo_test(&mutation.test, &[]);
    fs::write(&path, text)?;
    if !built? {
        return Err(io::Error::other(format!("the program does not build with \"{}\"", mutation.name)));
    }
    Ok(!passed?)
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
