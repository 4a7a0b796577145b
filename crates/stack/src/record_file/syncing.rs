//! What makes a file, and the names in a folder, durable.

use std::fs::File;
use std::io::Result;
use std::path::Path;

/// Makes the content of a file durable.
///
/// # Errors
/// Those of the file system.
pub(super) fn sync_file(file: &File) -> Result<()> {
    file.sync_all()?;
    #[cfg(test)]
    tests::note_file(file);
    Ok(())
}

/// Makes the creation, the removal or another name of a file durable.
///
/// # Errors
/// Those of the file system.
pub(crate) fn sync_directory_of(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()?;
    #[cfg(test)]
    tests::note_directory(parent);
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;
    use std::collections::{BTreeMap, HashMap};
    use std::ffi::OsString;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// What a power loss leaves of the folder of a test: the names as the folder was synced last, each with the content
    /// that its file had when it was synced last. It may leave more.
    #[derive(Default)]
    struct Durable {
        names: BTreeMap<OsString, u64>,
        /// By inode number.
        contents: HashMap<u64, Vec<u8>>,
    }

    thread_local! {
        static DURABLE: RefCell<Durable> = RefCell::default();
    }

    pub(super) fn note_file(file: &File) {
        let number = file.metadata().unwrap().ino();
        // Whatever it was opened for.
        let content = fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        DURABLE.with_borrow_mut(|durable| durable.contents.insert(number, content));
    }

    pub(super) fn note_directory(path: &Path) {
        let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
        let names = entries.map(|entry| (entry.file_name(), fs::symlink_metadata(entry.path()).unwrap().ino()));
        DURABLE.with_borrow_mut(|durable| durable.names = names.collect());
    }

    /// The power fails: in the only folder of this test there is what was synced, and no more.
    pub(in crate::record_file) fn lose_power(directory: &Path) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            fs::remove_file(entry.path()).unwrap();
        }
        let durable = DURABLE.take();
        for (name, number) in &durable.names {
            fs::write(directory.join(name), durable.contents.get(number).map_or(&[][..], Vec::as_slice)).unwrap();
        }
        // The files are others from here on, and durable.
        for name in durable.names.keys() {
            note_file(&File::open(directory.join(name)).unwrap());
        }
        note_directory(directory);
    }
}
