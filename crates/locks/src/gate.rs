//! The gate that every command passes that reads or changes blocks: the paper's target cache manager.
//!
//! ```text
//! read     waits behind changes of its blocks that came before │ is registered │ reads
//! change   waits behind all that came before of its blocks     │ every other registration is purged │ under way │ ends
//! ```
//!
//! A read of a client that keeps copies waits until it is registered, too: for room in the table,
//! and for the client's own answer to an earlier purge of these blocks, which would end the new
//! registration. So a client that got data may always keep it, and needs no message that forbids
//! it.
//!
//! A change by the client that holds the range alone comes before all that waits: the client may be
//! asked to give the range up, and has to write its dirty data first.
//!
//! A change is not under way until every other client's copies are purged. So a reader finds the
//! old block before it and the new one after, and no client has an old copy when the change is
//! answered. Reads that come meanwhile wait behind it, so nothing is registered again in a range
//! that is being purged.
//!
//! Each copy is called back by one purge at a time. The generation grows when a purge begins, and
//! names it. Data read with a smaller generation than the purge's was registered before it, and is
//! old.

use std::collections::{BTreeMap, BTreeSet};

use crate::blocks::BlockRange;
use crate::error::{LockError, Table};
use crate::identity::{BootEpoch, ClientId, CommandId, Generation};
use crate::limits::Limits;
use crate::registrations::Registrations;

/// A change of blocks that asks to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Change {
    /// The blocks.
    pub range: BlockRange,
    /// The client; `None` for a stock initiator, whose changes purge the copies of all clients.
    pub by: Option<ClientId>,
    /// Whether its client holds the range alone: its dirty data is written before other commands go
    /// on, and after a start also what the target lost.
    pub is_under_grant: bool,
}

/// What a command may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Passage {
    /// Read. The client may keep a copy of that generation; with `None` it must not keep one.
    Read(Option<Generation>),
    /// Change the blocks, then end the change.
    Change,
}

/// An action that the gate asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A client is to drop its copies.
    Purge(ClientId, BlockRange, Generation),
    /// A command that waited passes.
    Pass(CommandId, Passage),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Waiting,
    Purging,
    UnderWay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Direction {
    Read { keeps_copy: bool },
    Change { is_under_grant: bool, stage: Stage },
}

/// A command at the gate, or on its way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Command {
    id: CommandId,
    range: BlockRange,
    by: Option<ClientId>,
    direction: Direction,
}

impl Command {
    /// A command that reads; its client may keep a copy where it `keeps_copy`.
    pub fn read(id: CommandId, range: BlockRange, by: Option<ClientId>, keeps_copy: bool) -> Self {
        Self { id, range, by, direction: Direction::Read { keeps_copy } }
    }

    /// A command that changes blocks.
    pub fn change(id: CommandId, Change { range, by, is_under_grant }: Change) -> Self {
        Self { id, range, by, direction: Direction::Change { is_under_grant, stage: Stage::Waiting } }
    }

    /// Its number.
    pub fn id(&self) -> CommandId {
        self.id
    }

    /// Its blocks.
    pub fn range(&self) -> BlockRange {
        self.range
    }

    /// The client; `None` for a stock initiator.
    pub fn by(&self) -> Option<ClientId> {
        self.by
    }

    fn is_read(&self) -> bool {
        matches!(self.direction, Direction::Read { .. })
    }

    fn is_under_way(&self) -> bool {
        matches!(self.direction, Direction::Change { stage: Stage::UnderWay, .. })
    }
}

/// The place of a command: changes under a grant first, then in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Arrival {
    is_behind_grants: bool,
    number: u64,
}

/// The commands at the gate, and the registered copies of all clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    generation: Generation,
    registrations: Registrations,
    commands: BTreeMap<Arrival, Command>,
    arrivals: BTreeMap<CommandId, Arrival>,
    arrival_next: u64,
    /// Commands that arrived, or whose situation changed, since the gate was last
    /// [advanced](Self::advance).
    touched: BTreeSet<Arrival>,
    /// Reads that wait for no other command, only to be registered.
    unregistered: BTreeSet<Arrival>,
    /// Whether clients of the earlier start may have copies that are not registered.
    is_in_grace: bool,
}

