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
    pub(super) async fn take(name: &str, remotes: &Remotes, caches: Caches) -> Self {
        release_marks(remotes, &caches).await;
        let taken = Self { caches, refusal: Arc::new(OnceLock::new()) };
        for member in remotes.member_luns() {
            if let Err(error) = taken.take_of(name, &member).await {
                tracing::warn!(%error, "what others change while the target is away is not noticed");
            }
        }
        taken
    }

    async fn take_of(&self, name: &str, member: &MemberLun) -> Result<()> {
        if member.luns.iter().any(|lun| lun.change_mark_support().is_none()) {
            return Ok(());
        }
        let mark = MarkRecord::new(Uuid::new_v4().into_bytes(), draw_token());
        self.caches.note_released(&LunRecord::new(&member.identity, Some(mark.clone())))?;
        for lun in &member.luns {
            lun.take_mark(mark.id(), mark.newest()).await?;
            let sequence = report_of(lun, mark.id()).await?.sequence;
            if !lun.clear_mark(mark.id(), mark.newest(), sequence).await? {
                tracing::warn!("others write to the logical unit that is mounted as \"{name}\"");
                continue;
            }
            let name = name.to_owned();
            let check = move |heard: ReportedChanges| -> Deciding {
                let others = match heard.untold {
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
