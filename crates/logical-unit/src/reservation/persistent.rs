//! Registrations and the persistent reservation (SPC-4 5.12), as a value: a request either changes
//! it and returns the effects on other nexuses, or fails and changes nothing.

use scsi::cdb::ReservedAccess;
use scsi::persistent_reservation::{FullStatus, ReservationData, ReservationType};
use scsi::{Sense, Status};

use crate::failure::Failure;
use crate::limits::REGISTRATIONS_MAX;
use crate::nexus::NexusId;
use crate::reservation::SavedReservations;

/// A parsed PERSISTENT RESERVE OUT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Register, change or (with `new` zero) end a registration. `key` is `None` for REGISTER AND IGNORE EXISTING KEY.
    /// `others` are registered with it (SPEC_I_PT).
    Register { key: Option<u64>, new: u64, is_persistent: bool, others: Vec<NexusId> },
    /// Registers another nexus, which becomes the holder; the own registration may end.
    Move { key: u64, new: u64, to: NexusId, is_unregistering: bool, is_persistent: bool },
    /// Take the reservation.
    Reserve { key: u64, kind: ReservationType },
    /// Give it back.
    Release { key: u64, kind: ReservationType },
    /// End the reservation and all registrations.
    Clear { key: u64 },
    /// End the registrations with key `victim`, and take the reservation where they held it.
    Preempt { key: u64, victim: u64, kind: ReservationType, is_aborting: bool },
}

/// An effect of a request on another nexus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A unit attention for a nexus.
    Tell(NexusId, Sense),
    /// The tasks of this nexus are aborted.
    AbortTasksOf(NexusId),
}

