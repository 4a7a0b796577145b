//! The messages of the protocol, byte for byte. All numbers are big-endian.
//!
//! Fixed headers are `repr(C)` structs, read and written without conversion; a message of variable
//! length has a small type with `parse` and `emit`. Section names in quotation marks are those of
//! the NBD document (`doc/proto.md` of the NBD project).

pub mod handshake;
pub mod transmission;

/// The next bytes of a message; every step may find too few.
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_be_bytes)
    }

    /// A string after its length in 32 bits, within the protocol's bound.
    pub(crate) fn string(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.u32()?).ok()?;
        text(self.bytes(length)?)
    }
}

/// UTF-8 within the protocol's bound ("Conventions").
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    (bytes.len() <= crate::limits::STRING_BYTES_MAX).then(|| std::str::from_utf8(bytes).ok()).flatten()
}

/// The beginning of `text` that fits the protocol's bound on strings, cut between characters.
pub(crate) fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(crate::limits::STRING_BYTES_MAX)]
}

/// Appends a string after its length in 32 bits.
pub(crate) fn emit_string(text: &str, out: &mut Vec<u8>) {
    let text = bounded(text);
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
