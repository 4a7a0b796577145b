//! Sense data (SPC-4 4.5): the reason for a CHECK CONDITION.
//!
//! We emit the fixed format (70h, 71h when deferred) unless the initiator asked for descriptors (72h, 73h), and parse
//! both. Conditions have names: `Sense::INVALID_FIELD_IN_CDB.at_byte(1)`.

use crate::error::Malformed;
use crate::field::{u8_at, u16_at, u32_at, u64_at};

/// The kind of condition (SPC-4 4.5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the standard's own names")]
pub enum SenseKey {
    NoSense = 0x0,
    RecoveredError = 0x1,
    NotReady = 0x2,
    MediumError = 0x3,
    HardwareError = 0x4,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    BlankCheck = 0x8,
    VendorSpecific = 0x9,
    CopyAborted = 0xa,
    AbortedCommand = 0xb,
    Reserved = 0xc,
    VolumeOverflow = 0xd,
    Miscompare = 0xe,
    Completed = 0xf,
}

const SENSE_KEYS: [SenseKey; 16] = [
    SenseKey::NoSense,
    SenseKey::RecoveredError,
    SenseKey::NotReady,
    SenseKey::MediumError,
    SenseKey::HardwareError,
    SenseKey::IllegalRequest,
    SenseKey::UnitAttention,
    SenseKey::DataProtect,
    SenseKey::BlankCheck,
    SenseKey::VendorSpecific,
    SenseKey::CopyAborted,
    SenseKey::AbortedCommand,
    SenseKey::Reserved,
    SenseKey::VolumeOverflow,
    SenseKey::Miscompare,
    SenseKey::Completed,
];

impl SenseKey {
    /// The key in the low four bits.
    pub const fn from_code(code: u8) -> Self {
        SENSE_KEYS[(code & 0x0f) as usize]
    }
}

/// The byte of the CDB or of the parameter list that was wrong (SPC-4 4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldPointer {
    /// Whether it is in the CDB; else in the data-out.
    pub is_in_cdb: bool,
    /// The byte.
    pub byte: u16,
    /// Most significant bit of the field, where known.
    pub bit: Option<u8>,
}

/// A condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sense {
    /// Its kind.
    pub key: SenseKey,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
    /// Whether it is about an earlier command than the one it answers.
    pub is_deferred: bool,
    /// INFORMATION, by condition: the LBA of a medium error, the byte offset of a miscompare.
    pub information: Option<u64>,
    /// The field at fault, for illegal requests.
    pub field: Option<FieldPointer>,
    /// The progress of a long operation, in 65536ths, where the unit is not ready because of it
    /// (SPC-4 4.5.2.4.4).
    pub progress: Option<u16>,
}

/// Bytes of fixed-format sense data.
pub const FIXED_BYTES: usize = 18;

/// Names for conditions: key, ASC, ASCQ, words (SPC-4 annex E).
macro_rules! conditions {
    ($($name:ident = $key:ident $asc:literal $ascq:literal $words:literal;)*) => {
        impl Sense {
            $(#[doc = concat!("`", stringify!($key), "`: ", $words, ".")]
            pub const $name: Self = Self::new(SenseKey::$key, $asc, $ascq);)*
        }

        /// The words for a code, where it is one of ours.
        const NAMES: &[(u8, u8, &str)] = &[$(($asc, $ascq, $words),)*];
    };
}

