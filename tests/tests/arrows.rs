//! The arrows between crates point only downwards: `cargo metadata` held against the table of ARCHITECTURE.md.
//!
//! The table is an upper bound: a crate may use less. A new crate starts with its row here.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Crate and what it may use of ours, besides `base`. Layers from the bottom up.
const ARROWS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("scsi", &[]),
    ("iscsi", &["scsi"]),
    ("nbd", &[]),
    ("locks", &[]),
    ("block", &[]),
    ("store", &["block"]),
    ("difference", &["block", "store"]),
    ("cache", &["block", "store"]),
    ("writelog", &["block", "store"]),
    ("ext2", &["block"]),
    ("sharedfs", &["block", "ext2", "locks"]),
    ("logical-unit", &["scsi", "locks", "block"]),
    ("clock", &[]),
    ("file", &["block"]),
    ("target", &["clock", "iscsi", "locks", "logical-unit", "scsi", "block"]),
    ("initiator", &["clock", "iscsi", "locks", "scsi", "block"]),
    ("front", &["nbd", "block", "ext2"]),
    (
        "stack",
        &[
            "block",
            "cache",
            "clock",
            "difference",
            "ext2",
            "file",
            "front",
            "initiator",
            "iscsi",
            "logical-unit",
            "nbd",
            "scsi",
            "sharedfs",
            "store",
            "target",
            "writelog",
        ],
    ),
    ("daemon", &["stack"]),
    (
        "cli",
        &[
            "block",
            "cache",
            "daemon",
            "ext2",
            "file",
            "front",
            "initiator",
            "iscsi",
            "lab",
            "logical-unit",
            "nbd",
            "scsi",
            "stack",
            "store",
            "target",
            "workload",
            "writelog",
        ],
    ),
    ("workload", &["block"]),
    (
        "sim",
        &[
            "block",
            "cache",
            "difference",
            "store",
            "writelog",
            "iscsi",
            "initiator",
            "target",
            "logical-unit",
            "scsi",
            "workload",
            "lab",
        ],
    ),
    ("lab", &["block", "initiator", "iscsi", "locks", "logical-unit", "stack", "target", "workload", "writelog"]),
    (
        "bench",
        &[
            "block",
            "cache",
            "clock",
            "file",
            "front",
            "initiator",
            "logical-unit",
            "tests",
            "scsi",
            "workload",
            "writelog",
        ],
    ),
    ("conformance", &["iscsi"]),
    ("tests", &["block", "iscsi"]),
];

#[test]
fn arrows_point_downwards() {
    let metadata = MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo is on the path: it runs this test");
    let table: BTreeMap<&str, BTreeSet<&str>> =
        ARROWS.iter().map(|(name, may_use)| (*name, may_use.iter().copied().chain(["base"]).collect())).collect();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let Some(may_use) = table.get(package.name.as_str()) else {
            wrong.push(format!("{} has no row in the table", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let is_ours = table.contains_key(dependency.name.as_str()) && dependency.path.is_some();
            let is_for_tests = dependency.kind == DependencyKind::Development;
            if is_ours && !is_for_tests && !may_use.contains(dependency.name.as_str()) {
                wrong.push(format!("{} uses {}", package.name, dependency.name));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that point the wrong way: {wrong:#?}");
}
