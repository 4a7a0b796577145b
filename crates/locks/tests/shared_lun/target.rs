//! The target: a lock manager in one of its lives, its disk's requests under way, and the state
//! kept for the next life.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use base::clock::Instant;
use locks::blocks::BlockRange;
use locks::error::LockError;
use locks::gate::{Change, Passage};
use locks::identity::{BootEpoch, ClientId, CommandId};
use locks::manager::{LockManager, Output};
use locks::message::{FromClient, Registration, Reply, ToClient};
use locks::outbox::{Outbox, Reader};
use locks::settings::Start;

use crate::history::Value;
use crate::host::Context;
use crate::packet::{Answer, Asker, Effect, Request, Write};
use crate::plan::{Fault, LEASE, Plan};
use crate::world::Event;

/// A disk with a volatile cache.
#[derive(Default)]
pub struct Disk {
    durable: BTreeMap<u64, Value>,
    volatile: BTreeMap<u64, Value>,
}

impl Disk {
    fn read(&self, block: u64) -> Value {
        self.volatile.get(&block).or_else(|| self.durable.get(&block)).copied().unwrap_or(0)
    }

    fn write(&mut self, write: &Write) {
        for (block, value) in (write.range.first()..write.range.end()).zip(&write.values) {
            self.volatile.insert(block, *value);
            if write.is_durable {
                self.volatile.remove(&block);
                self.durable.insert(block, *value);
            }
        }
    }

    fn flush(&mut self) {
        self.durable.append(&mut self.volatile);
    }

    pub fn lose_power(&mut self) {
        self.volatile.clear();
    }
}

/// The durable state of sharing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    boot_epoch: u32,
    reclaimable_from: u32,
    has_lease: bool,
}

impl Saved {
    /// The state for the next start.
    pub fn next_start(self, plan: &Plan) -> Self {
        let boot_epoch = if plan.has(Fault::StartsNotCounted) { 1 } else { self.boot_epoch + 1 };
        let is_reclaimable = self.has_lease && self.reclaimable_from > 0;
        Self { boot_epoch, reclaimable_from: if is_reclaimable { self.reclaimable_from } else { boot_epoch }, ..self }
    }

