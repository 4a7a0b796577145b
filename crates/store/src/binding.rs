//! Which origin a store belongs to.
//!
//! Data cached or logged for one LUN must never be joined with another. A store keeps the origin's identity and
//! geometry in its superblock and compares them at every open; the error names both, so that a person sees which cable
//! is in the wrong socket.

use block::{Device, Error, ErrorKind, Identity};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An origin as a store on disk names it.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct BindingRaw {
    /// Size of the origin in bytes.
    pub size_bytes: U64,
    /// Logical block of the origin in bytes.
    pub logical_block_bytes: U32,
    /// Used bytes of `target`.
    pub target_bytes: U16,
    /// Used bytes of `unit`.
    pub unit_bytes: U16,
    /// Used bytes of `serial`.
    pub serial_bytes: U16,
    /// Zero.
    pub reserved: [u8; 14],
    /// UTF-8, zero behind `target_bytes`. An iSCSI name has at most 223 bytes (RFC 7143 4.2.7.1); a stripe joins
    /// several.
    pub target: [u8; 1024],
    /// UTF-8, zero behind `unit_bytes`. A designator (VPD 83h) or a path.
    pub unit: [u8; 1024],
    /// UTF-8, zero behind `serial_bytes`. A serial number (VPD 80h) has at most 252 bytes; a stripe joins several.
    pub serial: [u8; 480],
}
const _: () = assert!(size_of::<BindingRaw>() == 2560);
const _: () = assert!(std::mem::offset_of!(BindingRaw, target) == 32);
const _: () = assert!(std::mem::offset_of!(BindingRaw, serial) == 2080);

/// Identity and geometry of an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Target, unit and serial number.
    pub identity: Identity,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block in bytes.
    pub logical_block_bytes: u32,
}

impl Binding {
    /// The binding to `origin` as it is now.
    pub fn of(origin: &dyn Device) -> Self {
        let geometry = origin.geometry();
        Self {
            identity: origin.identity(),
            size_bytes: geometry.size_bytes,
            logical_block_bytes: geometry.logical_block_bytes,
        }
    }

