//! Small files that others may have put something else in the place of.
//!
//! Who opens a pipe waits for its other end, a terminal becomes the process's own, and a device like `/dev/zero` never
//! ends. None of that is a file of ours, and a start must not hang on it.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The bytes of a regular file, of which there are at most `bytes_max`.
///
/// # Errors
/// `InvalidData`, with the reason, for one that is longer, and for what is no regular file; those of the file system.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    // A regular file does not change by them.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidData, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::new(ErrorKind::InvalidData, format!("it has more than {bytes_max} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_no_file_is_refused_without_waiting_and_a_long_one_is_not_read_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        symlink("/dev/zero", at("zeroes")).unwrap();
        std::fs::write(at("file"), "abc").unwrap();
        for name in ["pipe", "zeroes"] {
            let error = read(&at(name), 3).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidData, "it is no regular file"));
        }
        assert_eq!(read(&at("file"), 3).unwrap(), b"abc");
        assert_eq!(read(&at("file"), 2).unwrap_err().to_string(), "it has more than 2 bytes");
        assert_eq!(read(&at("nothing"), 2).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
