//! VPD page C1h: announces that a unit can be shared, with its times and limits.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Malformed;
use crate::vpd::{self, page};

const SIGNATURE: [u8; 8] = *b"FOREBAY\0";
const VERSION: u8 = 1;

/// The body of VPD page C1h.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SupportRaw {
    signature: [u8; 8],   //  0
    version: u8,          //  8
    profile: u8,          //  9
    locks_max: U16,       // 10
    lease_ms: U32,        // 12
    callback_ms: U32,     // 16
    callback_ms_max: U32, // 20
    hold_ms_min: U32,     // 24
    block_bytes: U32,     // 28
    untaken_max: U32,     // 32
    flags: u8,            // 36
    zero: [u8; 7],        // 37
}
const _: () = assert!(size_of::<SupportRaw>() == 44);
const _: () = assert!(offset_of!(SupportRaw, flags) == 36);

/// In `flags`: PRE-FETCH of a client registers copies.
const PREFETCH_REGISTERS: u8 = 0x01;

/// In `flags`: [`Support::withholds`].
const WITHHOLDS: u8 = 0x02;

/// The abilities and limits that a unit announces on page C1h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Whether the unit follows the paper in everything: exclusive grants are not cached.
    pub is_paper_profile: bool,
    /// Locks of one LOCK at most.
    pub locks_max: u16,
    /// The time for which a client may be silent.
    pub lease_ms: u32,
    /// The time for the answer to a callback that is not deferred.
    pub callback_ms: u32,
    /// The longest time for which a callback can be deferred.
    pub callback_ms_max: u32,
    /// The time before which a grant is not called back.
    pub hold_ms_min: u32,
    /// Bytes of a registered block: a power of two, at least the logical block.
    pub block_bytes: u32,
    /// Messages that a client may leave untaken.
    pub untaken_max: u32,
    /// Whether PRE-FETCH of a client registers copies that it already has, without moving data.
    pub prefetch_registers: bool,
    /// Whether a range of the unit that a client holds alone is called back before any other access
    /// to it, reads of initiators without locks included: the client may delay its writes.
    pub withholds: bool,
}

impl Support {
    /// The page.
    pub fn emit(&self) -> Vec<u8> {
        let flags = [(self.prefetch_registers, PREFETCH_REGISTERS), (self.withholds, WITHHOLDS)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
        let raw = SupportRaw {
            signature: SIGNATURE,
            version: VERSION,
            profile: u8::from(self.is_paper_profile),
            locks_max: U16::new(self.locks_max),
            lease_ms: U32::new(self.lease_ms),
            callback_ms: U32::new(self.callback_ms),
            callback_ms_max: U32::new(self.callback_ms_max),
            hold_ms_min: U32::new(self.hold_ms_min),
            block_bytes: U32::new(self.block_bytes),
            untaken_max: U32::new(self.untaken_max),
            flags,
            zero: [0; 7],
        };
        vpd::whole(page::SHARING, raw.as_bytes())
    }

    /// Parses a target's page. `None` where the page is another vendor's, or of a version that is
    /// not known here.
    ///
    /// # Errors
    /// [`Malformed`] when it is another page, is short, or has an impossible value.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let malformed = Malformed("vital product data");
        let body = vpd::body(page::SHARING, bytes)?;
        if !body.starts_with(&SIGNATURE) {
            return Ok(None);
        }
        let (raw, _) = SupportRaw::read_from_prefix(body).map_err(|_| malformed)?;
        if raw.version != VERSION {
            return Ok(None);
        }
        let support = Self {
            is_paper_profile: raw.profile == 1,
            locks_max: raw.locks_max.get(),
            lease_ms: raw.lease_ms.get(),
            callback_ms: raw.callback_ms.get(),
            callback_ms_max: raw.callback_ms_max.get(),
            hold_ms_min: raw.hold_ms_min.get(),
            block_bytes: raw.block_bytes.get(),
            untaken_max: raw.untaken_max.get(),
            prefetch_registers: raw.flags & PREFETCH_REGISTERS != 0,
            withholds: raw.flags & WITHHOLDS != 0,
        };
        let is_possible = raw.profile <= 1
            && support.block_bytes.is_power_of_two()
            && support.block_bytes >= 512
            && support.locks_max > 0
            && support.lease_ms > 0
            && support.callback_ms_max >= support.callback_ms;
        if is_possible { Ok(Some(support)) } else { Err(malformed) }
    }
}
