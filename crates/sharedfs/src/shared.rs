//! The running transaction, and the cache beside it.
//!
//! The place of a block, newest first:
//!
//! | | holds |
//! |---|---|
//! | an operation | its own changes |
//! | running | changes of ended operations since the last commit began |
//! | committing | the changes that the commit under way makes durable |
//! | committed | changes that are durable and not in their places yet |
//! | cache, device | everything else |

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::range_lock::RangeLock;
use block::{ByteRange, SharedDevice};
use ext2::{Access, Block, BlockNumber, Error, ErrorKind, InodeNumber, mount_state, transfer};

use crate::cache::Cache;
use crate::commit::{Changes, Commit};
use crate::hosts::{Hold, HostLock};
use crate::limits::CACHE_BLOCKS_MIN;
use crate::pins::Pins;

/// Commits take turns.
const WHOLE: ByteRange = ByteRange { offset: 0, length: 1 };

/// The state that all operations of a mount share.
pub(crate) struct Shared<C, P> {
    device: SharedDevice,
    pub(crate) block_bytes: usize,
    pub(crate) block_count: u64,
    pub(crate) commit: C,
    pub(crate) pins: P,
    /// `None` where one host has the file system for itself.
    hosts: Option<Arc<HostLock>>,
    commit_turns: RangeLock,
    is_closed: AtomicBool,
    /// Short sections, never across an await.
    state: Mutex<State>,
}

struct State {
    running: Changes,
    committing: Option<Arc<Changes>>,
    cache: Cache,
    /// How often cached blocks were dropped for other hosts: what was read before such a drop and
    /// comes after it is not cached.
    drops: u64,
    /// Count of ended operations that changed something; `committed` counts the durable ones.
    ended: u64,
    committed: u64,
    /// Users of each inode that is open.
    open: BTreeMap<InodeNumber, u64>,
    commits: u64,
    hits: u64,
    misses: u64,
}

/// While it is the same, a block that was not in memory is in its place as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    drops: u64,
    ended: u64,
}

impl State {
    fn moment(&self) -> Moment {
        Moment { drops: self.drops, ended: self.ended }
    }
}

/// Counters of a mount, and sizes in memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transactions that became durable.
    pub commits: u64,
    /// Blocks that are changed and not durable yet.
    pub changed_blocks: usize,
    /// Blocks in the cache.
    pub cached_blocks: usize,
    /// Reads of blocks that were in memory.
    pub hits: u64,
    /// Reads of blocks that came from the device.
    pub misses: u64,
}

impl<C: Commit, P: Pins> Shared<C, P> {
    /// State over a device; at most `cache_bytes` of blocks stay in memory, besides changed ones.
    pub(crate) fn new(
        device: SharedDevice,
        block_bytes: usize,
        commit: C,
        pins: P,
        cache_bytes: u64,
        hosts: Option<Arc<HostLock>>,
    ) -> Self {
        let block_count = device.geometry().size_bytes / block_bytes as u64;
        let quota = usize::try_from(cache_bytes / block_bytes as u64).unwrap_or(usize::MAX).max(CACHE_BLOCKS_MIN);
        let state = State {
            running: Changes::new(),
            committing: None,
            cache: Cache::new(quota),
            drops: 0,
            ended: 0,
            committed: 0,
            open: BTreeMap::new(),
            commits: 0,
            hits: 0,
            misses: 0,
        };
        let (commit_turns, is_closed, state) = (RangeLock::new(), AtomicBool::new(false), Mutex::new(state));
        Self { device, block_bytes, block_count, commit, pins, hosts, commit_turns, is_closed, state }
    }

    /// The counters now.
    pub(crate) fn counters(&self) -> Counters {
        let state = self.lock();
        Counters {
            commits: state.commits,
            changed_blocks: state.running.len() + state.committing.as_ref().map_or(0, |changes| changes.len()),
            cached_blocks: state.cache.len(),
            hits: state.hits,
            misses: state.misses,
        }
    }

    /// The lock of hosts; `None` where one host has the file system for itself.
    pub(crate) fn lock_of_hosts(&self) -> Option<&Arc<HostLock>> {
        self.hosts.as_ref()
    }

    /// Keeps other hosts from changing anything, or also from reading. What is in memory is what they
    /// left.
    pub(crate) async fn hold(&self, access: Access) -> Result<Hold, Error> {
        let Some(lock) = &self.hosts else { return Ok(Hold::of_single_host()) };
        let hold = lock.hold(access).await?;
        if self.renew(lock, &hold, access).await? {
            self.compare().await?;
            return Ok(hold);
        }
        // A host died with the lock: whoever comes next has to write what is not in its place.
        drop(hold);
        let hold = lock.hold(Access::Change).await?;
        self.renew(lock, &hold, Access::Change).await?;
        self.compare().await?;
        Ok(hold)
    }

