//! Which commands a reservation stands against (SPC-4 table 34, SBC-3 table 13).
//!
//! | access | write exclusive, of others | exclusive access, of others |
//! |---|---|---|
//! | always | allowed | allowed |
//! | read | allowed | conflict |
//! | write | conflict | conflict |
//!
//! The holder may do everything; so may every registrant of the types for registrants.

use scsi::Cdb;

/// What a command is, to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Allowed whoever holds what; PERSISTENT RESERVE OUT has rules of its own.
    Always,
    /// Looks at the medium or its parameters.
    Read,
    /// Changes the medium or its parameters.
    Write,
}

impl Access {
    pub(super) fn of(cdb: &Cdb) -> Self {
        match cdb {
            Cdb::TestUnitReady
            | Cdb::RequestSense { .. }
            | Cdb::Inquiry { .. }
            | Cdb::ReportLuns { .. }
            | Cdb::ReadCapacity10
            | Cdb::ReadCapacity16 { .. }
            | Cdb::Reserve6
            | Cdb::Release6
            | Cdb::PersistentReserveIn { .. }
            | Cdb::PersistentReserveOut { .. }
            | Cdb::ReportSupportedOperationCodes { .. }
            | Cdb::ReportSupportedTaskManagementFunctions { .. }
            | Cdb::ReportTargetPortGroups { .. }
            | Cdb::LogSense(_)
            | Cdb::ReceiveCopyResults { .. }
            | Cdb::ChangeMarkIn { .. }
            | Cdb::ChangeMarkOut { .. }
            | Cdb::SharingIn { .. }
            | Cdb::SharingOut { .. }
            | Cdb::PreventAllowMediumRemoval { prevent: 0 } => Self::Always,
            Cdb::StartStopUnit(start_stop) if start_stop.is_start && start_stop.power_condition == 0 => Self::Always,
            Cdb::Read(_)
            | Cdb::Verify(_)
            | Cdb::Prefetch(_)
            | Cdb::GetLbaStatus { .. }
            | Cdb::ReadDefectData(_)
            | Cdb::ModeSense(_) => Self::Read,
            Cdb::Write(_)
            | Cdb::WriteAndVerify(_)
            | Cdb::WriteSame(_)
            | Cdb::CompareAndWrite { .. }
            | Cdb::OrWrite(_)
            | Cdb::WriteAtomic(_)
            | Cdb::Sanitize(_)
            | Cdb::ExtendedCopy { .. }
            | Cdb::Unmap { .. }
            | Cdb::SynchronizeCache(_)
            | Cdb::ModeSelect(_)
            | Cdb::StartStopUnit(_)
            | Cdb::PreventAllowMediumRemoval { .. } => Self::Write,
        }
    }

    /// Whether RESERVE(6) of another nexus leaves a command alone (SPC-2 table 10): much less than a persistent reservation does.
    /// RESERVE(6) itself is judged where it is carried out.
    pub(super) fn is_allowed_by_reserve_6(cdb: &Cdb) -> bool {
        matches!(
            cdb,
            Cdb::Inquiry { .. }
                | Cdb::RequestSense { .. }
                | Cdb::ReportLuns { .. }
                | Cdb::Reserve6
                | Cdb::Release6
                | Cdb::ChangeMarkIn { .. }
                | Cdb::ChangeMarkOut { .. }
                | Cdb::SharingIn { .. }
                | Cdb::SharingOut { .. }
                | Cdb::PreventAllowMediumRemoval { prevent: 0 }
        )
    }
}
