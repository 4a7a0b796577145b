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
//! What is found is noted once nothing can refuse the attach any more: an attach that is refused, and was told to
//! overwrite changes, leaves the next one to be refused, too.
//!
//! While the difference is used, each new session asks again before anything is read there: over
//! another base, nothing is read or written any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::ErrorKind;
use difference::Difference;
use initiator::{ContentAnswer, ContentGuard, ContentId, RemoteLun, is_content_id};

use crate::error::{Error, Failure, Result};
use crate::freshness::silence::{is_silence, silent};
use crate::limits::NAMINGS_MAX;
use crate::place::Place;
use crate::remotes::Remotes;
use crate::status::stores::StoreFreshness;

const HOW: &str = "others wrote to the logical unit, or its file was moved, restored, made anew, or changed while the \
                   target did not run";

const CANNOT_TELL: &str = "the target does not tell whether anybody changed the base";

/// What the target of a path says of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Id(ContentId),
    /// It has no id, or has lost it.
    NoId,
    /// The target cannot tell.
    Unsupported,
}

/// The difference of the attachment `name`, at `place`.
pub(crate) struct BaseOf<'a> {
    pub(crate) difference: &'a Arc<Difference>,
    pub(crate) place: &'a Place,
    pub(crate) name: &'a str,
}

