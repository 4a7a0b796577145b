//! The end of a stack, and what happens to dirty data.

use std::cell::RefCell;

use block::device::DeviceExt;
use initiator::State;

use super::Stack;
use super::cache_parts::CacheParts;
use crate::control::Progress;
use crate::ending_time::telling;
use crate::error::{Error, Failure, Result};
use crate::flag::wait_until;
use crate::freshness::release_marks;
use crate::registry::Store;
use crate::remote::in_a_word;
use crate::status::{Left, Report};

/// What happens to dirty data, and to the cache, when an attachment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Dirty data is written back.
    Clean,
    /// Dirty data stays in the cache, durably.
    KeepDirty,
    /// Dirty data is written back, and then the cache is removed.
    RemoveCache,
}

/// The dirty data that is left after the end.
struct Closed {
    dirty_bytes: u64,
    /// The target that was waited for.
    waited_for: Option<String>,
}

impl Stack {
    /// Ends, and keeps dirty data. A detach that is under way, perhaps waiting for a target that is
    /// away, is cut short. If the file of dirty data was removed, it cannot be kept: then all of it
    /// is written back first, however long that takes.
    pub(crate) async fn end_at_once(&self) -> Result<()> {
        let gone = self.gone(|_| true);
        let ending = if gone.is_empty() { Ending::KeepDirty } else { Ending::Clean };
        if ending == Ending::KeepDirty {
            self.ending_time.cut_short();
        }
        if self.ending_time.has_begun() {
            return Ok(());
        }
        for place in &gone {
            tracing::warn!("{place} was removed while it is in use: what is dirty is written back before the end");
        }
        self.detach(ending, None).await?;
        if self.dirty_bytes() > 0 {
            tracing::warn!("\"{}\" was told to end at once: {}", self.name, self.what_stays_dirty());
        }
        Ok(())
    }

    /// Refuses an end that loses the last copy of dirty data, while that can still be written back.
    pub(crate) fn check_last_copy(&self, ending: Ending) -> Result<()> {
        let Some(place) = self.gone_with_dirty().pop_first() else { return Ok(()) };
        let name = &self.name;
        let advice = match (ending, self.waits_for()) {
            (Ending::Clean | Ending::RemoveCache, None) => return Ok(()),
            (Ending::KeepDirty, None) if self.ending_time.has_begun() => {
                "it is being detached, which writes that back".to_owned()
            }
            (Ending::KeepDirty, None) => {
                format!("it stays attached, and `forebay detach {name}` without --keep-dirty writes that back")
            }
            (_, Some(target)) if self.ending_time.has_begun() => {
                format!("it is being detached, which writes that back once {target} is there again")
            }
            (_, Some(target)) => {
                format!("it stays attached, and `forebay detach {name}` writes that back once {target} is there again")
            }
        };
        let message = format!(
            "{place} was removed while \"{name}\" uses it, and holds {} bytes that the logical unit does not have: \
             {advice}",
            self.dirty_bytes()
        );
        Err(Error::new(Failure::WouldLoseData, message))
    }

    /// Refuses an end that loses the only copy of a difference while that can still be read.
    ///
    /// # Errors
    /// `WouldLoseData`, with advice.
    pub(crate) async fn check_difference_stays(&self) -> Result<()> {
        let Some(file) = &self.difference_file else { return Ok(()) };
        file.look().await;
        let refused = file.last_copy(self.difference_bytes());
        refused.map_or(Ok(()), |message| Err(Error::new(Failure::WouldLoseData, message)))
    }

    /// The error when the difference is not whole at its place.
    fn check_difference_kept(&self) -> Result<()> {
        let lost = self.difference_file.as_ref().and_then(|file| file.end(self.difference_bytes()));
        let message = |words| format!("\"{}\" is detached, but {words}", self.name);
        lost.map_or(Ok(()), |words| Err(Error::new(Failure::Mismatch, message(words))))
    }

