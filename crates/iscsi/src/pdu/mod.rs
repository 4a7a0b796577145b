//! The PDUs of RFC 7143 section 11.
//!
//! Each PDU has a file with two levels: a `...Raw` struct that is its 48-byte Basic Header Segment
//! byte for byte, and a value of the same name without `Raw` in which impossible states cannot be
//! expressed. [`Bhs`] is any of them. Common parts are separate: the two lengths in bytes 4..8 are
//! a [`Lengths`], which `framing` fills in, and additional header segments are in [`ahs`].
//!
//! Reserved bits are ignored when received and zero when sent; reserved *values* in defined fields are an error (RFC
//! 7143 2.4).
//!
//! | opcode | PDU | | opcode | PDU |
//! |---|---|---|---|---|
//! | 00h | [`NopOut`] | | 20h | [`NopIn`] |
//! | 01h | [`ScsiCommand`] | | 21h | [`ScsiResponse`] |
//! | 02h | [`TaskManagementRequest`] | | 22h | [`TaskManagementResponse`] |
//! | 03h | [`LoginRequest`] | | 23h | [`LoginResponse`] |
//! | 04h | [`TextRequest`] | | 24h | [`TextResponse`] |
//! | 05h | [`DataOut`] | | 25h | [`DataIn`] |
//! | 06h | [`LogoutRequest`] | | 26h | [`LogoutResponse`] |
//! | 10h | [`SnackRequest`] | | 31h | [`ReadyToTransfer`] |
//! | | | | 32h | [`AsyncMessage`] |
//! | | | | 3fh | [`Reject`] |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Defines an enum whose values are codes of the standard, with the standard's names, in the standard's order.
macro_rules! code_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $code:literal, $text:literal;)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$variant_meta])* #[doc = $text] $variant = $code,)+ }

        impl $name {
            /// Every value, in the standard's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The value of a code, or `None` where the code is reserved.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            /// The code on the wire.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The standard's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub mod ahs;
mod async_message;
mod data_in;
mod data_out;
mod login_request;
mod login_response;
mod logout_request;
mod logout_response;
mod nop_in;
mod nop_out;
mod ready_to_transfer;
mod reject;
mod residual;
mod scsi_command;
mod scsi_response;
mod snack_request;
mod tag;
mod task_management_request;
mod task_management_response;
mod text_request;
mod text_response;

pub use ahs::{AdditionalHeaders, AhsError};
pub use async_message::{AsyncEvent, AsyncMessage};
pub use data_in::{DataIn, DataInStatus};
pub use data_out::DataOut;
pub use login_request::{Isid, LoginRequest, LoginStage, NoIsid};
pub use login_response::{LoginResponse, LoginStatus};
pub use logout_request::{LogoutReason, LogoutRequest};
pub use logout_response::{LogoutOutcome, LogoutResponse};
pub use nop_in::NopIn;
pub use nop_out::NopOut;
pub use ready_to_transfer::ReadyToTransfer;
pub use reject::{Reject, RejectReason};
pub use residual::Residual;
pub use scsi::{TaskAttribute, TaskManagementFunction, TaskManagementOutcome};
pub use scsi_command::ScsiCommand;
pub use scsi_response::{ScsiResponse, ServiceResponse};
pub use snack_request::{SnackRequest, SnackType};
pub use tag::{InitiatorTaskTag, RESERVED_TAG, TargetTransferTag};
pub use task_management_request::TaskManagementRequest;
pub use task_management_response::TaskManagementResponse;
pub use text_request::TextRequest;
pub use text_response::TextResponse;

/// Bytes of a Basic Header Segment (RFC 7143 11.2.1).
pub const BHS_BYTES: usize = 48;

/// Bytes of a header or data digest (RFC 7143 13.1).
pub const DIGEST_BYTES: usize = 4;

/// A Basic Header Segment as it is on the wire.
pub type RawBhs = [u8; BHS_BYTES];

/// The F bit of byte 1 (RFC 7143 11.2.1.3).
pub(crate) const FINAL: u8 = 0x80;
/// The C bit of byte 1 in text and login PDUs.
pub(crate) const CONTINUE: u8 = 0x40;
/// The I bit of byte 0 (RFC 7143 11.2.1.1).
pub(crate) const IMMEDIATE: u8 = 0x40;
const OPCODE_MASK: u8 = 0x3f;

/// Bytes that pad `length` to whole four-byte words (RFC 7143 11.2).
pub const fn padding_bytes(length: usize) -> usize {
    length.wrapping_neg() & 3
}

code_enum! {
    /// The kind of a PDU (RFC 7143 11.2.1.2).
    pub enum Opcode {
        NopOut = 0x00, "NOP-Out";
        ScsiCommand = 0x01, "SCSI Command";
        TaskManagementRequest = 0x02, "SCSI Task Management Function Request";
        LoginRequest = 0x03, "Login Request";
        TextRequest = 0x04, "Text Request";
        DataOut = 0x05, "SCSI Data-Out";
        LogoutRequest = 0x06, "Logout Request";
        SnackRequest = 0x10, "SNACK Request";
        NopIn = 0x20, "NOP-In";
        ScsiResponse = 0x21, "SCSI Response";
        TaskManagementResponse = 0x22, "SCSI Task Management Function Response";
        LoginResponse = 0x23, "Login Response";
        TextResponse = 0x24, "Text Response";
        DataIn = 0x25, "SCSI Data-In";
        LogoutResponse = 0x26, "Logout Response";
        ReadyToTransfer = 0x31, "Ready To Transfer";
        AsyncMessage = 0x32, "Asynchronous Message";
        Reject = 0x3f, "Reject";
    }
}

impl Opcode {
    /// The opcode of a header, or `None` where it is unassigned or a vendor's.
    pub fn of(raw: &RawBhs) -> Option<Self> {
        Self::from_code(raw[0] & OPCODE_MASK)
    }

    /// Whether initiators send it.
    pub const fn is_initiators(self) -> bool {
        self.code() < 0x20
    }
}

/// Why a header is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The opcode is unassigned or a vendor's.
    #[error("opcode {0:02x}h is not one of RFC 7143")]
    UnknownOpcode(u8),
    /// A defined field holds a reserved value, or fields contradict each other.
    #[error("{opcode} with an invalid {field}")]
    InvalidField {
        /// The PDU.
        opcode: Opcode,
        /// The field, by its name in the standard.
        field: &'static str,
    },
}

