//! A client of a shared unit, over all its sessions.
//!
//! ```text
//!  no session ──begin_session──► Joining: REGISTER with its key ──REGISTERED──► Joined ──end_session──► no session
//!                                   │                                              │
//!                                   └── fenced, or another life of the same start of the target ──► over, for good
//! ```
//!
//! What it keeps true:
//! - an order is sent only after what it depends on: a purge is acknowledged when all copies are
//!   dropped;
//! - an answer to a callback is sent until the target confirms it, in every new session again: the
//!   target does not repeat a callback that it knows was received. That includes a callback
//!   received while no lease lasted. Where the lease at the target goes on, it waits for these
//!   answers: all copies are dropped by then, and the answer is *done*;
//! - answers do not wait for each other: a callback has a deadline from when it was asked, however
//!   many others were asked with it. An answer that is sent again may follow a later one: at the
//!   target nothing follows *done*;
//! - what the target may ask for is bounded: the session of one that asks for more than ours can is
//!   dropped, and the life is over as when a lease ends;
//! - messages are handled in the order of their numbers, each once;
//! - copies may be used while the lease lasts, counted from the time at which its renewal was
//!   *sent*. All copies of an old life are dropped before a new life allows any;
//! - a range that it holds alone is given up when the layers above have cleaned it. Dirty data in a
//!   range that it does not hold any more ends the client: another host may have written there
//!   since;
//! - a client that was fenced stays fenced: what it had under way may be half done, and only the
//!   user of the disk can judge that. After a restart of the *target* nothing of another client can
//!   have come between, and a new life begins.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::Instant;
use block::grants::Standing as GrantStanding;
use block::{ByteRange, Copies, Dropped, Error, ErrorKind, Grants};
use locks::blocks::BlockRange;
use locks::error::LockError;
use locks::holder::{Holder, HolderOutput};
use locks::identity::{CallbackNumber, ClientId, Generation, GrantNumber, RequestId, TransactionId};
use locks::message::{CallbackAnswer, FromClient, Registration, Reply, ToClient};
use scsi::sharing::{self, LifeBefore, Message, MessageBody, NO_PROOF, Parameters, Proof, Support};

use super::holding::Holding;
use super::order::{Answer, Order};
use super::status::SharingStatus;
use super::wire;
use crate::limits::{ANSWERS_UNDER_WAY_MAX, LEAVE_TIMEOUT, OWED_MAX, REGISTRATION_WAIT};

/// The state of the present session for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// There is no session, or it is not to be used any more.
    Away,
    /// REGISTER was sent; it is sent again at `again_at` if no answer has come.
    Joining {
        since: Instant,
        again_at: Instant,
    },
    Joined,
}

/// Whether the target restarted between the registration before and this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// The target has not restarted.
    Same,
    /// The target has restarted.
    NewStart,
}

/// The client of a shared unit; it outlives sessions.
pub(crate) struct Member {
    place: String,
    /// Shows the target that two sessions are of one client.
    key: [u8; 16],
    block_bytes: u64,
    copies: Copies,
    holder: Holder,
    holding: Holding,
    /// The id of its present life, or of the last one.
    client: Option<ClientId>,
    /// Shows the target after its next start that a life was the client's: of the last one, and of the one from which
    /// locks are still being reclaimed.
    proofs: BTreeMap<ClientId, Proof>,
    /// The number of the last message that it took.
    taken: u64,
    standing: Standing,
    continuity: Option<Continuity>,
    /// Outputs of the holder, to be executed in order.
    outputs: VecDeque<HolderOutput>,
    /// Copies that are being dropped, for the first output.
    dropping: Option<Dropped>,
    /// Callbacks that are not answered yet.
    called_back: BTreeSet<CallbackNumber>,
    /// Acknowledgements to be sent, in order.
    acknowledgements: VecDeque<Order>,
    /// Requests and releases of locks, sent after the acknowledgements.
    requests: VecDeque<Order>,
    is_renewal_due: bool,
    is_registration_due: bool,
    /// Whether requests name the life before, so that its locks can be reclaimed.
    names_before: bool,
    /// Orders under way by number, each with the time at which it was sent.
    under_way: BTreeMap<u64, (Order, Instant)>,
    next_number: u64,
    /// The deadline for unregistering; `None` while the client stays.
    leaving: Option<Instant>,
    has_left: bool,
    /// The target asked for more than it may. Until the next session nothing that it says is heard.
    is_flooded: bool,
    over: Option<Error>,
    purges: u64,
    lives: u64,
    /// The duration of the lease, as the target granted it last.
    lease: Duration,
}