impl BaseOf<'_> {
    /// Compares the content of the base, which are all `remotes`, with what the difference notes. From
    /// now on another content is noticed at each new session.
    ///
    /// # Errors
    /// `WouldLoseData` for another content, unless that `is_overwritten`; errors of the target, also
    /// of one that says nothing now.
    pub(crate) async fn check(&self, remotes: &Remotes, is_overwritten: bool) -> Result<Base> {
        let mut known = self.difference.contents().await;
        // What earlier versions noted says nothing: a host could give an id a second time.
        known.retain(is_content_id);
        let mut paths = Vec::new();
        for lun in remotes.member_luns().into_iter().flat_map(|member| member.luns) {
            paths.push((ask(&lun).await?, lun));
        }
        let reported: Vec<Answer> = paths.iter().map(|(reported, _)| *reported).collect();
        let is_other = is_other(&known, &reported);
        if is_other && !is_overwritten {
            return Err(self.refusal());
        }
        let mut unreported = reported.contains(&Answer::Unsupported).then(|| CANNOT_TELL.to_owned());
        for (reported, lun) in paths.iter_mut().filter(|(reported, _)| *reported == Answer::NoId) {
            match named(lun).await? {
                Ok(id) => *reported = Answer::Id(id),
                Err(why) => _ = unreported.get_or_insert(why),
            }
        }
        let mut silent = Vec::new();
        let mut ids: Vec<ContentId> = if is_other { Vec::new() } else { known.clone() };
        for (reported, lun) in &paths {
            let Answer::Id(id) = *reported else { continue };
            silent.push(self.guard(lun, id));
            // It may have had another session since it was asked.
            if lun.content_id().await? != Some(id) {
                return Err(self.refusal());
            }
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let reported = self.freshness(is_other, unreported, known.is_empty());
        let (difference, place) = (Arc::clone(self.difference), self.place.clone());
        Ok(Base { difference, place, reported, ids: (ids != known).then_some(ids), silent })
    }

    /// `unreported`: why nothing is known of the content on some path.
    fn freshness(&self, is_other: bool, unreported: Option<String>, is_first: bool) -> StoreFreshness {
        let is_reported = !is_other && unreported.is_none();
        let (state, why) = match (is_other, unreported) {
            (true, unreported) => {
                let but = unreported.map(|why| format!("; {why}")).unwrap_or_default();
                ("changed", format!("the base was changed ({HOW}), and the difference goes on over it{but}"))
            }
            (false, Some(why)) => ("unknown", why),
            (false, None) if is_first => ("noted", "from now on it is noticed when the base is changed".to_owned()),
            (false, None) => ("kept", "the target says that nobody changed the base".to_owned()),
        };
        match is_reported {
            true => tracing::info!("the difference {}: {why}", self.place),
            false => tracing::warn!("the difference {}: {why}", self.place),
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
    /// content. Returns what says whether its target tells nothing any more.
    fn guard(&self, lun: &RemoteLun, id: ContentId) -> Arc<AtomicBool> {
        let (difference, name) = (Arc::downgrade(self.difference), self.name.to_owned());
        let is_silent = Arc::<AtomicBool>::default();
        let telling = Arc::clone(&is_silent);
        lun.guard_content(ContentGuard::new(id, move |answer| {
            telling.store(answer == ContentAnswer::Unsupported, Ordering::Relaxed);
            if answer != ContentAnswer::Another {
                return;
            }
            let context = format!(
                "the base of the difference was changed while it was out of reach ({HOW}): nothing is read or written \
                 any more; `forebay detach {name}`, and attach it again, which says how to go on"
            );
            let error = block::Error::new(ErrorKind::Gone, context);
            if difference.upgrade().is_some_and(|difference| difference.refuse_base(error.clone())) {
                tracing::error!("{error}");
            }
        }));
        is_silent
    }
}

/// The base of an attached difference.
pub(crate) struct Base {
    difference: Arc<Difference>,
    place: Place,
    /// What was found when it was attached.
    reported: StoreFreshness,
    /// The ids of what it has; `None` where the difference notes these.
    ids: Option<Vec<ContentId>>,
    /// For each path of which something is known: whether its target tells nothing any more.
    silent: Vec<Arc<AtomicBool>>,
}

impl Base {
    /// Notes what the base has, durably.
    ///
    /// # Errors
    /// Those of the difference's device.
    pub(crate) async fn note(&self) -> Result<()> {
        let Some(ids) = &self.ids else { return Ok(()) };
        let context = |error| Error::from(error).context(format!("the difference {}", self.place));
        self.difference.note_contents(ids).await.map_err(context)
    }

    /// What is known of it now, for `status`.
    pub(crate) fn freshness(&self) -> StoreFreshness {
        if !self.silent.iter().any(|is_silent| is_silent.load(Ordering::Relaxed)) {
            return self.reported.clone();
        }
        let why = "since it came back, the target does not tell any more whether anybody changed the base".to_owned();
        StoreFreshness { state: "unknown".to_owned(), why, ..StoreFreshness::default() }
    }
}

async fn ask(lun: &RemoteLun) -> Result<Answer> {
    match lun.content_id().await {
        Ok(id) => Ok(id.map_or(Answer::NoId, Answer::Id)),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Answer::Unsupported),
        Err(error) if is_silence(&error) => Err(silent(&error).into()),
        Err(error) => Err(error.into()),
    }
}

/// Has the target name what it has; or why that has no id, in words.
///
/// # Errors
/// `Unreachable` for a target that says nothing now.
async fn named(lun: &RemoteLun) -> Result<std::result::Result<ContentId, String>> {
    let unnoticed = "no change of it is noticed before the difference is attached again";
    for _ in 0..NAMINGS_MAX {
        let named = match lun.name_content().await {
            Ok(()) => lun.content_id().await,
            Err(error) => Err(error),
        };
        match named {
            Ok(Some(id)) => return Ok(Ok(id)),
            Ok(None) => {}
            Err(error) if is_silence(&error) => return Err(silent(&error).into()),
            Err(error) => return Ok(Err(format!("the target gives what the base has no id, so {unnoticed}: {error}"))),
        }
    }
    Ok(Err(format!("others write to the base just now, so {unnoticed}")))
}

/// Whether the content is another one than that with the `known` ids: a target that can tell has none
/// of them, and one of them is nowhere any more.
fn is_other(known: &[ContentId], reported: &[Answer]) -> bool {
    let is_unknown = |reported: &Answer| match reported {
        Answer::Id(id) => !known.contains(id),
        Answer::NoId => true,
        Answer::Unsupported => false,
    };
    reported.iter().any(is_unknown) && !known.iter().all(|id| reported.contains(&Answer::Id(*id)))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use block::device::DeviceExt;
    use block::limits::STRIPE_MEMBERS_MAX;
    use block::memory::MemoryDevice;
    use block::{Buffer, Identity, SharedDevice};
    use difference::DifferenceOptions;
    use iscsi::pdu::Isid;
    use logical_unit::MemoryChanges;
    use uuid::Uuid;

    use super::*;
    use crate::test_target::{connect, connect_impatiently, connect_stripe, serve, serve_removable, serve_several};

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
        let reported = base.check(&remotes, is_overwritten).await;
        remotes.close().await.unwrap();
        let base = reported.map_err(|error| error.failure())?;
        base.note().await.unwrap();
        Ok(base.freshness().state)
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

    /// The base may be named by the time that it is there again.
    #[tokio::test]
    async fn that_a_base_is_not_there_is_not_taken_for_a_target_that_gives_no_ids() {
        let (address, base) = serve_removable(memory("base"), Arc::new(MemoryChanges), false);
        let remotes = connect_impatiently(address, "own", Duration::from_millis(500)).await;
        let lun = Arc::clone(&remotes.member_luns()[0].luns[0]);
        base.remove();
        let refused = named(&lun).await.unwrap_err();
        assert_eq!(refused.failure(), Failure::Unreachable);
        assert!(refused.to_string().contains("is not there, or busy"), "{refused}");
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
            let base = BaseOf { difference: &difference, place: &place, name: "disk" };
            base.check(&remotes, false).await.unwrap();
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

    /// An attach may be refused after it has found that the base is another one, and was told to go on.
    #[tokio::test]
    async fn a_base_that_was_looked_at_is_not_noted_before_the_attach_has_gone_through() {
        let address = serve(memory("base"), Arc::new(MemoryChanges));
        let device = made(address).await;
        assert_eq!(attach(address, &device, false).await.unwrap(), "noted");
        write(address, "another").await;
        let remotes = connect(address, "own", None, false).await;
        let difference = opened(&device, &remotes).await;
        let place = Place { path: "/own".into(), offset: None };
        let base = BaseOf { difference: &difference, place: &place, name: "disk" };
        assert_eq!(base.check(&remotes, true).await.unwrap().freshness().state, "changed");
        remotes.close().await.unwrap();
        assert_eq!(attach(address, &device, false).await, Err(Failure::WouldLoseData));
    }

    /// As many LUNs as a stripe may have: each has an id of its own.
    #[tokio::test]
    async fn a_change_of_the_last_of_as_many_luns_as_there_can_be_is_noticed() {
        let count = u16::try_from(STRIPE_MEMBERS_MAX).unwrap();
        let luns = (0..count).map(|number| memory(&format!("base{number}"))).collect();
        let address = serve_several(luns, || Arc::new(MemoryChanges));
        let device = memory("difference");
        let attach = async |is_first: bool| {
            let remotes = connect_stripe(address, "own", count).await;
            if is_first {
                let options = DifferenceOptions { chunk_bytes: 1 << 20, ..DifferenceOptions::new(Uuid::new_v4()) };
                Difference::format(&device, &remotes.device(), options).await.unwrap();
            }
            let difference = opened(&device, &remotes).await;
            let place = Place { path: "/own".into(), offset: None };
            let base = BaseOf { difference: &difference, place: &place, name: "disk" };
            let reported = base.check(&remotes, false).await;
            remotes.close().await.unwrap();
            let base = reported.map_err(|error| error.failure())?;
            base.note().await.unwrap();
            Ok::<_, Failure>(base.freshness().state)
        };
        assert_eq!(attach(true).await.unwrap(), "noted");
        assert_eq!(attach(false).await.unwrap(), "kept");
        let others = connect_stripe(address, "another", count).await;
        let last = Arc::clone(&others.member_luns().last().unwrap().luns[0]);
        last.write(0, Buffer::zeroed(4096), false).await.unwrap();
        others.close().await.unwrap();
        assert_eq!(attach(false).await, Err(Failure::WouldLoseData));
    }

    /// Other hosts hold all marks of the LUN, of which the id takes one.
    #[tokio::test]
    async fn that_the_target_has_no_room_for_an_id_is_said_as_it_is() {
        let address = serve(memory("base"), Arc::new(MemoryChanges));
        let device = made(address).await;
        let mut others = Vec::new();
        for host in 0..4_u8 {
            let remotes = connect(address, &format!("other{host}"), None, false).await;
            let lun = Arc::clone(&remotes.member_luns()[0].luns[0]);
            for mark in 0..4 {
                lun.take_mark([1 + 4 * host + mark; 16], 7).await.unwrap();
            }
            others.push(remotes);
        }
        let remotes = connect(address, "own", None, false).await;
        let difference = opened(&device, &remotes).await;
        let place = Place { path: "/own".into(), offset: None };
        let base = BaseOf { difference: &difference, place: &place, name: "disk" };
        let reported = base.check(&remotes, false).await.unwrap().freshness();
        assert_eq!((reported.state.as_str(), reported.changed_by_others_bytes), ("unknown", None));
        assert!(
            reported.why.contains("gives what the base has no id") && reported.why.contains("no change of it"),
            "{reported:?}"
        );
        for remotes in others.into_iter().chain([remotes]) {
            remotes.close().await.unwrap();
        }
    }

    /// Its target comes back as one that cannot tell.
    #[test]
    fn a_path_that_tells_nothing_any_more_leaves_nothing_known_of_the_base() {
        let silent = [false, false].map(|is_it| Arc::new(AtomicBool::new(is_it)));
        let base: SharedDevice = memory("base");
        let device = memory("difference");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let difference = runtime.block_on(async {
            let options = DifferenceOptions::new(Uuid::new_v4());
            Difference::format(&device, &base, options).await.unwrap();
            Arc::new(Difference::open(device, base, None).await.unwrap())
        });
        let reported = StoreFreshness { state: "kept".into(), changed_by_others_bytes: Some(0), ..Default::default() };
        let place = Place { path: "/own".into(), offset: None };
        let base = Base { difference, place, reported, ids: None, silent: silent.to_vec() };
        let known = || (base.freshness().state, base.freshness().changed_by_others_bytes);
        assert_eq!(known(), ("kept".to_owned(), Some(0)));
        silent[1].store(true, Ordering::Relaxed);
        assert_eq!(known(), ("unknown".to_owned(), None));
        silent[1].store(false, Ordering::Relaxed);
        assert_eq!(known(), ("kept".to_owned(), Some(0)), "the next session has told");
    }

    #[test]
    fn a_further_path_is_no_other_content_and_one_that_lost_its_id_is() {
        let [a, b, c] = [[1; 16], [2; 16], [3; 16]];
        let is_other = |known: &[ContentId], reported: &[Answer]| is_other(known, reported);
        for (reported, is_it) in [
            (&[Answer::Id(a)][..], false),
            (&[Answer::Id(a), Answer::Id(b)], false),
            (&[Answer::Id(a), Answer::NoId], false),
            (&[Answer::Unsupported], false),
            (&[Answer::Id(b)], true),
            (&[Answer::NoId], true),
            (&[Answer::Unsupported, Answer::NoId], true),
        ] {
            assert_eq!(is_other(&[a], reported), is_it, "{reported:?}");
            assert!(!is_other(&[], reported));
        }
        assert!(!is_other(&[a, b], &[Answer::Id(b)]), "by one of the paths");
        assert!(is_other(&[a, b], &[Answer::Id(a), Answer::Id(c)]));
        assert!(is_other(&[a, b], &[Answer::Id(a), Answer::NoId]));
    }
}
