//! Big-endian fields in foreign bytes: in range, or nothing.

/// The byte at `at`.
pub(crate) fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// The 16-bit field at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|field| u16::from_be_bytes(*field))
}

/// The 32-bit field at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_be_bytes(*field))
}

/// The 64-bit field at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|field| u64::from_be_bytes(*field))
}

/// Text as ASCII fields hold it: left-aligned, space-filled, cut at the field's end; what is not printable becomes a
/// space (SPC-4 4.3.1).
pub(crate) fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = if (0x20..=0x7e).contains(&byte) { byte } else { b' ' };
    }
    field
}

/// The text of an ASCII field, without what fills it.
pub(crate) fn text(field: &[u8]) -> String {
    let printable = |&byte: &u8| if (0x20..=0x7e).contains(&byte) { char::from(byte) } else { ' ' };
    field.iter().map(printable).collect::<String>().trim().to_owned()
}