/// Registrations and reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Persistent {
    /// PRGENERATION: counts changes of registrations, wrapping.
    pub(crate) generation: u32,
    /// In the order of registration.
    registrations: Vec<Registration>,
    reservation: Option<Reservation>,
    /// APTPL was set by the last request that could: all of this outlives power loss.
    pub(crate) is_persistent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Registration {
    nexus: NexusId,
    key: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Reservation {
    kind: ReservationType,
    /// The holder; for the all-registrants types, where every registrant holds it, the nexus that
    /// took it.
    holder: NexusId,
}

const CONFLICT: Failure = Failure::Status(Status::ReservationConflict);

impl Persistent {
    pub(super) fn is_reserved(&self) -> bool {
        self.reservation.is_some()
    }

    pub(super) fn has_registrations(&self) -> bool {
        !self.registrations.is_empty()
    }

    /// Whether the reservation allows `nexus` this access.
    pub(super) fn allows(&self, nexus: &NexusId, access: ReservedAccess) -> bool {
        let Some(reservation) = &self.reservation else { return true };
        let kind = reservation.kind;
        self.is_holder(nexus)
            || (kind.is_for_registrants() && self.key_of(nexus).is_some())
            || match access {
                ReservedAccess::Always => true,
                ReservedAccess::Read => kind.allows_reads(),
                ReservedAccess::Write => false,
            }
    }

    fn key_of(&self, nexus: &NexusId) -> Option<u64> {
        self.registrations.iter().find(|registration| registration.nexus == *nexus).map(|registration| registration.key)
    }

    fn is_holder(&self, nexus: &NexusId) -> bool {
        let Some(reservation) = &self.reservation else { return false };
        match reservation.kind.is_all_registrants() {
            true => self.key_of(nexus).is_some(),
            false => reservation.holder == *nexus,
        }
    }

    /// Carries out a request of `nexus`.
    pub(super) fn request(&mut self, nexus: &NexusId, request: Request) -> Result<Vec<Effect>, Failure> {
        match request {
            Request::Register { key, new, is_persistent, others } => {
                let effects = self.register(nexus, key, new, &others)?;
                self.is_persistent = is_persistent;
                Ok(effects)
            }
            Request::Move { key, new, to, is_unregistering, is_persistent } => {
                let effects = self.move_to(nexus, (key, new), &to, is_unregistering)?;
                self.is_persistent = is_persistent;
                Ok(effects)
            }
            Request::Reserve { key, kind } => self.reserve(nexus, key, kind),
            Request::Release { key, kind } => self.release(nexus, key, kind),
            Request::Clear { key } => self.clear(nexus, key),
            Request::Preempt { key, victim, kind, is_aborting } => {
                self.preempt(nexus, key, (victim, kind), is_aborting)
            }
        }
    }

    /// Everything but registering asks for the key that is registered (SPC-4 5.12.4).
    fn check_key(&self, nexus: &NexusId, key: u64) -> Result<(), Failure> {
        if self.key_of(nexus) == Some(key) { Ok(()) } else { Err(CONFLICT) }
    }

    /// SPC-4 5.12.7, tables 45 and 46.
    fn register(
        &mut self,
        nexus: &NexusId,
        key: Option<u64>,
        new: u64,
        others: &[NexusId],
    ) -> Result<Vec<Effect>, Failure> {
        let current = self.key_of(nexus);
        if key.is_some_and(|key| key != current.unwrap_or(0)) {
            return Err(CONFLICT);
        }
        // Only an unregistered nexus may name others, and only unregistered ones (SPC-4 5.12.7.3).
        if !others.is_empty() && (current.is_some() || others.iter().any(|other| self.key_of(other).is_some())) {
            return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(24).into());
        }
        if self.registrations.len() + others.len() >= REGISTRATIONS_MAX && current.is_none() && new != 0 {
            return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into());
        }
        let mut effects = Vec::new();
        match (current, new) {
            (None, 0) => return Ok(effects),
            (Some(_), 0) => effects = self.unregister(nexus),
            (None, key) => {
                let of = |nexus: &NexusId| Registration { nexus: nexus.clone(), key };
                self.registrations.extend(std::iter::once(nexus).chain(others).map(of));
            }
            (Some(_), key) => {
                let own = self.registrations.iter_mut().filter(|registration| registration.nexus == *nexus);
                own.for_each(|registration| registration.key = key);
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// SPC-4 5.12.8: for the holder of a reservation that is not of all registrants.
    fn move_to(
        &mut self,
        nexus: &NexusId,
        (key, new): (u64, u64),
        to: &NexusId,
        is_unregistering: bool,
    ) -> Result<Vec<Effect>, Failure> {
        self.check_key(nexus, key)?;
        let kind = self.reservation.as_ref().map(|reservation| reservation.kind);
        if !self.is_holder(nexus) || kind.is_some_and(ReservationType::is_all_registrants) {
            return Err(CONFLICT);
        }
        if new == 0 || to == nexus {
            return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(8).into());
        }
        let is_full = self.registrations.len() >= REGISTRATIONS_MAX;
        match self.registrations.iter_mut().find(|registration| registration.nexus == *to) {
            Some(registration) => registration.key = new,
            None if is_full && !is_unregistering => {
                return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into());
            }
            None => self.registrations.push(Registration { nexus: to.clone(), key: new }),
        }
        if let Some(reservation) = &mut self.reservation {
            reservation.holder = to.clone();
        }
        if is_unregistering {
            self.registrations.retain(|registration| registration.nexus != *nexus);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Vec::new())
    }

    /// The state that must outlive a power loss: all of it with APTPL, else nothing.
    pub(super) fn saved(&self) -> SavedReservations {
        if !self.is_persistent {
            return SavedReservations::default();
        }
        let of = |registration: &Registration| (registration.nexus.name().to_owned(), registration.key);
        SavedReservations {
            registrations: self.registrations.iter().map(of).collect(),
            reservation: self.reservation.as_ref().map(|held| (held.kind, held.holder.name().to_owned())),
        }
    }

    /// Restores the state before the power loss. A holder that is not registered holds nothing.
    pub(super) fn restored(saved: &SavedReservations) -> Self {
        let of = |(nexus, key): &(String, u64)| Registration { nexus: NexusId::new(nexus), key: *key };
        let registrations: Vec<Registration> = saved.registrations.iter().take(REGISTRATIONS_MAX).map(of).collect();
        let is_registered = |holder: &NexusId| registrations.iter().any(|registration| registration.nexus == *holder);
        let held = saved.reservation.as_ref().map(|(kind, holder)| (*kind, NexusId::new(holder)));
        let reservation = held.filter(|(kind, holder)| kind.is_all_registrants() || is_registered(holder));
        Self {
            generation: 0,
            is_persistent: !registrations.is_empty(),
            reservation: reservation.map(|(kind, holder)| Reservation { kind, holder }),
            registrations,
        }
    }

    /// Ends one registration, and its reservation; for the registrants-only types the other
    /// registrants get a unit attention (SPC-4 5.12.11.3).
    fn unregister(&mut self, nexus: &NexusId) -> Vec<Effect> {
        self.registrations.retain(|registration| registration.nexus != *nexus);
        let Some(reservation) = &self.reservation else { return Vec::new() };
        let kind = reservation.kind;
        let is_over = match kind.is_all_registrants() {
            true => self.registrations.is_empty(),
            false => reservation.holder == *nexus,
        };
        if !is_over {
            return Vec::new();
        }
        self.reservation = None;
        if kind.is_for_registrants() { self.tell_others(nexus, Sense::RESERVATIONS_RELEASED) } else { Vec::new() }
    }

    fn tell_others(&self, nexus: &NexusId, sense: Sense) -> Vec<Effect> {
        let others = self.registrations.iter().filter(|registration| registration.nexus != *nexus);
        others.map(|registration| Effect::Tell(registration.nexus.clone(), sense)).collect()
    }

    /// SPC-4 5.12.9.
    fn reserve(&mut self, nexus: &NexusId, key: u64, kind: ReservationType) -> Result<Vec<Effect>, Failure> {
        self.check_key(nexus, key)?;
        match &self.reservation {
            None => self.reservation = Some(Reservation { kind, holder: nexus.clone() }),
            Some(reservation) if self.is_holder(nexus) && reservation.kind == kind => {}
            Some(_) => return Err(CONFLICT),
        }
        Ok(Vec::new())
    }

    /// SPC-4 5.12.11.2: by a nexus that is not the holder, no error and no effect.
    fn release(&mut self, nexus: &NexusId, key: u64, kind: ReservationType) -> Result<Vec<Effect>, Failure> {
        self.check_key(nexus, key)?;
        if !self.is_holder(nexus) {
            return Ok(Vec::new());
        }
        if self.reservation.as_ref().is_some_and(|reservation| reservation.kind != kind) {
            return Err(Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION.into());
        }
        self.reservation = None;
        let effects =
            if kind.is_for_registrants() { self.tell_others(nexus, Sense::RESERVATIONS_RELEASED) } else { Vec::new() };
        Ok(effects)
    }

    /// SPC-4 5.12.11.6.
    fn clear(&mut self, nexus: &NexusId, key: u64) -> Result<Vec<Effect>, Failure> {
        self.check_key(nexus, key)?;
        let effects = self.tell_others(nexus, Sense::RESERVATIONS_PREEMPTED);
        self.registrations.clear();
        self.reservation = None;
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// SPC-4 5.12.11.4, table 51.
    ///
    /// | reservation | victim key | what happens |
    /// |---|---|---|
    /// | none, or held by another key | some | registrations with that key end; none there: conflict |
    /// | none, or not of all registrants | zero | invalid field |
    /// | of the victim key | some | its registrations end, the reservation is taken |
    /// | of all registrants | some | registrations with that key end; the last one out ends the reservation |
    /// | of all registrants | zero | all other registrations end, the reservation is taken |
    fn preempt(
        &mut self,
        nexus: &NexusId,
        key: u64,
        (victim, kind): (u64, ReservationType),
        is_aborting: bool,
    ) -> Result<Vec<Effect>, Failure> {
        self.check_key(nexus, key)?;
        let is_all = self.reservation.as_ref().is_some_and(|reservation| reservation.kind.is_all_registrants());
        if victim == 0 && !is_all {
            return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(8).into());
        }
        let holder_key = self.reservation.as_ref().and_then(|reservation| self.key_of(&reservation.holder));
        let is_taken_over = if is_all { victim == 0 } else { holder_key == Some(victim) };
        let is_victim = |registration: &Registration| victim == 0 || registration.key == victim;
        if !is_taken_over && !self.registrations.iter().any(is_victim) {
            return Err(CONFLICT);
        }
        // The nexus that takes the reservation over keeps its own registration, even when it named
        // its own key.
        let spares_own = |registration: &Registration| is_taken_over && registration.nexus == *nexus;
        let (ended, kept) = std::mem::take(&mut self.registrations)
            .into_iter()
            .partition(|registration| is_victim(registration) && !spares_own(registration));
        self.registrations = kept;
        let mut effects = self.take_over(nexus, kind, is_taken_over);
        effects.extend(of_ended(nexus, ended, is_aborting));
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// The reservation after registrations ended: taken by `nexus`, or ended with its last
    /// registrant, or unchanged. If it is taken with another type, the remaining registrants get a
    /// unit attention that the old one is gone.
    fn take_over(&mut self, nexus: &NexusId, kind: ReservationType, is_taken_over: bool) -> Vec<Effect> {
        if is_taken_over {
            let previous = self.reservation.replace(Reservation { kind, holder: nexus.clone() });
            let is_changed =
                previous.is_some_and(|previous| previous.kind != kind && previous.kind.is_for_registrants());
            return if is_changed { self.tell_others(nexus, Sense::RESERVATIONS_RELEASED) } else { Vec::new() };
        }
        if self.registrations.is_empty() {
            self.reservation = None;
        }
        Vec::new()
    }

    /// Keys, in the order of registration.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.registrations.iter().map(|registration| registration.key).collect()
    }

    /// The reservation for READ RESERVATION: with key zero where all registrants hold it.
    pub(crate) fn reservation(&self) -> Option<ReservationData> {
        let reservation = self.reservation.as_ref()?;
        let key = if reservation.kind.is_all_registrants() { 0 } else { self.key_of(&reservation.holder).unwrap_or(0) };
        Some(ReservationData { key, kind: reservation.kind })
    }

    /// All registrations for READ FULL STATUS. The relative target port is 1: there is only one.
    pub(crate) fn full_status(&self) -> Vec<FullStatus> {
        let of = |registration: &Registration| FullStatus {
            key: registration.key,
            held: self.reservation.as_ref().filter(|_| self.is_holder(&registration.nexus)).map(|held| held.kind),
            target_port: 1,
            initiator_port: registration.nexus.initiator_port().to_owned(),
        };
        self.registrations.iter().map(of).collect()
    }
}

/// The effects on nexuses that lost their registration: a unit attention, and the abort of their
/// tasks where requested.
fn of_ended(nexus: &NexusId, ended: Vec<Registration>, is_aborting: bool) -> Vec<Effect> {
    let mut effects = Vec::new();
    for registration in ended {
        if is_aborting {
            effects.push(Effect::AbortTasksOf(registration.nexus.clone()));
        }
        if registration.nexus != *nexus {
            effects.push(Effect::Tell(registration.nexus, Sense::REGISTRATIONS_PREEMPTED));
        }
    }
    effects
}