impl Member {
    pub(crate) fn new(place: String, key: [u8; 16], support: Support, copies: Copies) -> Self {
        Self {
            place,
            key,
            block_bytes: support.block_bytes.into(),
            holding: Holding::new(copies.clone(), Duration::from_millis(support.callback_ms.into())),
            copies,
            holder: Holder::default(),
            client: None,
            proofs: BTreeMap::new(),
            taken: 0,
            standing: Standing::Away,
            continuity: None,
            outputs: VecDeque::new(),
            dropping: None,
            called_back: BTreeSet::new(),
            acknowledgements: VecDeque::new(),
            requests: VecDeque::new(),
            is_renewal_due: false,
            is_registration_due: false,
            names_before: true,
            under_way: BTreeMap::new(),
            next_number: 0,
            leaving: None,
            has_left: false,
            is_flooded: false,
            over: None,
            purges: 0,
            lives: 0,
            lease: Duration::ZERO,
        }
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Notes that there is a session, in which the client must register.
    pub(crate) fn begin_session(&mut self, now: Instant) {
        self.standing = Standing::Joining { since: now, again_at: now + REGISTRATION_WAIT };
        self.is_registration_due = true;
        self.names_before = true;
        self.is_flooded = false;
    }

    /// Notes that the session is lost, and the orders under way with it.
    pub(crate) fn end_session(&mut self) {
        self.standing = Standing::Away;
        self.is_registration_due = false;
        self.is_renewal_due = false;
        // Requests for locks that still wait are sent again in the next session.
        self.requests.clear();
        let lost = std::mem::take(&mut self.under_way).into_values().map(|(order, _)| order);
        let unanswered: Vec<Order> = lost.filter(|order| is_acknowledgement(&order.parameters)).collect();
        unanswered.into_iter().rev().for_each(|order| self.acknowledgements.push_front(order));
    }

    /// Whether commands that read or change blocks may leave: the session is the client's, and it lives.
    pub(crate) fn may_issue(&self, now: Instant) -> bool {
        self.standing == Standing::Joined && self.over.is_none() && self.holder.client(now).is_some()
    }

    /// Why the client has ended for good.
    pub(crate) fn over(&self) -> Option<&Error> {
        self.over.as_ref()
    }

    /// Whether the target restarted before the last registration. Returned once after each.
    pub(crate) fn take_continuity(&mut self) -> Option<Continuity> {
        self.continuity.take()
    }

    /// Whether the session is to be dropped: the target breaks the protocol.
    pub(crate) fn is_flooded(&self) -> bool {
        self.is_flooded
    }

    /// Whether nothing of it is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The next time at which [`poll`](Self::poll) has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let joining = match self.standing {
            Standing::Joining { again_at, .. } => Some(again_at),
            Standing::Away | Standing::Joined => None,
        };
        [joining, self.holder.next_deadline(), self.holding.next_deadline(), self.leaving].into_iter().flatten().min()
    }

    pub(crate) fn status(&self, now: Instant) -> SharingStatus {
        let until = self.holder.lease_until().unwrap_or(now);
        SharingStatus {
            client: self.client.map(ClientId::bits),
            is_alive: self.over.is_none() && self.holder.client(now).is_some(),
            lease_left: until.since(now),
            purges: self.purges,
            ranges_held: self.copies.grants().map_or(0, |grants| grants.all(&[GrantStanding::Held]).len() as u64),
            lives: self.lives,
        }
    }

    /// Unregisters once all other orders are done. Returns whether that is complete.
    pub(crate) fn leave(&mut self, now: Instant) -> bool {
        if self.over.is_some() || !matches!(self.standing, Standing::Joined) {
            return true;
        }
        let until = *self.leaving.get_or_insert(now + LEAVE_TIMEOUT);
        self.copies.allow_until(None);
        self.has_left || until <= now
    }

    /// Handles deadlines, and drops copies. Returns whether there was progress.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, now: Instant) -> bool {
        self.holder.handle_timeout(now);
        if let Standing::Joining { since, again_at } = self.standing
            && again_at <= now
        {
            self.standing = Standing::Joining { since, again_at: now + REGISTRATION_WAIT };
            self.is_registration_due = true;
        }
        if self.standing == Standing::Joined && self.over.is_none() && self.leaving.is_none() {
            self.holding.ask(context, now, &mut self.holder);
        }
        let mut has_progressed = self.holding.poll(context, now, &mut self.holder);
        has_progressed |= self.collect();
        while self.poll_first(context, now) {
            has_progressed = true;
            self.collect();
        }
        // The copies of an old life are gone when no output is left.
        let is_settled = self.outputs.is_empty() && self.leaving.is_none() && self.over.is_none();
        if is_settled {
            self.copies.allow_until(self.holder.lease_until());
        }
        has_progressed
    }

    /// Takes over what the holder wants done.
    fn collect(&mut self) -> bool {
        let mut has_any = false;
        while let Some(output) = self.holder.poll_output() {
            has_any = true;
            match output {
                HolderOutput::Send(FromClient::Renew(_)) => self.is_renewal_due = true,
                HolderOutput::Send(FromClient::Register { .. }) => {}
                HolderOutput::PurgeAll => {
                    self.copies.allow_until(None);
                    self.holding.begin_claiming();
                    self.outputs.push_back(output);
                }
                HolderOutput::Over(_) => {
                    self.copies.allow_until(None);
                    self.holding.lapse();
                    self.requests.clear();
                    self.outputs.push_back(output);
                }
                output => self.outputs.push_back(output),
            }
        }
        has_any
    }

    /// Advances the first output. Returns whether it is done.
    fn poll_first(&mut self, context: &mut Context<'_>, now: Instant) -> bool {
        let Some(first) = self.outputs.front() else { return false };
        let dropping = match (self.dropping.take(), first) {
            (Some(dropping), _) => Some(dropping),
            (None, HolderOutput::Purge(range)) => Some(self.copies.revoke(self.bytes(*range))),
            (None, HolderOutput::PurgeAll) => Some(self.copies.revoke(ByteRange { offset: 0, length: u64::MAX })),
            (None, HolderOutput::Over(_)) => Some(self.holding.drop_all()),
            (None, HolderOutput::GiveUp(resource, _)) => self.holding.begin_giving_up(*resource),
            _ => None,
        };
        if let Some(mut dropping) = dropping
            && dropping.as_mut().poll(context) == Poll::Pending
        {
            self.dropping = Some(dropping);
            return false;
        }
        match self.outputs.pop_front() {
            Some(HolderOutput::Send(message)) => self.send(message),
            Some(HolderOutput::Over(error)) => self.note_over(now, error),
            Some(HolderOutput::Granted(request, locks)) => {
                self.holding.granted(now, &mut self.holder, request, &locks);
            }
            Some(HolderOutput::Refused(request, _)) => self.holding.refused(request),
            Some(HolderOutput::InUse(resource)) => self.holding.begin_leaving(now, resource),
            Some(HolderOutput::GiveUp(resource, _)) if self.holding.give_up(resource) => self.lose_writes(),
            _ => {}
        }
        true
    }

    fn send(&mut self, message: FromClient) {
        let (client, parameters) = match message {
            FromClient::Acknowledge(client, callback, answer) => return self.acknowledge(client, callback, answer),
            FromClient::Lock { client, transaction, request, batch, is_reclaim } => {
                let transaction = u32::try_from(transaction.0).unwrap_or(u32::MAX);
                let locks = wire::asked(&batch);
                (client, Parameters::Lock { request: request.0, transaction, is_reclaim, locks })
            }
            FromClient::Unlock(client, batch) => {
                (client, Parameters::Unlock { transaction: 0, locks: wire::given_back(&batch) })
            }
            FromClient::Cancel(client, request) => (client, Parameters::Cancel { request: request.0 }),
            FromClient::Register { .. } | FromClient::Renew(_) => return,
        };
        self.requests.push_back(Order { client: Some(client), parameters });
    }

    fn bytes(&self, range: BlockRange) -> ByteRange {
        let offset = range.first().saturating_mul(self.block_bytes);
        let length = range.count().saturating_mul(self.block_bytes);
        ByteRange { offset, length: length.min(u64::MAX - offset) }
    }

    fn acknowledge(&mut self, client: ClientId, number: CallbackNumber, answer: CallbackAnswer) {
        if self.client != Some(client) {
            // The target has restarted since, and does not know this callback.
            return;
        }
        let CallbackNumber(callback) = number;
        let answer = match answer {
            CallbackAnswer::Done => {
                self.called_back.remove(&number);
                sharing::CallbackAnswer::Done
            }
            CallbackAnswer::InUse => sharing::CallbackAnswer::InUse,
            CallbackAnswer::GettingOn => sharing::CallbackAnswer::GettingOn,
        };
        let parameters = Parameters::Acknowledge { taken: self.taken, callback, answer };
        self.acknowledgements.push_back(Order { client: Some(client), parameters });
    }

    /// Handles the end of a life. The lease may still last at the target, which its answer to a
    /// registration shows.
    fn note_over(&mut self, now: Instant, error: LockError) {
        if matches!(error, LockError::Fenced(_)) {
            self.end_for_good();
        } else if self.holding.settle_lost() {
            self.lose_writes();
        } else {
            self.answer_called_back();
            if self.standing == Standing::Joined {
                tracing::warn!(
                    place = self.place,
                    "the lease of the shared LUN is over: nothing that is cached of it is used"
                );
                self.begin_session(now);
            }
        }
    }

    /// Answers all callbacks with *done*: nothing is held or cached any more, and the holder of the
    /// old life answers none.
    fn answer_called_back(&mut self) {
        let Some(client) = self.client else { return };
        for number in std::mem::take(&mut self.called_back) {
            self.acknowledge(client, number, CallbackAnswer::Done);
        }
    }

    fn end_for_good(&mut self) {
        let words = format!(
            "{} is shared, and this host was fenced from it: it did not answer in time, or an administrator asked for \
             it. What it had under way may or may not have happened; detach, look at the data, and attach again",
            self.place
        );
        self.end_because(words);
    }

    /// Ends the client: data that was written under a grant is on this host alone, and the grant is
    /// lost.
    fn lose_writes(&mut self) {
        let words = format!(
            "{} is shared, and what this host held alone of it may be others' by now: it did not reach the target for \
             longer than its lease. What was written meanwhile and is not on the logical unit is on this host alone, \
             and conflicts with what others may have written; detach, look at the data, and attach again",
            self.place
        );
        self.end_because(words);
    }

    fn end_because(&mut self, words: String) {
        self.copies.allow_until(None);
        self.holding.lapse();
        self.over.get_or_insert_with(|| Error::new(ErrorKind::Gone, words));
    }

    /// Handles the unit's report, with whatever command, that the client is dead.
    pub(crate) fn note_fenced(&mut self, now: Instant) {
        let Some(client) = self.client else { return self.end_for_good() };
        let renew = FromClient::Renew(client);
        self.holder.handle_reply(now, &renew, now, Err(LockError::Fenced(client)));
        self.end_for_good();
    }

    /// The next command to send, with its number. The target has room for so many answers and one renewal at a time.
    pub(crate) fn next_order(&mut self, now: Instant) -> Option<(u64, Order)> {
        let order = self.due_order()?;
        let number = self.next_number;
        self.next_number += 1;
        self.under_way.insert(number, (order.clone(), now));
        Some((number, order))
    }

    fn due_order(&mut self) -> Option<Order> {
        if self.over.is_some() || self.has_left {
            return None;
        }
        if matches!(self.standing, Standing::Joining { .. }) && std::mem::take(&mut self.is_registration_due) {
            return Some(self.registration());
        }
        if self.standing != Standing::Joined {
            return None;
        }
        let client = self.client;
        if self.sent_count(is_acknowledgement) < ANSWERS_UNDER_WAY_MAX
            && let Some(mut order) = self.acknowledgements.pop_front()
        {
            if let Parameters::Acknowledge { taken, .. } = &mut order.parameters {
                *taken = self.taken;
            }
            return Some(order);
        }
        let is_renewal = |parameters: &Parameters| matches!(parameters, Parameters::Renew { .. });
        if self.is_renewal_due && self.sent_count(is_renewal) == 0 {
            self.is_renewal_due = false;
            return Some(Order { client, parameters: Parameters::Renew { taken: self.taken } });
        }
        if self.leaving.is_none()
            && let Some(order) = self.requests.pop_front()
        {
            return Some(order);
        }
        let is_leave = |parameters: &Parameters| matches!(parameters, Parameters::Leave);
        if self.leaving.is_some() && self.sent_count(is_leave) == 0 {
            return Some(Order { client, parameters: Parameters::Leave });
        }
        None
    }

    fn registration(&self) -> Order {
        let before = self.holder.reclaimable_life().or(self.client).filter(|_| self.names_before);
        let proof_of = |client| self.proofs.get(&client).copied().unwrap_or(NO_PROOF);
        let before = before.map(|client| LifeBefore { client: client.bits(), proof: proof_of(client) });
        // What is read while the whole unit is held is kept no longer than that.
        let registers_reads = !self.copies.grants().is_some_and(Grants::is_whole);
        let parameters = Parameters::Register { key: self.key, registers_reads, before };
        Order { client: None, parameters }
    }

    fn sent_count(&self, is_one: impl Fn(&Parameters) -> bool) -> usize {
        self.under_way.values().filter(|(order, _)| is_one(&order.parameters)).count()
    }

    /// An answer did not reach the target. What a start of before asked for, the one of now knows nothing of.
    fn answer_again(&mut self, order: Order) {
        if order.client == self.client {
            self.acknowledgements.push_front(order);
        }
    }

    /// Handles the end of an order.
    pub(crate) fn handle_answer(&mut self, now: Instant, number: u64, answer: Answer) {
        let Some((order, sent)) = self.under_way.remove(&number) else { return };
        match (&order.parameters, answer) {
            (_, Answer::Fenced) => self.note_fenced(now),
            (Parameters::Register { before, .. }, Answer::Refused) => self.note_unreclaimable(now, *before),
            (Parameters::Renew { .. }, Answer::Done) => {
                if let Some(client) = order.client {
                    self.renewed(now, client, sent);
                }
            }
            (Parameters::Leave, _) => self.has_left = true,
            (Parameters::Register { .. }, _) => {}
            (_, Answer::Unknown) => {
                if is_acknowledgement(&order.parameters) {
                    self.answer_again(order);
                }
                // The others that were under way say the same while the registration is on its way.
                if self.standing == Standing::Joined {
                    self.begin_session(now);
                }
            }
            (Parameters::Lock { request, .. }, Answer::Refused) => {
                // The target found the request malformed, and keeps none to be granted.
                let (request, error) = (RequestId(*request), LockError::GraceOver);
                if let Some(client) = order.client {
                    self.holder.handle_message(client, ToClient::Refused { request, error });
                }
            }
            (Parameters::Lock { .. }, Answer::Again) => self.holding.ask_later(now),
            (Parameters::Acknowledge { .. }, Answer::Again) => self.answer_again(order),
            _ => {}
        }
    }

    /// What a life before held can be claimed back no more: that is all there is to be refused of a registration.
    fn note_unreclaimable(&mut self, now: Instant, before: Option<LifeBefore>) {
        self.is_registration_due = before.is_some();
        let named = before.map(|life| ClientId::from_bits(life.client));
        match named {
            // What the last life has claimed back of it can still be.
            Some(older) if named != self.client && named == self.holder.reclaimable_life() => {
                let register = FromClient::Register { previous: named };
                self.holder.handle_reply(now, &register, now, Err(LockError::NotReclaimable(older)));
            }
            _ => self.names_before = false,
        }
    }

    /// A message of the target.
    pub(crate) fn handle_message(&mut self, now: Instant, message: &Message) {
        if self.is_flooded || self.over.is_some() {
            return;
        }
        self.take_message(now, message);
        self.collect();
        if self.owed_count() > OWED_MAX {
            self.drop_session(now);
        }
    }

    /// What is to be done for the target, and what is to be sent or under way.
    fn owed_count(&self) -> usize {
        let to_be_sent = self.acknowledgements.len() + self.requests.len() + self.under_way.len();
        self.outputs.len() + self.called_back.len() + to_be_sent
    }

    /// The target asks for more than it may. Nothing more is heard or sent in this session, and no copy is used before
    /// a life begins in another.
    fn drop_session(&mut self, now: Instant) {
        self.is_flooded = true;
        self.standing = Standing::Away;
        if let Some(client) = self.client {
            let renew = FromClient::Renew(client);
            self.holder.handle_reply(now, &renew, now, Err(LockError::LeaseOver(client)));
        }
        self.collect();
    }

    fn take_message(&mut self, now: Instant, message: &Message) {
        let client = ClientId::from_bits(message.client);
        let is_registered = matches!(message.body, MessageBody::Registered { key, .. } if key == self.key);
        if self.client != Some(client) {
            if is_registered {
                self.begin_life(now, client, message);
            }
            return;
        }
        if message.number <= self.taken {
            return;
        }
        if message.number > self.taken + 1 {
            tracing::error!(place = self.place, "a message of the target is missing");
            return self.note_fenced(now);
        }
        self.taken = message.number;
        match message.body {
            MessageBody::Registered { .. } if is_registered => self.rejoin(now, message),
            MessageBody::Purge { callback, first_block, block_count, .. } => {
                self.purges += 1;
                // For a range of blocks that is malformed, all copies are dropped.
                let range = BlockRange::new(first_block, block_count).or(BlockRange::new(0, u64::MAX));
                let Some(range) = range else { return };
                // Messages carry no generation: every lock that was requested before counts as
                // older.
                let generation = Generation(u64::MAX);
                let number = CallbackNumber(callback);
                if self.lives_as(now, client) {
                    self.holder.handle_message(client, ToClient::Purge { number, range, generation });
                } else {
                    self.outputs.push_back(HolderOutput::Purge(range));
                    self.answer_done(client, number);
                }
            }
            MessageBody::Granted { request, transaction, ref locks } => {
                let (request, transaction) = (RequestId(request), TransactionId(transaction.into()));
                let locks = wire::granted(locks);
                self.holder.handle_message(client, ToClient::Granted { request, transaction, locks });
            }
            MessageBody::Refused { request, reason, .. } => {
                let (request, error) = (RequestId(request), wire::refusal(reason));
                self.holder.handle_message(client, ToClient::Refused { request, error });
            }
            MessageBody::CallBack { callback, ref lock, .. } => {
                let (number, grant) = (CallbackNumber(callback), GrantNumber(lock.grant));
                let (resource, to) = (wire::resource_of(lock), wire::mode_of(lock));
                if self.lives_as(now, client) {
                    self.called_back.insert(number);
                    self.holder.handle_message(client, ToClient::Callback { number, resource, grant, to });
                } else {
                    self.answer_done(client, number);
                }
            }
            // This client opens no files and begins no transactions.
            _ => {}
        }
    }

    /// Whether the holder lives as this client. Without a life it answers no callbacks. What it
    /// wanted done is collected first.
    fn lives_as(&mut self, now: Instant, client: ClientId) -> bool {
        self.holder.handle_timeout(now);
        self.collect();
        self.holder.client(now) == Some(client)
    }

    /// Queues the answer *done* behind all outputs.
    fn answer_done(&mut self, client: ClientId, number: CallbackNumber) {
        let answer = FromClient::Acknowledge(client, number, CallbackAnswer::Done);
        self.outputs.push_back(HolderOutput::Send(answer));
    }

    /// Begins a life with a new client id.
    fn begin_life(&mut self, now: Instant, client: ClientId, message: &Message) {
        if self.client.is_some_and(|before| before.boot_epoch() == client.boot_epoch()) {
            return self.note_fenced(now);
        }
        let Some(since) = self.join(message) else { return };
        self.continuity = self.client.map(|_| Continuity::NewStart);
        self.acknowledgements.clear();
        self.called_back.clear();
        (self.client, self.taken) = (Some(client), message.number);
        self.live(now, client, since);
        let nameable = [self.client, self.holder.reclaimable_life()];
        self.proofs.retain(|life, _| nameable.contains(&Some(*life)));
    }

    /// Continues the client's life in this session. A life that was over at this end goes on when a
    /// renewal is answered.
    fn rejoin(&mut self, now: Instant, message: &Message) {
        if self.join(message).is_some() {
            self.holder.handle_timeout(now);
            self.continuity = Some(Continuity::Same);
            self.holding.ask_again(now);
            self.is_renewal_due = true;
        }
    }

    /// Notes that the session is the client's. Returns when its first REGISTER was sent.
    fn join(&mut self, message: &Message) -> Option<Instant> {
        let Standing::Joining { since, .. } = self.standing else { return None };
        let MessageBody::Registered { lease_ms, proof, .. } = message.body else { return None };
        self.proofs.insert(ClientId::from_bits(message.client), proof);
        self.lease = Duration::from_millis(lease_ms.into());
        self.standing = Standing::Joined;
        Some(since)
    }

    /// Handles the answer to a renewal that was sent at `sent`.
    fn renewed(&mut self, now: Instant, client: ClientId, sent: Instant) {
        self.holder.handle_timeout(now);
        if self.holder.client(now) == Some(client) {
            self.holder.handle_reply(now, &FromClient::Renew(client), sent, Ok(Reply::Done));
        } else if self.client == Some(client) && self.standing == Standing::Joined {
            self.live(now, client, sent);
        }
    }

    /// Begins a life, whose lease counts from `since`.
    fn live(&mut self, now: Instant, client: ClientId, since: Instant) {
        self.lives += 1;
        self.holder.handle_timeout(now);
        let register = FromClient::Register { previous: self.holder.reclaimable_life() };
        let boot_epoch = client.boot_epoch();
        let registration = Registration { client, lease: self.lease, boot_epoch, is_in_grace: false };
        self.holder.handle_reply(now, &register, since, Ok(Reply::Registered(registration)));
    }
}

fn is_acknowledgement(parameters: &Parameters) -> bool {
    matches!(parameters, Parameters::Acknowledge { .. })
}

#[cfg(test)]
mod tests;
