//! The class of a command: what layers need to know that carry or count commands without executing
//! them.
//!
//! One exhaustive match: a command added without its class does not compile.

use super::{Blocks, Cdb, Verification};

/// The direction of a command's blocks, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Blocks to the initiator.
    Read,
    /// Blocks from the initiator.
    Write,
    /// No blocks.
    Other,
}

/// The effect of a command on other initiators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// Blocks of the medium of the unit it is sent to.
    Medium,
    /// The access of others to the unit: reservations, mode pages, whether it is ready.
    Unit,
}

/// The data-out that a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOut {
    /// So many logical blocks.
    Blocks(u64),
    /// A parameter list of so many bytes.
    Parameters(u32),
    /// So many logical blocks. Any other length is refused by the device server itself, which must
    /// see all data that came.
    ExactBlocks(u64),
}

impl DataOut {
    /// No data-out.
    pub const NONE: Self = Self::Parameters(0);

    /// Bytes, with logical blocks of `block_bytes`.
    pub fn bytes(self, block_bytes: u32) -> u64 {
        match self {
            Self::Blocks(count) | Self::ExactBlocks(count) => count * u64::from(block_bytes),
            Self::Parameters(bytes) => u64::from(bytes),
        }
    }

    /// Whether the device server refuses another length.
    pub fn is_exact(self) -> bool {
        matches!(self, Self::ExactBlocks(_))
    }
}

/// The access of a command under a reservation of another nexus (SPC-4 table 34, SBC-3 table 13).
///
/// | access | write exclusive | exclusive access |
/// |---|---|---|
/// | always | allowed | allowed |
/// | read | allowed | conflict |
/// | write | conflict | conflict |
///
/// The holder may do everything; so may every registrant of the types for registrants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedAccess {
    /// Allowed whatever reservation another initiator holds; PERSISTENT RESERVE OUT has rules of
    /// its own.
    Always,
    /// Reads the medium or its parameters.
    Read,
    /// Changes the medium or its parameters.
    Write,
}

/// The class of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The direction of its blocks.
    pub traffic: Traffic,
    /// Of a write, the blocks that become its data-out, or are made of it.
    pub written: Option<Blocks>,
    /// Whether it reads the blocks that it writes as well: before, to compare or combine them, or after, to verify
    /// them.
    pub reads_what_it_writes: bool,
    /// Its effect on other initiators.
    pub change: Change,
    /// The data-out it needs.
    pub data_out: DataOut,
    /// Its access where another nexus has reserved the unit.
    pub access: ReservedAccess,
}

impl Class {
    const OTHER: Self = Self {
        traffic: Traffic::Other,
        written: None,
        reads_what_it_writes: false,
        change: Change::Nothing,
        data_out: DataOut::NONE,
        access: ReservedAccess::Always,
    };
    /// Reads the medium or its parameters.
    const LOOK: Self = Self { access: ReservedAccess::Read, ..Self::OTHER };
    const READ: Self = Self { traffic: Traffic::Read, ..Self::LOOK };

    fn write(written: Blocks) -> Self {
        let data_out = DataOut::Blocks(u64::from(written.count));
        Self { traffic: Traffic::Write, written: Some(written), ..Self::of_medium(data_out) }
    }

    /// A write that reads its blocks as well.
    fn write_and_read(written: Blocks) -> Self {
        Self { reads_what_it_writes: true, ..Self::write(written) }
    }

    /// Changes the medium, and is no transfer of blocks.
    const fn of_medium(data_out: DataOut) -> Self {
        Self { change: Change::Medium, data_out, access: ReservedAccess::Write, ..Self::OTHER }
    }

    const fn of_unit(data_out: DataOut) -> Self {
        Self { change: Change::Unit, ..Self::of_medium(data_out) }
    }
}

impl Cdb {
    /// Whether it is SHARING IN or SHARING OUT.
    pub const fn is_of_sharing(&self) -> bool {
        matches!(self, Self::SharingIn { .. } | Self::SharingOut { .. })
    }

