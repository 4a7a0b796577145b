//! Checks that a LUN's file or device can be served, before it is opened or made: for `target
//! check` as for the target itself.

use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::error::{Error, Failure, Result};
use crate::lun_spec::{Backend, LunSpec};

/// Sizes of files are multiples of this.
const SECTOR_BYTES: u64 = 512;

/// Refuses a specification that can never be served.
///
/// # Errors
/// `Usage` for a size or a file that is no LUN, `NotFound` for a file that does not exist and is
/// not to be made.
pub(crate) fn check(spec: &LunSpec) -> Result<()> {
    let checked = match &spec.backend {
        Backend::Ram { size_bytes } => check_whole_blocks(*size_bytes, u64::from(spec.block_bytes)),
        Backend::File { path, size_bytes, .. } => {
            size_bytes.map_or(Ok(()), |size| check_whole_blocks(size, SECTOR_BYTES))?;
            check_file(path, *size_bytes, spec.is_read_only)
        }
    };
    checked.map_err(|error| error.context(format!("LUN {spec}")))
}

fn check_whole_blocks(size_bytes: u64, block_bytes: u64) -> Result<()> {
    if size_bytes.is_multiple_of(block_bytes) {
        return Ok(());
    }
    Err(Error::new(Failure::Usage, format!("{size_bytes} bytes are not whole blocks of {block_bytes}")))
}

fn check_file(path: &Path, size_bytes: Option<u64>, is_read_only: bool) -> Result<()> {
    let name = path.display();
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        found => Some(found.map_err(|error| Error::io(&name, &error))?),
    };
    let refused = |failure, words: &str| Err(Error::new(failure, format!("{name} {words}")));
    match (found, size_bytes) {
        (None, None) => refused(Failure::NotFound, "does not exist: give size=SIZE to make it"),
        (None, Some(_)) if is_read_only => {
            refused(Failure::NotFound, "does not exist, and what is read-only is not created")
        }
        (Some(file), _) if !file.is_file() && !file.file_type().is_block_device() => {
            refused(Failure::Usage, "is neither a file nor a block device")
        }
        (Some(file), None) if file.is_file() && file.len() == 0 => refused(Failure::Usage, "is empty: give size=SIZE"),
        _ => Ok(()),
    }
}

/// Refuses a file with another size than the configured one: a start does not change it. Only a
/// reload of the target that serves it lets it grow.
///
/// # Errors
/// `Mismatch`, with both sizes.
pub(crate) fn check_size(spec: &LunSpec) -> Result<()> {
    let Backend::File { path, size_bytes: Some(wanted), .. } = &spec.backend else { return Ok(()) };
    let is_other = |file: &Metadata| file.is_file() && file.len() != *wanted && (file.len() > 0 || spec.is_read_only);
    let Some(found) = fs::metadata(path).ok().filter(is_other) else { return Ok(()) };
    if found.len() < *wanted && is_in_use(path) {
        return Ok(());
    }
    let message = format!(
        "LUN {spec}: {} has {} bytes, not the {wanted} asked for: leave the size out, or take another file",
        path.display(),
        found.len()
    );
    Err(Error::new(Failure::Mismatch, message))
}

/// Whether another process has it locked, as a target that serves it has.
fn is_in_use(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}