conditions! {
    NO_SENSE = NoSense 0x00 0x00 "no additional sense information";
    NOT_READY = NotReady 0x04 0x00 "logical unit not ready, cause not reportable";
    BECOMING_READY = NotReady 0x04 0x01 "logical unit is in process of becoming ready";
    INITIALIZING_COMMAND_REQUIRED = NotReady 0x04 0x02 "logical unit not ready, initializing command required";
    ACCESS_STATE_IN_TRANSITION = NotReady 0x04 0x0a "logical unit not accessible, asymmetric access state transition";
    PORT_IN_STANDBY = NotReady 0x04 0x0b "logical unit not accessible, target port in standby state";
    PORT_UNAVAILABLE = NotReady 0x04 0x0c "logical unit not accessible, target port in unavailable state";
    SANITIZE_IN_PROGRESS = NotReady 0x04 0x1b "logical unit not ready, sanitize in progress";
    COMMUNICATION_FAILURE = NotReady 0x08 0x00 "logical unit communication failure";
    WRITE_ERROR = MediumError 0x0c 0x00 "write error";
    UNEXPECTED_UNSOLICITED_DATA = AbortedCommand 0x0c 0x0c "write error, unexpected unsolicited data";
    NOT_ENOUGH_UNSOLICITED_DATA = AbortedCommand 0x0c 0x0d "write error, not enough unsolicited data";
    INVALID_FIELD_IN_INFORMATION_UNIT = IllegalRequest 0x0e 0x03 "invalid field in command information unit";
    UNRECOVERED_READ_ERROR = MediumError 0x11 0x00 "unrecovered read error";
    PARAMETER_LIST_LENGTH_ERROR = IllegalRequest 0x1a 0x00 "parameter list length error";
    MISCOMPARE_DURING_VERIFY = Miscompare 0x1d 0x00 "miscompare during verify operation";
    INVALID_OPERATION_CODE = IllegalRequest 0x20 0x00 "invalid command operation code";
    LBA_OUT_OF_RANGE = IllegalRequest 0x21 0x00 "logical block address out of range";
    INVALID_FIELD_IN_CDB = IllegalRequest 0x24 0x00 "invalid field in CDB";
    LOGICAL_UNIT_NOT_SUPPORTED = IllegalRequest 0x25 0x00 "logical unit not supported";
    INVALID_FIELD_IN_PARAMETER_LIST = IllegalRequest 0x26 0x00 "invalid field in parameter list";
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = IllegalRequest 0x26 0x04 "invalid release of persistent reservation";
    TOO_MANY_TARGET_DESCRIPTORS = IllegalRequest 0x26 0x06 "too many target descriptors";
    UNSUPPORTED_TARGET_DESCRIPTOR_TYPE = IllegalRequest 0x26 0x07 "unsupported target descriptor type code";
    TOO_MANY_SEGMENT_DESCRIPTORS = IllegalRequest 0x26 0x08 "too many segment descriptors";
    UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE = IllegalRequest 0x26 0x09 "unsupported segment descriptor type code";
    WRITE_PROTECTED = DataProtect 0x27 0x00 "write protected";
    SOFTWARE_WRITE_PROTECTED = DataProtect 0x27 0x02 "logical unit software write protected";
    SPACE_ALLOCATION_FAILED = DataProtect 0x27 0x07 "space allocation failed write protect";
    ACCESS_DENIED = IllegalRequest 0x20 0x02 "access denied - no access rights";
    MEDIUM_MAY_HAVE_CHANGED = UnitAttention 0x28 0x00 "not ready to ready change, medium may have changed";
    POWER_ON_OR_RESET = UnitAttention 0x29 0x00 "power on, reset, or bus device reset occurred";
    BUS_DEVICE_RESET = UnitAttention 0x29 0x03 "bus device reset function occurred";
    I_T_NEXUS_LOSS = UnitAttention 0x29 0x07 "I_T nexus loss occurred";
    MODE_PARAMETERS_CHANGED = UnitAttention 0x2a 0x01 "mode parameters changed";
    RESERVATIONS_PREEMPTED = UnitAttention 0x2a 0x03 "reservations preempted";
    RESERVATIONS_RELEASED = UnitAttention 0x2a 0x04 "reservations released";
    REGISTRATIONS_PREEMPTED = UnitAttention 0x2a 0x05 "registrations preempted";
    CAPACITY_CHANGED = UnitAttention 0x2a 0x09 "capacity data has changed";
    COMMANDS_CLEARED = UnitAttention 0x2f 0x00 "commands cleared by another initiator";
    SANITIZE_FAILED = MediumError 0x31 0x03 "sanitize command failed";
    SAVING_NOT_SUPPORTED = IllegalRequest 0x39 0x00 "saving parameters not supported";
    MEDIUM_NOT_PRESENT = NotReady 0x3a 0x00 "medium not present";
    DEVICE_IDENTIFIER_CHANGED = UnitAttention 0x3f 0x05 "device identifier changed";
    REPORTED_LUNS_CHANGED = UnitAttention 0x3f 0x0e "reported LUNs data has changed";
    INTERNAL_TARGET_FAILURE = HardwareError 0x44 0x00 "internal target failure";
    PROTOCOL_SERVICE_CRC_ERROR = AbortedCommand 0x47 0x05 "protocol service CRC error";
    COMMANDS_CLEARED_BY_TRANSPORT = UnitAttention 0x47 0x7f "some commands cleared by iSCSI protocol event";
    OVERLAPPED_COMMANDS = AbortedCommand 0x4e 0x00 "overlapped commands attempted";
    SHARING_FENCED = AbortedCommand 0x80 0x00 "the client of the shared unit is fenced";
    SHARING_UNKNOWN_CLIENT = AbortedCommand 0x80 0x01 "no such client: the target of the shared unit started again";
    SHARING_GRACE = AbortedCommand 0x80 0x02 "only locks of before are granted so soon after a start";
    SHARING_TABLE_FULL = AbortedCommand 0x80 0x03 "a table of the shared unit is full";
    COMMAND_TIMEOUT = AbortedCommand 0x2e 0x02 "command timeout during processing";
    MEDIUM_REMOVAL_PREVENTED = IllegalRequest 0x53 0x02 "medium removal prevented";
    COPY_ABORTED = CopyAborted 0x00 0x00 "no additional sense information";
    UNREACHABLE_COPY_TARGET = CopyAborted 0x08 0x04 "unreachable copy target";
    INSUFFICIENT_RESOURCES = IllegalRequest 0x55 0x03 "insufficient resources";
    COMMAND_SEQUENCE_ERROR = IllegalRequest 0x2c 0x00 "command sequence error";
    INSUFFICIENT_REGISTRATION_RESOURCES = IllegalRequest 0x55 0x04 "insufficient registration resources";
}