    /// The class of this command.
    pub fn class(&self) -> Class {
        match self {
            Self::Read(_) => Class::READ,
            Self::Write(transfer) => Class::write(transfer.blocks),
            Self::OrWrite(transfer) => Class::write_and_read(transfer.blocks),
            Self::WriteAndVerify(verification) => Class::write_and_read(verification.blocks),
            Self::WriteAtomic(write) => Class::write(Blocks::sixteen(write.lba, u32::from(write.block_count))),
            Self::CompareAndWrite { lba, block_count, .. } => {
                let blocks = Blocks::sixteen(*lba, u32::from(*block_count));
                let data_out = DataOut::ExactBlocks(2 * u64::from(*block_count));
                Class { data_out, ..Class::write_and_read(blocks) }
            }
            Self::Verify(verification) => Class { data_out: compared(verification), ..Class::LOOK },
            Self::WriteSame(same) => Class::of_medium(DataOut::ExactBlocks(u64::from(!same.has_no_data_out))),
            Self::Unmap { parameter_list_length, .. } => {
                Class::of_medium(DataOut::Parameters(u32::from(*parameter_list_length)))
            }
            Self::Sanitize(sanitize) => {
                Class::of_medium(DataOut::Parameters(u32::from(sanitize.parameter_list_length)))
            }
            Self::ModeSelect(select) => Class::of_unit(DataOut::Parameters(u32::from(select.parameter_list_length))),
            Self::PersistentReserveOut { parameter_list_length, .. } => {
                let data_out = DataOut::Parameters(*parameter_list_length);
                Class { access: ReservedAccess::Always, ..Class::of_unit(data_out) }
            }
            Self::Reserve6 => Class { access: ReservedAccess::Always, ..Class::of_unit(DataOut::NONE) },
            // Starting a unit and loading its medium take nothing from another initiator.
            Self::StartStopUnit(start_stop) if start_stop.is_start && start_stop.power_condition == 0 => Class::OTHER,
            Self::StartStopUnit(_) => Class::of_unit(DataOut::NONE),
            Self::PreventAllowMediumRemoval { prevent: 0 } => Class::OTHER,
            Self::PreventAllowMediumRemoval { .. } => Class::of_unit(DataOut::NONE),
            // The destination of a copy, which may be another unit, is checked when the copy is
            // executed.
            Self::ExtendedCopy { parameter_list_length } => {
                let data_out = DataOut::Parameters(*parameter_list_length);
                Class { data_out, access: ReservedAccess::Write, ..Class::OTHER }
            }
            Self::SynchronizeCache(_) => Class { access: ReservedAccess::Write, ..Class::OTHER },
            Self::ChangeMarkOut { parameter_list_length, .. } | Self::SharingOut { parameter_list_length, .. } => {
                Class { data_out: DataOut::Parameters(*parameter_list_length), ..Class::OTHER }
            }
            Self::GetLbaStatus { .. } | Self::Prefetch(_) | Self::ModeSense(_) | Self::ReadDefectData(_) => Class::LOOK,
            // RELEASE(6) releases only the reservation of its own nexus.
            Self::Release6
            | Self::TestUnitReady
            | Self::RequestSense { .. }
            | Self::Inquiry { .. }
            | Self::ReportLuns { .. }
            | Self::ReadCapacity10
            | Self::ReadCapacity16 { .. }
            | Self::LogSense(_)
            | Self::ReceiveCopyResults { .. }
            | Self::ReportTargetPortGroups { .. }
            | Self::PersistentReserveIn { .. }
            | Self::ReportSupportedOperationCodes { .. }
            | Self::ChangeMarkIn { .. }
            | Self::SharingIn { .. }
            | Self::ReportSupportedTaskManagementFunctions { .. } => Class::OTHER,
        }
    }
}

/// The data-out that a VERIFY compares with the medium (SBC-3 table 111).
fn compared(verification: &Verification) -> DataOut {
    match verification.byte_check {
        1 => DataOut::Blocks(u64::from(verification.blocks.count)),
        3 if verification.blocks.count > 0 => DataOut::Blocks(1),
        _ => DataOut::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::{StartStopUnit, Transfer, WriteSame};

    #[test]
    fn data_out_follows_the_cdb() {
        let bytes = |cdb: Cdb| cdb.class().data_out.bytes(512);
        let blocks = Blocks::new(7, 3);
        assert_eq!(bytes(Cdb::Write(Transfer { blocks, is_dpo: false, is_fua: false })), 1536);
        assert_eq!(bytes(Cdb::Read(Transfer { blocks, is_dpo: false, is_fua: false })), 0);
        for (byte_check, expected) in [(0, 0), (1, 1536), (3, 512)] {
            assert_eq!(bytes(Cdb::Verify(Verification { blocks, is_dpo: false, byte_check })), expected);
        }
        assert_eq!(bytes(Cdb::CompareAndWrite { lba: 0, block_count: 2, is_dpo: false, is_fua: false }), 2048);
        assert_eq!(bytes(Cdb::Unmap { is_anchor: false, parameter_list_length: 24 }), 24);
        assert_eq!(bytes(Cdb::ChangeMarkOut { service_action: 0, parameter_list_length: 40 }), 40);
        for (has_no_data_out, expected) in [(false, 512), (true, 0)] {
            let same = WriteSame { blocks, is_anchor: false, is_unmap: false, has_no_data_out };
            assert_eq!(bytes(Cdb::WriteSame(same)), expected);
            assert!(Cdb::WriteSame(same).class().data_out.is_exact());
        }
    }

    #[test]
    fn a_reservation_of_another_lets_pass_what_neither_looks_nor_changes() {
        use ReservedAccess::{Always, Read, Write};
        let expected: [(&[u8], ReservedAccess); 9] = [
            (&[0x00, 0, 0, 0, 0, 0], Always),
            (&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], Always),
            (&[0x16, 0, 0, 0, 0, 0], Always),
            (&[0x1b, 0, 0, 0, 1, 0], Always),
            (&[0x1b, 0, 0, 0, 0, 0], Write),
            (&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], Read),
            (&[0x34, 0, 0, 0, 0, 0, 0, 0, 1, 0], Read),
            (&[0x35, 0, 0, 0, 0, 0, 0, 0, 1, 0], Write),
            (&[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0], Write),
        ];
        for (raw, access) in expected {
            assert_eq!(Cdb::parse(raw).unwrap().class().access, access, "{raw:02x?}");
        }
    }

    #[test]
    fn stopping_a_unit_changes_it_and_starting_does_not() {
        let start_stop = |is_start, power_condition| {
            let start_stop = StartStopUnit {
                is_immediate: false,
                power_condition,
                is_no_flush: false,
                is_load_eject: false,
                is_start,
            };
            Cdb::StartStopUnit(start_stop).class().change
        };
        assert_eq!(start_stop(true, 0), Change::Nothing);
        assert_eq!(start_stop(false, 0), Change::Unit);
        assert_eq!(start_stop(true, 3), Change::Unit);
        assert_eq!(Cdb::PreventAllowMediumRemoval { prevent: 0 }.class().change, Change::Nothing);
        assert_eq!(Cdb::PreventAllowMediumRemoval { prevent: 1 }.class().change, Change::Unit);
    }
}
