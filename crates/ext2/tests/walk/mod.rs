//! A walk over all of a file system, for tests that damage one. The fuzz targets use it, too.

use std::collections::BTreeSet;

use ext2::{FileType, InodeNumber};

use super::{Plain, now};

/// Entries of a directory, up to one that is damaged.
pub fn entries_of(file_system: &Plain, directory: InodeNumber) -> Vec<(Vec<u8>, InodeNumber)> {
    let mut entries = Vec::new();
    let list = file_system.list(directory, |entry| {
        entries.push((entry.name.to_vec(), entry.inode));
        Ok(())
    });
    let _ = now(list);
    entries
}

/// Reads everything that can be reached, each inode once, and at most `inodes_max` of them.
pub fn walk(file_system: &Plain, inodes_max: usize) {
    let mut seen = BTreeSet::new();
    let mut todo = vec![InodeNumber::ROOT];
    while let Some(inode) = todo.pop() {
        if seen.len() >= inodes_max || !seen.insert(inode) {
            continue;
        }
        let Ok(metadata) = now(file_system.metadata(inode)) else { continue };
        for name in now(file_system.attribute_names(inode)).unwrap_or_default() {
            let _ = now(file_system.attribute(inode, &name));
        }
        match metadata.file_type {
            FileType::Directory => {
                for (name, found) in entries_of(file_system, inode) {
                    let _ = now(file_system.lookup(inode, &name));
                    todo.push(found);
                }
            }
            FileType::SymbolicLink => drop(now(file_system.read_link(inode))),
            _ => {
                let _ = now(file_system.read_file(inode, 0, 20_000));
                let _ = now(file_system.read_file(inode, metadata.size_bytes.saturating_sub(9000), 10_000));
                let _ = now(file_system.seek(inode, 10, false));
                let _ = now(file_system.seek(inode, 10, true));
            }
        }
    }
}
