//! The cache as a device: the type that its users hold.

use std::future::Future;
use std::sync::Arc;

use base::range::ByteRange;
use block::{Completion, Copies, Device, Error, EventReceiver, Geometry, Identity, Request, SharedDevice};
use futures_util::future::{join, join5};

use crate::admission::{Tuning, seen_slots};
use crate::cleaner::CleanProgress;
use crate::core::Core;
use crate::mode::Mode;
use crate::options::{DirtyLimits, FormatOptions, OpenOptions};
use crate::origin_flushes::OriginFlushes;
use crate::pace::CleaningRate;
use crate::replace::HandOver;
use crate::replacement::Replacement;
use crate::status::Status;
use crate::succession::CopyProgress;
use crate::{format_cache, open};

/// A block device that answers from a cache device what it can and from its origin what it must.
///
/// Poll [`Cache::run`] as long as the cache is in use: insertions, cleaning and detached requests make progress there.
pub struct Cache {
    core: Arc<Core>,
}

impl Cache {
    /// Makes `cache_device` an empty cache for `origin`. What was on it is gone: the caller asks first.
    ///
    /// # Errors
    /// `InvalidRange` when it is too small, and for options that make no sense; `Unsupported` for block sizes or names
    /// that cannot be recorded; the device's own.
    pub async fn format(
        cache_device: &SharedDevice,
        origin: &SharedDevice,
        options: FormatOptions,
    ) -> Result<(), Error> {
        format_cache::format(cache_device, origin, options).await
    }

    /// Opens a cache made by [`Cache::format`], recovering it when it was not closed. One program at a time: the caller
    /// keeps others off the device.
    ///
    /// # Errors
    /// `Corrupt` when the device is no cache, is damaged or was cut, or belongs to another origin (the message names
    /// both); [`ConflictingChanges`](crate::ConflictingChanges), as the source of `Unsupported`, when others changed
    /// what is dirty; the devices' own.
    pub async fn open(
        cache_device: SharedDevice,
        origin: SharedDevice,
        options: OpenOptions,
    ) -> Result<Arc<Self>, Error> {
        let core = open::open(cache_device, origin, options, OriginFlushes::new()).await?;
        Ok(Arc::new(Self { core }))
    }

    /// Opens another cache of the same origin, just formatted, that is to take the place of this
    /// one ([`Cache::copy_to`]). When a flush of either loses data of the origin, clients of this
    /// one get the error.
    ///
    /// # Errors
    /// Those of [`Cache::open`].
    pub async fn open_successor(
        &self,
        cache_device: SharedDevice,
        origin: SharedDevice,
        options: OpenOptions,
    ) -> Result<Arc<Self>, Error> {
        let core = open::open(cache_device, origin, options, Arc::clone(&self.core.origin.flushes)).await?;
        Ok(Arc::new(Self { core }))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// All background work. Ends when the cache is closed.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        let core = Arc::clone(&self.core);
        async move {
            let (workers, journal) = (core.workers.clone(), Arc::clone(&core.journal));
            join5(
                join(workers.run(), Arc::clone(&journal).place_in_background()),
                Arc::clone(&core).clean_in_background(),
                async move { journal.checkpoint_in_background().await },
                Arc::clone(&core).store_lazily(),
                core.follow_origin(),
            )
            .await;
        }
    }

    /// Counts and states now.
    pub fn status(&self) -> Status {
        self.core.status()
    }

    /// When writes are acknowledged.
    pub fn mode(&self) -> Mode {
        self.core.lines.mode()
    }

    /// Stops background cleaning until [`begin_cleaning`](Self::begin_cleaning): for a caller that
    /// has yet to find out what other hosts wrote.
    pub fn hold_cleaning(&self) {
        self.core.cleaner.hold();
    }

    /// Allows background cleaning again.
    pub fn begin_cleaning(&self) {
        self.core.cleaner.begin();
    }

    /// Changes when writes are acknowledged, while requests go on. To anything but write-back: returns when nothing is
    /// dirty any more.
    ///
    /// # Errors
    /// The devices' own. The mode is then changed or not as [`Cache::mode`] says; what is dirty stays so.
    pub async fn set_mode(&self, mode: Mode) -> Result<(), Error> {
        self.core.set_mode(mode).await
    }

    /// What is worth a frame.
    pub fn tuning(&self) -> Tuning {
        self.core.lines.state().admissions.tuning()
    }

    /// Changes what is worth a frame, while requests go on.
    pub fn set_tuning(&self, tuning: Tuning) {
        self.core.lines.state().admissions.set(tuning, seen_slots(self.core.layout.frame_count()));
    }

    /// How much may be dirty.
    pub fn dirty_limits(&self) -> DirtyLimits {
        self.core.lines.state().dirty
    }

    /// Changes how much may be dirty, while requests go on.
    pub fn set_dirty_limits(&self, limits: DirtyLimits) {
        self.core.lines.state().dirty = limits;
        self.core.lines.wake_all();
    }

    /// Bytes of the largest write that is deferred: its data goes into the log, and later to its
    /// frames. 0 for none.
    pub fn deferred_max(&self) -> u64 {
        self.core.lines.state().deferred.write_bytes_max()
    }