impl Gate {
    /// An empty gate after a start.
    pub fn new(boot_epoch: BootEpoch, is_in_grace: bool) -> Self {
        Self {
            generation: Generation::at_start(boot_epoch),
            registrations: Registrations::default(),
            commands: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            arrival_next: 0,
            touched: BTreeSet::new(),
            unregistered: BTreeSet::new(),
            is_in_grace,
        }
    }

    /// Adds a command. [`advance`](Self::advance) returns when it passes.
    ///
    /// # Errors
    /// When the gate is full or the number is in use.
    pub fn arrive(&mut self, command: Command, limits: &Limits) -> Result<(), LockError> {
        if self.arrivals.contains_key(&command.id) {
            return Err(LockError::CommandState(command.id));
        }
        if self.commands.len() >= limits.commands_max {
            return Err(LockError::Full(Table::Commands));
        }
        let is_behind_grants = !matches!(command.direction, Direction::Change { is_under_grant: true, .. });
        let arrival = Arrival { is_behind_grants, number: self.arrival_next };
        self.arrival_next += 1;
        self.arrivals.insert(command.id, arrival);
        self.commands.insert(arrival, command);
        self.touched.insert(arrival);
        Ok(())
    }

    /// Ends a change, which is done or was given up under way: its blocks may be old, new or both.
    /// With `keeps_copy`, its client has what it wrote as a copy of the returned generation; with
    /// `None` it must not keep one.
    ///
    /// # Errors
    /// When no such change is under way.
    pub fn end_change(
        &mut self,
        id: CommandId,
        keeps_copy: bool,
        limits: &Limits,
    ) -> Result<Option<Generation>, LockError> {
        let arrival = self.arrivals.get(&id).copied().ok_or(LockError::CommandState(id))?;
        let command = self.commands[&arrival];
        if !command.is_under_way() {
            return Err(LockError::CommandState(id));
        }
        self.leave(arrival);
        let keeper = command.by.filter(|_| keeps_copy);
        Ok(keeper
            .filter(|client| self.registrations.insert(*client, command.range, limits.registrations_max))
            .map(|_| self.generation))
    }

    /// Withdraws a waiting command, after an abort or at the end of its session.
    ///
    /// # Errors
    /// When there is no such command, or it is a change under way, which has to end.
    pub fn cancel(&mut self, id: CommandId) -> Result<(), LockError> {
        let arrival = self.arrivals.get(&id).copied().ok_or(LockError::CommandState(id))?;
        if self.commands[&arrival].is_under_way() {
            return Err(LockError::CommandState(id));
        }
        self.leave(arrival);
        Ok(())
    }

    fn leave(&mut self, arrival: Arrival) {
        self.unregistered.remove(&arrival);
        if let Some(command) = self.commands.remove(&arrival) {
            self.arrivals.remove(&command.id);
            self.touch(command.range);
        }
    }

    /// Marks the waiting commands of a range as touched: they may pass now.
    fn touch(&mut self, range: BlockRange) {
        let near = self.commands.iter().filter(|(_, command)| command.range.overlaps(&range));
        self.touched.extend(near.map(|(arrival, _)| *arrival));
    }

    fn touch_all(&mut self) {
        self.touched.extend(self.commands.keys());
    }

    /// Notes that a client has dropped its copies of a range, as the purge of that generation
    /// asked.
    pub fn purged(&mut self, client: ClientId, range: BlockRange, purge: Generation) {
        self.registrations.remove(client, range, purge);
        self.touch(range);
        self.touched.extend(&self.unregistered);
    }

    /// Removes the registrations of a client whose life is over.
    pub fn forget(&mut self, client: ClientId) {
        self.registrations.forget(client);
        self.touch_all();
    }

    /// Ends the grace period: no client of the earlier start has copies any more.
    pub fn end_grace(&mut self) {
        self.is_in_grace = false;
        self.touch_all();
    }

