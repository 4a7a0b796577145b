//! The data-in of a command that is no blocks.

use super::Cdb;
use crate::capacity::Capacity;

impl Cdb {
    /// Bytes of data-in that it asks for at most, besides blocks: mostly its allocation length.
    pub const fn parameter_data_bytes(&self) -> u32 {
        match self {
            Self::ReadCapacity10 => Capacity::BYTES_10 as u32,
            Self::RequestSense { allocation_length, .. } => *allocation_length as u32,
            Self::Inquiry { allocation_length, .. } | Self::PersistentReserveIn { allocation_length, .. } => {
                *allocation_length as u32
            }
            Self::ModeSense(sense) => sense.allocation_length as u32,
            Self::LogSense(sense) => sense.allocation_length as u32,
            Self::ReadDefectData(defects) => defects.allocation_length,
            Self::ReportLuns { allocation_length, .. }
            | Self::ReadCapacity16 { allocation_length }
            | Self::GetLbaStatus { allocation_length, .. }
            | Self::ReceiveCopyResults { allocation_length, .. }
            | Self::ReportTargetPortGroups { allocation_length, .. }
            | Self::ReportSupportedOperationCodes { allocation_length, .. }
            | Self::ReportSupportedTaskManagementFunctions { allocation_length, .. }
            | Self::ChangeMarkIn { allocation_length, .. }
            | Self::SharingIn { allocation_length, .. } => *allocation_length,
            Self::TestUnitReady
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
            | Self::ModeSelect(_)
            | Self::StartStopUnit(_)
            | Self::PreventAllowMediumRemoval { .. }
            | Self::Sanitize(_)
            | Self::ExtendedCopy { .. }
            | Self::Reserve6
            | Self::Release6
            | Self::PersistentReserveOut { .. }
            | Self::ChangeMarkOut { .. }
            | Self::SharingOut { .. } => 0,
        }
    }
}