    /// Goes on only if what is there is what this host left: the device's other end may have begun
    /// anew, with something else.
    ///
    /// # Errors
    /// `Device`, for good, where it is something else.
    pub(crate) async fn compare(&self) -> Result<(), Error> {
        let Some(lock) = &self.hosts else { return Ok(()) };
        lock.check()?;
        if lock.is_compared(lock.claims().await?) {
            return Ok(());
        }
        let _turn = lock.comparisons.exclusive(WHOLE).await;
        let claims = lock.claims().await?;
        if lock.is_compared(claims) {
            return Ok(());
        }
        let is_as_left = match self.commit.is_as_left().await {
            Err(error) if !matches!(error.kind(), ErrorKind::Device(_)) => false,
            found => found?,
        };
        if !is_as_left {
            return Err(lock.lose(replaced()));
        }
        lock.set_compared(claims);
        Ok(())
    }

    /// After this host, which had read, has taken over: where the lock was claimed back meanwhile, what it took over
    /// may be something else than what it had read.
    ///
    /// # Errors
    /// As [`compare`](Self::compare).
    async fn compare_taken(&self, lock: &HostLock) -> Result<(), Error> {
        if lock.is_compared(lock.claims().await?) || self.commit.has_taken_what_was_left().await? {
            return Ok(());
        }
        Err(lock.lose(replaced()))
    }

    /// Begins anew under a lock that other hosts may have had meanwhile. Returns `false` when the lock
    /// is held to read, and something is to be written first.
    async fn renew(&self, lock: &HostLock, hold: &Hold, access: Access) -> Result<bool, Error> {
        let Some(tenure) = hold.tenure().filter(|tenure| !lock.is_ready(*tenure, access)) else { return Ok(true) };
        let _turn = lock.renewals.exclusive(WHOLE).await;
        if lock.is_ready(tenure, access) {
            return Ok(true);
        }
        let claims = lock.claims().await?;
        let is_other_tenure = lock.renewed() != tenure;
        if is_other_tenure {
            if self.has_uncommitted() {
                // The last lock was lost between the end of an operation and its commit.
                let words = "what was done here when this host lost its lock conflicts with what others may have done";
                return Err(lock.lose(Error::new(ErrorKind::Device(block::ErrorKind::Gone), words)));
            }
            self.forget_clean(ByteRange { offset: 0, length: u64::MAX });
        }
        let lose = |error: Error| match error.kind() {
            ErrorKind::NotClean => lock.lose(error),
            _ => error,
        };
        if !lock.may_change() {
            let is_in_place = self.commit.look_over().await.map_err(lose)?;
            if is_in_place {
                lock.set_compared(claims);
                lock.set_renewed(tenure);
            }
            return Ok(is_in_place);
        }
        if is_other_tenure {
            // Nothing of before is in memory.
            lock.set_compared(claims);
        }
        self.compare().await?;
        self.repeated(tenure, || self.commit.take_over()).await.map_err(lose)?;
        if !is_other_tenure {
            self.compare_taken(lock).await?;
        }
        self.forget_superblock();
        lock.set_taken(tenure);
        Ok(true)
    }

    /// Forgets the superblock, if it is cached: who takes over may have marked it as in use.
    fn forget_superblock(&self) {
        let (number, length) = (mount_state::block(self.block_bytes), self.block_bytes as u64);
        self.forget_clean(ByteRange { offset: u64::from(number.0) * length, length });
    }

    /// The tenure under which changes become durable.
    fn tenure(&self) -> u64 {
        self.hosts.as_ref().map_or(0, |lock| lock.taken())
    }

    /// Brings all changes to their places, durably, for whoever has the lock next.
    pub(crate) async fn bring_out(&self) -> Result<(), Error> {
        let _turn = self.commit_turns.exclusive(WHOLE).await;
        let ended = self.lock().ended;
        self.commit_ended(ended).await?;
        self.repeated(self.tenure(), || async move {
            self.compare().await?;
            self.commit.hand_over().await
        })
        .await?;
        self.note_progress();
        Ok(())
    }

