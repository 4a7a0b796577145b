//! Commands that do not come to the gate yet, since another client holds their blocks alone and may have writes of them
//! that the target does not have.

use crate::gate::Command;
use crate::identity::CommandId;

/// In the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Withheld(Vec<Command>);

impl Withheld {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether a command is among them.
    pub fn contains(&self, id: CommandId) -> bool {
        self.0.iter().any(|command| command.id() == id)
    }

    /// One more, behind all others.
    pub fn add(&mut self, command: Command) {
        self.0.push(command);
    }

    /// All of them.
    pub fn all(&self) -> &[Command] {
        &self.0
    }

    /// Takes a command out; false where it is not there.
    pub fn remove(&mut self, id: CommandId) -> bool {
        let count = self.0.len();
        self.0.retain(|command| command.id() != id);
        self.0.len() < count
    }
}