    fn difference_bytes(&self) -> u64 {
        self.difference.as_ref().map_or(0, |difference| difference.status().used_bytes)
    }

    /// Refuses an end that would write back what must not be written over changes by others.
    ///
    /// # Errors
    /// `WouldLoseData`, with advice.
    pub(crate) fn check_overwrites_nothing(&self, ending: Ending) -> Result<()> {
        match ending {
            Ending::KeepDirty => Ok(()),
            Ending::Clean | Ending::RemoveCache if self.dirty_bytes() == 0 => Ok(()),
            Ending::Clean | Ending::RemoveCache => self.guard.check(),
        }
    }

    pub(crate) async fn detach(&self, ending: Ending, progress: Option<Progress>) -> Result<Left> {
        let keep_dirty = ending == Ending::KeepDirty;
        if self.ending_time.begin() {
            return match ending {
                Ending::KeepDirty => self.cut_detach_short().await,
                Ending::Clean => self.join_detach(progress).await,
                Ending::RemoveCache => {
                    let message = format!(
                        "\"{}\" is being detached already, and its cache stays: `forebay cache discard` removes it \
                         afterwards",
                        self.name
                    );
                    Err(Error::new(Failure::InUse, message))
                }
            };
        }
        if keep_dirty {
            self.ending_time.cut_short();
        }
        let closing = self.close(ending, progress.clone());
        let reporting = telling(closing, progress.as_ref(), || self.waiting());
        let closed = self.ending_time.watching_target(reporting, Some(&self.remotes), || self.dirty_bytes()).await;
        self.ended.send_replace(true);
        if let Err(error) = &closed {
            // If another caller ended it at once, which is checked below, that is no failure of the
            // process.
            let _ = self.failed_end.set(error.clone());
        }
        closed.and_then(|closed| self.check_clean(ending, closed))
    }

    /// What is waited for, if anything is.
    fn waiting(&self) -> Option<Report> {
        let (waits_for, dirty_bytes) = (self.waits_for()?, self.dirty_bytes());
        let is_file_gone = !self.gone_with_dirty().is_empty();
        Some(Report::Waits { waits_for, dirty_bytes, is_file_gone, pid: None })
    }

    /// Handles another detach during a detach, whose caller may be gone: it shows how far that has
    /// come, and has its result.
    async fn join_detach(&self, progress: Option<Progress>) -> Result<Left> {
        let (bytes_total, waited_for) = (self.dirty_bytes(), RefCell::new(self.waits_for()));
        let look = || {
            waited_for.replace(self.waits_for());
            let bytes_done = bytes_total.saturating_sub(self.dirty_bytes());
            self.waiting().or(Some(Report::Destaged { bytes_done, bytes_total }))
        };
        telling(wait_until(&self.ended), progress.as_ref(), look).await;
        self.check_end()?;
        let closed = Closed { dirty_bytes: self.dirty_bytes(), waited_for: waited_for.into_inner() };
        self.check_clean(Ending::Clean, closed)
    }

    /// Handles a detach that keeps dirty data during another one, whose caller did not want that.
    async fn cut_detach_short(&self) -> Result<Left> {
        self.ending_time.cut_short();
        wait_until(&self.ended).await;
        Ok(self.left())
    }

    /// Detaches, and removes the file of a cache that holds no data which the LUN lacks.
    pub(crate) async fn detach_and_remove(&self, progress: Progress) -> Result<Left> {
        let is_file_of_its_own = |parts: &&CacheParts| parts.place.offset.is_none() && parts.place.path.is_file();
        let Some(parts) = self.cache_parts.as_ref().filter(is_file_of_its_own) else {
            let message = format!(
                "\"{}\" has no cache in a file that could be removed: detach it, and use `forebay cache discard`",
                self.name
            );
            return Err(Error::new(Failure::Usage, message));
        };
        self.check_last_copy(Ending::RemoveCache)?;
        self.check_overwrites_nothing(Ending::RemoveCache)?;
        let answer = self.detach(Ending::RemoveCache, Some(progress)).await?;
        if self.dirty_bytes() == 0 {
            let context = |error| Error::io(format!("cannot remove {}", parts.place), &error);
            std::fs::remove_file(&parts.place.path).map_err(context)?;
        }
        Ok(answer)
    }

