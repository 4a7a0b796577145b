//! Whether a place holds a store, something else or nothing, from its first bytes, before it is opened.

use std::fs;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use store::limits::SUPERBLOCK_BYTES;
use store::superblock::{self, StoreIdentity};

use crate::error::{Error, Failure, Result};
use crate::place::Place;

/// No store is smaller: it begins and ends with a superblock.
pub(crate) const STORE_BYTES_MIN: u64 = 2 * SUPERBLOCK_BYTES as u64;

/// Whether anything is at `place`.
pub(crate) fn content_is_there(place: &Place) -> Result<bool> {
    Ok(matches!(content(place)?, Content::Something { .. }))
}

/// What is at a place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    Nothing,
    /// Bytes that are not zero. Those of a store say on how many bytes it was made.
    Something {
        made_with: Option<u64>,
    },
    /// A block device, or a part of one or of a file, whose first bytes are zero.
    Blank,
}

/// Looks at the first bytes, whoever has them open.
///
/// # Errors
/// `Usage` for an offset behind the end; whatever reading meets.
pub(crate) fn content(place: &Place) -> Result<Content> {
    let context = |error: &std::io::Error| Error::io(format!("the cache {place}"), error);
    let metadata = match fs::metadata(&place.path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return check_no_link(place).map(|()| Content::Nothing);
        }
        Err(error) => return Err(context(&error)),
    };
    if place.offset.is_none() && !metadata.file_type().is_block_device() {
        return Ok(if metadata.len() == 0 { Content::Nothing } else { Content::Something { made_with: None } });
    }
    let head = match head_at(&place.path, place.offset.unwrap_or(0)) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            let message = format!("nothing can be at {place}: it ends before");
            return Err(Error::new(Failure::Usage, message));
        }
        read => read.map_err(|error| context(&error))?,
    };
    let is_blank = head.iter().all(|&byte| byte == 0);
    Ok(if is_blank { Content::Blank } else { Content::Something { made_with: superblock::device_bytes(&head) } })
}

/// Refuses a symbolic link to nothing, in whose place nothing can be made.
fn check_no_link(place: &Place) -> Result<()> {
    let Ok(target) = fs::read_link(&place.path) else { return Ok(()) };
    let message = format!(
        "{place} is a symbolic link to {}, which is not there: bring that back, remove the link, or name another place",
        target.display()
    );
    Err(Error::new(Failure::NotFound, message))
}

/// Whether the file or block device of `place` has become smaller than the store in it, so that it cannot be opened: it
/// has no room for two superblocks or, of a part, which cannot be opened but as a whole, before the end that the
/// superblock or else `listed_bytes` says.
///
/// # Errors
/// Whatever reading meets.
pub fn is_cut_off(place: &Place, listed_bytes: Option<u64>) -> Result<bool> {
    let context = |error: std::io::Error| Error::io(place, &error);
    let (offset, end) = (place.offset.unwrap_or(0), end_of(&place.path).map_err(context)?);
    if offset.saturating_add(STORE_BYTES_MIN) > end {
        return Ok(true);
    }
    let head = head_at(&place.path, offset).map_err(context)?;
    let length = superblock::device_bytes(&head).or(listed_bytes).unwrap_or(0);
    Ok(place.offset.is_some() && offset.saturating_add(length) > end)
}

/// Whether what is at `place` ends before the store does that was made there, as its first superblock says.
pub(crate) fn ends_early(place: &Place) -> bool {
    let start = place.offset.unwrap_or(0);
    let Ok(end) = end_of(&place.path) else { return false };
    match head_at(&place.path, start) {
        Ok(head) => superblock::device_bytes(&head).is_some_and(|bytes| start.saturating_add(bytes) > end),
        Err(error) => error.kind() == ErrorKind::UnexpectedEof,
    }
}

/// Bytes of the file or block device at `path`.
pub(crate) fn end_of(path: &Path) -> std::io::Result<u64> {
    fs::File::open(path)?.seek(SeekFrom::End(0))
}

/// What would be the first superblock of a store at `offset`.
pub(crate) fn head_at(path: &Path, offset: u64) -> std::io::Result<[u8; SUPERBLOCK_BYTES]> {
    let mut head = [0; SUPERBLOCK_BYTES];
    fs::File::open(path)?.read_exact_at(&mut head, offset)?;
    Ok(head)
}

/// Who the store at `place` is; `None` where there is none, or it cannot be read. Its first superblock says it, which
/// has each token no later than the last one; where that one is damaged, the last one does, unless nobody knows where
/// that is: of a part.
pub(crate) fn store_at(place: &Place) -> Option<StoreIdentity> {
    store_of(place, None)
}

/// [`store_at`], where somebody may know how many bytes a store takes that is a part of its file or block device.
pub(crate) fn store_of(place: &Place, listed_bytes: Option<u64>) -> Option<StoreIdentity> {
    let (path, start) = (&place.path, place.offset.unwrap_or(0));
    let identity_at = |copy: u64| superblock::identity(&head_at(path, start.checked_add(copy)?).ok()?, copy);
    identity_at(0).or_else(|| {
        let length = match place.offset {
            None => end_of(path).ok(),
            Some(_) => listed_bytes,
        };
        identity_at(superblock::places(length?).ok()?[1])
    })
}

/// [`store_at`], by what does not change while the store lives.
pub fn uuid_at(place: &Place) -> Option<uuid::Uuid> {
    store_at(place).map(|store| store.uuid)
}
