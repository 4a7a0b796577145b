//! No line of a Rust file has more columns than `rustfmt` gives one. It breaks neither comments nor strings, nor what
//! is in a macro.
//!
//! A row of a table in a comment, and a drawing in one, cannot be broken. Which other lines are too long is said here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use walkdir::{DirEntry, WalkDir};

/// As in `rustfmt.toml`.
const COLUMNS: usize = 120;

/// Files with lines that are too long, and how many: vectors, scripts of a shell and lists of tests that are read
/// better as they are. Numbers here only become smaller.
const LEFT: &[(&str, usize)] = &[
    ("bench/src/bin/cache-peers/main.rs", 1),
    ("bench/src/bin/cache-peers/peer.rs", 2),
    ("crates/cli/src/guidance.rs", 1),
    ("crates/iscsi/src/pdu/data_in.rs", 1),
    ("crates/iscsi/src/pdu/data_out.rs", 1),
    ("crates/iscsi/src/pdu/ready_to_transfer.rs", 1),
    ("crates/iscsi/src/pdu/scsi_response.rs", 1),
    ("crates/lab/src/page.rs", 2),
    ("crates/stack/src/fronts/settings.rs", 1),
    ("crates/stack/src/lun_spec.rs", 1),
    ("fuzz/examples/seeds/texts.rs", 1),
    ("tests/tests/kernel_guest.rs", 2),
    ("tests/tests/kernel_nbd.rs", 2),
    ("tests/tests/linux_target.rs", 3),
    ("tests/tests/log_commands.rs", 1),
];

#[test]
fn no_line_is_too_long_but_for_those_that_are_left() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().unwrap();
    // Cargo leaves this file in the folder of what was built; a folder of sources may be named like it.
    let is_built = |entry: &DirEntry| entry.path().join("CACHEDIR.TAG").exists();
    let is_source = |entry: &DirEntry| entry.file_name() != ".git" && !is_built(entry);
    let (mut left, mut words) = (BTreeMap::new(), Vec::new());
    for entry in WalkDir::new(&root).into_iter().filter_entry(is_source).map(Result::unwrap) {
        let name = entry.path().strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".rs") {
            continue;
        }
        let found = too_long(&fs::read_to_string(entry.path()).unwrap());
        if !found.is_empty() {
            left.insert(name.clone(), found.len());
        }
        words.extend(found.into_iter().map(|line| format!("{name}:{line}")));
    }
    let expected: BTreeMap<String, usize> = LEFT.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    assert_eq!(left, expected, "lines of more than {COLUMNS} columns by file; they are:\n{}", words.join("\n"));
}

/// Numbers of lines that are too long and could be broken.
fn too_long(text: &str) -> Vec<usize> {
    let (mut found, mut is_drawing) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let comment = ["//!", "///", "//"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        let comment = comment.map(str::trim_start);
        is_drawing = match comment {
            Some(words) if words.starts_with("```") => !is_drawing,
            Some(_) => is_drawing,
            None => false,
        };
        let is_table = comment.is_some_and(|words| words.starts_with('|'));
        if line.chars().count() > COLUMNS && !is_table && !is_drawing {
            found.push(index + 1);
        }
    }
    found
}

#[test]
fn what_can_be_broken_is_found() {
    let long = "x".repeat(COLUMNS);
    let text = format!("/// {long}\n/// | {long}\n//! ```text\n//! {long}\n//! ```\n{long}\n{long}y\n\"{long}\"\n");
    assert_eq!(too_long(&text), [1, 7, 8]);
}