    /// Removes the mark of a cache that is clean and about to be removed, while its target is still
    /// connected.
    async fn forget_cache(&self) -> Result<()> {
        let Some(parts) = &self.cache_parts else { return Ok(()) };
        self.caches.forget(&parts.place)?;
        release_marks(&self.remotes, &self.caches).await;
        Ok(())
    }

    async fn close(&self, ending: Ending, progress: Option<Progress>) -> Result<Closed> {
        let keep_dirty = ending == Ending::KeepDirty;
        wait_until(&self.unused).await;
        if let Some(file) = &self.difference_file {
            file.look().await;
        }
        let flushed = match &self.difference {
            Some(difference) => difference.flush().await,
            None => Ok(()),
        };
        // A replacement of the cache that is under way ends first.
        let _changing = match &self.cache_parts {
            Some(parts) => Some(parts.changing.lock().await),
            None => None,
        };
        let renewal = self.renewal.take();
        if let Some(renewal) = &renewal {
            self.ending_time.within(renewal.empty_shared()).await;
        }
        let log_cleaned = self.close_log(keep_dirty, progress.as_ref()).await?;
        let cache_cleaned = self.close_cache(keep_dirty, progress.as_ref()).await?;
        let (dirty_bytes, waited_for) = (self.dirty_bytes(), self.waits_for());
        if let Some(renewal) = renewal {
            // A store that could not be closed in time may still be written.
            let are_closed = !self.ending_time.is_target_left();
            if are_closed && cache_cleaned.is_ok() {
                renewal.note_telling();
            }
            if self.ending_time.within(renewal.finish(are_closed)).await.is_none() {
                tracing::warn!("a change mark did not get its last token in time: the next attach begins cold");
            }
        }
        if ending == Ending::RemoveCache && dirty_bytes == 0 && cache_cleaned.is_ok() {
            self.ending_time.within(self.forget_cache()).await.unwrap_or(Ok(()))?;
        }
        let kept = self
            .ending_time
            .within(self.remotes.close())
            .await
            .unwrap_or_else(|| self.remotes.check_nothing_in_doubt());
        self.check_difference_kept()?;
        flushed?;
        log_cleaned.and(cache_cleaned).map_err(|error| {
            let words = Error::from(error.clone());
            if let Some(why) = self.guard.trouble().filter(|_| self.dirty_bytes() > 0) {
                return self.ends_dirty(Failure::WouldLoseData, &why);
            }
            let session = self.remotes.session();
            if session.state == in_a_word(State::Fenced) && self.dirty_bytes() > 0 {
                // The new holder of the ranges may have written there.
                let why = session.last_error.unwrap_or_else(|| words.to_string());
                return self.ends_dirty(Failure::WouldLoseData, &why);
            }
            // The session's own message would say that it goes on reconnecting, which ends here.
            let why = match words.failure() {
                Failure::Unreachable => self.remotes.session().last_error.unwrap_or_else(|| words.to_string()),
                _ => words.to_string(),
            };
            self.ends_dirty(words.failure(), &why)
        })?;
        self.check_kept(kept)?;
        self.check_losses_known()?;
        Ok(Closed { dirty_bytes, waited_for })
    }

