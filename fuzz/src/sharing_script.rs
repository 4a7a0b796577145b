//! What hosts do to a unit that they share: orders of any bytes, and what clients do in order.

use crate::input::Input;

/// Hosts there are; the last begins as a stock initiator like the others, and may register as they.
pub const HOSTS: usize = 4;
const STEPS_MAX: usize = 64;

/// Whose id an order names.
#[derive(Clone, Copy, Debug)]
pub enum Named {
    /// That of the client that this host is, or zero.
    Host(usize),
    /// Any.
    Id(u64),
}

/// What a host does, or what happens to it.
#[derive(Clone, Debug)]
pub enum What {
    /// It registers with its own key.
    Register,
    /// It answers the oldest callback that it has not answered, and says that it lives.
    Answer,
    /// It reads a block.
    Read(u8),
    /// It writes a block.
    Write(u8),
    /// It sends an order.
    Order { action: u8, named: Named, list: Vec<u8> },
    /// So many times 250 ms pass.
    Pass(u8),
    /// Its session is lost, and it has another.
    Lose,
    /// It resets the unit.
    Reset,
}

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Below [`HOSTS`].
    pub host: usize,
    /// What.
    pub what: What,
}

impl Step {
    fn parse(input: &mut Input<'_>) -> Self {
        let head = input.byte();
        let what = match head & 7 {
            0 => What::Register,
            1 => What::Answer,
            2 => What::Read(input.byte()),
            3 => What::Write(input.byte()),
            4 => {
                let action = input.byte();
                let named = match input.byte() {
                    of @ 0..0x80 => Named::Host(usize::from(of) % HOSTS),
                    _ => Named::Id(input.u64()),
                };
                What::Order { action, named, list: input.counted_short().to_vec() }
            }
            5 => What::Pass(input.byte()),
            6 => What::Lose,
            _ => What::Reset,
        };
        Self { host: usize::from(head >> 3) % HOSTS, what }
    }

    /// Appends it.
    ///
    /// # Panics
    /// When a list has more than 255 bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let head = |code: u8| code | (self.host as u8) << 3;
        match &self.what {
            What::Register => out.push(head(0)),
            What::Answer => out.push(head(1)),
            What::Read(block) => out.extend([head(2), *block]),
            What::Write(block) => out.extend([head(3), *block]),
            What::Order { action, named, list } => {
                out.extend([head(4), *action]);
                match named {
                    Named::Host(of) => out.push(*of as u8),
                    Named::Id(id) => {
                        out.push(0x80);
                        out.extend(id.to_be_bytes());
                    }
                }
                out.push(u8::try_from(list.len()).expect("seeds are small"));
                out.extend(list);
            }
            What::Pass(quarters) => out.extend([head(5), *quarters]),
            What::Lose => out.push(head(6)),
            What::Reset => out.push(head(7)),
        }
    }
}

/// The steps that `bytes` are.
pub fn parse(bytes: &[u8]) -> Vec<Step> {
    let mut input = Input::new(bytes);
    let mut steps = Vec::new();
    while !input.is_empty() && steps.len() < STEPS_MAX {
        steps.push(Step::parse(&mut input));
    }
    steps
}
