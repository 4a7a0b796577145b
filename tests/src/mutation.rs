//! Mutations: small changes of the program, each of which a test must notice.
//!
//! The list is `tests/mutations.toml`, over the paths on which durability depends. A mutation that no test notices is a
//! missing test, unless the list says why it does not matter. `make soak` tries them all (`tests/tools/mutations`);
//! `make test` only sees that the list still fits the program.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// One of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// What it does, in words.
    pub name: String,
    /// The file it changes, from the root of the checkout.
    pub file: PathBuf,
    /// Text that is in the file exactly once.
    pub old: String,
    /// What stands there instead.
    pub new: String,
    /// Arguments of `cargo test` that choose the tests which must fail.
    pub test: String,
    /// Why it does not matter that no test notices.
    pub survives_because: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutation: Vec<Mutation>,
}

/// The list of the checkout at `root`.
///
/// # Errors
/// When it cannot be read, is no list, or names something twice.
pub fn read_list(root: &Path) -> io::Result<Vec<Mutation>> {
    let path = root.join("tests/mutations.toml");
    let list: List = toml::from_str(&fs::read_to_string(path)?).map_err(io::Error::other)?;
    let names: BTreeSet<&str> = list.mutation.iter().map(|mutation| mutation.name.as_str()).collect();
    if names.len() < list.mutation.len() {
        return Err(io::Error::other("two mutations have one name"));
    }
    Ok(list.mutation)
}

impl Mutation {
    /// The changed text of its file, and the text as it is.
    ///
    /// # Errors
    /// When the file cannot be read, or does not have the old text exactly once.
    pub fn texts(&self, root: &Path) -> io::Result<(String, String)> {
        let text = fs::read_to_string(root.join(&self.file))?;
        match text.matches(&self.old).count() {
            1 => Ok((text.replace(&self.old, &self.new), text)),
            count => {
                let message = format!("{:?} has the text of \"{}\" {count} times, not once", self.file, self.name);
                Err(io::Error::other(message))
            }
        }
    }
}
