//! A reader of fields in foreign bytes: each field is read whole and in range, or the byte is
//! returned at which it is not.

/// The byte of a parameter list or message at which it is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {0} is not what it must be")]
pub struct WrongByte(pub u16);

/// The bytes, and the offset of the next field.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// An error at byte `at`; the last byte that a field pointer can name if that is beyond it.
    pub(super) fn wrong(at: usize) -> WrongByte {
        WrongByte(u16::try_from(at).unwrap_or(u16::MAX))
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn field<const N: usize>(&mut self) -> Result<[u8; N], WrongByte> {
        let rest = self.bytes.get(self.at..).unwrap_or(&[]);
        let field = rest.first_chunk().ok_or(Self::wrong(self.bytes.len()))?;
        self.at += N;
        Ok(*field)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WrongByte> {
        self.field().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WrongByte> {
        self.field().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WrongByte> {
        self.field().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WrongByte> {
        self.field().map(u64::from_be_bytes)
    }

    /// A byte of which only some bits have a meaning.
    pub(super) fn flags(&mut self, known: u8) -> Result<u8, WrongByte> {
        let at = self.at;
        let flags = self.u8()?;
        if flags & !known == 0 { Ok(flags) } else { Err(Self::wrong(at)) }
    }

    /// Reserved bytes.
    pub(super) fn zeroes<const N: usize>(&mut self) -> Result<(), WrongByte> {
        let at = self.at;
        let field: [u8; N] = self.field()?;
        field.iter().position(|&byte| byte != 0).map_or(Ok(()), |index| Err(Self::wrong(at + index)))
    }

    /// As many items as `count`; an error, before the first is parsed, where too few bytes are
    /// left.
    pub(super) fn items<T>(
        &mut self,
        count: usize,
        item_bytes: usize,
        item: impl Fn(&mut Self) -> Result<T, WrongByte>,
    ) -> Result<Vec<T>, WrongByte> {
        let there = self.bytes.len().saturating_sub(self.at) / item_bytes;
        if there < count {
            return Err(Self::wrong(self.bytes.len()));
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// Checks that no byte follows.
    pub(super) fn end(self) -> Result<(), WrongByte> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(Self::wrong(self.at)) }
    }
}
