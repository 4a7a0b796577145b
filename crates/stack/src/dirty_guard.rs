//! Keeps what is dirty here from being written over changes that others made while the LUN was out
//! of reach of a running attachment or replay.
//!
//! The decision is that of an attach ([`freshness`](crate::freshness)): dirty data is not written
//! where others changed something, and nowhere when nobody can say what they changed. From then on
//! this host changes nothing of the LUN: its sessions refuse that, so what cleaning had under way
//! does not get there either. The stores go on taking writes as long as they have room.
//!
//! Where several targets serve the LUN, one that was away does not know what this host wrote through
//! another, and takes the file for a changed one. Only where no path was left is that a reason. What a
//! target has recorded is by others whatever paths there are, even if it is the whole LUN: both paths
//! to one target hold one mark there, in which nothing of this host is recorded.
//!
//! What a reconnection told and concerned nothing dirty is dropped from the stores and then cleared
//! from their marks. Otherwise the next reconnection would tell it again, and it would be taken for
//! a change of what was written here meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use block::{Buffer, ByteRange, Device, Request};
use cache::ConflictingChanges;
use futures_util::future::join_all;
use initiator::{ChangeGuard, Deciding, RemoteLun, ReportedChanges, State};

use crate::error::{Error, Failure, Result};
use crate::freshness::Invalidate;
use crate::limits::{PATH_ANSWER_MAX, PATH_LOOK_INTERVAL};
use crate::place::Place;
use crate::registry::Store;
use crate::remotes::{Remotes, place_in_whole};

/// What uses the LUNs: it says how to go on where nothing may be written back.
#[derive(Clone)]
pub(crate) enum Use {
    /// The attachment of this name.
    Attachment(String),
    /// `forebay log replay`.
    Replay,
}

impl Use {
    fn advice(&self) -> String {
        match self {
            Self::Attachment(name) => format!(
                "end it with `forebay detach {name} --keep-dirty`; then attach it with `--set overwrite-changes=on`"
            ),
            Self::Replay => "replay it again with `--overwrite-changes`".to_owned(),
        }
    }
}

/// An open store.
type Opened = Arc<dyn Invalidate + Send + Sync>;

/// The stores of one attachment or replay, and whether they may still be written back.
pub(crate) struct DirtyGuard {
    refusal: Arc<OnceLock<block::Error>>,
    stores: Arc<Stores>,
}

/// An open store, and what becomes of its dirty data.
struct Entry {
    store: Store,
    opened: Opened,
    /// Whether it is written over changes by others, as the user wants it.
    is_overwriting: bool,
}

/// The open stores by their places.
#[derive(Default)]
struct Stores(Mutex<BTreeMap<Place, Entry>>);

impl Stores {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Place, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses changes of these ranges, of which a path `reported`, where something is dirty.
    fn check(
        &self,
        by: &Use,
        changed: &[ByteRange],
        reported: &ReportedChanges,
    ) -> std::result::Result<(), block::Error> {
        let stores = self.lock();
        for (place, Entry { store, opened, is_overwriting }) in &*stores {
            let Err(error) = opened.check_changes(changed) else { continue };
            let Some(&conflict) = ConflictingChanges::of(&error) else { return Err(error) };
            let (what, bytes) = (store.as_str(), conflict.bytes);
            if *is_overwriting {
                let is_certain = reported.unreported.is_none() && reported.unknown.is_none();
                let others = if is_certain { "changed" } else { "may have changed" };
                tracing::warn!(
                    "overwrite-changes=on: {bytes} bytes of the {what} {place} are written over what others {others} \
                     in the logical unit while it was out of reach"
                );
                continue;
            }
            stores.values().for_each(|entry| entry.opened.stop_writing_back());
            let others = match &reported.unreported {
                Some(why) => format!(
                    "the target does not tell what others changed in the logical unit while it was out of reach, which \
                     may be all of it: {why}"
                ),
                None if reported.unknown.is_some() => {
                    "nobody can say what others changed in the logical unit while it was out of reach: its file was \
                     moved, restored, or changed while the target did not run"
                        .to_owned()
                }
                None => "others changed the logical unit while it was out of reach".to_owned(),
            };
            let context = format!(
                "{others}. {bytes} bytes that are dirty in the {what} {place} lie there, and nothing is written back \
                 any more: {} to write over what is there now, or give up what the {what} holds with \
                 `forebay {what} discard {}`",
                by.advice(),
                place.argument(what)
            );
            return Err(block::Error::with_source(error.kind(), context, conflict));
        }
        Ok(())
    }
}

/// Whether a path is there now: it answers a read that is sent now. What it was known to be says little: a network that
/// is cut takes some time to be noticed.
async fn answers(path: &Weak<RemoteLun>) -> bool {
    let is_online = || path.upgrade().is_some_and(|path| path.status().state == State::Online);
    let Some(reading) = path.upgrade().filter(|_| is_online()).map(|path| {
        let block_bytes = path.geometry().logical_block_bytes as usize;
        path.submit(Request::read(0, Buffer::zeroed(block_bytes)))
    }) else {
        return false;
    };
    let gone = async {
        while is_online() {
            tokio::time::sleep(PATH_LOOK_INTERVAL).await;
        }
    };
    let answered = async { reading.await.result.is_ok() && is_online() };
    tokio::select! {
        is_there = answered => is_there,
        () = gone => false,
        () = tokio::time::sleep(PATH_ANSWER_MAX) => false,
    }
}

