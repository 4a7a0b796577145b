//! The fuzzer's bytes as numbers.

/// A cursor over an input. What is not there reads as zero.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether everything was taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to `count` bytes.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// Bytes after their own count of two bytes.
    pub fn counted(&mut self) -> &'a [u8] {
        let count = self.u16();
        self.bytes(usize::from(count))
    }

    /// Bytes after their own count of one byte.
    pub fn counted_short(&mut self) -> &'a [u8] {
        let count = self.byte();
        self.bytes(usize::from(count))
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// Appends what [`Input::counted`] takes.
///
/// # Panics
/// When there are more than 65535 bytes.
pub fn emit_counted(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&u16::try_from(bytes.len()).expect("seeds are small").to_be_bytes());
    out.extend_from_slice(bytes);
}
