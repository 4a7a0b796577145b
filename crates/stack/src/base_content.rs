//! Whether the base of a difference is still what the difference was made over.
//!
//! Nobody may write to a base, and a difference does not. A target names what a LUN has, for all
//! hosts alike, and the id is void from the first change on (`docs/protocol/change-marks.md`): so any
//! number of differences depend on one base, and none of them keeps anything at the target. The ids
//! are noted in the difference itself, which may be moved to another host.
//!
//! | the target | a difference with ids | one without |
//! |---|---|---|
//! | has an id that is noted | goes on | - |
//! | has another one, or none | refused, unless told to overwrite changes | notes it, and goes on |
//! | cannot tell | goes on | goes on |
//!
//! Each path is asked, since the targets of several need not know of each other. A further path is
//! no reason to refuse, as long as all that is noted is there.
//!
//! While the difference is used, each new session asks again before anything is read there: over
//! another base, nothing is read or written any more.

use std::sync::Arc;

use block::ErrorKind;
use difference::Difference;
use difference::limits::CONTENTS_MAX;
use initiator::{ContentGuard, ContentId, RemoteLun, is_content_id};

use crate::error::{Error, Failure, Result};
use crate::limits::NAMINGS_MAX;
use crate::place::Place;
use crate::remotes::Remotes;
use crate::status::stores::StoreFreshness;

const HOW: &str = "others wrote to the logical unit, or its file was moved, restored, made anew, or changed while the \
                   target did not run";

/// What the target of a path says of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Id(ContentId),
    /// It has no id, or has lost it.
    NoId,
    /// The target cannot tell.
    Nothing,
}

/// The difference of the attachment `name`, at `place`.
pub(crate) struct BaseOf<'a> {
    pub(crate) difference: &'a Arc<Difference>,
    pub(crate) place: &'a Place,
    pub(crate) name: &'a str,
}

impl BaseOf<'_> {
    /// Compares the content of the base, which are all `remotes`, with what the difference notes, and
    /// notes it. From now on another content is noticed at each new session. Returns what is known, for
    /// `status`.
    ///
    /// # Errors
    /// `WouldLoseData` for another content, unless that `is_overwritten`; errors of the target, and of
    /// the difference's device.
    pub(crate) async fn check(&self, remotes: &Remotes, is_overwritten: bool) -> Result<StoreFreshness> {
        let mut known = self.difference.contents().await;
        // What earlier versions noted says nothing: a host could give an id a second time.
        known.retain(is_content_id);
        let mut paths = Vec::new();
        for lun in remotes.member_luns().into_iter().flat_map(|member| member.luns) {
            paths.push((ask(&lun).await?, lun));
        }
        let told: Vec<Told> = paths.iter().map(|(told, _)| *told).collect();
        let is_other = is_other(&known, &told);
        if is_other && !is_overwritten {
            return Err(self.refusal());
        }
        for (told, lun) in paths.iter_mut().filter(|(told, _)| *told == Told::NoId) {
            *told = named(lun).await;
        }
        let mut ids: Vec<ContentId> = if is_other { Vec::new() } else { known.clone() };
        for (told, lun) in &paths {
            let Told::Id(id) = *told else { continue };
            self.guard(lun, id);
            // It may have had another session since it was asked.
            if lun.content_id().await? != Some(id) {
                return Err(self.refusal());
            }
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let is_noted = ids.len() <= CONTENTS_MAX;
        if is_noted && ids != known {
            let context = |error| Error::from(error).context(format!("the difference {}", self.place));
            self.difference.note_contents(&ids).await.map_err(context)?;
        }
        let are_all_told = is_noted && paths.iter().all(|(told, _)| matches!(told, Told::Id(_)));
        Ok(self.freshness(is_other, are_all_told, known.is_empty()))
    }

    fn freshness(&self, is_other: bool, are_all_told: bool, is_first: bool) -> StoreFreshness {
        let (state, why) = match (is_other, are_all_told) {
            (true, _) => ("changed", format!("the base was changed ({HOW}), and the difference goes on over it")),
            (false, false) => ("unknown", "the target does not tell whether anybody changed the base".to_owned()),
            (false, true) if is_first => ("noted", "from now on it is noticed when the base is changed".to_owned()),
            (false, true) => ("kept", "the target says that nobody changed the base".to_owned()),
        };
        match (is_other, are_all_told) {
            (false, true) => tracing::info!("the difference {}: {why}", self.place),
            _ => tracing::warn!("the difference {}: {why}", self.place),
        }
        let changed_by_others_bytes = (state == "kept").then_some(0);
        StoreFreshness { state: state.to_owned(), changed_by_others_bytes, why, ..StoreFreshness::default() }
    }

    /// The error for a difference whose base was changed: its chunks would lie among those of another
    /// content.
    fn refusal(&self) -> Error {
        let message = format!(
            "the base of the difference {place} was changed since it was attached last: {HOW}. What is in the \
             difference does not belong to what the base has now: bring the base back as it was, or give the \
             difference up (remove {path}, or name another one with --difference); give `--set overwrite-changes=on` \
             if the base has the same content, or to lay the difference over it as it is",
            place = self.place,
            path = self.place.path.display()
        );
        Error::new(Failure::WouldLoseData, message)
    }

    /// Refuses all requests of the difference from the first session on in which the LUN has another
    /// content.
    fn guard(&self, lun: &RemoteLun, id: ContentId) {
        let (difference, name) = (Arc::downgrade(self.difference), self.name.to_owned());
        lun.guard_content(ContentGuard::new(id, move || {
            let context = format!(
                "the base of the difference was changed while it was out of reach ({HOW}): nothing is read or written \
                 any more; `forebay detach {name}`, and attach it again, which says how to go on"
            );
            let error = block::Error::new(ErrorKind::Gone, context);
            if difference.upgrade().is_some_and(|difference| difference.refuse_base(error.clone())) {
                tracing::error!("{error}");
            }
        }));
    }
}

