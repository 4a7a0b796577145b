//! Which commands run although something keeps the others out.
//!
//! One exhaustive match: a command that is added says here what it waits for, or does not compile.

use super::Cdb;

/// What a command is exempt from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemption {
    /// A unit attention that waits for its nexus (SAM-5 5.14.2).
    pub from_attention: bool,
    /// A sanitize that is in progress or has failed (SBC-3 4.11.3, 4.11.4).
    pub from_sanitize: bool,
    /// RESERVE(6) of another nexus (SPC-2 table 10), which leaves much less alone than a persistent reservation does.
    pub from_reserve_6: bool,
}

impl Exemption {
    const NONE: Self = Self { from_attention: false, from_sanitize: false, from_reserve_6: false };
    const ALL: Self = Self { from_attention: true, from_sanitize: true, from_reserve_6: true };
    const SANITIZE: Self = Self { from_sanitize: true, ..Self::NONE };
    const RESERVE_6: Self = Self { from_reserve_6: true, ..Self::NONE };
}

impl Cdb {
    /// What it is exempt from.
    pub fn exemption(&self) -> Exemption {
        match self {
            // The last two are our own: the commands of other hosts may wait for them.
            Self::Inquiry { .. }
            | Self::ReportLuns { .. }
            | Self::RequestSense { .. }
            | Self::SharingIn { .. }
            | Self::SharingOut { .. } => Exemption::ALL,
            // SANITIZE is checked against the state of the unit where it is carried out.
            Self::LogSense(_)
            | Self::Sanitize(_)
            | Self::PersistentReserveIn { .. }
            | Self::ReportTargetPortGroups { .. }
            | Self::ReportSupportedOperationCodes { .. }
            | Self::ReportSupportedTaskManagementFunctions { .. } => Exemption::SANITIZE,
            // RESERVE(6) is checked against the holder where it is carried out.
            Self::Reserve6
            | Self::Release6
            | Self::ChangeMarkIn { .. }
            | Self::ChangeMarkOut { .. }
            | Self::PreventAllowMediumRemoval { prevent: 0 } => Exemption::RESERVE_6,
            Self::TestUnitReady
            | Self::ReadCapacity10
            | Self::ReadCapacity16 { .. }
            | Self::GetLbaStatus { .. }
            | Self::Read(_)
            | Self::Write(_)
            | Self::Verify(_)
            | Self::WriteAndVerify(_)
            | Self::WriteSame(_)
            | Self::CompareAndWrite { .. }
            | Self::OrWrite(_)
            | Self::WriteAtomic(_)
            | Self::Unmap { .. }
            | Self::SynchronizeCache(_)
            | Self::Prefetch(_)
            | Self::ModeSense(_)
            | Self::ModeSelect(_)
            | Self::StartStopUnit(_)
            | Self::PreventAllowMediumRemoval { .. }
            | Self::ReadDefectData(_)
            | Self::ExtendedCopy { .. }
            | Self::ReceiveCopyResults { .. }
            | Self::PersistentReserveOut { .. } => Exemption::NONE,
        }
    }
}
