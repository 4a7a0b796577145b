//! Whether a place holds a store, other content or nothing, by its first bytes, before it is
//! opened.

use std::fs;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use store::limits::SUPERBLOCK_BYTES;
use store::superblock::{self, StoreIdentity};
use uuid::Uuid;

use crate::error::{Error, Failure, Result};
use crate::place::Place;

/// Smallest size of a store: it begins and ends with a superblock.
pub(crate) const STORE_BYTES_MIN: u64 = 2 * SUPERBLOCK_BYTES as u64;

/// Whether `place` has any content.
pub(crate) fn content_is_there(place: &Place) -> Result<bool> {
    Ok(matches!(content(place)?, Content::Something { .. }))
}

/// The content of a place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    Nothing,
    /// Bytes that are not zero. For a store, with the size on which it was made.
    Something {
        made_with: Option<u64>,
    },
    /// A block device, or a part of one or of a file, whose first bytes are zero.
    Blank,
}

/// Reads the first bytes, even if another process has the file open.
///
/// # Errors
/// `Usage` for an offset beyond the end; errors of reading.
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

/// Refuses a dangling symbolic link, in whose place nothing can be made.
fn check_no_link(place: &Place) -> Result<()> {
    let Ok(target) = fs::read_link(&place.path) else { return Ok(()) };
    let message = format!(
        "{place} is a symbolic link to {}, which is not there: bring that back, remove the link, or name another place",
        target.display()
    );
    Err(Error::new(Failure::NotFound, message))
}

/// Whether the file or block device of `place` is too small now for the store in it, so that it
/// cannot be opened: it has no room for two superblocks or, for a part, ends before the store's
/// end. That end is in the superblock, or else `listed_bytes`.
///
/// # Errors
/// Errors of reading.
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

/// Whether the content of `place` ends before the end of the store that its first superblock
/// describes.
pub(crate) fn ends_early(place: &Place) -> bool {
    let start = place.offset.unwrap_or(0);
    let Ok(end) = end_of(&place.path) else { return false };
    match head_at(&place.path, start) {
        Ok(head) => superblock::device_bytes(&head).is_some_and(|bytes| start.saturating_add(bytes) > end),
        Err(error) => error.kind() == ErrorKind::UnexpectedEof,
    }
}

/// Size of the file or block device at `path`.
pub(crate) fn end_of(path: &Path) -> std::io::Result<u64> {
    fs::File::open(path)?.seek(SeekFrom::End(0))
}

/// The bytes at `offset` where a store has its first superblock.
pub(crate) fn head_at(path: &Path, offset: u64) -> std::io::Result<[u8; SUPERBLOCK_BYTES]> {
    let mut head = [0; SUPERBLOCK_BYTES];
    fs::File::open(path)?.read_exact_at(&mut head, offset)?;
    Ok(head)
}

/// The identity of the store at `place`; `None` where there is none, or it cannot be read. The
/// first superblock has it, which gets each token no later than the last one. If that is damaged,
/// the last superblock has it, whose position is not known for a part.
pub(crate) fn store_at(place: &Place) -> Option<StoreIdentity> {
    store_of(place, None)
}

/// [`store_at`] for a part of a file or block device, whose length may be listed.
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

/// The part of [`store_at`] that does not change while the store lives.
pub fn uuid_at(place: &Place) -> Option<uuid::Uuid> {
    store_at(place).map(|store| store.uuid)
}
/// Whether what is noted of a store that is `known` can be of the one that was `found`: where one of the two UUIDs is
/// missing, it can.
pub(crate) fn may_be_of(known: Option<Uuid>, found: Option<Uuid>) -> bool {
    !matches!((known, found), (Some(known), Some(found)) if known != found)
}