    /// Refuses an origin that is not the one of this binding. Sizes are not compared: a LUN may grow.
    ///
    /// # Errors
    /// `Corrupt`, naming both.
    pub fn check_same(&self, origin: &Self, store_name: &str) -> Result<(), Error> {
        if self.identity != origin.identity {
            let is_renamed = !self.identity.serial.is_empty() && self.identity.serial == origin.identity.serial;
            let advice = match is_renamed {
                true => {
                    ". They have the same serial number: where it is the same disk under another target name or \
                     number, serve it under the former one, with which this fits"
                }
                false => "",
            };
            let context = format!(
                "this {store_name} belongs to another disk: it was made for \"{}\", and this is \"{}\"{advice}",
                self.identity, origin.identity
            );
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
        if self.logical_block_bytes != origin.logical_block_bytes {
            let context = format!(
                "this {store_name} was made for logical blocks of {} bytes, and \"{}\" now has {}",
                self.logical_block_bytes, origin.identity, origin.logical_block_bytes
            );
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
        Ok(())
    }

    /// The bytes on disk.
    ///
    /// # Errors
    /// `Unsupported` when a name is longer than its field: it must not be cut, since names that differ only at their
    /// ends would then match.
    pub fn to_raw(&self) -> Result<BindingRaw, Error> {
        let (target, target_bytes) = put("target name", &self.identity.target)?;
        let (unit, unit_bytes) = put("unit designator", &self.identity.unit)?;
        let (serial, serial_bytes) = put("serial number", &self.identity.serial)?;
        Ok(BindingRaw {
            size_bytes: self.size_bytes.into(),
            logical_block_bytes: self.logical_block_bytes.into(),
            target_bytes,
            unit_bytes,
            serial_bytes,
            reserved: [0; 14],
            target,
            unit,
            serial,
        })
    }

    /// The binding in bytes from a disk.
    ///
    /// # Errors
    /// `Corrupt` when they are not one.
    pub fn from_raw(raw: &BindingRaw) -> Result<Self, Error> {
        let identity = Identity {
            target: take(&raw.target, raw.target_bytes)?,
            unit: take(&raw.unit, raw.unit_bytes)?,
            serial: take(&raw.serial, raw.serial_bytes)?,
        };
        Ok(Self { identity, size_bytes: raw.size_bytes.get(), logical_block_bytes: raw.logical_block_bytes.get() })
    }
}

fn put<const N: usize>(what: &str, text: &str) -> Result<([u8; N], U16), Error> {
    let mut field = [0; N];
    let Some(place) = field.get_mut(..text.len()) else {
        let context = format!("the origin's {what} has {} bytes; at most {N} can be recorded", text.len());
        return Err(Error::new(ErrorKind::Unsupported, context));
    };
    place.copy_from_slice(text.as_bytes());
    let length = u16::try_from(text.len()).map_err(|_| ErrorKind::Unsupported)?;
    Ok((field, length.into()))
}

fn take(field: &[u8], length: U16) -> Result<String, Error> {
    let bytes = field.get(..usize::from(length.get()));
    let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.map(str::to_owned).ok_or_else(|| Error::new(ErrorKind::Corrupt, "the origin's recorded name is damaged"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn binding(target: &str, unit: &str, serial: &str) -> Binding {
        let identity = Identity { target: target.into(), unit: unit.into(), serial: serial.into() };
        Binding { identity, size_bytes: 0x1_0000_0200, logical_block_bytes: 512 }
    }

    #[test]
    fn the_bytes_are_what_the_format_page_says() {
        let raw = binding("iqn.x", "naa.1", "S9").to_raw().unwrap();
        let bytes = raw.as_bytes();
        assert_eq!(bytes[..16], [0, 2, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 5, 0, 5, 0]);
        assert_eq!(bytes[16..32], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[32..40], b"iqn.x\0\0\0");
        assert_eq!(&bytes[1056..1064], b"naa.1\0\0\0");
        assert_eq!(&bytes[2080..2084], b"S9\0\0");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(target in ".{0,60}", unit in ".{0,200}", serial in ".{0,60}") {
            let binding = binding(&target, &unit, &serial);
            prop_assert_eq!(Binding::from_raw(&binding.to_raw().unwrap()).unwrap(), binding);
        }
    }

    #[test]
    fn a_stranger_is_refused_by_name() {
        let ours = binding("iqn.a", "naa.1", "S1");
        for other in [binding("iqn.b", "naa.1", "S1"), binding("iqn.a", "naa.2", "S1"), binding("iqn.a", "naa.1", "S2")]
        {
            let message = ours.check_same(&other, "cache").unwrap_err().to_string();
            assert!(message.contains(&ours.identity.to_string()), "{message}");
            assert!(message.contains(&other.identity.to_string()), "{message}");
        }
        let larger = Binding { size_bytes: u64::MAX, ..ours.clone() };
        assert!(ours.check_same(&larger, "cache").is_ok());
        let blocks = Binding { logical_block_bytes: 4096, ..ours.clone() };
        assert!(ours.check_same(&blocks, "cache").unwrap_err().to_string().contains("4096"));
    }

    #[test]
    fn a_name_too_long_is_refused_and_a_damaged_one_too() {
        assert_eq!(binding(&"x".repeat(1025), "", "").to_raw().unwrap_err().kind(), ErrorKind::Unsupported);
        let mut raw = binding("iqn.a", "", "").to_raw().unwrap();
        raw.target_bytes = 2000.into();
        assert_eq!(Binding::from_raw(&raw).unwrap_err().kind(), ErrorKind::Corrupt);
        raw.target_bytes = 1.into();
        raw.target[0] = 0xff;
        assert_eq!(Binding::from_raw(&raw).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
