//! The files of a directory, one for each attachment. A mistake in one of them concerns none of the
//! others.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use stack::paths::Paths;
use stack::settings::file::is_of_target;
use stack::status::daemon::FileRefused;
use stack::{Error, Failure, Result};

use crate::file::AttachmentFile;
use crate::limits::{ATTACHMENTS_MAX, FILE_BYTES_MAX};

/// What was found in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesSeen {
    /// The files of attachments, each of which has another name.
    pub files: Vec<AttachmentFile>,
    /// Those with a mistake.
    pub refused: Vec<FileRefused>,
}

/// Reads all `*.toml` of `directory`. The file of a target, which may lie there, too, is passed over.
/// Of two files with the same name that one counts which `owner` has for it, else the first.
///
/// # Errors
/// When the directory cannot be read.
pub fn read_directory(directory: &Path, paths: &Paths, owner: impl Fn(&str) -> Option<PathBuf>) -> Result<FilesSeen> {
    let mut seen = FilesSeen::default();
    let mut parsed = Vec::new();
    for path in files_in(directory)? {
        match read_file(&path).and_then(|text| parse(&text, &path, paths)) {
            Ok(None) => tracing::debug!(path = %path.display(), "this is the file of a target"),
            Ok(Some(file)) => parsed.push(file),
            Err(error) => seen.refused.push(FileRefused { file: path, why: error.to_string() }),
        }
    }
    parsed.sort_by_key(|file| owner(&file.name).as_ref() != Some(&file.path));
    let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in parsed {
        let why = match names.get(&file.name) {
            Some(other) => format!("the name \"{}\" is that of {} already", file.name, other.display()),
            None if names.len() >= ATTACHMENTS_MAX => format!("a daemon keeps at most {ATTACHMENTS_MAX} attachments"),
            None => {
                names.insert(file.name.clone(), file.path.clone());
                seen.files.push(file);
                continue;
            }
        };
        seen.refused.push(FileRefused { why: format!("{}: {why}", file.path.display()), file: file.path });
    }
    seen.files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(seen)
}

/// The file of the attachment `name` in the directory: also one with a mistake, where its own name
/// is that.
///
/// # Errors
/// `NotFound` when there is none; when the directory cannot be read.
pub fn file_of(directory: &Path, paths: &Paths, name: &str) -> Result<PathBuf> {
    let usual = directory.join(format!("{name}.toml"));
    let seen = read_directory(directory, paths, |_| None)?;
    let found = seen.files.into_iter().find(|file| file.name == name).map(|file| file.path);
    let refused = || seen.refused.iter().any(|refused| refused.file == usual).then_some(usual);
    let missing = || Error::new(Failure::NotFound, format!("no file in {} is of \"{name}\"", directory.display()));
    found.or_else(refused).ok_or_else(missing)
}

/// The files, in the order of their names.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let context = |error: std::io::Error| Error::io(format!("cannot read {}", directory.display()), &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(context)? {
        files.push(entry.map_err(context)?.path());
    }
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml") && !is_hidden(path));
    files.sort();
    Ok(files)
}

fn read_file(path: &Path) -> Result<String> {
    let refused = |why: &str| Err(Error::new(Failure::Usage, format!("{}: {why}", path.display())));
    let mut bytes = Vec::new();
    // Who opens a pipe waits for its other end, but for this; a regular file does not change by it.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let read = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path).and_then(|file| {
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map(Some)
    });
    match read.map_err(|error| Error::io(format!("cannot read {}", path.display()), &error))? {
        None => refused("it is no file"),
        Some(_) if bytes.len() as u64 > FILE_BYTES_MAX => refused("it has more than a MiB"),
        Some(_) => String::from_utf8(bytes).or_else(|_| refused("it is no text in UTF-8")),
    }
}

