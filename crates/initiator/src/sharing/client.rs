//! A client of a shared LUN, which all its paths have in common.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::clock::Instant;
use block::{Copies, Error, ErrorKind, Identity};

use super::Member;
use super::path::PathNumber;

/// This host as one client of a shared LUN. Sessions through other portals of its target join it:
/// [`InitiatorOptions::joins`](crate::InitiatorOptions::joins).
#[derive(Clone)]
pub struct SharingClient {
    /// Only drivers call methods of it that take long.
    member: Arc<Mutex<Member>>,
    copies: Copies,
    identity: Identity,
}

/// One path of a client.
pub(crate) struct ClientPath {
    client: SharingClient,
    path: PathNumber,
}

impl SharingClient {
    pub(crate) fn new(member: Member, identity: Identity) -> Self {
        Self { copies: member.copies().clone(), member: Arc::new(Mutex::new(member)), identity }
    }

    /// Refuses a unit that is not the client's.
    ///
    /// # Errors
    /// `Corrupt` for another one.
    pub(crate) fn check(&self, identity: &Identity) -> Result<(), Error> {
        if (&self.identity.unit, &self.identity.serial) == (&identity.unit, &identity.serial) {
            return Ok(());
        }
        let words = format!("these are two units, not two paths to one: {}; {identity}", self.identity);
        Err(Error::new(ErrorKind::Corrupt, words))
    }

    /// One path more.
    pub(crate) fn add_path(self) -> ClientPath {
        let path = self.lock().add_path();
        ClientPath { client: self, path }
    }

    fn lock(&self) -> MutexGuard<'_, Member> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharingClient").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl ClientPath {
    pub(crate) fn client(&self) -> &SharingClient {
        &self.client
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.client.copies
    }

    /// Asks the client something about this path, or tells it something of it. The drivers of other paths are woken by
    /// what concerns them.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Member, PathNumber) -> R) -> R {
        let mut member = self.client.lock();
        let result = act(&mut member, self.path);
        member.wake(self.path);
        result
    }

    /// Waits until the client is reached by this path.
    ///
    /// # Errors
    /// `Unsupported` when the target at its end does not know the client, `Gone` when the client or the path has ended.
    pub(crate) async fn joined(&self) -> Result<(), Error> {
        poll_fn(|context| self.with(|member, path| member.poll_joined(context, path))).await
    }

    /// Forgets the path. Nothing of it is under way any more.
    pub(crate) fn part(&self) {
        self.with(|member, path| member.remove_path(path));
    }

    /// Forgets the path, whatever of it is under way.
    pub(crate) fn end(&self, now: Instant) {
        self.with(|member, path| {
            member.end_session(now, path);
            member.remove_path(path);
        });
    }
}
