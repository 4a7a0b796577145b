//! The lock manager of a unit, its clients' paths and messages, and the commands at its gate. Every
//! change is settled before the lock is released.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;

use base::clock::Instant;
use base::refusals::Refusals;
use locks::identity::{BootEpoch, ClientId, CommandId};
use locks::limits::FENCED_REMEMBERED_MAX;
use locks::manager::{FenceReason, LockManager, Output};
use locks::outbox::{Outbox, Reader};
use scsi::Sense;
use scsi::sharing::MessageBody;

use super::settings::SharingOptions;
use super::shares::{Shares, bytes_of};
use super::store::SavedSharing;
use super::watch::Watch;
use super::wire;
use crate::failure::Failure;
use crate::nexus::NexusId;

/// Of no file in particular: those that a fenced client had open.
const CLOSED_BY_FENCE: MessageBody = MessageBody::LastClose { file: 0 };

/// A living client: its key, paths and messages.
pub(super) struct Member {
    /// Drawn by the initiator: a session that shows it belongs to the same client.
    pub(super) key: [u8; 16],
    /// Whether it may keep copies of what it reads.
    pub(super) registers_reads: bool,
    /// Its nexuses. Each gets every message.
    pub(super) paths: Vec<Path>,
    pub(super) outbox: Outbox<MessageBody>,
}

/// A nexus of a client.
pub(super) struct Path {
    pub(super) nexus: NexusId,
    /// The messages that it was sent.
    pub(super) reader: Reader,
}

/// A command at the gate.
pub(super) struct Arrived {
    /// Whose it is; `None` for one that goes on when its nexus is gone.
    pub(super) nexus: Option<NexusId>,
    pub(super) client: Option<ClientId>,
    pub(super) waker: Option<Waker>,
    /// Whether it may pass; `None` while it waits.
    pub(super) verdict: Option<Result<(), Failure>>,
}

/// A message to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressed {
    /// The client's id.
    pub client: u64,
    /// Its number among the messages to that client.
    pub number: u64,
    /// The message.
    pub body: MessageBody,
}

/// The state of sharing. Guarded by the lock in [`Sharing`](super::site::Sharing).
pub(super) struct State {
    pub(super) manager: LockManager,
    pub(super) members: BTreeMap<ClientId, Member>,
    /// The client of each nexus. A fenced client keeps its nexuses: their commands are refused.
    pub(super) bound: BTreeMap<NexusId, ClientId>,
    /// Nexuses that their client has given up and that still exist: their commands are refused.
    pub(super) given_up: BTreeSet<NexusId>,
    /// Wakers of the nexuses that wait for a message.
    pub(super) listeners: BTreeMap<NexusId, Waker>,
    pub(super) arrived: BTreeMap<CommandId, Arrived>,
    pub(super) command_next: u64,
    /// Clients whose fence the driver has to carry out.
    pub(super) to_fence: Vec<ClientId>,
    /// Of which the log tells.
    fences: Refusals,
    /// Keys of clients that were fenced last: who registers with one has not heard of it, and is no new client.
    pub(super) fenced_keys: VecDeque<[u8; 16]>,
    /// The epoch whose end of grace has to be made durable.
    pub(super) grace_end: Option<BootEpoch>,
    pub(super) saved: SavedSharing,
    /// Count of registrations under way: the longest lease is not forgotten meanwhile.
    pub(super) registering: usize,
    pub(super) untaken_max: usize,
    pub(super) shares: Shares,
    /// The deadline at which the driver wakes by itself.
    pub(super) armed: Option<Instant>,
    pub(super) watch: Watch,
    /// Whether the unit has ended, and with it who keeps the deadlines: nobody waits at the gate any more.
    pub(super) is_over: bool,
    /// Wakers to call after the lock is released.
    wakes: Vec<Waker>,
}

impl State {
    pub(super) fn new(manager: LockManager, options: &SharingOptions, watch: Watch) -> Self {
        Self {
            manager,
            members: BTreeMap::new(),
            bound: BTreeMap::new(),
            given_up: BTreeSet::new(),
            listeners: BTreeMap::new(),
            arrived: BTreeMap::new(),
            command_next: 0,
            to_fence: Vec::new(),
            fences: Refusals::default(),
            fenced_keys: VecDeque::new(),
            grace_end: None,
            saved: options.saved.clone(),
            registering: 0,
            untaken_max: options.untaken_max,
            shares: Shares::new(options),
            armed: None,
            watch,
            is_over: false,
            wakes: Vec::new(),
        }
    }