/// `None` for the file of a target.
fn parse(text: &str, path: &Path, paths: &Paths) -> Result<Option<AttachmentFile>> {
    if is_of_target(text) {
        return Ok(None);
    }
    AttachmentFile::parse(text, path, paths).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        directory: tempfile::TempDir,
        paths: Paths,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
            Self { directory, paths }
        }

        fn write(&self, name: &str, text: &[u8]) {
            fs::write(self.directory.path().join(name), text).unwrap();
        }

        fn read(&self, owner: impl Fn(&str) -> Option<PathBuf>) -> (Vec<String>, Vec<String>) {
            let seen = read_directory(self.directory.path(), &self.paths, owner).unwrap();
            let own = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
            let files = seen.files.iter().map(|file| format!("{}={}", own(&file.path), file.name)).collect();
            let refused = seen.refused.iter().map(|refused| format!("{} {}", own(&refused.file), refused.why));
            (files, refused.collect())
        }
    }

    const URL: &str = "url = \"iscsi://h/iqn.2026-11.org.example:a/0\"\n";

    #[test]
    fn a_mistake_in_one_file_concerns_no_other() {
        let world = World::new();
        for name in ["b.toml", "a.toml", "a.toml.new", ".c.toml", "d.conf"] {
            world.write(name, URL.as_bytes());
        }
        world.write("target.toml", b"[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = []\n");
        world.write("wrong.toml", b"url = 5\n");
        world.write("bytes.toml", b"\xff\xfe");
        world.write("large.toml", &vec![b'#'; FILE_BYTES_MAX as usize + 1]);
        fs::create_dir(world.directory.path().join("folder.toml")).unwrap();
        let at = |name: &str| world.directory.path().join(name);
        std::os::unix::fs::symlink("nowhere", at("gone.toml")).unwrap();
        std::os::unix::fs::symlink("loop.toml", at("loop.toml")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("device.toml")).unwrap();
        // Nobody has its other end.
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe.toml"), rustix::fs::Mode::RUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket.toml")).unwrap();
        let (files, refused) = world.read(|_| None);
        assert_eq!(files, ["a.toml=a", "b.toml=b"]);
        for words in [
            "wrong.toml, line 1",
            "bytes.toml: it is no text",
            "large.toml: it has more",
            "folder.toml: it is no file",
            "device.toml: it is no file",
            "pipe.toml: it is no file",
            "socket.toml: ",
            "loop.toml: ",
        ] {
            assert_eq!(refused.iter().filter(|why| why.contains(words)).count(), 1, "{words}: {refused:?}");
        }
        assert_eq!(refused.len(), 9, "{refused:?}");
        assert_eq!(file_of(world.directory.path(), &world.paths, "wrong").unwrap().file_name().unwrap(), "wrong.toml");
        assert!(file_of(world.directory.path(), &world.paths, "target").is_err());
    }

    #[test]
    fn of_two_files_with_one_name_that_of_the_running_one_counts_else_the_first() {
        let world = World::new();
        world.write("a.toml", format!("{URL}name = \"disk\"\n").as_bytes());
        world.write("disk.toml", URL.as_bytes());
        let (files, refused) = world.read(|_| None);
        assert_eq!(files, ["a.toml=disk"]);
        assert!(refused[0].contains("the name \"disk\" is that of ") && refused[0].contains("a.toml already"));
        let owner = world.directory.path().join("disk.toml");
        assert_eq!(world.read(|_| Some(owner.clone())).0, ["disk.toml=disk"]);
        fs::remove_dir_all(world.directory.path().join("run")).unwrap();
        assert!(read_directory(&world.directory.path().join("none"), &world.paths, |_| None).is_err());
    }

    #[test]
    fn a_daemon_keeps_so_many_attachments_and_no_more() {
        let world = World::new();
        for number in 0..=ATTACHMENTS_MAX {
            world.write(&format!("{number:04}.toml"), URL.as_bytes());
        }
        let (files, refused) = world.read(|_| None);
        assert_eq!(files.len(), ATTACHMENTS_MAX);
        assert!(refused.len() == 1 && refused[0].contains("at most 1024 attachments"), "{refused:?}");
    }
}
