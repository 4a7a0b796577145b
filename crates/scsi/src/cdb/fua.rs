//! Force unit access: a write that is durable when it is answered.

use super::{Blocks, Cdb, CdbForm, Transfer};

impl Cdb {
    /// The same command with FUA (SBC-4 4.15.2), where it changes blocks and has that bit.
    pub fn with_fua(self) -> Option<Self> {
        let transfer = |transfer: Transfer| Transfer { is_fua: true, ..transfer };
        match self {
            Self::Write(Transfer { blocks: Blocks { form: CdbForm::Six, .. }, .. }) => None,
            Self::Write(write) => Some(Self::Write(transfer(write))),
            Self::OrWrite(write) => Some(Self::OrWrite(transfer(write))),
            Self::WriteAtomic(write) => Some(Self::WriteAtomic(super::WriteAtomic { is_fua: true, ..write })),
            Self::CompareAndWrite { lba, block_count, is_dpo, .. } => {
                Some(Self::CompareAndWrite { lba, block_count, is_dpo, is_fua: true })
            }
            // They change no blocks, or have no such bit: in WRITE SAME it is UNMAP, and WRITE AND VERIFY always
            // writes to the medium.
            Self::TestUnitReady
            | Self::RequestSense { .. }
            | Self::Inquiry { .. }
            | Self::ReportLuns { .. }
            | Self::ReadCapacity10
            | Self::ReadCapacity16 { .. }
            | Self::GetLbaStatus { .. }
            | Self::Read(_)
            | Self::Verify(_)
            | Self::WriteAndVerify(_)
            | Self::WriteSame(_)
            | Self::Unmap { .. }
            | Self::SynchronizeCache(_)
            | Self::Prefetch(_)
            | Self::ModeSense(_)
            | Self::ModeSelect(_)
            | Self::StartStopUnit(_)
            | Self::PreventAllowMediumRemoval { .. }
            | Self::Sanitize(_)
            | Self::ReadDefectData(_)
            | Self::LogSense(_)
            | Self::ExtendedCopy { .. }
            | Self::ReceiveCopyResults { .. }
            | Self::ReportTargetPortGroups { .. }
            | Self::Reserve6
            | Self::Release6
            | Self::PersistentReserveIn { .. }
            | Self::PersistentReserveOut { .. }
            | Self::ReportSupportedOperationCodes { .. }
            | Self::ChangeMarkIn { .. }
            | Self::ChangeMarkOut { .. }
            | Self::SharingIn { .. }
            | Self::SharingOut { .. }
            | Self::ReportSupportedTaskManagementFunctions { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_the_bit_gets_it() {
        // The same bit of WRITE SAME is UNMAP, and six bytes have no room for it.
        for raw in [&[0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &[0x0a, 0, 0, 0, 1, 0], &[0x2e, 0, 0, 0, 0, 0, 0, 0, 1, 0]]
        {
            assert_eq!(Cdb::parse(raw).unwrap().with_fua(), None);
        }
        let compare = Cdb::CompareAndWrite { lba: 7, block_count: 1, is_dpo: false, is_fua: false };
        assert_eq!(compare.with_fua().unwrap().emit()[1], 0x08);
        let write = Cdb::parse(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0]).unwrap();
        assert_eq!(write.with_fua().unwrap().emit()[1], 0x08);
    }
}
