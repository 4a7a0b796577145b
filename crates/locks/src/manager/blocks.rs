//! Reads and changes at the gate; open files.

use base::clock::Instant;

use super::LockManager;
use crate::blocks::BlockRange;
use crate::callbacks::Subject;
use crate::error::{LockError, Table};
use crate::gate::{Change, Command, Passage, Step};
use crate::identity::{ClientId, CommandId, Generation, Owner};
use crate::limits::Limits;
use crate::message::ToClient;
use crate::open_files::OpenMode;
use crate::resource::FileId;

impl LockManager {
    /// Adds a read of a client that may keep a copy; `client` is `None` for a stock initiator. A
    /// read that does not pass at once passes by an [`Output::Pass`](super::Output::Pass).
    ///
    /// # Errors
    /// When the client's life is over, or the gate is full.
    pub fn read(
        &mut self,
        now: Instant,
        command: CommandId,
        range: BlockRange,
        by: Option<ClientId>,
    ) -> Result<Option<Passage>, LockError> {
        self.come(now, Command::read(command, range, by, true))
    }

    /// Like [`read`](Self::read), where no copy is kept.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn look(
        &mut self,
        now: Instant,
        command: CommandId,
        range: BlockRange,
        by: Option<ClientId>,
    ) -> Result<Option<Passage>, LockError> {
        self.come(now, Command::read(command, range, by, false))
    }

    /// Adds a change of blocks. It passes when no other client has copies, at once or by an
    /// [`Output::Pass`](super::Output::Pass).
    ///
    /// # Errors
    /// When the client's life is over, or the gate is full.
    pub fn begin_change(
        &mut self,
        now: Instant,
        command: CommandId,
        change: Change,
    ) -> Result<Option<Passage>, LockError> {
        let is_under_grant = change.is_under_grant || change.by.is_some_and(|by| self.holds_alone(by, change.range));
        self.come(now, Command::change(command, Change { is_under_grant, ..change }))
    }

    fn come(&mut self, now: Instant, command: Command) -> Result<Option<Passage>, LockError> {
        command.by().map_or(Ok(()), |client| self.check_life(now, client))?;
        if self.withheld.contains(command.id()) {
            return Err(LockError::CommandState(command.id()));
        }
        let commands_max = self.settings.limits.commands_max.saturating_sub(self.withheld.count());
        if self.withholds(now, &command) {
            if self.gate.command_count() >= commands_max {
                return Err(LockError::Full(Table::Commands));
            }
            self.withheld.add(command);
            return Ok(None);
        }
        self.gate.arrive(command, &Limits { commands_max, ..self.settings.limits.clone() })?;
        Ok(self.advance_gate_for(now, command.id()))
    }

    /// Ends a change that passed, which is done or was given up: its blocks may be old, new, or
    /// both. With `keeps_copy` its client may keep what it wrote, as a copy of the returned
    /// generation.
    ///
    /// # Errors
    /// When no such change is under way.
    pub fn end_change(
        &mut self,
        now: Instant,
        command: CommandId,
        keeps_copy: bool,
    ) -> Result<Option<Generation>, LockError> {
        let generation = self.gate.end_change(command, keeps_copy, &self.settings.limits)?;
        self.advance_gate(now);
        Ok(generation)
    }

    /// Withdraws a command that waits at the gate.
    ///
    /// # Errors
    /// When there is no such command, or it has passed.
    pub fn cancel_command(&mut self, now: Instant, command: CommandId) -> Result<(), LockError> {
        if !self.withheld.remove(command) {
            self.gate.cancel(command)?;
        }
        self.advance_gate(now);
        Ok(())
    }

    /// Like [`advance_gate`](Self::advance_gate), but returns the passage of one command.
    fn advance_gate_for(&mut self, now: Instant, command: CommandId) -> Option<Passage> {
        let mut passage = None;
        for step in self.gate.advance(&self.settings.limits) {
            match step {
                Step::Pass(passed, its) if passed == command => passage = Some(its),
                step => self.take_step(now, step),
            }
        }
        self.settle_cleared(now);
        passage
    }

    /// Counts one more opening of a file by a client.
    ///
    /// # Errors
    /// When its life is over, or it has too many open.
    pub fn open_file(&mut self, now: Instant, client: ClientId, file: FileId, mode: OpenMode) -> Result<(), LockError> {
        self.check_life(now, client)?;
        self.open_files.open(client, file, mode, self.settings.limits.opens_of_client_max)
    }

    /// Counts one closing of a file by a client. Returns whether no client has it open any more.
    ///
    /// # Errors
    /// When its life is over, or it has not opened the file in this mode.
    pub fn close_file(
        &mut self,
        now: Instant,
        client: ClientId,
        file: FileId,
        mode: OpenMode,
    ) -> Result<bool, LockError> {
        self.check_life(now, client)?;
        self.open_files.close(client, file, mode)
    }

    /// Puts all unanswered callbacks of a client into its mailbox again: it lost its connection and
    /// came back with the same life.
    ///
    /// # Errors
    /// When its life is over.
    pub fn resend(&mut self, now: Instant, client: ClientId) -> Result<(), LockError> {
        self.check_life(now, client)?;
        let open: Vec<_> = self
            .callbacks
            .open()
            .filter(|(of, ..)| *of == client)
            .map(|(_, number, callback)| (number, callback.subject))
            .collect();
        for (number, subject) in open {
            let message = match subject {
                Subject::Copies(range, generation) => ToClient::Purge { number, range, generation },
                Subject::Lock(resource, to) => {
                    let Some(held) = self.table.grant(Owner::own(client), resource) else { continue };
                    ToClient::Callback { number, resource, grant: held.number, to }
                }
            };
            if self.clients.mail(client).all(|waiting| *waiting != message) {
                self.post(client, message);
            }
        }
        Ok(())
    }
}