impl Sense {
    /// A condition by its codes.
    pub const fn new(key: SenseKey, asc: u8, ascq: u8) -> Self {
        Self { key, asc, ascq, is_deferred: false, information: None, field: None, progress: None }
    }

    /// With its INFORMATION field.
    #[must_use]
    pub const fn with_information(self, information: u64) -> Self {
        Self { information: Some(information), ..self }
    }

    /// Pointing at a byte of the CDB.
    #[must_use]
    pub const fn at_byte(self, byte: u16) -> Self {
        Self { field: Some(FieldPointer { is_in_cdb: true, byte, bit: None }), ..self }
    }

    /// Pointing at a bit of a byte of the CDB.
    #[must_use]
    pub const fn at_bit(self, byte: u16, bit: u8) -> Self {
        Self { field: Some(FieldPointer { is_in_cdb: true, byte, bit: Some(bit & 7) }), ..self }
    }

    /// Pointing at a byte of the data-out.
    #[must_use]
    pub const fn at_parameter(self, byte: u16) -> Self {
        Self { field: Some(FieldPointer { is_in_cdb: false, byte, bit: None }), ..self }
    }

    /// With the progress of the operation, in 65536ths.
    #[must_use]
    pub const fn with_progress(self, progress: u16) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Whether sense key and additional sense codes are those of `other`; the other fields may
    /// differ.
    pub fn is_same_condition(&self, other: &Self) -> bool {
        (self.key, self.asc, self.ascq) == (other.key, other.asc, other.ascq)
    }

