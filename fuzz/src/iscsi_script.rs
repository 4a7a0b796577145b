//! The script of an iSCSI peer, whichever end it plays, and of the driver of the end under test.

use iscsi::pdu::{BHS_BYTES, RawBhs};

use crate::input::{Input, emit_counted};

/// How a run begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// The login is done properly before the first item.
    pub is_logged_in: bool,
    /// CRC32C over headers.
    pub has_header_digest: bool,
    /// CRC32C over data.
    pub has_data_digest: bool,
    /// CHAP in both directions; with it there is no login beforehand.
    pub has_chap: bool,
    /// Every write waits for an R2T.
    pub has_initial_r2t: bool,
    /// A discovery session.
    pub is_discovery: bool,
    /// Little memory, few commands.
    pub is_tight: bool,
    /// The end under test is written only where the script says so; else after every item.
    pub is_slow: bool,
    /// Bytes of one read from the network; 0 reads as many as there is space for.
    pub read_bytes: u8,
}

impl Setup {
    fn parse(input: &mut Input<'_>) -> Self {
        let flags = input.byte();
        let has = |bit: u8| flags & 1 << bit != 0;
        Self {
            is_logged_in: has(0),
            has_header_digest: has(1),
            has_data_digest: has(2),
            has_chap: has(3),
            has_initial_r2t: has(4),
            is_discovery: has(5),
            is_tight: has(6),
            is_slow: has(7),
            read_bytes: input.byte(),
        }
    }

    fn emit(&self, out: &mut Vec<u8>) {
        let bits = [
            self.is_logged_in,
            self.has_header_digest,
            self.has_data_digest,
            self.has_chap,
            self.has_initial_r2t,
            self.is_discovery,
            self.is_tight,
            self.is_slow,
        ];
        let flags = bits.iter().enumerate().map(|(bit, &is_set)| u8::from(is_set) << bit).sum();
        out.extend_from_slice(&[flags, self.read_bytes]);
    }
}

/// What the harness fills into a PDU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixes(pub u8);

impl Fixes {
    /// CmdSN or StatSN: the next one. Towards an initiator, ExpCmdSN and MaxCmdSN as well.
    pub const NUMBERS: u8 = 1;
    /// The tag the end under test gave out: TTT towards a target, ITT towards an initiator.
    pub const TAG: u8 = 2;
    /// The data segment is a pattern; else it is taken from the script.
    pub const PATTERN: u8 = 4;
    /// The header digest is wrong.
    pub const BAD_HEADER_DIGEST: u8 = 8;
    /// The data digest is wrong.
    pub const BAD_DATA_DIGEST: u8 = 16;
    /// The lengths in the header stay as they are in the script.
    pub const OWN_LENGTHS: u8 = 32;

    /// Whether `bit` is set.
    pub fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

/// One step.
#[derive(Clone, Debug)]
pub enum Item {
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// A PDU.
    Pdu {
        /// What is filled in.
        fixes: Fixes,
        /// Which of the tags seen, with [`Fixes::TAG`].
        tag_index: u8,
        /// The header.
        bhs: RawBhs,
        /// Additional header segments, cut to whole words.
        ahs: Vec<u8>,
        /// The data segment.
        data: Vec<u8>,
    },
    /// Time passes, in milliseconds.
    Wait(u16),
    /// The network takes this many bytes.
    Transmit(u16),
    /// The driver does something: what, is the target's matter.
    Driver {
        /// Which of its doings.
        action: u8,
        /// On what.
        index: u8,
        /// How.
        detail: u8,
        /// How much.
        amount: u32,
    },
}

/// Longest data segment a script can ask for with a pattern.
const PATTERN_BYTES_MAX: usize = 20_000;
const ITEMS_MAX: usize = 200;

impl Item {
    fn parse(input: &mut Input<'_>) -> Self {
        match input.byte() % 8 {
            0 => Self::Raw(input.counted().to_vec()),
            1..=3 => {
                let (fixes, tag_index) = (Fixes(input.byte()), input.byte());
                let bhs = input.array::<BHS_BYTES>();
                let ahs_words = usize::from(input.byte() % 8);
                let mut ahs = input.bytes(4 * ahs_words).to_vec();
                ahs.resize(4 * ahs_words, 0);
                let data = if fixes.has(Fixes::PATTERN) {
                    pattern(usize::from(input.u16()).min(PATTERN_BYTES_MAX))
                } else {
                    input.counted().to_vec()
                };
                Self::Pdu { fixes, tag_index, bhs, ahs, data }
            }
            4 => Self::Wait(input.u16()),
            5 => Self::Transmit(input.u16()),
            _ => Self::Driver { action: input.byte(), index: input.byte(), detail: input.byte(), amount: input.u32() },
        }
    }

    fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Raw(bytes) => {
                out.push(0);
                emit_counted(bytes, out);
            }
            Self::Pdu { fixes, tag_index, bhs, ahs, data } => {
                out.extend_from_slice(&[1, fixes.0, *tag_index]);
                out.extend_from_slice(bhs);
                out.push((ahs.len() / 4) as u8);
                out.extend_from_slice(ahs);
                if fixes.has(Fixes::PATTERN) {
                    out.extend_from_slice(&(data.len() as u16).to_be_bytes());
                } else {
                    emit_counted(data, out);
                }
            }
            Self::Wait(milliseconds) => {
                out.push(4);
                out.extend_from_slice(&milliseconds.to_be_bytes());
            }
            Self::Transmit(bytes) => {
                out.push(5);
                out.extend_from_slice(&bytes.to_be_bytes());
            }
            Self::Driver { action, index, detail, amount } => {
                out.extend_from_slice(&[6, *action, *index, *detail]);
                out.extend_from_slice(&amount.to_be_bytes());
            }
        }
    }
}

/// `length` bytes that are not all the same.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// A whole script.
#[derive(Clone, Debug)]
pub struct Script {
    /// How it begins.
    pub setup: Setup,
    /// What happens.
    pub items: Vec<Item>,
}

impl Script {
    /// The script that `bytes` are.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut input = Input::new(bytes);
        let setup = Setup::parse(&mut input);
        let mut items = Vec::new();
        while !input.is_empty() && items.len() < ITEMS_MAX {
            items.push(Item::parse(&mut input));
        }
        Self { setup, items }
    }

    /// The bytes that are this script.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.setup.emit(&mut out);
        self.items.iter().for_each(|item| item.emit(&mut out));
        out
    }
}