    fn start(self, plan: &Plan) -> Start {
        Start {
            boot_epoch: BootEpoch(self.boot_epoch),
            reclaimable_from: BootEpoch(self.reclaimable_from),
            longest_lease: (self.has_lease && !plan.has(Fault::GraceSkipped)).then_some(LEASE),
            may_lack_writes: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Save {
    Lease,
    GraceEnd(BootEpoch),
    NoLease,
}

/// Identifies a client that registers again: its host, its life, and the life before.
type Key = (usize, u64, Option<ClientId>);

struct Member {
    key: Key,
    outbox: Outbox<ToClient>,
    reader: Reader,
}

enum Command {
    Read(BlockRange),
    Write(Write),
}

struct Pending {
    asker: Asker,
    by: Option<ClientId>,
    command: Command,
    is_under_way: bool,
}

pub struct Target {
    pub manager: LockManager,
    members: BTreeMap<ClientId, Member>,
    pending: BTreeMap<CommandId, Pending>,
    command_last: u64,
    saved: Saved,
    registering: Vec<(Asker, Key)>,
    to_save: VecDeque<Save>,
    saving: Option<(Save, Saved)>,
}

impl Target {
    pub fn new(saved: Saved, context: &Context<'_>) -> Self {
        let plan = context.plan;
        Self {
            manager: LockManager::new(plan.settings.clone(), saved.start(plan), context.now),
            members: BTreeMap::new(),
            pending: BTreeMap::new(),
            command_last: 0,
            saved,
            registering: Vec::new(),
            to_save: VecDeque::new(),
            saving: None,
        }
    }

    /// Handles a request of a host.
    pub fn handle(&mut self, context: &mut Context<'_>, disk: &mut Disk, asker: Asker, request: Request) {
        match request {
            Request::Register { previous, key } => self.register(context, asker, (asker.host, key, previous)),
            Request::Control(message, taken) => {
                if let Some(member) = client_of(&message).and_then(|client| self.members.get_mut(&client)) {
                    member.outbox.taken(taken);
                }
                let reply = self.manager.handle_message(context.now, message);
                self.drain(context, disk);
                context.effects.push(Effect::Answer(asker, Answer::Control(reply)));
            }
            Request::Read { by, range, registers } => {
                let life = by.map_or(Ok(()), |client| self.manager.check_life(context.now, client));
                let id = self.arrive(asker, by, Command::Read(range));
                let passage = life.and_then(|()| match context.plan.has(Fault::ReadsAreNotRegistered) {
                    true => Ok(Some(Passage::Read(Some(self.manager.gate().generation())))),
                    false if registers => self.manager.read(context.now, id, range, by),
                    false => self.manager.look(context.now, id, range, by),
                });
                self.arrived(context, disk, id, passage);
            }
            Request::Write(write) => self.take_write(context, disk, asker, write),
            Request::Flush => {
                disk.flush();
                context.effects.push(Effect::Answer(asker, Answer::Flushed));
            }
        }
        self.drain(context, disk);
    }

    fn arrive(&mut self, asker: Asker, by: Option<ClientId>, command: Command) -> CommandId {
        self.command_last += 1;
        let id = CommandId(self.command_last);
        self.pending.insert(id, Pending { asker, by, command, is_under_way: false });
        id
    }

    fn take_write(&mut self, context: &mut Context<'_>, disk: &mut Disk, asker: Asker, write: Write) {
        let (by, range) = (write.by, write.range);
        let is_alive = by.is_none_or(|client| self.manager.check_life(context.now, client).is_ok());
        let by = by.filter(|_| is_alive || !context.plan.has(Fault::FencedClientsWrite));
        let id = self.arrive(asker, by, Command::Write(write));
        let passage = match context.plan.fault {
            Some(Fault::StockWritesPassTheGate) if by.is_none() => Ok(Some(Passage::Change)),
            _ => self.manager.begin_change(context.now, id, Change { range, by, is_under_grant: false }),
        };
        let passage = match context.plan.has(Fault::ChangePassesBeforePurge) {
            true => passage.map(|_| Some(Passage::Change)),
            false => passage,
        };
        self.arrived(context, disk, id, passage);
    }

    fn arrived(
        &mut self,
        context: &mut Context<'_>,
        disk: &Disk,
        id: CommandId,
        passage: Result<Option<Passage>, LockError>,
    ) {
        match passage {
            Ok(Some(passage)) => self.pass(context, disk, id, passage),
            Ok(None) => {}
            Err(error) => self.refuse(context, id, error),
        }
    }

    fn refuse(&mut self, context: &mut Context<'_>, id: CommandId, error: LockError) {
        let Some(pending) = self.pending.remove(&id) else { return };
        let answer = match pending.command {
            Command::Read(_) => Answer::Read(Err(error)),
            Command::Write(write) => {
                end_write(context, &write);
                Answer::Written(Err(error))
            }
        };
        context.effects.push(Effect::Answer(pending.asker, answer));
    }

    fn pass(&mut self, context: &mut Context<'_>, disk: &Disk, id: CommandId, passage: Passage) {
        let most = context.plan.disk_time_max.as_nanos() as u64;
        match (passage, self.pending.get_mut(&id)) {
            (Passage::Read(generation), Some(Pending { command: Command::Read(range), .. })) => {
                let values = (range.first()..range.end()).map(|block| disk.read(block)).collect();
                let Some(pending) = self.pending.remove(&id) else { return };
                context.effects.push(Effect::Answer(pending.asker, Answer::Read(Ok((values, generation)))));
            }
            (Passage::Change, Some(pending)) if !pending.is_under_way => {
                pending.is_under_way = true;
                let time = Duration::from_nanos(1 + context.random.below(most));
                context.effects.push(Effect::After(time, Event::Land(id)));
            }
            _ => {}
        }
    }

    /// Handles the end of a command at the disk.
    pub fn land(&mut self, context: &mut Context<'_>, disk: &mut Disk, id: CommandId) {
        let Some(pending) = self.pending.remove(&id) else { return };
        let Command::Write(write) = pending.command else { return };
        disk.write(&write);
        context.effects.push(Effect::Landed(pending.asker.host, write.range));
        end_write(context, &write);
        let ended = self.manager.end_change(context.now, id, context.plan.keeps_written);
        if ended.is_err() {
            // A fault let it bypass the gate.
            self.leave_gate(context, id);
        }
        context.effects.push(Effect::Answer(pending.asker, Answer::Written(Ok(ended.unwrap_or_default()))));
        self.drain(context, disk);
    }

    /// Ends a fence: no command of the client has an effect from now on.
    pub fn end_fence(&mut self, context: &mut Context<'_>, disk: &mut Disk, client: ClientId) {
        let is_its = |pending: &Pending| pending.by == Some(client) && pending.is_under_way;
        let ids: Vec<CommandId> =
            self.pending.iter().filter(|(_, pending)| is_its(pending)).map(|(id, _)| *id).collect();
        for id in ids {
            match context.random.chance(0.5) {
                true => self.land(context, disk, id),
                false => {
                    self.leave_gate(context, id);
                    self.refuse(context, id, LockError::Fenced(client));
                }
            }
        }
        // The next holder of the lock must not see data that a loss of power would take away.
        if !context.plan.has(Fault::FenceWithoutFlush) {
            disk.flush();
        }
        self.manager.fenced(context.now, client);
        self.drain(context, disk);
    }

    /// Removes a command without effect from the gate. It may have passed at this very moment.
    fn leave_gate(&mut self, context: &Context<'_>, id: CommandId) {
        if self.manager.end_change(context.now, id, false).is_err() {
            let _ = self.manager.cancel_command(context.now, id);
        }
    }

    fn begin_fence(&mut self, context: &mut Context<'_>, client: ClientId) {
        self.members.remove(&client);
        let waits = |pending: &Pending| pending.by == Some(client) && !pending.is_under_way;
        let waiting: Vec<CommandId> =
            self.pending.iter().filter(|(_, pending)| waits(pending)).map(|(id, _)| *id).collect();
        for id in waiting {
            self.leave_gate(context, id);
            self.refuse(context, id, LockError::Fenced(client));
        }
        if context.plan.has(Fault::FenceBeforeCommandsEnd) {
            self.manager.fenced(context.now, client);
        } else {
            let time = Duration::from_millis(1 + context.random.below(50));
            context.effects.push(Effect::After(time, Event::FenceEnds(client)));
        }
    }

    fn register(&mut self, context: &mut Context<'_>, asker: Asker, key: Key) {
        if !self.saved.has_lease {
            self.registering.push((asker, key));
            if !self.to_save.contains(&Save::Lease) {
                self.to_save.push_back(Save::Lease);
            }
            return;
        }
        let same = self.members.iter().find(|(_, member)| member.key == key).map(|(client, _)| *client);
        let registered = match same {
            Some(client) => self.registered_again(context, client),
            None => self.manager.register(context.now, key.2),
        };
        if let Ok(registration) = registered {
            self.members.entry(registration.client).or_insert_with(|| Member {
                key,
                outbox: Outbox::default(),
                reader: Reader::default(),
            });
        }
        context.effects.push(Effect::Answer(asker, Answer::Control(registered.map(Reply::Registered))));
    }

    /// The client counts its lease from when it sent this.
    fn registered_again(&mut self, context: &Context<'_>, client: ClientId) -> Result<Registration, LockError> {
        match context.plan.has(Fault::RegisteredTwiceNotRenewed) {
            true => self.manager.check_life(context.now, client)?,
            false => self.manager.renew(context.now, client)?,
        }
        let (boot_epoch, is_in_grace) = (client.boot_epoch(), self.manager.is_in_grace());
        Ok(Registration { client, lease: self.manager.settings().lease, boot_epoch, is_in_grace })
    }

    /// Notes that a host has a new session.
    pub fn join(&mut self, context: &mut Context<'_>, disk: &mut Disk, host: usize) {
        let clients: Vec<ClientId> =
            self.members.iter().filter(|(_, member)| member.key.0 == host).map(|(client, _)| *client).collect();
        for client in clients {
            // Answers may be lost with the old session.
            let _ = self.manager.resend(context.now, client);
        }
        self.drain(context, disk);
    }

    /// Notes that a host has lost its session. Its waiting commands are cancelled, those under way
    /// end.
    pub fn lose_session(&mut self, context: &mut Context<'_>, disk: &mut Disk, host: usize) {
        self.members
            .values_mut()
            .filter(|member| member.key.0 == host)
            .for_each(|member| member.reader = Reader::default());
        let waits = |pending: &Pending| pending.asker.host == host && !pending.is_under_way;
        let waiting: Vec<CommandId> =
            self.pending.iter().filter(|(_, pending)| waits(pending)).map(|(id, _)| *id).collect();
        for id in waiting {
            self.leave_gate(context, id);
            if let Some(Pending { command: Command::Write(write), .. }) = self.pending.remove(&id) {
                end_write(context, &write);
            }
        }
        self.drain(context, disk);
    }

    pub fn handle_timeout(&mut self, context: &mut Context<'_>, disk: &mut Disk) {
        self.manager.handle_timeout(context.now);
        self.drain(context, disk);
    }

    /// Carries out the manager's outputs, and sends its messages.
    fn drain(&mut self, context: &mut Context<'_>, disk: &mut Disk) {
        while let Some(output) = self.manager.poll_output() {
            match output {
                Output::Fence(client, _) => self.begin_fence(context, client),
                Output::Mail(client) => self.collect_mail(context, client),
                Output::Pass(id, passage) => self.pass(context, disk, id, passage),
                Output::LastClose => {}
                Output::KeepGraceEnd(epoch) => self.to_save.push_back(Save::GraceEnd(epoch)),
            }
        }
        for (client, member) in &mut self.members {
            let Some(session) = context.sessions[member.key.0] else { continue };
            while let Some((number, message)) = member.outbox.poll(&mut member.reader) {
                let asker = Asker { host: member.key.0, session, tag: 0 };
                context.effects.push(Effect::Answer(asker, Answer::Mail(*client, number, message)));
            }
        }
        let is_forgotten = self.saved.has_lease
            && self.registering.is_empty()
            && !self.manager.is_in_grace()
            && self.manager.clients().all().next().is_none();
        if is_forgotten && self.to_save.is_empty() {
            self.to_save.push_back(Save::NoLease);
        }
        self.begin_save(context);
    }

    fn collect_mail(&mut self, context: &mut Context<'_>, client: ClientId) {
        while let Some(message) = self.manager.poll_message(client) {
            let has_room = self
                .members
                .get_mut(&client)
                .is_none_or(|member| member.outbox.push(message, 0, context.plan.untaken_max));
            if !has_room {
                self.manager.overflow(context.now, client);
            }
        }
    }

    fn begin_save(&mut self, context: &mut Context<'_>) {
        if self.saving.is_some() {
            return;
        }
        let Some(save) = self.to_save.pop_front() else { return };
        let is_needed = self.registering.is_empty() && self.manager.clients().all().next().is_none();
        let saved = match save {
            Save::Lease => Saved { has_lease: true, ..self.saved },
            Save::GraceEnd(epoch) => Saved { reclaimable_from: epoch.0, ..self.saved },
            Save::NoLease if is_needed => Saved { has_lease: false, ..self.saved },
            Save::NoLease => self.saved,
        };
        self.saving = Some((save, saved));
        context.effects.push(Effect::After(Duration::from_millis(1 + context.random.below(20)), Event::Saved));
    }

    /// The state that is being made durable.
    pub fn being_saved(&self) -> Option<Saved> {
        self.saving.map(|(_, saved)| saved)
    }

    /// Notes that it is durable.
    pub fn finish_save(&mut self, context: &mut Context<'_>, disk: &mut Disk) {
        let Some((save, saved)) = self.saving.take() else { return };
        self.saved = saved;
        match save {
            Save::Lease => {
                for (asker, key) in std::mem::take(&mut self.registering) {
                    self.register(context, asker, key);
                }
            }
            Save::GraceEnd(_) => {
                // Data that clients wrote before the start, and whose locks they could not reclaim.
                if !context.plan.has(Fault::FenceWithoutFlush) {
                    disk.flush();
                }
                self.manager.grace_end_kept(context.now);
            }
            Save::NoLease => {}
        }
        self.drain(context, disk);
    }

    /// Ends the target. Some of the requests under way land.
    pub fn end(self, context: &mut Context<'_>, disk: &mut Disk) {
        for pending in self.pending.into_values() {
            if let Command::Write(write) = &pending.command {
                if pending.is_under_way && context.random.chance(0.5) {
                    disk.write(write);
                }
                end_write(context, write);
            }
        }
    }

    /// Its next deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.manager.next_deadline()
    }

    pub fn is_at_rest(&self) -> bool {
        self.pending.is_empty()
    }
}

fn end_write(context: &mut Context<'_>, write: &Write) {
    write.operations.iter().for_each(|id| context.history.end_command(*id));
}

fn client_of(message: &FromClient) -> Option<ClientId> {
    match message {
        FromClient::Register { .. } => None,
        FromClient::Renew(client)
        | FromClient::Lock { client, .. }
        | FromClient::Cancel(client, _)
        | FromClient::Unlock(client, _)
        | FromClient::Acknowledge(client, ..) => Some(*client),
    }
}
