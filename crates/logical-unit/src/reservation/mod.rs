//! RESERVE(6) and persistent reservations of one logical unit (SPC-2 5.5.1, SPC-4 5.12).
//!
//! | | holder | lost with |
//! |---|---|---|
//! | RESERVE(6) | one I_T nexus | the nexus, a reset, RELEASE(6) |
//! | registration | one I_T nexus each, with a key | REGISTER with key zero, CLEAR, PREEMPT, power |
//! | persistent reservation | one registrant, or all | RELEASE, CLEAR, PREEMPT, the registration, power |
//!
//! Registrations outlive their nexus and resets; with APTPL, where there is a [`ReservationStore`],
//! this process as well. While there is no reservation of either kind, a command costs one relaxed
//! load.

mod persistent;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::ByteRange;
use block::range_lock::RangeLock;
use scsi::persistent_reservation::ReservationType;
use scsi::{Cdb, Sense, Status};

use crate::change_marks::Saving;
use crate::failure::Failure;
use crate::nexus::NexusId;
pub(crate) use persistent::{Effect, Persistent, Request};

/// The part of the persistent reservations that outlives a power loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedReservations {
    /// Name of each registered I_T nexus and its key, in the order of registration.
    pub registrations: Vec<(String, u64)>,
    /// The reservation's type and the name of its holder.
    pub reservation: Option<(ReservationType, String)>,
}

/// Keeps reservations over power loss (APTPL, SPC-4 5.12.5).
pub trait ReservationStore: Send + Sync {
    /// Makes them durable, without blocking the calling thread. When it fails, the state saved
    /// before is still there. It is not called again before it has ended, unless the future was
    /// dropped.
    fn save(&self, reservations: SavedReservations) -> Saving;
}

/// The reservations of one logical unit.
///
/// Locks, taken in this order: `turns`, `state`.
#[derive(Default)]
pub(crate) struct Reservations {
    store: Option<Arc<dyn ReservationStore>>,
    /// The turn of requests, in the order in which they came; held while one is made durable.
    turns: RangeLock,
    /// Whether there is a reservation of either kind; changes only under `state`.
    is_restricted: AtomicBool,
    state: Mutex<State>,
}

/// The range of the turn lock: one range stands for all.
const TURN: ByteRange = ByteRange { offset: 0, length: 1 };

#[derive(Default)]
struct State {
    /// Holder of RESERVE(6).
    holder_6: Option<NexusId>,
    persistent: Persistent,
}

const CONFLICT: Failure = Failure::Status(Status::ReservationConflict);

impl Reservations {
    /// Restores saved reservations, with the store for later changes.
    pub(crate) fn restored(saved: &SavedReservations, store: Option<Arc<dyn ReservationStore>>) -> Self {
        let state = State { holder_6: None, persistent: Persistent::restored(saved) };
        let reservations = Self { store, ..Self::default() };
        reservations.note_restriction(&state);
        *reservations.lock() = state;
        reservations
    }

    /// Whether reservations can outlive power loss.
    pub(crate) fn can_persist(&self) -> bool {
        self.store.is_some()
    }

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
        let is_allowed_6 =
            state.holder_6.as_ref().is_none_or(|holder| holder == nexus || cdb.exemption().from_reserve_6);
        if is_allowed_6 && state.persistent.allows(nexus, cdb.class().access) { Ok(()) } else { Err(CONFLICT) }
    }

    /// RESERVE(6); by its holder again, no change (SPC-2 7.21). Not beside registrations (SPC-4 5.12.3, CRH clear).
    pub(crate) fn reserve_6(&self, nexus: &NexusId) -> Result<(), Failure> {
        // A registration that is being saved may exist in a moment.
        let _turn = self.turns.try_exclusive(TURN).ok_or(Failure::Status(Status::Busy))?;
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

    /// PERSISTENT RESERVE OUT: a change takes effect when it is durable. The first poll takes the
    /// turn.
    pub(crate) async fn request(&self, nexus: &NexusId, request: Request) -> Result<Vec<Effect>, Failure> {
        let _turn = self.turns.exclusive(TURN).await;
        // No other request changes it before the turn ends.
        let mut changed = self.view();
        let saved_before = changed.saved();
        let effects = changed.request(nexus, request)?;
        let saved = changed.saved();
        if let Some(store) = &self.store
            && saved != saved_before
            && let Err(error) = store.save(saved).await
        {
            tracing::error!(error, "persistent reservations cannot be saved");
            return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into());
        }
        let mut state = self.lock();
        state.persistent = changed;
        self.note_restriction(&state);
        Ok(effects)
    }

    /// The state for PERSISTENT RESERVE IN.
    pub(crate) fn view(&self) -> Persistent {
        self.lock().persistent.clone()
    }
}

#[cfg(test)]
mod tests;
