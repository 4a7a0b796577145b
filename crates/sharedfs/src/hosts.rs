//! The lock by which several hosts share a file system: one for all of it, which a host keeps until
//! another one wants it. To read, several hosts have it at the same time.
//!
//! ```text
//!  nothing ──hold──► the device is asked for the lock ──► held ──► memory is renewed ──► requests
//!     ▲                                                    ▲                                │
//!     │                                                    └── another host only reads ─┐    │
//!     └── memory is dropped ◄── another host changes ◄── all is in its place, durably ◄┴── called back
//! ```
//! A host that has it to read and wants to change something asks for that as well, and goes on
//! reading meanwhile: what it has in memory stays, unless another one was first. A request says what
//! it wants before it begins, so no request that has the lock waits for it.
//!
//! If the device's other end begins anew and the lock is claimed back, nothing is read or changed
//! before what is there was compared with what this host left (`Commit::is_as_left`): the device
//! may have been replaced or restored meanwhile.
//!
//! It is the grant of the whole device ([`block::grants`]): whatever anybody else asks of the device
//! waits until this host has given it up. If this host dies with it, the device's other end gives it
//! to nobody before no write of this host can land any more; the next holder finds in the redo area
//! what is not in its place.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::clock::Clock;
use block::grants::{Right, Use};
use block::range_lock::RangeLock;
use block::{ByteRange, Copies, Grants, SharedDevice};
use ext2::{Access, Error, ErrorKind};
use futures_util::future::{Either, select};

use crate::limits::{HOLD_PROBE_TIME, LEASE_PAUSE};

/// All of a device.
pub(crate) const ALL: ByteRange = ByteRange { offset: 0, length: 1 };

/// Tells whether other hosts may use the file system now.
pub type Others = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<bool, Error>> + Send>> + Send + Sync>;

/// Asks the device whether it answers. It takes no other request's error away, as a flush would: of
/// data that is lost only one flush is told.
///
/// # Errors
/// `Gone` when it never answers this host again, other kinds when it may.
pub type Probe = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> + Send + Sync>;

/// What a mount that shares its file system needs.
#[derive(Clone)]
pub struct Hosts {
    /// Measures pauses.
    pub clock: Arc<dyn Clock>,
    /// Tells whether there are others.
    pub others: Others,
    /// Asks whether the device answers.
    pub probe: Probe,
}

/// The lock as one host has it.
pub(crate) struct HostLock {
    hosts: Hosts,
    copies: Copies,
    grants: Grants,
    /// The tenure under which everything in memory was read; 0 for none.
    renewed: AtomicU64,
    /// The tenure under which what other hosts left was made whole, so that it may be changed.
    taken: AtomicU64,
    /// Renewals take turns.
    pub(crate) renewals: RangeLock,
    /// How often the lock had been claimed back when what is there was looked at last.
    compared: AtomicU64,
    /// Comparisons take turns.
    pub(crate) comparisons: RangeLock,
    holds: AtomicU64,
    holds_to_change: AtomicU64,
    /// Why nothing is done any more.
    lost: OnceLock<Error>,
}

/// As long as it lives no other host changes the file system; if it is held to change, none reads it.
pub struct Hold {
    used: Option<Held>,
}

struct Held {
    used: Use,
    lock: Arc<HostLock>,
    access: Access,
}

fn right_for(access: Access) -> Right {
    match access {
        Access::Read => Right::Read,
        Access::Change => Right::Change,
    }
}

