//! Ranges of the unit that one client holds alone (`D_X` of its block groups, or of the unit): it
//! may have dirty data of them that the target does not have.
//!
//! - A client gets one as a change of these blocks passes the gate: when earlier commands are done,
//!   and no other client has a copy. Commands of others that came meanwhile are withheld from then
//!   on.
//! - A command of another client for these blocks is withheld, and calls the grant back. It comes
//!   to the gate when the grant is gone, before the range is granted again.
//! - After a start at which such a client may be about to reclaim its ranges, all commands are
//!   withheld but those for ranges that their client has reclaimed.

use std::ops::RangeInclusive;

use base::clock::Instant;

use super::LockManager;
use crate::blocks::BlockRange;
use crate::gate::{Change, Command};
use crate::identity::{ClientId, CommandId, Owner};
use crate::limits::{ALONE_LOCKS_MAX, Limits};
use crate::mode::Mode;
use crate::queue::TicketNumber;
use crate::resource::{FileId, GroupIndex, Resource};

/// The first number of commands that clear a range.
const CLEARING_FIRST: u64 = 1 << 63;

const UNIT: Resource = Resource::File(FileId::LOGICAL_UNIT);

impl LockManager {
    /// Whether a command must not come to the gate yet. The holders in its way are called back.
    pub(super) fn withholds(&mut self, now: Instant, command: &Command) -> bool {
        let may_be_reclaimed = self.start.may_lack_writes
            && self.is_in_grace()
            && !command.by().is_some_and(|by| self.holds_alone(by, command.range()));
        if may_be_reclaimed {
            return true;
        }
        let holders = self.alone_besides(command);
        for (resource, holder) in &holders {
            self.call_back_from(now, *holder, (*resource, Mode::D_X));
        }
        !holders.is_empty()
    }

    /// Whether a client holds a range alone, for itself: the unit, or the block groups or metadata
    /// blocks of the range. A range of more than `ALONE_LOCKS_MAX` locks is not checked.
    pub(super) fn holds_alone(&self, client: ClientId, range: BlockRange) -> bool {
        let holds =
            |resource, mode| self.table.grant(Owner::own(client), resource).is_some_and(|grant| grant.mode == mode);
        let unit = FileId::LOGICAL_UNIT;
        let size = self.settings.group_size;
        let (first, last) = (size.group_of(range.first()).0, size.group_of(range.end() - 1).0);
        holds(Resource::File(unit), Mode::D_X)
            || (last - first < ALONE_LOCKS_MAX
                && (first..=last).all(|group| holds(Resource::Group(unit, GroupIndex(group)), Mode::D_X)))
            || (range.count() <= ALONE_LOCKS_MAX
                && (range.first()..range.end()).all(|block| holds(Resource::Metadata(block), Mode::M_X)))
    }

    /// The other clients that hold some of a command's blocks alone.
    fn alone_besides(&self, command: &Command) -> Vec<(Resource, Owner)> {
        let is_alone = |(resource, owner): &(Resource, Owner)| {
            owner.is_own()
                && command.by() != Some(owner.client)
                && self.table.grant(*owner, *resource).is_some_and(|grant| grant.mode == Mode::D_X)
        };
        let groups = self.table.holders_among(self.groups_of(command.range()));
        self.table.holders_among(UNIT..=UNIT).chain(groups).filter(is_alone).collect()
    }

    fn groups_of(&self, range: BlockRange) -> RangeInclusive<Resource> {
        let group = |block| Resource::Group(FileId::LOGICAL_UNIT, self.settings.group_size.group_of(block));
        group(range.first())..=group(range.end() - 1)
    }

    /// Moves withheld commands to the gate that have no holder in their way any more.
    pub(super) fn admit_withheld(&mut self, now: Instant) {
        if self.withheld.count() == 0 {
            return;
        }
        for command in self.withheld.all().to_vec() {
            if self.withholds(now, &command) {
                continue;
            }
            self.withheld.remove(command.id());
            // There is room: withheld commands were counted when they arrived.
            let _ = self.gate.arrive(command, &unbounded(&self.settings.limits));
        }
        self.take_steps(now);
    }

    /// The blocks that a ticket is to hold alone and its owner does not yet.
    pub(super) fn range_to_clear(&self, number: TicketNumber) -> Option<(Owner, BlockRange)> {
        let ticket = self.table.ticket(number)?;
        let lacks = |resource| self.table.grant(ticket.owner, resource).is_none_or(|grant| grant.mode != Mode::D_X);
        let blocks = ticket.wanted.iter().filter(|(at, mode)| *mode == Mode::D_X && lacks(*at)).filter_map(
            |(at, _)| match *at {
                UNIT => BlockRange::new(0, self.settings.block_count),
                Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(group)) => {
                    self.settings.group_size.blocks_of(GroupIndex(group))
                }
                _ => None,
            },
        );
        let hull = blocks.reduce(|all, next| {
            let (first, end) = (all.first().min(next.first()), all.end().max(next.end()));
            BlockRange::between(first, end).unwrap_or(all)
        });
        hull.map(|range| (ticket.owner, range))
    }

    /// Whether the blocks that a ticket is to hold alone are free of other clients' copies and
    /// commands. Otherwise starts to clear them.
    pub(super) fn has_cleared(&mut self, number: TicketNumber) -> bool {
        let Some((owner, range)) = self.range_to_clear(number) else { return true };
        if self.clearing.values().any(|clearing| *clearing == number) {
            return false;
        }
        if self.gate.is_left_to(owner.client, range) {
            return true;
        }
        let id = CommandId(CLEARING_FIRST + self.clearing_next);
        self.clearing_next += 1;
        let change = Change { range, by: Some(owner.client), is_under_grant: false };
        if self.gate.arrive(Command::change(id, change), &unbounded(&self.settings.limits)).is_ok() {
            self.clearing.insert(id, number);
        }
        false
    }

    /// The tickets whose range is clear now; it stays so while no command passes the gate.
    pub(super) fn take_cleared(&mut self) -> Vec<(CommandId, TicketNumber)> {
        let cleared = std::mem::take(&mut self.cleared);
        cleared.into_iter().filter_map(|id| self.clearing.remove(&id).map(|number| (id, number))).collect()
    }

    /// Ends the clearing of a range that is held alone now, or no longer wanted: commands that came
    /// for it meanwhile are withheld.
    pub(super) fn end_clearing(&mut self, id: CommandId, held: Option<(Owner, BlockRange)>) {
        if let Some((owner, range)) = held {
            let others = self.gate.withdraw_others(owner.client, range);
            others.into_iter().for_each(|command| self.withheld.add(command));
        }
        // The command has passed: it is under way.
        let _ = self.gate.end_change(id, false, &self.settings.limits);
    }

    /// Ends the clearing for tickets that do not exist any more.
    pub(super) fn forget_clearing(&mut self, now: Instant) {
        let gone = self.clearing.iter().filter(|(_, number)| self.table.ticket(**number).is_none());
        for id in gone.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.clearing.remove(&id);
            if self.gate.cancel(id).is_err() {
                self.end_clearing(id, None);
            }
            self.take_steps(now);
        }
    }
}

/// Limits without effect, for commands that are few.
fn unbounded(limits: &Limits) -> Limits {
    Limits { commands_max: usize::MAX, ..limits.clone() }
}
