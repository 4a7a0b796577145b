//! The lock by which several hosts share a file system: one for all of it, which a host keeps until
//! another one wants it.
//!
//! ```text
//!  nothing ──hold──► the device is asked for the lock ──► held ──► memory is renewed ──► requests
//!     ▲                                                                                     │
//!     └── memory is dropped ◄── all is in its place, durably ◄── requests end ◄── called back
//! ```
//! It is the grant of the whole device ([`block::grants`]): whatever anybody else asks of the device
//! waits until this host has given it up. If this host dies with it, the device's other end gives it
//! to nobody before no write of this host can land any more; the next holder finds in the redo area
//! what is not in its place.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::clock::Clock;
use block::grants::Use;
use block::range_lock::RangeLock;
use block::{ByteRange, Copies, Grants, SharedDevice};
use ext2::{Error, ErrorKind};
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
    /// Renewals take turns.
    pub(crate) renewals: RangeLock,
    holds: AtomicU64,
    /// Why nothing is done any more.
    lost: OnceLock<Error>,
}

/// As long as it lives no other host changes the file system.
pub struct Hold {
    used: Option<(Use, Arc<HostLock>)>,
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
        let (renewed, holds) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { hosts, copies, grants, renewed, renewals: RangeLock::new(), holds, lost: OnceLock::new() })
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
    pub(crate) async fn hold(self: &Arc<Self>) -> Result<Hold, Error> {
        loop {
            self.check()?;
            let used = self.grants.use_to_write(ALL).filter(|_| self.copies.may_use());
            if let Some(used) = used {
                self.holds.fetch_add(1, Ordering::AcqRel);
                return Ok(Hold { used: Some((used, Arc::clone(self))) });
            }
            self.while_answering(self.usable()).await?;
        }
    }

    /// Returns when the lock is held, and its lease lasts.
    async fn usable(&self) {
        loop {
            self.grants.acquire(ALL).await;
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
            (self.hosts.probe)().await.map_err(|error| match error.kind() {
                ErrorKind::Device(block::ErrorKind::Gone) => self.lose(error),
                _ => error,
            })?;
        }
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
    pub(crate) async fn enter(&self) -> Result<Use, Error> {
        self.check()?;
        self.claimed().await?;
        let used = self.grants.use_to_clean(ALL).filter(|used| used.tenure() == self.renewed());
        used.filter(|_| self.holds.load(Ordering::Acquire) > 0).ok_or_else(lost)
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
    /// as long as this host has the lock nobody else has changed anything since.
    pub(crate) async fn may_repeat(&self, error: &Error) -> bool {
        if error.kind() != ErrorKind::Device(block::ErrorKind::OutcomeUnknown) {
            return false;
        }
        self.pause().await;
        self.claimed().await.is_ok() && self.grants.is_held(ALL)
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

    /// The tenure under which everything in memory was read.
    pub(crate) fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Acquire)
    }

    pub(crate) fn set_renewed(&self, tenure: u64) {
        self.renewed.store(tenure, Ordering::Release);
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
        self.used.as_ref().map(|(used, _)| used.tenure())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((_, lock)) = &self.used {
            lock.holds.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
