//! What a session does for shared units: R2Ts that wait for other hosts, a client's answers before their turn, and
//! where its messages go.

use std::collections::VecDeque;
use std::task::{Context, Waker};

use base::clock::Instant;
use iscsi::target as protocol;
use iscsi::target::{Command, Event, HeldData as DataWanted, LinkId, TaskId};
use logical_unit::sharing::Addressed;
use scsi::sharing::Message;
use scsi::sharing::message::{ASYNC_EVENT, ASYNC_VCODE};

use super::units::Units;
use crate::held_data::HeldData;
use crate::target::lun_number;

/// The state of a session for its shared units.
pub(super) struct Sharing {
    /// Whether commands and messages of shared units were negotiated.
    is_negotiated: bool,
    /// Commands whose data is requested only after other hosts have dropped their copies.
    held: Vec<HeldData>,
    /// Later events, kept while the answers of a client are carried out before their turn.
    postponed: VecDeque<Event>,
    /// The connection on which the client registered, which gets its messages.
    registered_on: Option<LinkId>,
}

impl Sharing {
    pub(super) fn new(is_negotiated: bool) -> Self {
        Self { is_negotiated, held: Vec::new(), postponed: VecDeque::new(), registered_on: None }
    }

    /// Whether commands and messages of shared units were negotiated.
    pub(super) fn is_negotiated(&self) -> bool {
        self.is_negotiated
    }

    /// Notes on which connection the client registered. Where that is another one than before, what it has not taken
    /// comes there as well, before what comes now: on the former one it may never arrive.
    pub(super) fn register_on(&mut self, link: Option<LinkId>, units: &Units) {
        let before = std::mem::replace(&mut self.registered_on, link);
        if before.is_some() && before != link {
            self.rewind_messages(Some(units));
        }
    }

    /// Holds the data of a command back if other hosts have copies of the blocks that it changes. Returns whether it
    /// does: if not, the data may be requested now.
    pub(super) fn hold_data(&mut self, wanted: &DataWanted, units: Option<&Units>) -> bool {
        let wait = units.and_then(|units| {
            let unit = units.luns.get(lun_number(wanted.lun))?;
            unit.copies_dropped(&units.nexus, &wanted.cdb)
        });
        let Some(wait) = wait else { return false };
        self.held.push(HeldData::new(wanted.task, wait));
        true
    }

    /// Removes the commands whose data may be requested now, and returns them; aborted commands leave the gate. Of
    /// those whose unit has gone the data may be requested, too: they are refused when it has come, as if they came
    /// now.
    pub(super) fn poll_free(&mut self, protocol: &protocol::Session, context: &mut Context<'_>) -> Vec<TaskId> {
        let mut free = Vec::new();
        self.held.retain_mut(|held| {
            let is_free = protocol.is_wanted(held.task) && held.poll_is_free(context);
            if is_free {
                free.push(held.task);
            }
            protocol.is_wanted(held.task) && !is_free
        });
        free
    }

    /// Lets all commands that are held leave the gate.
    pub(super) fn release_held(&mut self) {
        self.held.clear();
    }

    /// The next answer of a client among the events that wait. Those before it are postponed.
    pub(super) fn next_answer(&mut self, protocol: &mut protocol::Session) -> Option<Command> {
        if !self.is_negotiated {
            return None;
        }
        while let Some(event) = protocol.poll_event() {
            match event {
                Event::Command(command) if command.cdb.is_ok_and(|cdb| cdb.is_of_sharing()) => return Some(command),
                event => self.postponed.push_back(event),
            }
        }
        None
    }

    /// The oldest event that was postponed.
    pub(super) fn next_postponed(&mut self) -> Option<Event> {
        self.postponed.pop_front()
    }

    /// Sends the messages of shared units to this initiator. Returns whether there were any. Without a connection they
    /// wait, and so they do while the initiator leaves much on it: of those that it takes elsewhere meanwhile nothing
    /// is kept for it here.
    pub(super) fn send_messages(
        &self,
        units: &Units,
        protocol: &mut protocol::Session,
        now: impl Fn() -> Instant,
        waker: &Waker,
    ) -> bool {
        let mut has_sent = false;
        while protocol.may_send_message(self.registered_on)
            && let Some((lun, Addressed { client, number, body })) = units.luns.poll_message(&units.nexus, waker)
        {
            has_sent = true;
            let lun = scsi::lun::encode(lun).map_or(0, u64::from_be_bytes);
            let message = Message { lun, client, number, body }.emit();
            // There is no sense data in front of it.
            let data = [&[0; 2], message.as_slice()].concat();
            let kind = (ASYNC_EVENT, ASYNC_VCODE);
            protocol.send_message(now(), self.registered_on, kind, data);
        }
        has_sent
    }

    /// Lets messages that were lost with a connection come again.
    pub(super) fn rewind_messages(&self, units: Option<&Units>) {
        if let Some(units) = units.filter(|_| self.is_negotiated) {
            units.luns.rewind_messages(&units.nexus);
        }
    }
}