    /// Notes the time. A pause in which the target was not run extends all deadlines.
    pub(super) fn note_time(&mut self, now: Instant) {
        let pause = self.watch.note(now);
        if let Some(pause) = pause.filter(|_| self.manager.next_deadline().is_some()) {
            tracing::warn!(?pause, "the target was not run for a while: clients of a shared unit have that time more");
            self.manager.make_up_for(pause);
        }
    }

    /// Carries out the outputs of the manager. Returns the wakers to call.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<Waker> {
        while let Some(output) = self.manager.poll_output() {
            match output {
                Output::Mail(client) => self.collect_mail(now, client),
                Output::Pass(command, _) => self.decide(command, Ok(())),
                Output::Fence(client, reason) => {
                    match reason {
                        FenceReason::Left => tracing::info!(%client, "a client of a shared unit has left"),
                        // A client may fence itself, and begin again, as often as it likes.
                        _ => {
                            if let Some(others) = self.fences.note(now) {
                                tracing::warn!(%client, ?reason, others, "a client of a shared unit is fenced");
                            }
                        }
                    }
                    self.begin_fence(now, client, reason);
                }
                Output::LastClose => self.tell_of_closes(now),
                Output::KeepGraceEnd(epoch) => self.grace_end = Some(epoch),
            }
        }
        std::mem::take(&mut self.wakes)
    }

    /// Takes the manager's messages to a client, in order.
    pub(super) fn collect_mail(&mut self, now: Instant, client: ClientId) {
        while let Some(told) = self.manager.poll_message(client) {
            self.post(now, client, wire::message(told));
        }
    }

    /// Tells every client that files were closed by a fence. However many these are and however many clients are
    /// fenced, each has one such message that it was not sent yet.
    fn tell_of_closes(&mut self, now: Instant) {
        let lacks = |member: &Member| !member.outbox.unsent().any(|message| *message == CLOSED_BY_FENCE);
        let to: Vec<ClientId> =
            self.members.iter().filter(|(_, member)| lacks(member)).map(|(client, _)| *client).collect();
        to.into_iter().for_each(|client| self.post(now, client, CLOSED_BY_FENCE));
    }

    /// Appends a message to a client's outbox. A client that leaves too many unacknowledged is
    /// fenced.
    pub(super) fn post(&mut self, now: Instant, client: ClientId, body: MessageBody) {
        let Some(member) = self.members.get_mut(&client) else { return };
        let bytes = bytes_of(&body);
        if !member.outbox.push(body, bytes, self.untaken_max) {
            return self.manager.overflow(now, client);
        }
        self.shares.count(0, bytes);
        let listeners = member.paths.iter().filter_map(|path| self.listeners.remove(&path.nexus));
        self.wakes.extend(listeners);
        if self.shares.is_over() {
            self.fence_laziest(now);
        }
    }

    /// Fences the client that leaves most untaken, of the messages of all.
    fn fence_laziest(&mut self, now: Instant) {
        let untaken = self.members.iter().map(|(client, member)| (*client, member.outbox.bytes()));
        let Some(client) = self.shares.laziest(untaken) else { return };
        if let Some(member) = self.members.get_mut(&client) {
            self.shares.count(member.outbox.bytes(), 0);
            member.outbox.clear();
        }
        self.manager.overflow(now, client);
    }

    /// Whether a client may have so many locks and open files more.
    ///
    /// # Errors
    /// The sense data when there is no room for it.
    pub(super) fn check_holdings(&self, client: ClientId, more: usize, is_reclaim: bool) -> Result<(), Failure> {
        let holdings = |client| self.manager.holdings(client);
        let may_hold = self.shares.may_hold(client, (more, is_reclaim), self.manager.holdings_of_all(), holdings);
        if may_hold { Ok(()) } else { Err(Sense::SHARING_TABLE_FULL.into()) }
    }

    /// Decides whether a waiting command may pass.
    fn decide(&mut self, command: CommandId, verdict: Result<(), Failure>) {
        if let Some(arrived) = self.arrived.get_mut(&command).filter(|arrived| arrived.verdict.is_none()) {
            arrived.verdict = Some(verdict);
            self.wakes.extend(arrived.waker.take());
        }
    }

    /// Refuses the waiting commands of a client. Those under way end; the driver waits for them.
    fn begin_fence(&mut self, now: Instant, client: ClientId, reason: FenceReason) {
        if let Some(member) = self.members.remove(&client) {
            self.shares.count(member.outbox.bytes(), 0);
            if reason != FenceReason::Left {
                self.fenced_keys.truncate(FENCED_REMEMBERED_MAX - 1);
                self.fenced_keys.push_front(member.key);
            }
        }
        self.refuse_waiting(now, Sense::SHARING_FENCED, |arrived| arrived.client == Some(client));
        self.to_fence.push(client);
    }

    /// Refuses these of the commands that wait.
    fn refuse_waiting(&mut self, now: Instant, sense: Sense, is_refused: impl Fn(&Arrived) -> bool) {
        let waits = |arrived: &Arrived| arrived.verdict.is_none() && is_refused(arrived);
        let waiting: Vec<CommandId> =
            self.arrived.iter().filter(|(_, arrived)| waits(arrived)).map(|(command, _)| *command).collect();
        for command in waiting {
            // A command of a fenced client that the gate lets pass at this very moment is refused once it holds its
            // range.
            let _ = self.manager.cancel_command(now, command);
            self.decide(command, Err(sense.into()));
        }
    }

    /// Ends the wait of a nexus that does not see the unit any more: the clients that would have to answer for that may
    /// not see it, either.
    pub(super) fn turn_away(&mut self, now: Instant, nexus: &NexusId) {
        self.refuse_waiting(now, Sense::LOGICAL_UNIT_NOT_SUPPORTED, |arrived| arrived.nexus.as_ref() == Some(nexus));
    }

    /// Ends the wait of all, and of all that come.
    pub(super) fn close_gate(&mut self, now: Instant) {
        self.is_over = true;
        self.refuse_waiting(now, Sense::LOGICAL_UNIT_NOT_SUPPORTED, |_| true);
    }

    /// Whether commands have to pass the gate: the unit is shared, or may have been before the
    /// start.
    pub(super) fn is_used(&self) -> bool {
        self.manager.is_in_grace()
            || !self.bound.is_empty()
            || !self.given_up.is_empty()
            || !self.arrived.is_empty()
            || self.manager.clients().all().next().is_some()
    }

    /// Whether there is work for the driver, at once or earlier than it thinks.
    pub(super) fn needs_driver(&self) -> bool {
        let is_earlier = |next: Instant| self.armed.is_none_or(|armed| next < armed);
        self.has_work() || self.manager.next_deadline().is_some_and(is_earlier)
    }

    pub(super) fn has_work(&self) -> bool {
        !self.to_fence.is_empty() || self.grace_end.is_some() || self.is_lease_forgotten()
    }

    /// Whether the saved longest lease is to be deleted, since no client can hold a lock.
    pub(super) fn is_lease_forgotten(&self) -> bool {
        self.saved.longest_lease_ms.is_some()
            && self.registering == 0
            && !self.manager.is_in_grace()
            && self.manager.clients().all().next().is_none()
    }

    /// The client of a nexus, if it lives and still owns the nexus.
    pub(super) fn client_of(&mut self, now: Instant, nexus: &NexusId) -> Result<Option<ClientId>, Failure> {
        if self.given_up.contains(nexus) {
            return Err(Sense::SHARING_UNKNOWN_CLIENT.into());
        }
        let Some(client) = self.bound.get(nexus).copied() else { return Ok(None) };
        self.manager.check_life(now, client).map_err(|error| wire::failure(&error, 0))?;
        Ok(Some(client))
    }

    /// Removes a nexus. The others of its client have, or get, every message.
    pub(super) fn lose_path(&mut self, nexus: &NexusId) {
        self.listeners.remove(nexus);
        self.given_up.remove(nexus);
        let Some(member) = self.bound.remove(nexus).and_then(|client| self.members.get_mut(&client)) else { return };
        member.paths.retain(|path| path.nexus != *nexus);
    }

    /// The next message for a nexus; `waker` is woken when there is one later.
    pub(super) fn poll_message(&mut self, now: Instant, nexus: &NexusId, waker: &Waker) -> Option<Addressed> {
        let client = *self.bound.get(nexus)?;
        if let Some(Member { paths, outbox, .. }) = self.members.get_mut(&client)
            && let Some(path) = paths.iter_mut().find(|path| path.nexus == *nexus)
            && let Some((number, body)) = outbox.poll(&mut path.reader)
        {
            let body = wire::with_deadline(body, (client, self.manager.callbacks()), now);
            return Some(Addressed { client: client.bits(), number, body });
        }
        self.listeners.insert(nexus.clone(), waker.clone());
        None
    }

    /// Sends unacknowledged messages to a nexus again: they may be lost with a connection.
    pub(super) fn rewind_messages(&mut self, nexus: &NexusId) {
        let Some(member) = self.bound.get(nexus).and_then(|client| self.members.get_mut(client)) else { return };
        member.paths.iter_mut().filter(|path| path.nexus == *nexus).for_each(|path| path.reader = Reader::default());
        self.wakes.extend(self.listeners.remove(nexus));
    }
}
