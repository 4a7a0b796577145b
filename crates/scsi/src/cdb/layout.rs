//! Where an address and a count stand in CDBs of each length.
//!
//! | form | LBA | count |
//! |---|---|---|
//! | six | bytes 1..4, low 21 bits | byte 4, 0 is 256 |
//! | ten | bytes 2..6 | bytes 7..9 |
//! | twelve | bytes 2..6 | bytes 6..10 |
//! | sixteen | bytes 2..10 | bytes 10..14 |

/// A CDB before it is known to be valid: zero-filled to 16 bytes, so that every field of ours can be read.
pub(super) type Raw = [u8; 16];

/// Which of the lengths a command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "they are numbers")]
pub enum CdbForm {
    Six,
    Ten,
    Twelve,
    Sixteen,
}

impl CdbForm {
    /// Largest LBA the form can say.
    pub const fn lba_max(self) -> u64 {
        match self {
            Self::Six => (1 << 21) - 1,
            Self::Ten | Self::Twelve => u32::MAX as u64,
            Self::Sixteen => u64::MAX,
        }
    }

    /// Largest count the form can say.
    pub const fn count_max(self) -> u32 {
        match self {
            Self::Six => 256,
            Self::Ten => u16::MAX as u32,
            Self::Twelve | Self::Sixteen => u32::MAX,
        }
    }
}

/// Blocks a command addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Which CDB it stands in.
    pub form: CdbForm,
    /// First logical block.
    pub lba: u64,
    /// Count of blocks. READ(6) and WRITE(6) say 256 as zero; here it is 256.
    pub count: u32,
}

impl Blocks {
    /// The blocks in the shortest of ten and sixteen bytes that can say them; what an initiator sends.
    pub const fn new(lba: u64, count: u32) -> Self {
        let is_ten = lba <= CdbForm::Ten.lba_max() && count <= CdbForm::Ten.count_max();
        Self { form: if is_ten { CdbForm::Ten } else { CdbForm::Sixteen }, lba, count }
    }

    /// The blocks in sixteen bytes.
    pub const fn sixteen(lba: u64, count: u32) -> Self {
        Self { form: CdbForm::Sixteen, lba, count }
    }

    pub(super) fn parse(form: CdbForm, raw: &Raw) -> Self {
        let (lba, count) = match form {
            CdbForm::Six => (u64::from(u32_in(raw, 0) & 0x1f_ffff), if raw[4] == 0 { 256 } else { u32::from(raw[4]) }),
            CdbForm::Ten => (u64::from(u32_in(raw, 2)), u32::from(u16_in(raw, 7))),
            CdbForm::Twelve => (u64::from(u32_in(raw, 2)), u32_in(raw, 6)),
            CdbForm::Sixteen => (u64_in(raw, 2), u32_in(raw, 10)),
        };
        Self { form, lba, count }
    }

    /// # Panics
    /// When the form cannot say the LBA or the count: the caller chose it.
    pub(super) fn emit(&self, raw: &mut Raw) {
        assert!(self.lba <= self.form.lba_max(), "LBA {} does not fit in this CDB", self.lba);
        assert!(self.count <= self.form.count_max(), "{} blocks do not fit in this CDB", self.count);
        let (lba, count) = (self.lba as u32, self.count);
        match self.form {
            CdbForm::Six => {
                assert!(count > 0, "a count of zero in six bytes means 256 blocks");
                raw[1..4].copy_from_slice(&lba.to_be_bytes()[1..]);
                raw[4] = count as u8;
            }
            CdbForm::Ten => {
                raw[2..6].copy_from_slice(&lba.to_be_bytes());
                raw[7..9].copy_from_slice(&(count as u16).to_be_bytes());
            }
            CdbForm::Twelve => {
                raw[2..6].copy_from_slice(&lba.to_be_bytes());
                raw[6..10].copy_from_slice(&count.to_be_bytes());
            }
            CdbForm::Sixteen => {
                raw[2..10].copy_from_slice(&self.lba.to_be_bytes());
                raw[10..14].copy_from_slice(&count.to_be_bytes());
            }
        }
    }
}

pub(super) fn u16_in(raw: &Raw, at: usize) -> u16 {
    u16::from_be_bytes([raw[at], raw[at + 1]])
}

pub(super) fn u32_in(raw: &Raw, at: usize) -> u32 {
    u32::from(u16_in(raw, at)) << 16 | u32::from(u16_in(raw, at + 2))
}

pub(super) fn u64_in(raw: &Raw, at: usize) -> u64 {
    u64::from(u32_in(raw, at)) << 32 | u64::from(u32_in(raw, at + 4))
}
