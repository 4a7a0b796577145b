//! The script of a session: an initiator with several connections that loses, repeats and reorders things on purpose,
//! and the driver of the target's end.
//!
//! A step has a fixed size, so that a mutated input stays aligned. What a step cannot do at its moment (answer an R2T
//! when there is none), it does not do.

use crate::input::Input;

/// What was agreed at the login.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// ErrorRecoveryLevel, 0 to 2.
    pub level: u8,
    /// CRC32C over headers.
    pub has_header_digest: bool,
    /// CRC32C over data.
    pub has_data_digest: bool,
    /// Every write waits for an R2T.
    pub has_initial_r2t: bool,
    /// Little memory, few commands.
    pub is_tight: bool,
    /// The target's end is written only where the script says so; else after every step.
    pub is_slow: bool,
}

/// Kinds of steps. The numbers are the input's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A SCSI command.
    Command,
    /// Data for a transfer.
    Data,
    /// All that is left of a transfer.
    AllData,
    /// SNACK.
    Snack,
    /// Task management.
    Manage,
    /// Logout.
    Logout,
    /// NOP-Out.
    Ping,
    /// Another connection, or one again.
    Join,
    /// A connection breaks.
    Lose,
    /// Time passes.
    Wait,
    /// The network takes some bytes.
    Transmit,
    /// The driver answers a command.
    Complete,
    /// The driver answers a task management function.
    Managed,
    /// The next PDU has some bits of its header turned.
    Mutate,
    /// The target's end does something of its own accord.
    Local,
    /// Responses are acknowledged from now on, or not.
    Acknowledge,
}

const KINDS: [Kind; 16] = [
    Kind::Command,
    Kind::Data,
    Kind::AllData,
    Kind::Snack,
    Kind::Manage,
    Kind::Logout,
    Kind::Ping,
    Kind::Join,
    Kind::Lose,
    Kind::Wait,
    Kind::Transmit,
    Kind::Complete,
    Kind::Managed,
    Kind::Mutate,
    Kind::Local,
    Kind::Acknowledge,
];

/// Bits of [`Step::flags`].
pub mod flag {
    /// An immediate request.
    pub const IMMEDIATE: u8 = 1;
    /// A number is left out, which [`FILL`] uses later. For data: it is lost on the way.
    pub const GAP: u8 = 2;
    /// The oldest number that was left out. For data: the piece before, again.
    pub const FILL: u8 = 4;
    /// A number that was used before.
    pub const REPEAT: u8 = 8;
    /// A write.
    pub const WRITE: u8 = 16;
    /// Bad header digest.
    pub const BAD_HEADER: u8 = 32;
    /// Bad data digest.
    pub const BAD_DATA: u8 = 64;
    /// Unsolicited data follows. For data: the last of its sequence, wherever it is.
    pub const OPEN: u8 = 128;
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What.
    pub kind: Kind,
    /// On which connection, counted among the living.
    pub link: u8,
    /// Of which of several things.
    pub pick: u8,
    /// How: [`flag`].
    pub flags: u8,
    /// How much.
    pub amount: u16,
}

impl Step {
    /// A step on the first connection.
    pub const fn new(kind: Kind, pick: u8, flags: u8, amount: u16) -> Self {
        Self { kind, link: 0, pick, flags, amount }
    }

    /// The same on another connection.
    #[must_use]
    pub fn on(self, link: u8) -> Self {
        Self { link, ..self }
    }

    /// Whether a bit is set.
    pub fn has(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }

    fn parse(input: &mut Input<'_>) -> Self {
        let kind = KINDS[usize::from(input.byte()) % KINDS.len()];
        Self { kind, link: input.byte(), pick: input.byte(), flags: input.byte(), amount: input.u16() }
    }
}

const STEPS_MAX: usize = 250;

/// A whole script.
#[derive(Clone, Debug)]
pub struct Script {
    /// What was agreed.
    pub setup: Setup,
    /// What happens.
    pub steps: Vec<Step>,
}

impl Script {
    /// The script that `bytes` are.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut input = Input::new(bytes);
        let (level, flags) = (input.byte() % 3, input.byte());
        let has = |bit: u8| flags & 1 << bit != 0;
        let setup = Setup {
            level,
            has_header_digest: has(0),
            has_data_digest: has(1),
            has_initial_r2t: has(2),
            is_tight: has(3),
            is_slow: has(4),
        };
        let mut steps = Vec::new();
        while !input.is_empty() && steps.len() < STEPS_MAX {
            steps.push(Step::parse(&mut input));
        }
        Self { setup, steps }
    }

    /// The bytes that are this script.
    pub fn emit(&self) -> Vec<u8> {
        let setup = self.setup;
        let bits =
            [setup.has_header_digest, setup.has_data_digest, setup.has_initial_r2t, setup.is_tight, setup.is_slow];
        let flags = bits.iter().enumerate().map(|(bit, &is_set)| u8::from(is_set) << bit).sum();
        let mut out = vec![setup.level, flags];
        for step in &self.steps {
            out.extend_from_slice(&[step.kind as u8, step.link, step.pick, step.flags]);
            out.extend_from_slice(&step.amount.to_be_bytes());
        }
        out
    }
}