impl HeaderError {
    /// The reason in a Reject of it (RFC 7143 11.17.1).
    pub fn reject_reason(&self) -> RejectReason {
        match self {
            Self::UnknownOpcode(_) => RejectReason::CommandNotSupported,
            Self::InvalidField { .. } => RejectReason::InvalidPduField,
        }
    }
}

/// One kind of PDU: its header as a value.
pub trait Header: Sized {
    /// The kind of PDU.
    const OPCODE: Opcode;

    /// Reads a header whose opcode is [`Self::OPCODE`].
    ///
    /// # Errors
    /// [`HeaderError::InvalidField`].
    fn parse(raw: &RawBhs) -> Result<Self, HeaderError>;

    /// Writes the whole header; both lengths are zero.
    fn emit(&self, raw: &mut RawBhs);

    /// The header's bytes; both lengths are zero.
    fn to_bytes(&self) -> RawBhs {
        let mut raw = [0; BHS_BYTES];
        self.emit(&mut raw);
        raw
    }

    /// The error of a field.
    fn invalid(field: &'static str) -> HeaderError {
        HeaderError::InvalidField { opcode: Self::OPCODE, field }
    }
}

macro_rules! any_header {
    ($($variant:ident),+) => {
        /// The header of any PDU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bhs {
            $(#[doc = concat!("See [`", stringify!($variant), "`].")] $variant($variant),)+
        }

        impl Bhs {
            /// Reads any header.
            ///
            /// # Errors
            /// [`HeaderError`].
            pub fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
                match Opcode::of(raw).ok_or(HeaderError::UnknownOpcode(raw[0] & OPCODE_MASK))? {
                    $(Opcode::$variant => $variant::parse(raw).map(Self::$variant),)+
                }
            }

            /// Writes the whole header; both lengths are zero.
            pub fn emit(&self, raw: &mut RawBhs) {
                match self { $(Self::$variant(header) => header.emit(raw),)+ }
            }

            /// The kind of PDU.
            pub fn opcode(&self) -> Opcode {
                match self { $(Self::$variant(_) => Opcode::$variant,)+ }
            }
        }

        $(impl From<$variant> for Bhs {
            fn from(header: $variant) -> Self {
                Self::$variant(header)
            }
        })+
    };
}

any_header!(
    NopOut,
    ScsiCommand,
    TaskManagementRequest,
    LoginRequest,
    TextRequest,
    DataOut,
    LogoutRequest,
    SnackRequest,
    NopIn,
    ScsiResponse,
    TaskManagementResponse,
    LoginResponse,
    TextResponse,
    DataIn,
    LogoutResponse,
    ReadyToTransfer,
    AsyncMessage,
    Reject
);

