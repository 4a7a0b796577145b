//! A session with shared units: a client's answers before their turn, its messages, and R2Ts that
//! wait for other hosts.

use std::task::Context;

use base::clock::Instant;
use iscsi::target::{Event, HeldData as DataWanted};
use logical_unit::sharing::Addressed;
use scsi::Cdb;
use scsi::sharing::Message;
use scsi::sharing::message::{ASYNC_EVENT, ASYNC_VCODE};

use super::Session;
use crate::held_data::HeldData;
use crate::target::lun_number;

impl Session {
    /// Requests the data of a command when no other host has copies of the blocks that it changes.
    pub(super) fn hold_data(&mut self, wanted: &DataWanted) {
        let wait = self.units.as_ref().and_then(|units| {
            let unit = units.luns.get(lun_number(wanted.lun))?;
            unit.copies_dropped(&units.nexus, &Cdb::parse(&wanted.cdb.head).ok()?)
        });
        match wait {
            Some(wait) => self.held.push(HeldData::new(wanted.task, wait)),
            None => self.protocol.ask_for_data(self.server.clock.now(), wanted.task),
        }
    }

    /// Requests data that may come now; aborted commands leave the gate.
    pub(super) fn poll_held(&mut self, context: &mut Context<'_>) -> bool {
        let mut free = Vec::new();
        let protocol = &self.protocol;
        self.held.retain_mut(|held| {
            let is_free = protocol.is_wanted(held.task) && held.poll_is_free(context);
            if is_free {
                free.push(held.task);
            }
            protocol.is_wanted(held.task) && !is_free
        });
        let now = self.server.clock.now();
        free.iter().for_each(|task| self.protocol.ask_for_data(now, *task));
        !free.is_empty()
    }

    /// Carries out the answers of a client of a shared unit although earlier commands wait for
    /// room: the commands that have the room may wait for the answer. Answers for which there is no
    /// time stay queued.
    pub(super) fn carry_out_answers(&mut self, until: Instant) -> bool {
        let mut has_moved = false;
        while self.may_share()
            && !(has_moved && self.server.clock.now() >= until)
            && let Some(event) = self.protocol.poll_event()
        {
            match event {
                Event::Command(command) if is_of_sharing(&command.cdb.head) => {
                    has_moved = true;
                    self.execute(command);
                }
                event => self.postponed.push_back(event),
            }
        }
        has_moved
    }

    /// Whether commands and messages of shared units were negotiated.
    pub(super) fn may_share(&self) -> bool {
        self.protocol.request().may_share
    }

    /// Sends the messages of shared units to this initiator.
    pub(super) fn poll_messages(&mut self, context: &Context<'_>) -> bool {
        let Some(units) = self.units.as_ref().filter(|_| self.protocol.request().may_share) else { return false };
        let mut has_moved = false;
        while !self.wires.is_empty()
            && let Some((lun, Addressed { client, number, body })) =
                units.luns.poll_message(&units.nexus, context.waker())
        {
            has_moved = true;
            let lun = scsi::lun::encode(lun).map_or(0, u64::from_be_bytes);
            let message = Message { lun, client, number, body }.emit();
            // There is no sense data in front of it.
            let data = [&[0; 2], message.as_slice()].concat();
            // A message without a connection is sent again with the next one.
            let kind = (ASYNC_EVENT, ASYNC_VCODE);
            self.protocol.send_message(self.server.clock.now(), self.registered_on, kind, data);
        }
        has_moved
    }
}

/// Whether a CDB is SHARING IN or OUT.
fn is_of_sharing(cdb: &[u8]) -> bool {
    matches!(Cdb::parse(cdb), Ok(Cdb::SharingIn { .. } | Cdb::SharingOut { .. }))
}