    /// Brings what is committed to its place, durably.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        self.repeated(self.tenure(), || async move {
            self.compare().await?;
            self.commit.settle().await
        })
        .await
    }

    /// Does what changes the device. What is lost with a session is not done again by the device
    /// itself where hosts share it.
    ///
    /// # Errors
    /// Those of the device, and what [`HostLock::lose`] has set: then nothing is begun.
    async fn repeated<F: Future<Output = Result<(), Error>>>(
        &self,
        tenure: u64,
        attempt: impl Fn() -> F,
    ) -> Result<(), Error> {
        loop {
            self.hosts.as_ref().map_or(Ok(()), |lock| lock.check())?;
            let Err(error) = attempt().await else { return Ok(()) };
            match &self.hosts {
                Some(lock) if lock.may_repeat(tenure, &error).await => {}
                Some(lock) => return Err(lock.cause_of(error).await),
                None => return Err(error),
            }
        }
    }

    /// Forgets cached blocks of these bytes, and what is being read.
    pub(crate) fn forget_clean(&self, range: ByteRange) {
        let mut state = self.lock();
        state.drops += 1;
        let block_bytes = self.block_bytes as u64;
        let (first, end) = (range.offset / block_bytes, range.end().div_ceil(block_bytes).min(self.block_count));
        match end.saturating_sub(first) >= state.cache.len() as u64 {
            true => state.cache.clear(),
            false => (first..end).for_each(|number| state.cache.remove(BlockNumber(number as u32))),
        }
    }

    /// Whether anything is changed and not durable.
    pub(crate) fn has_uncommitted(&self) -> bool {
        let state = self.lock();
        !state.running.is_empty() || state.committing.is_some()
    }

    fn note_progress(&self) {
        if let Some(lock) = &self.hosts {
            lock.note_progress();
        }
    }

    /// Refuses operations from now on.
    pub(crate) fn refuse_operations(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// `Device` once operations are refused.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.is_closed.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Device(block::ErrorKind::Gone), "the file system is unmounted")),
            false => Ok(()),
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.commit.is_read_only() || self.device.geometry().is_read_only
    }

    /// Adds a user of an inode. Returns whether it is the first.
    pub(crate) fn open(&self, inode: InodeNumber) -> bool {
        let mut state = self.lock();
        let users = state.open.entry(inode).or_insert(0);
        *users += 1;
        *users == 1
    }

    /// Removes a user of an inode. Returns whether it was the last.
    pub(crate) fn close(&self, inode: InodeNumber) -> Result<bool, Error> {
        let mut state = self.lock();
        let Some(users) = state.open.get_mut(&inode) else {
            return Err(Error::new(ErrorKind::Invalid, format!("{inode} is closed, and was not open")));
        };
        *users -= 1;
        let is_last = *users == 0;
        if is_last {
            state.open.remove(&inode);
        }
        Ok(is_last)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// `Corrupt` when the device has no such block.
    pub(crate) fn check(&self, block: BlockNumber) -> Result<(), Error> {
        if u64::from(block.0) < self.block_count {
            return Ok(());
        }
        let context = format!("{block} is beyond the end of the device, which has {}", self.block_count);
        Err(Error::new(ErrorKind::Corrupt, context))
    }

    /// Whether this inode is open.
    pub(crate) fn is_open(&self, inode: InodeNumber) -> bool {
        self.lock().open.contains_key(&inode)
    }

    fn in_memory(&self, state: &mut State, block: BlockNumber) -> Option<Block> {
        let changed = state.running.get(&block).or_else(|| state.committing.as_ref()?.get(&block));
        changed.cloned().or_else(|| self.commit.not_in_place(block)).or_else(|| state.cache.get(block))
    }

    /// A block as ended operations left it.
    pub(crate) async fn read(&self, block: BlockNumber) -> Result<Block, Error> {
        self.check(block)?;
        let before = {
            let mut state = self.lock();
            let found = self.in_memory(&mut state, block);
            match &found {
                Some(_) => state.hits += 1,
                None => state.misses += 1,
            }
            if let Some(found) = found {
                return Ok(found);
            }
            state.moment()
        };
        let bytes = transfer::read_run(&self.device, self.block_bytes, block, 1).await?;
        let content = Block::copy_of(&bytes);
        let mut state = self.lock();
        if state.moment() == before {
            state.cache.insert(block, content.clone());
        }
        Ok(content)
    }

    /// Reads neighbours in one request, from the first to the last that is not in memory. Those
    /// between them that are may not be in their places when the device reads: what comes of them
    /// is not kept, also if they are in memory no more by then.
    pub(crate) async fn read_ahead(&self, first: BlockNumber, count: u32) -> Result<(), Error> {
        let numbers = transfer::read_ahead_run(first, count, (self.block_bytes, self.block_count));
        let (wanted, before): (Vec<BlockNumber>, Moment) = {
            let mut state = self.lock();
            let wanted = numbers.filter(|number| self.in_memory(&mut state, *number).is_none()).collect();
            (wanted, state.moment())
        };
        let (Some(&from), Some(&last)) = (wanted.first(), wanted.last()) else { return Ok(()) };
        let count = (last.0 - from.0) as usize + 1;
        let bytes = transfer::read_run(&self.device, self.block_bytes, from, count).await?;
        let mut state = self.lock();
        for number in wanted {
            if state.moment() == before && self.in_memory(&mut state, number).is_none() {
                let at = (number.0 - from.0) as usize * self.block_bytes;
                state.cache.insert(number, Block::copy_of(&bytes[at..at + self.block_bytes]));
                state.misses += 1;
            }
        }
        Ok(())
    }

    /// Commits first when the running transaction has more than half of a commit's blocks, so that
    /// new operations have room.
    pub(crate) async fn make_room(&self) -> Result<(), Error> {
        let is_much = self.lock().running.len() > self.commit.blocks_max() / 2;
        if is_much { self.commit_all().await } else { Ok(()) }
    }

    /// Adds the changes of an ended operation to the running transaction. The operation still holds
    /// its pins.
    ///
    /// # Errors
    /// `NoSpace` when the operation alone is larger than a transaction may be.
    pub(crate) async fn join(&self, changed: Changes, released: Vec<BlockNumber>) -> Result<(), Error> {
        if changed.is_empty() {
            return Ok(());
        }
        let blocks_max = self.commit.blocks_max();
        if changed.len() > blocks_max {
            let context = format!("{} blocks at once are more than the redo area has room for", changed.len());
            return Err(Error::new(ErrorKind::NoSpace, context));
        }
        let joined = {
            let state = self.lock();
            state.running.len() + changed.keys().filter(|number| !state.running.contains_key(number)).count()
        };
        if joined > blocks_max {
            self.commit_all().await?;
        }
        let mut state = self.lock();
        for block in released {
            state.running.remove(&block);
            state.cache.remove(block);
        }
        for (number, block) in changed {
            state.cache.remove(number);
            state.running.insert(number, block);
        }
        state.ended += 1;
        Ok(())
    }

    /// Makes durable everything that has ended before this call.
    pub(crate) async fn commit_all(&self) -> Result<(), Error> {
        let wanted = self.lock().ended;
        let _turn = self.commit_turns.exclusive(WHOLE).await;
        self.commit_ended(wanted).await
    }

    /// Likewise; the caller has the turn.
    async fn commit_ended(&self, wanted: u64) -> Result<(), Error> {
        let Some(mut commit) = UnderWay::begin(self, wanted) else { return Ok(()) };
        let changes = &Arc::clone(&commit.changes);
        self.repeated(self.tenure(), || async move {
            self.compare().await?;
            self.commit.commit(changes).await
        })
        .await?;
        commit.is_durable = true;
        self.note_progress();
        Ok(())
    }
}