/// The two lengths of a PDU, bytes 4..8 of every header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// TotalAHSLength: four-byte words of additional header segments, padding included.
    pub ahs_words: u8,
    /// DataSegmentLength in bytes, without padding; below 2^24.
    pub data_segment_bytes: u32,
}

impl Lengths {
    /// Reads them.
    pub fn parse(raw: &RawBhs) -> Self {
        Self { ahs_words: raw[4], data_segment_bytes: u32::from_be_bytes([0, raw[5], raw[6], raw[7]]) }
    }

    /// Writes them.
    ///
    /// # Panics
    /// When the data segment is 2^24 bytes or longer: MaxRecvDataSegmentLength never allows that.
    pub fn emit(&self, raw: &mut RawBhs) {
        let [top, high, middle, low] = self.data_segment_bytes.to_be_bytes();
        assert!(top == 0, "a data segment is below 2^24 bytes");
        raw[4..8].copy_from_slice(&[self.ahs_words, high, middle, low]);
    }

    /// Bytes of additional header segments, padding included.
    pub fn ahs_bytes(&self) -> usize {
        usize::from(self.ahs_words) * 4
    }
}

/// The raw struct of a header. All of them are 48 bytes without alignment, so this cannot fail.
pub(crate) fn raw_of<T: FromBytes + KnownLayout + Immutable>(raw: &RawBhs) -> &T {
    T::ref_from_bytes(raw).expect("every header struct is 48 bytes of alignment one")
}

/// Writes a raw struct over a whole header.
pub(crate) fn write_raw<T: IntoBytes + Immutable>(value: &T, raw: &mut RawBhs) {
    raw.copy_from_slice(value.as_bytes());
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::*;

    /// Bytes written as hex with spaces.
    pub(crate) fn hex(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("the test writes hex");
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    /// `header` is emitted as the golden bytes, over a buffer of 0xa5, and read back from them.
    pub(crate) fn check_golden<H: Header + PartialEq + std::fmt::Debug>(header: H, golden: &str) {
        let mut raw = [0xa5; BHS_BYTES];
        header.emit(&mut raw);
        assert_eq!(raw.to_vec(), hex(golden), "{raw:02x?}");
        assert_eq!(H::parse(&raw), Ok(header));
    }

    /// A header that is parsed and emitted parses to the same value.
    pub(crate) fn check_round_trips<H: Header + PartialEq + std::fmt::Debug>() {
        let mut random = base::random::Random::new(u64::from(H::OPCODE.code()));
        let mut parsed_count = 0;
        for _ in 0..20_000 {
            let mut raw = [0; BHS_BYTES];
            random.fill(&mut raw);
            raw[0] = raw[0] & !OPCODE_MASK | H::OPCODE.code();
            let Ok(header) = H::parse(&raw) else { continue };
            parsed_count += 1;
            let mut emitted = [0xa5; BHS_BYTES];
            header.emit(&mut emitted);
            assert_eq!(H::parse(&emitted), Ok(header), "{raw:02x?}");
        }
        assert!(parsed_count >= 100, "only {parsed_count} random headers were valid");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn padding_reaches_the_next_word() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(padding_bytes), [0, 3, 2, 1, 0, 3]);
    }

    #[test]
    fn vendor_and_unassigned_opcodes_are_unknown() {
        for code in [0x07, 0x1c, 0x1e, 0x30, 0x3c, 0x3e] {
            let mut raw = [0; BHS_BYTES];
            raw[0] = code;
            let error = Bhs::parse(&raw).unwrap_err();
            assert_eq!(error, HeaderError::UnknownOpcode(code));
            assert_eq!(error.reject_reason(), RejectReason::CommandNotSupported);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(raw in any::<[u8; 32]>(), rest in any::<[u8; 16]>()) {
            let mut header = [0xa5; BHS_BYTES];
            header[..32].copy_from_slice(&raw);
            header[32..].copy_from_slice(&rest);
            if let Ok(bhs) = Bhs::parse(&header) {
                let mut emitted = [0xa5; BHS_BYTES];
                bhs.emit(&mut emitted);
                prop_assert_eq!(Bhs::parse(&emitted), Ok(bhs));
            }
        }

        #[test]
        fn lengths_are_read_back(ahs_words in any::<u8>(), data_segment_bytes in 0u32..1 << 24) {
            let lengths = Lengths { ahs_words, data_segment_bytes };
            let mut raw = [0xa5; BHS_BYTES];
            lengths.emit(&mut raw);
            prop_assert_eq!(Lengths::parse(&raw), lengths);
        }
    }
}