    /// Changes the bytes of the largest write that is deferred, while requests go on.
    pub fn set_deferred_max(&self, bytes: u64) {
        self.core.lines.state().deferred.set_write_bytes_max(bytes);
    }

    /// How fast lines are cleaned.
    pub fn cleaning_rate(&self) -> CleaningRate {
        self.core.cleaner.pace().rate
    }

    /// Changes how fast lines are cleaned, from the next round on.
    pub fn set_cleaning_rate(&self, rate: CleaningRate) {
        self.core.cleaner.pace().rate = rate;
    }

    /// Changes how victims are chosen, while requests go on.
    pub fn set_replacement(&self, replacement: Replacement) {
        self.core.lines.state().frames.set_replacement(replacement);
    }

    /// Writes everything to the origin that is dirty now, and makes it durable there. `progress` is
    /// called after each batch.
    ///
    /// # Errors
    /// The devices' own. What could not be cleaned stays dirty, and nothing is lost.
    pub async fn clean(&self, progress: impl FnMut(CleanProgress)) -> Result<(), Error> {
        self.core.clean_all(progress).await
    }

    /// Drops what is clean of these bytes of the origin, which other hosts changed. It is gone
    /// durably when this returns, as after an open with this [`Freshness`](crate::Freshness). Dirty
    /// data there is refused, unless it `is_overwritten`: the cache cannot tell whether it was
    /// written before the change or since.
    ///
    /// # Errors
    /// [`ConflictingChanges`](crate::ConflictingChanges), as the source of `Unsupported`: nothing has changed then.
    /// `Gone` when it is closed; the cache device's.
    pub async fn invalidate(&self, changed: &[ByteRange], is_overwritten: bool) -> Result<(), Error> {
        self.core.invalidate(changed, is_overwritten).await
    }

    /// Refuses what others changed where something is dirty, as an open would. Nothing is dropped.
    ///
    /// # Errors
    /// [`ConflictingChanges`](crate::ConflictingChanges), as the source of `Unsupported`.
    pub fn check_changes(&self, changed: &[ByteRange]) -> Result<(), Error> {
        self.core.check_changes(changed)
    }

    /// The clean content as at most `count_max` ranges of the origin (at least one), ascending and
    /// disjoint. A range may cover more than what is clean.
    pub fn clean_ranges(&self, count_max: usize) -> Vec<ByteRange> {
        self.core.clean_ranges(count_max)
    }

    /// The dirty content as ranges of the origin, ascending and disjoint.
    pub fn dirty_ranges(&self) -> Vec<ByteRange> {
        self.core.all_dirty_ranges()
    }

    /// Copies what is clean to another cache of the same origin that is to take the place of this
    /// one, while requests go on. `successor` was opened by [`Cache::open_successor`], runs, and
    /// has no other user. From the call on this cache makes it forget what clients write here.
    ///
    /// # Errors
    /// The successor's; `Unsupported` when it was not opened so. This cache goes on.
    pub async fn copy_to(&self, successor: &Self, progress: impl FnMut(CopyProgress)) -> Result<(), Error> {
        self.core.copy_to(&successor.core, progress).await
    }

    /// Holds requests back and hands what is dirty, and all settings, to a successor that
    /// [`Cache::copy_to`] has filled. The caller then makes the successor the cache that the next
    /// start finds, sends requests there, and finishes the hand-over.
    ///
    /// # Errors
    /// Either device's. This cache goes on, and has lost nothing.
    pub async fn hand_over(&self, successor: &Self) -> Result<HandOver, Error> {
        self.core.hand_over(&successor.core).await
    }

    /// Ends a successor that does not take the place of the other cache: its device is worth
    /// nothing. Returns when no write of it is under way to the origin. Needed only where the
    /// caller dropped [`Cache::hand_over`] before its end; after one that failed nothing is under
    /// way.
    pub async fn leave(&self) {
        self.core.leave().await;
    }

    /// Waits for all requests, cleans unless told to keep what is dirty (durably, here), and closes: the next open
    /// finds all lines warm. Requests from now on fail with `Gone`. Whoever closes it a second time waits for the same
    /// end and gets the same result; what was kept dirty then, [`Cache::status`] says.
    ///
    /// # Errors
    /// When cleaning failed the cache goes on as before; close again with `keep_dirty`. When the cache device failed it
    /// is closed as after a crash, and recovers at the next open. When a flush of the cache's own failed, and no flush
    /// of a client has returned that since, it is closed in order: the origin may lack what it acknowledged.
    pub async fn close(&self, keep_dirty: bool) -> Result<(), Error> {
        self.core.close(keep_dirty).await
    }

    /// After a close in order: what it returned all the same, since no flush of a client had returned it.
    pub fn untold_loss(&self) -> Option<Error> {
        self.core.origin.flushes.failures.left_to_closer()
    }
}

impl Device for Cache {
    fn geometry(&self) -> Geometry {
        self.core.geometry()
    }

    fn identity(&self) -> Identity {
        self.core.origin.device().identity()
    }

    fn submit(&self, request: Request) -> Completion {
        self.core.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.core.events.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.core.origin.device().copies()
    }
}