    /// The condition in words, where it has a name here.
    pub fn name(&self) -> Option<&'static str> {
        NAMES.iter().find(|(asc, ascq, _)| (*asc, *ascq) == (self.asc, self.ascq)).map(|(_, _, words)| *words)
    }

    /// Fixed format (SPC-4 4.5.3). An information value of more than 32 bits does not fit and is left out, as the
    /// standard says.
    pub fn emit_fixed(&self) -> [u8; FIXED_BYTES] {
        let mut bytes = [0; FIXED_BYTES];
        let information = self.information.and_then(|value| u32::try_from(value).ok());
        bytes[0] = if self.is_deferred { 0x71 } else { 0x70 } | if information.is_some() { 0x80 } else { 0 };
        bytes[2] = self.key as u8;
        bytes[3..7].copy_from_slice(&information.unwrap_or(0).to_be_bytes());
        bytes[7] = (FIXED_BYTES - 8) as u8;
        bytes[12] = self.asc;
        bytes[13] = self.ascq;
        bytes[15..18].copy_from_slice(&self.specific());
        bytes
    }

    /// Descriptor format (SPC-4 4.5.2), with an information and a sense-key specific descriptor
    /// where those fields are set.
    pub fn emit_descriptors(&self) -> Vec<u8> {
        let code = if self.is_deferred { 0x73 } else { 0x72 };
        let mut bytes = vec![code, self.key as u8, self.asc, self.ascq, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend([0x00, 0x0a, 0x80, 0]);
            bytes.extend(information.to_be_bytes());
        }
        if self.field.is_some() || self.progress.is_some() {
            bytes.extend([0x02, 0x06, 0, 0]);
            bytes.extend(self.specific());
            bytes.push(0);
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }

    /// The sense key specific bytes.
    fn specific(&self) -> [u8; 3] {
        match (self.field, self.progress) {
            (None, Some(progress)) => {
                let [high, low] = progress.to_be_bytes();
                [0x80, high, low]
            }
            (field, _) => emit_field(field),
        }
    }

    /// Sense data in either format. Fixed data may end early; what is missing is zero.
    ///
    /// # Errors
    /// [`Malformed`] when it is neither, or has no key.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("sense data");
        let first = u8_at(bytes, 0).ok_or(malformed)?;
        match first & 0x7f {
            code @ (0x70 | 0x71) => {
                let key = SenseKey::from_code(u8_at(bytes, 2).ok_or(malformed)?);
                let additional = usize::from(u8_at(bytes, 7).unwrap_or(0));
                let bytes = bytes.get(..8 + additional).unwrap_or(bytes);
                let information = if first & 0x80 == 0 { None } else { u32_at(bytes, 3).map(u64::from) };
                Ok(Self {
                    key,
                    asc: u8_at(bytes, 12).unwrap_or(0),
                    ascq: u8_at(bytes, 13).unwrap_or(0),
                    is_deferred: code == 0x71,
                    information,
                    field: parse_field(bytes, 15, key),
                    progress: parse_progress(bytes, 15, key),
                })
            }
            code @ (0x72 | 0x73) => {
                let [key, asc, ascq] = *bytes.get(1..).and_then(<[u8]>::first_chunk).ok_or(malformed)?;
                let sense = Self { is_deferred: code == 0x73, ..Self::new(SenseKey::from_code(key), asc, ascq) };
                Ok(sense.with_descriptors(bytes.get(8..).unwrap_or(&[])))
            }
            _ => Err(malformed),
        }
    }

    fn with_descriptors(mut self, mut descriptors: &[u8]) -> Self {
        while let [kind, length, ..] = *descriptors {
            match kind {
                0x00 if u8_at(descriptors, 2).is_some_and(|flags| flags & 0x80 != 0) => {
                    self.information = u64_at(descriptors, 4);
                }
                0x02 => {
                    self.field = parse_field(descriptors, 4, self.key);
                    self.progress = parse_progress(descriptors, 4, self.key);
                }
                _ => {}
            }
            descriptors = descriptors.get(2 + usize::from(length)..).unwrap_or(&[]);
        }
        self
    }
}