    /// Lets commands pass that can, in the order of arrival. Only touched ones are examined.
    pub fn advance(&mut self, limits: &Limits) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(arrival) = self.touched.pop_first() {
            let Some(command) = self.commands.get(&arrival).copied() else { continue };
            if self.is_behind_another(arrival, &command) {
                continue;
            }
            match command.direction {
                Direction::Read { keeps_copy } => {
                    let keeper = command.by.filter(|_| keeps_copy);
                    let is_registered = keeper.is_none_or(|by| self.registers(by, command.range, limits));
                    if is_registered {
                        self.leave(arrival);
                        let generation = keeper.map(|_| self.generation);
                        steps.push(Step::Pass(command.id, Passage::Read(generation)));
                    } else {
                        self.unregistered.insert(arrival);
                    }
                }
                Direction::Change { is_under_grant: false, .. } if self.is_in_grace => {}
                Direction::Change { is_under_grant, stage } => {
                    let stage = self.advance_change(&command, stage, (limits, &mut steps));
                    let direction = Direction::Change { is_under_grant, stage };
                    self.commands.insert(arrival, Command { direction, ..command });
                }
            }
        }
        self.make_room((limits, &mut steps));
        steps
    }

    /// Whether a command has to wait for an earlier one, or for a change under way that it may
    /// precede.
    fn is_behind_another(&self, arrival: Arrival, command: &Command) -> bool {
        self.commands.iter().any(|(at, other)| {
            let is_before = *at < arrival || (other.is_under_way() && other.id != command.id);
            is_before && other.range.overlaps(&command.range) && !(other.is_read() && command.is_read())
        })
    }

    fn advance_change(&mut self, command: &Command, stage: Stage, (limits, steps): (&Limits, &mut Vec<Step>)) -> Stage {
        let others = self.registrations.holders(command.range, command.by);
        if stage == Stage::UnderWay {
            return stage;
        }
        if others.is_empty() {
            steps.push(Step::Pass(command.id, Passage::Change));
            return Stage::UnderWay;
        }
        if stage == Stage::Waiting {
            self.generation.0 += 1;
            others.into_iter().for_each(|client| self.purge(client, command.range, (limits, steps)));
        }
        Stage::Purging
    }

    /// Registers a client's read, if there is room and no block of it is being purged.
    fn registers(&mut self, client: ClientId, range: BlockRange, limits: &Limits) -> bool {
        self.registrations.insert(client, range, limits.registrations_max)
    }

    /// Calls the oldest registrations back, as many as there are reads that wait for room.
    fn make_room(&mut self, (limits, steps): (&Limits, &mut Vec<Step>)) {
        while self.registrations.count() >= limits.registrations_max
            && self.registrations.leaving_count() < self.unregistered.len()
            && let Some((holder, oldest)) = self.registrations.oldest()
        {
            self.generation.0 += 1;
            self.purge(holder, oldest, (limits, steps));
        }
    }

    fn purge(&mut self, client: ClientId, range: BlockRange, (limits, steps): (&Limits, &mut Vec<Step>)) {
        let purge = self.generation;
        let leaving = self.registrations.begin_leaving(client, range, purge, limits.registrations_max);
        steps.extend(leaving.map(|leaving| Step::Purge(client, leaving, purge)));
    }

    /// Whether no other client has copies of blocks of a range, and no other command is there.
    pub fn is_left_to(&self, client: ClientId, range: BlockRange) -> bool {
        let is_anothers = |command: &Command| command.by != Some(client) && command.range.overlaps(&range);
        !self.commands.values().any(is_anothers) && self.registrations.holders(range, Some(client)).is_empty()
    }

    /// Removes the waiting commands of other clients in a range, in the order of arrival.
    pub fn withdraw_others(&mut self, client: ClientId, range: BlockRange) -> Vec<Command> {
        let waits =
            |command: &Command| command.by != Some(client) && command.range.overlaps(&range) && !command.is_under_way();
        let others: Vec<_> = self.commands.iter().filter(|(_, command)| waits(command)).map(|(at, _)| *at).collect();
        let taken = others.into_iter().filter_map(|arrival| {
            let command = self.commands.get(&arrival).copied();
            self.leave(arrival);
            command
        });
        taken.collect()
    }

    /// The present generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Count of commands that wait or are under way.
    pub fn command_count(&self) -> usize {
        self.commands.len()
    }

    /// The registered copies of all clients.
    pub fn registrations(&self) -> &Registrations {
        &self.registrations
    }
}
