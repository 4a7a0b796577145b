//! The list of mutations fits the program: each would change what it is meant to change. Whether tests notice them is
//! tried by `make soak`.

use std::path::Path;

use tests::mutation::read_list;

#[test]
fn every_mutation_still_finds_its_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = read_list(&root).unwrap();
    assert!(list.len() >= 20, "the paths on which durability depends are more than that");
    for mutation in list {
        let (changed, text) = mutation.texts(&root).unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(changed, text, "{} changes nothing", mutation.name);
        assert!(mutation.test.starts_with("-p "), "{} names no crate to test", mutation.name);
    }
}