fn emit_field(field: Option<FieldPointer>) -> [u8; 3] {
    let Some(field) = field else { return [0; 3] };
    let [high, low] = field.byte.to_be_bytes();
    let in_cdb = if field.is_in_cdb { 0x40 } else { 0 };
    [0x80 | in_cdb | field.bit.map_or(0, |bit| 0x08 | bit), high, low]
}

fn parse_field(bytes: &[u8], at: usize, key: SenseKey) -> Option<FieldPointer> {
    let flags = u8_at(bytes, at).filter(|flags| flags & 0x80 != 0 && key == SenseKey::IllegalRequest)?;
    let bit = (flags & 0x08 != 0).then_some(flags & 0x07);
    Some(FieldPointer { is_in_cdb: flags & 0x40 != 0, byte: u16_at(bytes, at + 1)?, bit })
}

fn parse_progress(bytes: &[u8], at: usize, key: SenseKey) -> Option<u16> {
    let has_progress = matches!(key, SenseKey::NoSense | SenseKey::NotReady);
    u8_at(bytes, at).filter(|flags| flags & 0x80 != 0 && has_progress)?;
    u16_at(bytes, at + 1)
}

impl std::fmt::Display for Sense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:02x}h/{:02x}h", self.key, self.asc, self.ascq)?;
        match self.name() {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_fixed_bytes() {
        let sense = Sense::INVALID_FIELD_IN_CDB.at_bit(1, 3);
        let expected = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcb, 0, 1];
        assert_eq!(sense.emit_fixed(), expected);
        let miscompare = Sense::MISCOMPARE_DURING_VERIFY.with_information(0x1e5);
        assert_eq!(miscompare.emit_fixed(), [0xf0, 0, 0xe, 0, 0, 1, 0xe5, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn golden_descriptor_bytes() {
        let sense = Sense::UNRECOVERED_READ_ERROR.with_information(0x1_0000_0002);
        let expected = [0x72, 3, 0x11, 0, 0, 0, 0, 12, 0, 0x0a, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!(sense.emit_descriptors(), expected);
    }

    #[test]
    fn a_large_lba_is_left_out_of_the_fixed_format() {
        let sense = Sense::UNRECOVERED_READ_ERROR.with_information(1 << 32);
        assert_eq!(Sense::parse(&sense.emit_fixed()).map(|sense| sense.information), Ok(None));
    }

    #[test]
    fn names_are_printed() {
        assert_eq!(
            Sense::POWER_ON_OR_RESET.to_string(),
            "UnitAttention 29h/00h (power on, reset, or bus device reset occurred)"
        );
    }

    fn any_sense() -> impl Strategy<Value = Sense> {
        let field = proptest::option::of((any::<bool>(), any::<u16>(), proptest::option::of(0u8..8)));
        let information = proptest::option::of(any::<u32>().prop_map(u64::from));
        let progress = proptest::option::of(any::<u16>());
        (0u8..16, any::<u8>(), any::<u8>(), any::<bool>(), information, field, progress).prop_map(
            |(key, asc, ascq, is_deferred, information, field, progress)| {
                let key = SenseKey::from_code(key);
                let field = field.filter(|_| key == SenseKey::IllegalRequest);
                let field = field.map(|(is_in_cdb, byte, bit)| FieldPointer { is_in_cdb, byte, bit });
                let progress = progress.filter(|_| matches!(key, SenseKey::NoSense | SenseKey::NotReady));
                Sense { key, asc, ascq, is_deferred, information, field, progress }
            },
        )
    }

    proptest! {
        #[test]
        fn both_formats_are_read_back(sense in any_sense()) {
            prop_assert_eq!(Sense::parse(&sense.emit_fixed()), Ok(sense));
            prop_assert_eq!(Sense::parse(&sense.emit_descriptors()), Ok(sense));
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Sense::parse(&bytes);
        }
    }
}