fn replaced() -> Error {
    let words = "the logical unit was restored or replaced while its target was away: nothing is read or written there \
                 any more; detach it on every host, and mount it again";
    Error::new(ErrorKind::Device(block::ErrorKind::Gone), words)
}

/// A commit under way. If it ends without success its blocks count as changed again.
struct UnderWay<'a, C: Commit, P: Pins> {
    shared: &'a Shared<C, P>,
    changes: Arc<Changes>,
    /// Count of operations that it makes durable.
    ended: u64,
    is_durable: bool,
}

impl<'a, C: Commit, P: Pins> UnderWay<'a, C, P> {
    /// `None` when `wanted` operations are durable already.
    fn begin(shared: &'a Shared<C, P>, wanted: u64) -> Option<Self> {
        let mut state = shared.lock();
        if state.committed >= wanted {
            return None;
        }
        let changes = Arc::new(std::mem::take(&mut state.running));
        state.committing = Some(Arc::clone(&changes));
        Some(Self { shared, changes, ended: state.ended, is_durable: false })
    }
}

impl<C: Commit, P: Pins> Drop for UnderWay<'_, C, P> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.committing = None;
        for (number, block) in self.changes.iter() {
            if !self.is_durable {
                state.running.entry(*number).or_insert_with(|| block.clone());
            } else if !state.running.contains_key(number) {
                state.cache.insert(*number, block.clone());
            }
        }
        if self.is_durable {
            state.committed = self.ended;
            state.commits += 1;
        }
    }
}
