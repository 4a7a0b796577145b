//! Persistent reservations (SPC-4 5.12), by which hosts that share a LUN exclude each other.
//!
//! This module keeps no state: a reservation belongs to the I_T nexus that made it, and the LUN
//! keeps it over lost sessions. PERSISTENT RESERVE OUT is issued again only where the unit reports
//! that it did not begin it; after a lost session its outcome is unknown, and
//! [`RemoteLun::reservation`] shows it.

use block::{Error, ErrorKind};
use scsi::persistent_reservation::{
    OutParameters, ReservationData, ReservationType, action_in, action_out, parse_keys, parse_reservation,
};
use scsi::{Cdb, Sense, SenseKey, Status};

use crate::error::{malformed, sense_error};
use crate::limits::RESERVATION_DATA_BYTES;
use crate::raw_command::{RawCommand, RawOutcome, Repeat};
use crate::remote_lun::RemoteLun;

/// The keys that are registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisteredKeys {
    /// PRGENERATION: grows with each change of the registrations.
    pub generation: u32,
    /// One for each registered I_T nexus; as many as fit 8 KiB.
    pub keys: Vec<u64>,
}

/// The reservation, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// PRGENERATION.
    pub generation: u32,
    /// Its holder's key and its type; `None` where there is no reservation.
    pub held: Option<ReservationData>,
}

/// All methods fail with `ReservationConflict` where the key is not the registered one or another
/// nexus holds the reservation, `Unsupported` where the LUN has no persistent reservations,
/// `OutcomeUnknown` when the session was lost before the answer.
impl RemoteLun {
    /// Registers `new_key` in place of `key`, zero when none is registered; `new_key` zero unregisters. With
    /// `is_persistent` registrations outlive the target's power, where it can do that.
    ///
    /// # Errors
    /// As above.
    pub async fn register(&self, key: u64, new_key: u64, is_persistent: bool) -> Result<(), Error> {
        let list = OutParameters { key, action_key: new_key, is_persistent, ..OutParameters::default() };
        self.reserve_out(action_out::REGISTER, None, list).await
    }

    /// Registers `new_key`, whatever was registered before.
    ///
    /// # Errors
    /// As above.
    pub async fn register_and_ignore(&self, new_key: u64, is_persistent: bool) -> Result<(), Error> {
        let list = OutParameters { action_key: new_key, is_persistent, ..OutParameters::default() };
        self.reserve_out(action_out::REGISTER_AND_IGNORE, None, list).await
    }

    /// Takes the reservation.
    ///
    /// # Errors
    /// As above.
    pub async fn reserve(&self, key: u64, kind: ReservationType) -> Result<(), Error> {
        self.reserve_out(action_out::RESERVE, Some(kind), OutParameters { key, ..OutParameters::default() }).await
    }

    /// Gives the reservation back.
    ///
    /// # Errors
    /// As above.
    pub async fn release(&self, key: u64, kind: ReservationType) -> Result<(), Error> {
        self.reserve_out(action_out::RELEASE, Some(kind), OutParameters { key, ..OutParameters::default() }).await
    }

    /// Ends the reservation and all registrations.
    ///
    /// # Errors
    /// As above.
    pub async fn clear_reservations(&self, key: u64) -> Result<(), Error> {
        self.reserve_out(action_out::CLEAR, None, OutParameters { key, ..OutParameters::default() }).await
    }

    /// Ends the registrations of `victim`, and takes the reservation if it had it; its commands under way are aborted
    /// where `aborts` says so.
    ///
    /// # Errors
    /// As above.
    pub async fn preempt(&self, key: u64, victim: u64, kind: ReservationType, aborts: bool) -> Result<(), Error> {
        let action = if aborts { action_out::PREEMPT_AND_ABORT } else { action_out::PREEMPT };
        self.reserve_out(action, Some(kind), OutParameters { key, action_key: victim, ..OutParameters::default() })
            .await
    }

    /// The registered keys.
    ///
    /// # Errors
    /// As above, and `Corrupt` when the answer makes no sense.
    pub async fn reservation_keys(&self) -> Result<RegisteredKeys, Error> {
        let data = self.reserve_in(action_in::READ_KEYS).await?;
        let (generation, keys) = parse_keys(&data).map_err(malformed)?;
        Ok(RegisteredKeys { generation, keys })
    }

    /// The reservation.
    ///
    /// # Errors
    /// As above, and `Corrupt` when the answer makes no sense.
    pub async fn reservation(&self) -> Result<Reservation, Error> {
        let data = self.reserve_in(action_in::READ_RESERVATION).await?;
        let (generation, held) = parse_reservation(&data).map_err(malformed)?;
        Ok(Reservation { generation, held })
    }

    async fn reserve_out(&self, action: u8, kind: Option<ReservationType>, list: OutParameters) -> Result<(), Error> {
        let cdb = Cdb::PersistentReserveOut {
            service_action: action,
            scope: 0,
            kind: kind.map_or(0, ReservationType::code),
            parameter_list_length: OutParameters::BYTES as u32,
        };
        let raw = RawCommand::sending(Repeat::IfRefused, cdb, list.emit().to_vec());
        check(&self.carry_out(raw).await?, "PERSISTENT RESERVE OUT")
    }

    async fn reserve_in(&self, action: u8) -> Result<Vec<u8>, Error> {
        let cdb = Cdb::PersistentReserveIn { service_action: action, allocation_length: RESERVATION_DATA_BYTES as u16 };
        let outcome = self.carry_out(RawCommand::reading(cdb)).await?;
        check(&outcome, "PERSISTENT RESERVE IN")?;
        Ok(outcome.data_in)
    }
}

fn check(outcome: &RawOutcome, what: &str) -> Result<(), Error> {
    match (Status::from_code(outcome.status), Sense::parse(&outcome.sense)) {
        (Some(Status::Good), _) => Ok(()),
        (Some(Status::ReservationConflict), _) => {
            let words = format!("{what} failed: the key is not the registered one, or another initiator is in the way");
            Err(Error::new(ErrorKind::ReservationConflict, words))
        }
        (Some(Status::CheckCondition), Ok(sense)) if sense.key == SenseKey::AbortedCommand => {
            Err(Error::new(ErrorKind::OutcomeUnknown, format!("{what} was aborted: {sense}")))
        }
        (Some(Status::CheckCondition), Ok(sense)) => Err(sense_error(&sense, what)),
        _ => Err(Error::new(ErrorKind::OutcomeUnknown, format!("{what} ended with status {:02x}h", outcome.status))),
    }
}