    /// The result for the caller that asked for this end. Nothing is left dirty that it should have
    /// cleaned, unless another caller ended it at once.
    fn check_clean(&self, ending: Ending, closed: Closed) -> Result<Left> {
        let Closed { dirty_bytes, waited_for } = closed;
        if ending != Ending::KeepDirty && dirty_bytes > 0 && self.ending_time.is_cut_short() {
            return Err(match waited_for {
                Some(target) => {
                    self.ends_dirty(Failure::Unreachable, &format!("it waited for {target}, and was ended at once"))
                }
                None => self.ends_dirty(Failure::InUse, "somebody else ended it at once"),
            });
        }
        Ok(self.ending_time.left(dirty_bytes))
    }

    /// The error when dirty data is left that should have been cleaned, or a store was not closed
    /// in order.
    fn ends_dirty(&self, failure: Failure, why: &str) -> Error {
        // A part of a file that was cut is damage, whatever error the file system returns.
        let failure = if self.cut_with_dirty().is_empty() { failure } else { Failure::Mismatch };
        Error::new(failure, format!("\"{}\" is detached, but {} ({why})", self.name, self.what_stays_dirty()))
    }

    /// Checks the state in which the LUN was left; a log, and a cache in write-back, hold all data
    /// about which that is uncertain.
    fn check_kept(&self, kept: std::result::Result<(), block::Error>) -> Result<()> {
        let is_held_here = self.log.is_some() || self.cache().is_some_and(|cache| cache.mode().delays_writes());
        match kept {
            Err(error) if is_held_here => {
                tracing::warn!(%error, "the LUN was left without a flush; what it may have lost is kept here");
                Ok(())
            }
            Err(error) => {
                let words = Error::from(error);
                let message = format!(
                    "\"{}\" is detached, but what was written to it since its last flush may not be durable ({words})",
                    self.name
                );
                Err(Error::new(words.failure(), message))
            }
            Ok(()) => Ok(()),
        }
    }

    /// A loss that no application is known to have been told of: the one that was to be told had gone, or may have,
    /// or none flushed.
    fn check_losses_known(&self) -> Result<()> {
        self.losses().check_known().map_err(|error| {
            let words = Error::from(error);
            let message = format!(
                "\"{}\" is detached, but what applications wrote to it before its last flush may be lost, and it is \
                 not known that any of them was told ({words})",
                self.name
            );
            Error::new(words.failure(), message)
        })
    }

    /// The inner result is that of cleaning, and of closing the log.
    async fn close_log(
        &self,
        keep_dirty: bool,
        progress: Option<&Progress>,
    ) -> Result<std::result::Result<(), block::Error>> {
        let Some(log) = &self.log else { return Ok(Ok(())) };
        let (mut is_clean, mut cleaned) = (false, Ok(()));
        if !keep_dirty {
            tokio::select! {
                result = log.destage(|done| report_destage(progress, done)) => {
                    is_clean = result.is_ok();
                    cleaned = result;
                }
                () = self.ending_time.until_cut_short() => {}
            }
        }
        match self.ending_time.within(log.close(!is_clean)).await {
            // The registry keeps its entries, as for a log in use.
            Some(Err(error)) => return Ok(cleaned.and(Err(error))),
            Some(Ok(())) => self.update_registry(Store::Log, false)?,
            None => self.tell_of_open_store("log"),
        }
        Ok(cleaned)
    }

    /// As [`Self::close_log`].
    async fn close_cache(
        &self,
        keep_dirty: bool,
        progress: Option<&Progress>,
    ) -> Result<std::result::Result<(), block::Error>> {
        let Some(cache) = self.cache() else { return Ok(Ok(())) };
        let (mut is_clean, mut cleaned) = (false, Ok(()));
        if !keep_dirty {
            tokio::select! {
                result = cache.clean(|clean_progress| report(progress, clean_progress)) => {
                    is_clean = result.is_ok();
                    cleaned = result;
                }
                () = self.ending_time.until_cut_short() => {}
            }
        }
        let closing = async {
            match cache.close(!is_clean).await {
                // The flush before the end has failed, and what it lost is known: the next one may not.
                Err(error) if error.kind().may_have_lost() && cache.untold_loss().is_none() => {
                    cache.close(!is_clean).await
                }
                closed => closed,
            }
        };
        match (self.ending_time.within(closing).await, cache.untold_loss()) {
            // It is closed in order, and the loss is the logical unit's.
            (Some(Err(_)), Some(loss)) if loss.kind().may_have_lost() => {
                self.losses().note(loss);
                self.update_registry(Store::Cache, false)?;
            }
            // The registry keeps its entries, as for a cache in use.
            (Some(Err(error)), _) => return Ok(cleaned.and(Err(error))),
            (Some(Ok(())), _) => self.update_registry(Store::Cache, false)?,
            (None, _) => self.tell_of_open_store("cache"),
        }
        Ok(cleaned)
    }

