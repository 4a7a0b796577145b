//! The gate that every command passes that reads or changes blocks: the paper's target cache manager.
//!
//! ```text
//! read     waits behind changes of its blocks that came before │ is registered │ reads
//! change   waits behind whatever of its blocks came before     │ every other registration is purged │ under way │ ends
//! ```
//!
//! A read of a client that keeps copies waits until it is registered, too: for room in the table, and for the answer of
//! its own to an earlier purge of these blocks, which would end the new registration. So whoever got data may keep it,
//! and nobody has to be told that he must not.
//!
//! A change by whoever holds the range alone comes before all that waits: the client may be asked to give the range up,
//! and has to write it first.
//!
//! Until every other client's copies are purged a change is not under way: so a reader finds the old block before and
//! the new one after, and nobody has an old copy when the change is answered. Reads that come meanwhile wait behind it,
//! so nothing is registered again in a range that is being purged.
//!
//! Each copy is asked for by one purge at a time. The generation grows when a purge begins, and names it. What was read
//! with a smaller one than the purge has was registered before it, and is old.

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
    /// Whose it is; none for a stock initiator, whose changes purge everybody's copies.
    pub by: Option<ClientId>,
    /// Whether its client holds the range alone: it may write what only it has, before others go on, and after a start
    /// what the target lost.
    pub is_under_grant: bool,
}

/// What a command may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Passage {
    /// Read. The client may keep a copy of that generation; none says that it must not keep one.
    Read(Option<Generation>),
    /// Change the blocks, then end the change.
    Change,
}

/// What the gate wants done.
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

/// A command that is at the gate, or about to come there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Command {
    id: CommandId,
    range: BlockRange,
    by: Option<ClientId>,
    direction: Direction,
}

impl Command {
    /// One that reads; its client may keep a copy where it `keeps_copy`.
    pub fn read(id: CommandId, range: BlockRange, by: Option<ClientId>, keeps_copy: bool) -> Self {
        Self { id, range, by, direction: Direction::Read { keeps_copy } }
    }

    /// One that changes blocks.
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

    /// Whose it is; none for a stock initiator's.
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

/// Commands at the gate, and who may hold copies of what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    generation: Generation,
    registrations: Registrations,
    commands: BTreeMap<Arrival, Command>,
    arrivals: BTreeMap<CommandId, Arrival>,
    arrival_next: u64,
    /// Commands that came, or for which something else changed, since the gate was last [advanced](Self::advance).
    touched: BTreeSet<Arrival>,
    /// Reads that are the first of their blocks, and wait to be registered.
    unregistered: BTreeSet<Arrival>,
    /// Whether clients of the start before may still have copies that are registered nowhere.
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

    /// A command arrives. [`advance`](Self::advance) tells when it passes.
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

    /// A change is done, or was given up under way: its blocks may be old, new or both. With `keeps_copy`, its client
    /// has what it wrote as a copy of the generation returned; none says that it must not.
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

    /// A command that waits is given up: an abort, or the end of its session.
    ///
    /// # Errors
    /// When there is none, or it is a change under way, which has to end.
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

    /// What waits for blocks of a range may pass now.
    fn touch(&mut self, range: BlockRange) {
        let near = self.commands.iter().filter(|(_, command)| command.range.overlaps(&range));
        self.touched.extend(near.map(|(arrival, _)| *arrival));
    }

    fn touch_all(&mut self) {
        self.touched.extend(self.commands.keys());
    }

    /// A client has dropped its copies of a range, as the purge of that generation asked.
    pub fn purged(&mut self, client: ClientId, range: BlockRange, purge: Generation) {
        self.registrations.remove(client, range, purge);
        self.touch(range);
        self.touched.extend(&self.unregistered);
    }

    /// A client's life is over.
    pub fn forget(&mut self, client: ClientId) {
        self.registrations.forget(client);
        self.touch_all();
    }

    /// No client of the start before has copies any more.
    pub fn end_grace(&mut self) {
        self.is_in_grace = false;
        self.touch_all();
    }

    /// Lets pass what can, in the order of arrival. Only what something has changed for is looked at.
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

    /// Whether it has to wait: for what comes before it, and for a change under way that it may have come before.
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

    /// Registers what a client reads, if there is room for it and nothing of it is being purged.
    fn registers(&mut self, client: ClientId, range: BlockRange, limits: &Limits) -> bool {
        self.registrations.insert(client, range, limits.registrations_max)
    }

    /// Calls the oldest ranges back where reads wait for room, as many as there are reads.
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

    /// Whether nobody but a client has copies of blocks of a range, or a command there.
    pub fn is_left_to(&self, client: ClientId, range: BlockRange) -> bool {
        let is_anothers = |command: &Command| command.by != Some(client) && command.range.overlaps(&range);
        !self.commands.values().any(is_anothers) && self.registrations.holders(range, Some(client)).is_empty()
    }

    /// Takes out what waits for blocks of a range and is not a client's, in the order of arrival.
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

    /// The generation now.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Commands that wait or are under way.
    pub fn command_count(&self) -> usize {
        self.commands.len()
    }

    /// Who may hold copies of what.
    pub fn registrations(&self) -> &Registrations {
        &self.registrations
    }
}