/// What others changed of what one path `reported`: where its target was away, and that of one of the `others` was not,
/// what this host wrote there is unknown to it.
async fn without_own(mut reported: ReportedChanges, others: &[Weak<RemoteLun>]) -> ReportedChanges {
    if reported.unknown.is_some() && join_all(others.iter().map(answers)).await.contains(&true) {
        reported.unknown = None;
    }
    reported
}

impl DirtyGuard {
    /// Guards the LUNs of what has no store yet.
    pub(crate) fn of(by: &Use, remotes: &Remotes) -> Self {
        let (refusal, stores) = (Arc::new(OnceLock::new()), Arc::new(Stores::default()));
        for member in remotes.member_luns() {
            for lun in &member.luns {
                // The stores have the LUN as their origin.
                let (by, stores, stripe) = (by.clone(), Arc::downgrade(&stores), member.stripe);
                let others = member.luns.iter().filter(|other| !Arc::ptr_eq(other, lun));
                let others: Vec<Weak<RemoteLun>> = others.map(Arc::downgrade).collect();
                let check = move |reported: ReportedChanges| -> Deciding {
                    let (by, stores, others) = (by.clone(), stores.clone(), others.clone());
                    Box::pin(async move {
                        let reported = without_own(reported, &others).await;
                        let changed = reported.ranges();
                        let whole: Vec<ByteRange> =
                            changed.iter().filter_map(|&range| place_in_whole(stripe, range)).collect();
                        match stores.upgrade() {
                            Some(stores) => stores.check(&by, &whole, &reported).map(|()| changed),
                            None => Ok(changed),
                        }
                    })
                };
                lun.set_guard(ChangeGuard::new(Arc::clone(&refusal), check));
            }
        }
        Self { refusal, stores }
    }

    /// From now on this is the open store at `place`; what is dirty in it replaces what others change, if it
    /// `is_overwriting`.
    pub(crate) fn put(&self, place: &Place, store: Store, opened: Opened, is_overwriting: bool) {
        self.stores.lock().insert(place.clone(), Entry { store, opened, is_overwriting });
    }

    /// From now on this is the open store at `place`, in place of another one.
    pub(crate) fn replace(&self, place: &Place, opened: Opened) {
        if let Some(entry) = self.stores.lock().get_mut(place) {
            entry.opened = opened;
        }
    }

    /// The open store at `place`, if what is dirty in it is not written over changes by others.
    pub(crate) fn opened(&self, place: &Place) -> Option<Opened> {
        let stores = self.stores.lock();
        stores.get(place).filter(|entry| !entry.is_overwriting).map(|entry| Arc::clone(&entry.opened))
    }

    /// Why nothing is written back any more, if that is so.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.refusal.get().map(ToString::to_string)
    }

    /// Refuses to write back what is dirty.
    ///
    /// # Errors
    /// `WouldLoseData`, with advice.
    pub(crate) fn check(&self) -> Result<()> {
        self.trouble().map_or(Ok(()), |trouble| Err(Error::new(Failure::WouldLoseData, trouble)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use block::memory::MemoryDevice;
    use block::{Completion, EventReceiver, Geometry, Identity};
    use logical_unit::change_marks::MemoryChanges;

    use super::*;
    use crate::test_target::{connect, serve};

    const MIB: u64 = 1 << 20;

    /// A LUN whose reads fail when the test says so.
    struct Failing {
        inner: MemoryDevice,
        fails: AtomicBool,
    }

    impl Device for Failing {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }

        fn identity(&self) -> Identity {
            self.inner.identity()
        }

        fn submit(&self, request: Request) -> Completion {
            match self.fails.load(Ordering::Relaxed) {
                true => Completion::ready(request.fail(block::Error::new(block::ErrorKind::Media, "it is gone"))),
                false => self.inner.submit(request),
            }
        }

        fn subscribe(&self) -> EventReceiver {
            self.inner.subscribe()
        }
    }

    /// What is recorded in a mark is by others, also where another mark of the LUN is lost: that of a log over a cache.
    #[tokio::test]
    async fn a_path_vouches_only_with_an_answer_and_only_for_what_is_unknown() {
        let lun = Arc::new(Failing {
            inner: MemoryDevice::new(16 * MIB, Identity::default()),
            fails: AtomicBool::new(false),
        });
        let remotes = connect(serve(lun.clone(), Arc::new(MemoryChanges)), "own", None, false).await;
        let path = Arc::downgrade(&remotes.member_luns()[0].luns[0]);
        let recorded = vec![ByteRange { offset: MIB, length: MIB }];
        let whole = Some(ByteRange { offset: 0, length: 16 * MIB });
        let reported = ReportedChanges { recorded: recorded.clone(), unknown: whole, unreported: None };
        let others = [Weak::new(), path];
        assert_eq!(without_own(reported.clone(), &others[..1]).await, reported);
        assert_eq!(
            without_own(reported.clone(), &others).await,
            ReportedChanges { recorded, unknown: None, unreported: None }
        );
        lun.fails.store(true, Ordering::Relaxed);
        assert_eq!(without_own(reported.clone(), &others).await, reported, "an error is no answer");
        remotes.close().await.unwrap();
    }
}