    /// A store that was not closed in time, as after a crash: what it has sent to the LUN may still
    /// be dirty on its device, and would be sent again over newer data if the LUN were used without
    /// it meanwhile. So the registry keeps its entries.
    fn tell_of_open_store(&self, store: &str) {
        let name = &self.name;
        tracing::warn!("the {store} of \"{name}\" could not be closed in time: attach \"{name}\" again with it");
    }

    /// Cleans on request. The caller's cleaning does not delay an end at once, which a target that
    /// takes no writes would delay for ever. It returns as well at the end of a detach, when all is
    /// clean or stays dirty.
    pub(crate) async fn clean(&self, progress: Progress) -> Result<Left> {
        self.check_stays()?;
        self.check_overwrites_nothing(Ending::Clean)?;
        tokio::select! {
            cleaned = self.clean_stores(progress) => cleaned?,
            () = self.ending_time.until_cut_short() => return Err(self.is_being_detached()),
            () = wait_until(&self.ended) => return Err(self.is_being_detached()),
        }
        Ok(self.left())
    }

    /// The dirty data now.
    fn left(&self) -> Left {
        self.left_with(self.dirty_bytes())
    }

    fn left_with(&self, dirty_bytes: u64) -> Left {
        Left { name: Some(self.name.clone()), dirty_bytes: Some(dirty_bytes), ..Left::default() }
    }

    async fn clean_stores(&self, progress: Progress) -> Result<()> {
        if let Some(log) = &self.log {
            log.destage(|done| report_destage(Some(&progress), done)).await?;
        }
        if let Some(cache) = self.cache() {
            cache.clean(|clean_progress| report(Some(&progress), clean_progress)).await?;
        }
        Ok(())
    }

    /// Refuses requests that need an attachment which goes on.
    pub(super) fn check_stays(&self) -> Result<()> {
        match self.ending_time.has_begun() {
            true => Err(self.is_being_detached()),
            false => Ok(()),
        }
    }

    pub(super) fn is_being_detached(&self) -> Error {
        let name = &self.name;
        // Dirty data cannot stay in a file that was removed.
        let may_stay = !*self.ended.borrow() && self.gone_with_dirty().is_empty();
        let advice = match self.dirty_bytes() {
            bytes @ 1.. if may_stay => {
                format!(
                    "; `forebay detach {name}` waits for the end of that, and with --keep-dirty it ends at once and \
                     leaves {bytes} bytes dirty"
                )
            }
            _ => String::new(),
        };
        Error::new(Failure::InUse, format!("\"{name}\" is being detached{advice}"))
    }
}

fn report(progress: Option<&Progress>, clean_progress: cache::CleanProgress) {
    if let Some(progress) = progress {
        // Sending fails when the caller has disconnected; the work goes on.
        let cache::CleanProgress { lines_done, lines_total } = clean_progress;
        let _ = progress.send(Report::Cleaned { lines_done, lines_total });
    }
}

fn report_destage(progress: Option<&Progress>, done: writelog::DestageProgress) {
    if let Some(progress) = progress {
        let writelog::DestageProgress { bytes_done, bytes_total } = done;
        let _ = progress.send(Report::Destaged { bytes_done, bytes_total });
    }
}
