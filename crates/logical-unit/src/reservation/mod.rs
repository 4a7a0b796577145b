//! RESERVE(6) and persistent reservations of one logical unit (SPC-2 5.5.1, SPC-4 5.12).
//!
//! | | holder | lost with |
//! |---|---|---|
//! | RESERVE(6) | one I_T nexus | the nexus, a reset, RELEASE(6) |
//! | registration | one I_T nexus each, with a key | REGISTER with key zero, CLEAR, PREEMPT, power |
//! | persistent reservation | one registrant, or all | RELEASE, CLEAR, PREEMPT, the registration, power |
//!
//! Registrations outlive their nexus and resets, but not this process: PTPL is not claimed, and APTPL is refused. While neither
//! kind of reservation is there, a command costs one relaxed load.

mod conflict;
mod persistent;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use scsi::{Cdb, Status};

use crate::failure::Failure;
use crate::nexus::NexusId;
use conflict::Access;
pub(crate) use persistent::{Effect, Persistent, Request};

/// The reservations of one logical unit.
#[derive(Default)]
pub(crate) struct Reservations {
    /// Whether there is one of either kind; changes only under `state`.
    is_restricted: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Holder of RESERVE(6).
    holder_6: Option<NexusId>,
    persistent: Persistent,
}

const CONFLICT: Failure = Failure::Status(Status::ReservationConflict);

impl Reservations {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_restriction(&self, state: &State) {
        let is_restricted = state.holder_6.is_some() || state.persistent.is_reserved();
        self.is_restricted.store(is_restricted, Ordering::Release);
    }

    /// Whether a command of `nexus` may run.
    pub(crate) fn check(&self, nexus: &NexusId, cdb: &Cdb) -> Result<(), Failure> {
        if !self.is_restricted.load(Ordering::Acquire) {
            return Ok(());
        }
        let state = self.lock();
        let access = Access::of(cdb);
        let is_allowed_6 =
            state.holder_6.as_ref().is_none_or(|holder| holder == nexus || Access::is_allowed_by_reserve_6(cdb));
        if is_allowed_6 && state.persistent.allows(nexus, access) { Ok(()) } else { Err(CONFLICT) }
    }

    /// RESERVE(6); by its holder again, no change (SPC-2 7.21). Not beside registrations (SPC-4 5.12.3, CRH clear).
    pub(crate) fn reserve_6(&self, nexus: &NexusId) -> Result<(), Failure> {
        let mut state = self.lock();
        if state.persistent.has_registrations() || state.holder_6.as_ref().is_some_and(|holder| holder != nexus) {
            return Err(CONFLICT);
        }
        state.holder_6 = Some(nexus.clone());
        self.note_restriction(&state);
        Ok(())
    }

    /// Ends the RESERVE(6) of a nexus, if it holds one.
    pub(crate) fn release_of(&self, nexus: &NexusId) {
        let mut state = self.lock();
        if state.holder_6.as_ref() == Some(nexus) {
            state.holder_6 = None;
            self.note_restriction(&state);
        }
    }

    /// A logical unit reset ends RESERVE(6) and leaves persistent reservations (SPC-4 5.12.1).
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.holder_6 = None;
        self.note_restriction(&state);
    }

    /// PERSISTENT RESERVE OUT.
    pub(crate) fn request(&self, nexus: &NexusId, request: Request) -> Result<Vec<Effect>, Failure> {
        let mut state = self.lock();
        let effects = state.persistent.request(nexus, request)?;
        self.note_restriction(&state);
        Ok(effects)
    }

    /// What PERSISTENT RESERVE IN tells.
    pub(crate) fn view(&self) -> Persistent {
        self.lock().persistent.clone()
    }
}

#[cfg(test)]
mod tests;
