//! Commands that must not come to the gate yet, since another client holds their blocks alone and
//! may have dirty data of them.

use crate::gate::Command;
use crate::identity::CommandId;

/// In order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Withheld(Vec<Command>);

impl Withheld {
    /// Count of commands.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether a command is among them.
    pub fn contains(&self, id: CommandId) -> bool {
        self.0.iter().any(|command| command.id() == id)
    }

    /// Adds a command at the end.
    pub fn add(&mut self, command: Command) {
        self.0.push(command);
    }

    /// All of them.
    pub fn all(&self) -> &[Command] {
        &self.0
    }

    /// Removes a command. Returns `false` where it is not there.
    pub fn remove(&mut self, id: CommandId) -> bool {
        let count = self.0.len();
        self.0.retain(|command| command.id() != id);
        self.0.len() < count
    }
}