impl HostLock {
    /// The lock of a device that has one.
    ///
    /// # Errors
    /// `Unsupported` for a device without.
    pub(crate) fn of(device: &SharedDevice, hosts: Hosts) -> Result<Self, Error> {
        let lock = device.copies().and_then(|copies| Some((copies.grants()?.clone(), copies)));
        let Some((grants, copies)) = lock.filter(|(grants, _)| grants.is_whole()) else {
            let words = "its target cannot keep other hosts from it while this one changes it";
            return Err(Error::new(ErrorKind::Unsupported, words));
        };
        let [renewed, taken, compared, holds, holds_to_change] = std::array::from_fn(|_| AtomicU64::new(0));
        let (renewals, comparisons, lost) = (RangeLock::new(), RangeLock::new(), OnceLock::new());
        Ok(Self {
            hosts,
            copies,
            grants,
            renewed,
            taken,
            renewals,
            compared,
            comparisons,
            holds,
            holds_to_change,
            lost,
        })
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Whether there are other hosts.
    pub(crate) async fn has_others(&self) -> Result<bool, Error> {
        (self.hosts.others)().await
    }

    /// Waits for the lock, as long as the device can be asked for it.
    ///
    /// # Errors
    /// Those of the probe, and what [`lose`](Self::lose) has set.
    pub(crate) async fn hold(self: &Arc<Self>, access: Access) -> Result<Hold, Error> {
        let right = right_for(access);
        loop {
            self.check()?;
            let used = self.grants.begin_use(ALL, right).filter(|_| self.copies.may_use());
            if let Some(used) = used {
                self.holds_for(access).fetch_add(1, Ordering::AcqRel);
                return Ok(Hold { used: Some(Held { used, lock: Arc::clone(self), access }) });
            }
            self.while_answering(self.usable(right)).await?;
        }
    }

    fn holds_for(&self, access: Access) -> &AtomicU64 {
        match access {
            Access::Read => &self.holds,
            Access::Change => &self.holds_to_change,
        }
    }

    /// Returns when the lock is held, and its lease lasts.
    async fn usable(&self, right: Right) {
        loop {
            self.grants.acquire(ALL, right).await;
            if self.copies.may_use() {
                return;
            }
            // The lease is in doubt: it is renewed, or the lock is lost.
            self.pause().await;
        }
    }

    /// Waits for the device's other end. Nobody waits for one that is away for too long, or after
    /// this host was fenced.
    ///
    /// # Errors
    /// Those of the probe.
    async fn while_answering(&self, awaited: impl Future<Output = ()>) -> Result<(), Error> {
        let mut awaited = pin!(awaited);
        loop {
            let is_late = pin!(self.hosts.clock.sleep(HOLD_PROBE_TIME));
            if let Either::Left(_) = select(awaited.as_mut(), is_late).await {
                return Ok(());
            }
            self.ask_device().await?;
        }
    }

    /// Asks whether the device answers. One that never does again ends all use.
    ///
    /// # Errors
    /// Those of the probe.
    async fn ask_device(&self) -> Result<(), Error> {
        (self.hosts.probe)().await.map_err(|error| match error.kind() {
            ErrorKind::Device(block::ErrorKind::Gone) => self.lose(error),
            _ => error,
        })
    }

    /// What a change of the device ended with. Of a device that is gone it may be for good: then all use ends.
    pub(crate) async fn cause_of(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Device(block::ErrorKind::Gone) {
            let _answer = self.ask_device().await;
        }
        self.check().err().unwrap_or(error)
    }

    /// Waits while the lock is claimed back: then it is held again, or lost.
    async fn claimed(&self) -> Result<(), Error> {
        self.while_answering(self.grants.claimed(ALL)).await
    }

    pub(crate) async fn pause(&self) {
        self.hosts.clock.sleep(LEASE_PAUSE).await;
    }

    /// An operation within a hold.
    ///
    /// # Errors
    /// `Device` when the lock was lost meanwhile, or there is no hold.
    pub(crate) async fn enter(&self, access: Access) -> Result<Use, Error> {
        self.check()?;
        self.claimed().await?;
        let used = self.grants.go_on(ALL, right_for(access)).filter(|used| self.is_ready(used.tenure(), access));
        let holds = |access| self.holds_for(access).load(Ordering::Acquire);
        let may = holds(Access::Change) > 0 || access == Access::Read && holds(Access::Read) > 0;
        used.filter(|_| may).ok_or_else(lost)
    }

    /// Checks that nothing was lost since `used` began.
    ///
    /// # Errors
    /// `Device` when the lock was lost meanwhile.
    pub(crate) async fn confirm(&self, used: &Use) -> Result<(), Error> {
        self.claimed().await?;
        if used.is_good() { Ok(()) } else { Err(lost()) }
    }

    /// Whether what ended with this error is to be done again: it may or may not have been done, and
    /// as long as this host has the lock by the same tenure nobody else has changed anything since.
    pub(crate) async fn may_repeat(&self, tenure: u64, error: &Error) -> bool {
        if error.kind() != ErrorKind::Device(block::ErrorKind::OutcomeUnknown) {
            return false;
        }
        self.pause().await;
        self.claimed().await.is_ok() && self.grants.go_on(ALL, Right::Read).is_some_and(|used| used.tenure() == tenure)
    }

    /// Whether this host has the lock to change.
    pub(crate) fn may_change(&self) -> bool {
        self.grants.go_on(ALL, Right::Change).is_some()
    }

    /// # Errors
    /// What [`lose`](Self::lose) has set.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.lost.get().map_or(Ok(()), |lost| Err(lost.clone()))
    }

