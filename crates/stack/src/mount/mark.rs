//! The change mark of a mount: whether others changed the LUN while it was out of reach.
//!
//! A mount keeps blocks and changes in memory. Where others changed anything meanwhile, the file
//! system is another one by now, and nothing is written to it any more. The mark belongs to no
//! store, and is noted as such: after a crash the next attachment or mount of the LUN forgets it.

use std::sync::{Arc, OnceLock};

use block::{Error, ErrorKind};
use initiator::{ChangeGuard, Deciding, ReportedChanges};
use uuid::Uuid;

use crate::caches::{Caches, LunRecord, MarkRecord};
use crate::error::Result;
use crate::freshness::release_marks;
use crate::freshness::report::report_of;
use crate::freshness::silence::{Asked, answered, ask_until_answered, is_silence};
use crate::freshness::token::draw_token;
use crate::remotes::{MemberLun, Remotes};

/// The held mark of a mount, if its target keeps marks.
pub(super) struct MountMark {
    caches: Caches,
    refusal: Arc<OnceLock<Error>>,
}

impl MountMark {
    /// Takes a mark of the LUN that is mounted as `name`. A target that does not give one cannot
    /// tell what others change.
    ///
    /// # Errors
    /// `Unreachable` for a target that does not say now whether it gives one.
    pub(super) async fn take(name: &str, remotes: &Remotes, caches: Caches) -> Result<Self> {
        release_marks(remotes, &caches).await;
        let mark = Self { caches, refusal: Arc::new(OnceLock::new()) };
        for member in remotes.member_luns() {
            // One for all attempts: what one took that came to nothing is the same mark, and no other.
            let drawn = MarkRecord::new(Uuid::new_v4().into_bytes(), draw_token());
            match ask_until_answered(|| mark.take_of(name, &member, &drawn)).await {
                Err(Asked::There(error)) if !is_silence(&error) => {
                    tracing::warn!(%error, "what others change while the target is away is not noticed");
                }
                Err(silent) => {
                    mark.give_up(remotes).await;
                    return answered(Err(silent));
                }
                Ok(()) => {}
            }
        }
        Ok(mark)
    }

    async fn take_of(&self, name: &str, member: &MemberLun, mark: &MarkRecord) -> std::result::Result<(), Asked> {
        if member.luns.iter().any(|lun| lun.change_mark_support().is_none()) {
            return Ok(());
        }
        let lun = LunRecord::new(&member.identity, Some(mark.clone()));
        self.caches.note_released(&lun).map_err(Asked::Here)?;
        for lun in &member.luns {
            lun.take_mark(mark.id(), mark.newest()).await.map_err(Asked::There)?;
            let sequence = report_of(lun, mark.id()).await.map_err(Asked::There)?.sequence;
            if !lun.clear_mark(mark.id(), mark.newest(), sequence).await.map_err(Asked::There)? {
                tracing::warn!("others write to the logical unit that is mounted as \"{name}\"");
                continue;
            }
            let name = name.to_owned();
            let check = move |reported: ReportedChanges| -> Deciding {
                let others = match reported.unreported {
                    Some(why) => format!(
                        "the target does not tell what others changed in the logical unit while it was out of reach \
                         ({why}): the file system of \"{name}\" may be another one by now"
                    ),
                    None => format!(
                        "others changed the logical unit while it was out of reach (or its file was moved, restored, \
                         or changed while the target did not run): the file system of \"{name}\" is another one by now"
                    ),
                };
                let context = format!(
                    "{others}, and nothing is written there any more; `forebay detach {name}`, and mount it again"
                );
                // To programs an error of the device, as any write that is lost.
                Box::pin(async { Err(Error::new(ErrorKind::Media, context)) })
            };
            lun.set_guard(ChangeGuard::new(Arc::clone(&self.refusal), check));
        }
        Ok(())
    }

    /// Why nothing is written any more, if that is so.
    pub(super) fn trouble(&self) -> Option<String> {
        self.refusal.get().map(ToString::to_string)
    }

    /// Has the target forget the mark.
    pub(super) async fn give_up(&self, remotes: &Remotes) {
        release_marks(remotes, &self.caches).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use block::device::DeviceExt;
    use block::memory::MemoryDevice;
    use block::{Buffer, Identity};
    use iscsi::pdu::Isid;
    use logical_unit::MemoryChanges;

    use super::*;
    use crate::error::Failure;
    use crate::paths::Paths;
    use crate::test_target::{connect, connect_impatiently, serve_away_at_mark, serve_removable};

    fn device() -> Arc<MemoryDevice> {
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        Arc::new(MemoryDevice::new(16 << 20, identity))
    }

    fn caches() -> (tempfile::TempDir, Caches) {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        (directory, caches)
    }

    /// That of an attempt which came to nothing would be taken again in the next session, and tell of changes by
    /// nobody.
    #[tokio::test]
    async fn a_mount_whose_lun_was_away_between_two_questions_has_one_mark_and_writes_after_a_lost_session() {
        let address = serve_away_at_mark(device());
        let (_directory, caches) = caches();
        let isid = Isid::random_format(7, 1);
        let remotes = connect(address, "own", Some(isid), false).await;
        let mark = MountMark::take("disk", &remotes, caches).await.unwrap();
        let lun = Arc::clone(&remotes.member_luns()[0].luns[0]);
        assert_eq!(lun.marks().await.unwrap().len(), 1);
        // Another session takes the place of this one, which comes back once that has ended.
        let sessions = lun.status().session_count;
        let other = connect(address, "own", Some(isid), false).await;
        let _ = tokio::time::timeout(Duration::from_secs(5), other.close()).await;
        while lun.status().session_count == sessions {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        remotes.device().write(0, Buffer::zeroed(4096), false).await.unwrap();
        assert_eq!(mark.trouble(), None);
    }

    /// Without it the mount would not hear of changes by others for as long as it lasts.
    #[tokio::test]
    async fn a_mount_of_a_lun_that_is_not_there_for_a_moment_has_a_mark_and_of_one_that_stays_away_is_refused() {
        let (address, lun) = serve_removable(device(), Arc::new(MemoryChanges), false);
        let (_directory, caches) = caches();
        let remotes = connect(address, "own", None, false).await;
        lun.remove();
        let back = lun.put_back_after(Duration::from_millis(300));
        let (taken, ()) = tokio::join!(MountMark::take("disk", &remotes, caches.clone()), back);
        taken.unwrap();
        assert_eq!(remotes.member_luns()[0].luns[0].marks().await.unwrap().len(), 1);
        remotes.close().await.unwrap();
        let remotes = connect_impatiently(address, "other", Duration::from_millis(500)).await;
        lun.remove();
        let refused = MountMark::take("disk", &remotes, caches).await.err().unwrap();
        assert_eq!(refused.failure(), Failure::Unreachable, "{refused}");
    }
}