async fn ask(lun: &RemoteLun) -> Result<Told> {
    match lun.content_id().await {
        Ok(id) => Ok(id.map_or(Told::NoId, Told::Id)),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Told::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Has the target name what it has.
async fn named(lun: &RemoteLun) -> Told {
    for _ in 0..NAMINGS_MAX {
        let named = match lun.name_content().await {
            Ok(()) => lun.content_id().await,
            Err(error) => Err(error),
        };
        match named {
            Ok(Some(id)) => return Told::Id(id),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "the target does not name what the base has");
                return Told::Nothing;
            }
        }
    }
    tracing::warn!("others write to the base of a difference while it is being attached");
    Told::Nothing
}

/// Whether the content is another one than that with the `known` ids: a target that can tell has none
/// of them, and one of them is nowhere any more.
fn is_other(known: &[ContentId], told: &[Told]) -> bool {
    let is_unknown = |told: &Told| match told {
        Told::Id(id) => !known.contains(id),
        Told::NoId => true,
        Told::Nothing => false,
    };
    told.iter().any(is_unknown) && !known.iter().all(|id| told.contains(&Told::Id(*id)))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use block::device::DeviceExt;
    use block::memory::MemoryDevice;
    use block::{Buffer, Identity, SharedDevice};
    use difference::DifferenceOptions;
    use iscsi::pdu::Isid;
    use logical_unit::MemoryChanges;
    use uuid::Uuid;

    use super::*;
    use crate::test_target::{connect, serve};

    const MIB: u64 = 1 << 20;

    fn memory(unit: &str) -> SharedDevice {
        let identity = Identity { target: "t".into(), unit: unit.into(), serial: "s".into() };
        Arc::new(MemoryDevice::new(4 * MIB, identity))
    }

    async fn write(address: SocketAddr, initiator: &str) {
        let remotes = connect(address, initiator, None, false).await;
        remotes.device().write(MIB, Buffer::zeroed(4096), false).await.unwrap();
        remotes.close().await.unwrap();
    }

    async fn opened(device: &SharedDevice, remotes: &Remotes) -> Arc<Difference> {
        let opened = Arc::new(Difference::open(Arc::clone(device), remotes.device(), None).await.unwrap());
        tokio::spawn(opened.run());
        opened
    }

    /// Makes an empty difference.
    async fn made(address: SocketAddr) -> SharedDevice {
        let device = memory("difference");
        let remotes = connect(address, "maker", None, false).await;
        let options = DifferenceOptions::new(Uuid::new_v4());
        Difference::format(&device, &remotes.device(), options).await.unwrap();
        remotes.close().await.unwrap();
        device
    }

    /// Attaches the difference on `device`, and detaches. The state, or the failure.
    async fn attach(
        address: SocketAddr,
        device: &SharedDevice,
        is_overwritten: bool,
    ) -> std::result::Result<String, Failure> {
        let remotes = connect(address, "own", None, false).await;
        let difference = opened(device, &remotes).await;
        let place = Place { path: "/own".into(), offset: None };
        let base = BaseOf { difference: &difference, place: &place, name: "disk" };
        let told = base.check(&remotes, is_overwritten).await;
        remotes.close().await.unwrap();
        told.map(|told| told.state).map_err(|error| error.failure())
    }

    #[tokio::test]
    async fn a_difference_is_refused_over_a_base_that_others_changed_until_the_user_says_to_go_on() {
        let address = serve(memory("base"), Arc::new(MemoryChanges));
        let (one, two) = (made(address).await, made(address).await);
        for (difference, state) in [(&one, "noted"), (&two, "noted"), (&one, "kept"), (&two, "kept")] {
            assert_eq!(attach(address, difference, false).await.unwrap(), state);
        }
        for writer in ["another", "own"] {
            write(address, writer).await;
            for difference in [&one, &two] {
                for _ in 0..2 {
                    assert_eq!(attach(address, difference, false).await, Err(Failure::WouldLoseData), "{writer}");
                }
                assert_eq!(attach(address, difference, true).await.unwrap(), "changed");
                assert_eq!(attach(address, difference, false).await.unwrap(), "kept");
            }
        }
    }

    /// An id that a host has given may stand for several contents. The difference is as one that notes nothing.
    #[tokio::test]
    async fn an_id_that_an_earlier_version_noted_counts_as_none() {
        let address = serve(memory("base"), Arc::new(MemoryChanges));
        let device = made(address).await;
        let remotes = connect(address, "own", None, false).await;
        opened(&device, &remotes).await.note_contents(&[Uuid::new_v4().into_bytes()]).await.unwrap();
        remotes.close().await.unwrap();
        for state in ["noted", "kept"] {
            assert_eq!(attach(address, &device, false).await.unwrap(), state);
        }
    }

    /// Its session is taken by another one, and comes back.
    #[tokio::test]
    async fn a_running_difference_ends_over_a_base_that_was_changed_while_its_session_was_away() {
        for is_changed in [false, true] {
            let address = serve(memory("base"), Arc::new(MemoryChanges));
            let device = made(address).await;
            let isid = Some(Isid::random_format(7, 7));
            let remotes = connect(address, "own", isid, false).await;
            let difference = opened(&device, &remotes).await;
            let place = Place { path: "/own".into(), offset: None };
            BaseOf { difference: &difference, place: &place, name: "disk" }.check(&remotes, false).await.unwrap();
            difference.write(0, Buffer::zeroed(4096), false).await.unwrap();
            let lun = Arc::clone(&remotes.member_luns()[0].luns[0]);
            if is_changed {
                write(address, "another").await;
            }
            difference.read(2 * MIB, Buffer::zeroed(4096)).await.expect("its session goes on");
            let count = lun.status().session_count;
            connect(address, "own", isid, false).await.close().await.unwrap();
            while lun.status().session_count == count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let read = difference.read(2 * MIB, Buffer::zeroed(4096)).await;
            difference.flush().await.unwrap();
            assert_eq!(
                read.map(drop).map_err(|error| error.kind()),
                if is_changed { Err(ErrorKind::Gone) } else { Ok(()) }
            );
            let refusal = difference.refusal().map(ToString::to_string).unwrap_or_default();
            assert_eq!(refusal.contains("forebay detach disk"), is_changed, "{refusal}");
            remotes.close().await.unwrap();
        }
    }

    #[test]
    fn a_further_path_is_no_other_content_and_one_that_lost_its_id_is() {
        let [a, b, c] = [[1; 16], [2; 16], [3; 16]];
        let is_other = |known: &[ContentId], told: &[Told]| is_other(known, told);
        for (told, is_it) in [
            (&[Told::Id(a)][..], false),
            (&[Told::Id(a), Told::Id(b)], false),
            (&[Told::Id(a), Told::NoId], false),
            (&[Told::Nothing], false),
            (&[Told::Id(b)], true),
            (&[Told::NoId], true),
            (&[Told::Nothing, Told::NoId], true),
        ] {
            assert_eq!(is_other(&[a], told), is_it, "{told:?}");
            assert!(!is_other(&[], told));
        }
        assert!(!is_other(&[a, b], &[Told::Id(b)]), "by one of the paths");
        assert!(is_other(&[a, b], &[Told::Id(a), Told::Id(c)]));
        assert!(is_other(&[a, b], &[Told::Id(a), Told::NoId]));
    }
}