    /// Ends all use of the file system by this host. Returns the reason.
    pub(crate) fn lose(&self, error: Error) -> Error {
        self.lost.get_or_init(|| error).clone()
    }

    /// How often the lock has been claimed back, once it is not being claimed back any more.
    ///
    /// # Errors
    /// Those of the probe.
    pub(crate) async fn claims(&self) -> Result<u64, Error> {
        self.claimed().await?;
        Ok(self.grants.reclaimed())
    }

    /// Whether what is there was looked at since the lock had been claimed back so often.
    pub(crate) fn is_compared(&self, claims: u64) -> bool {
        self.compared.load(Ordering::Acquire) >= claims
    }

    pub(crate) fn set_compared(&self, claims: u64) {
        self.compared.fetch_max(claims, Ordering::AcqRel);
    }

    /// The tenure under which everything in memory was read.
    pub(crate) fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Acquire)
    }

    pub(crate) fn set_renewed(&self, tenure: u64) {
        self.renewed.store(tenure, Ordering::Release);
    }

    /// The tenure under which what other hosts left was made whole.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Notes that under this tenure everything in memory was read, and may be changed.
    pub(crate) fn set_taken(&self, tenure: u64) {
        self.set_renewed(tenure);
        self.taken.store(tenure, Ordering::Release);
    }

    /// Notes that everything is in its place. Who changes something again looks first at what is there: a program that
    /// knows of no locks may have mounted it beside hosts that only read.
    pub(crate) fn end_taken(&self) {
        self.taken.store(0, Ordering::Release);
    }

    /// Whether operations may begin under this tenure.
    pub(crate) fn is_ready(&self, tenure: u64, access: Access) -> bool {
        tenure == if access == Access::Read { self.renewed() } else { self.taken() }
    }

    /// Notes that something that is called back got on.
    pub(crate) fn note_progress(&self) {
        self.grants.note_progress();
    }
}

fn lost() -> Error {
    let words = "other hosts may have the file system: this one lost its lock while a request was under way";
    Error::new(ErrorKind::Device(block::ErrorKind::Gone), words)
}

impl Hold {
    /// The hold of a host that has the file system for itself.
    pub(crate) fn of_single_host() -> Self {
        Self { used: None }
    }

    /// The tenure of the lock; `None` for a host that has the file system for itself.
    pub(crate) fn tenure(&self) -> Option<u64> {
        self.used.as_ref().map(|held| held.used.tenure())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(held) = &self.used {
            held.lock.holds_for(held.access).fetch_sub(1, Ordering::AcqRel);
        }
    }
}
