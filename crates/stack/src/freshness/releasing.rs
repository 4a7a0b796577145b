//! Change marks that nobody needs any more: their targets are told to forget them.

use crate::caches::Caches;
use crate::error::Result;
use crate::limits::CLOSE_TIME_MAX;
use crate::remotes::{MemberLun, Remotes};

/// FORGET, for the marks that were made for a use of the LUNs that is refused. A target that does
/// not answer soon is asked again the next time.
pub async fn release_refused(remotes: &Remotes, caches: &Caches) {
    if tokio::time::timeout(CLOSE_TIME_MAX, release_marks(remotes, caches)).await.is_err() {
        tracing::warn!("the target does not answer: a change mark that nobody needs is forgotten the next time");
    }
}

/// FORGET, for the marks of stores that this host gave up, at the connected LUNs. What cannot be
/// done now is done the next time.
pub(crate) async fn release_marks(remotes: &Remotes, caches: &Caches) {
    for member in remotes.member_luns() {
        if let Err(error) = release_marks_of(&member, caches).await {
            tracing::warn!(%error, "a change mark that nobody needs any more is forgotten the next time");
        }
    }
}

async fn release_marks_of(member: &MemberLun, caches: &Caches) -> Result<()> {
    if member.luns.iter().any(|lun| lun.change_mark_support().is_none()) {
        return Ok(());
    }
    let released = caches.released_marks(&member.identity)?;
    for lun in member.luns.iter().filter(|_| !released.is_empty()) {
        let known = lun.marks().await?;
        // TAKE of a mark that does not exist would create it.
        for mark in released.iter().filter(|mark| known.iter().any(|known| known.id == mark.id())) {
            lun.take_mark(mark.id(), mark.newest()).await?;
            lun.forget_mark(mark.id()).await?;
        }
    }
    released.iter().try_for_each(|mark| caches.note_forgotten(mark))
}
