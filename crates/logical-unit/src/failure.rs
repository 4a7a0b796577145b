//! The failure of a command, and the one place where block errors become sense data.

use block::{Error, ErrorKind};
use scsi::{CdbError, Sense, Status};

/// The status or sense data that the initiator gets instead of GOOD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// CHECK CONDITION with this sense data.
    Sense(Sense),
    /// A status without sense data.
    Status(Status),
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

impl From<CdbError> for Failure {
    fn from(error: CdbError) -> Self {
        Self::Sense(error.sense())
    }
}

/// The access during which the device failed; a medium error of a read differs from that of a
/// write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceAccess {
    Reading,
    Writing,
}

/// The answer to a block error, by its kind. `lba` is the first block of the request, where one is known.
pub(crate) fn of_block_error(error: &Error, doing: DeviceAccess, lba: Option<u64>) -> Failure {
    let with_lba = |sense: Sense| lba.map_or(sense, |lba| sense.with_information(lba)).into();
    match error.kind() {
        ErrorKind::Media if doing == DeviceAccess::Reading => with_lba(Sense::UNRECOVERED_READ_ERROR),
        ErrorKind::Media => with_lba(Sense::WRITE_ERROR),
        ErrorKind::NoSpace => Sense::SPACE_ALLOCATION_FAILED.into(),
        ErrorKind::ReservationConflict => Failure::Status(Status::ReservationConflict),
        ErrorKind::Gone | ErrorKind::NoAccess | ErrorKind::NotFound => Sense::COMMUNICATION_FAILURE.into(),
        // No data was changed: the initiator may try again.
        ErrorKind::TimedOut => Sense::COMMAND_TIMEOUT.into(),
        // Data may have been changed: this must not be a status that only asks to repeat.
        ErrorKind::OutcomeUnknown | ErrorKind::Corrupt => Sense::INTERNAL_TARGET_FAILURE.into(),
        ErrorKind::InvalidRange => Sense::LBA_OUT_OF_RANGE.into(),
        ErrorKind::Unsupported => Sense::INVALID_OPERATION_CODE.into(),
        ErrorKind::ReadOnly => Sense::WRITE_PROTECTED.into(),
        ErrorKind::AccessDenied => Sense::ACCESS_DENIED.into(),
        ErrorKind::Busy => Failure::Status(Status::Busy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_map_by_kind() {
        let of = |kind: ErrorKind, doing| of_block_error(&kind.into(), doing, Some(7));
        let read_error = Failure::Sense(Sense::UNRECOVERED_READ_ERROR.with_information(7));
        assert_eq!(of(ErrorKind::Media, DeviceAccess::Reading), read_error);
        assert_eq!(of(ErrorKind::Media, DeviceAccess::Writing), Failure::Sense(Sense::WRITE_ERROR.with_information(7)));
        assert_eq!(of(ErrorKind::ReadOnly, DeviceAccess::Writing), Failure::Sense(Sense::WRITE_PROTECTED));
        assert_eq!(of(ErrorKind::Busy, DeviceAccess::Writing), Failure::Status(Status::Busy));
        assert_eq!(of(ErrorKind::InvalidRange, DeviceAccess::Reading), Failure::Sense(Sense::LBA_OUT_OF_RANGE));
    }
}
