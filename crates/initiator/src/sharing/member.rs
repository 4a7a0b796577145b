//! A client of a shared unit, over all its sessions and paths.
//!
//! ```text
//!  no session ──begin_session──► Joining: REGISTER with its key ──REGISTERED──► Joined ──end_session──► no session
//!                                   │                                              │
//!                                   └── fenced, or another life of the same start of the target ──► over, for good
//! ```
//! Each [path](super::path) goes through these states by itself; the life, its lease and its messages are the
//! client's.
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
//! - messages are handled in the order of their numbers, each once, whichever path brings it first;
//! - every path renews the lease. An answer to a callback that stays without an answer itself is sent by another path,
//!   too;
//! - copies may be used while the lease lasts, counted from the time at which its renewal was
//!   *sent*. All copies of an old life are dropped before a new life allows any;
//! - a range that it holds alone is given up when the layers above have cleaned it. Dirty data in a
//!   range that it does not hold any more ends the client: another host may have written there
//!   since;
//! - what it asked the target for is answered within a time, or its life is over: nobody waits for
//!   ever for a message that does not come;
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
use super::path::{Parting, PathNumber, Paths, Registering, Sent};
use super::status::SharingStatus;
use super::unanswered::Unanswered;
use super::wire;
use crate::limits::{
    ANSWER_TRIES_PER_CALLBACK, ANSWERS_UNDER_WAY_MAX, LEASE_MIN, LEAVE_TIMEOUT, OWED_MAX, RENEWAL_TRIES_PER_LEASE,
};
use crate::log_limit::LogLimit;

/// The client of a shared unit; it outlives sessions.
pub(crate) struct Member {
    place: String,
    /// Shows the target that two sessions are of one client.
    key: [u8; 16],
    block_bytes: u64,
    copies: Copies,
    holder: Holder,
    holding: Holding,
    unanswered: Unanswered,
    /// The id of its present life, or of the last one.
    client: Option<ClientId>,
    /// Shows the target after its next start that a life was the client's: of the last one, and of the one from which
    /// locks are still being reclaimed.
    proofs: BTreeMap<ClientId, Proof>,
    /// The number of the last message that it took.
    taken: u64,
    paths: Paths,
    /// How long an answer to a callback is under way before another path sends it, too.
    answer_patience: Duration,
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
    /// Whether requests name the life before, so that its locks can be reclaimed.
    names_before: bool,
    next_number: u64,
    /// The path that unregisters the client; `None` while the client stays.
    leaving: Option<PathNumber>,
    has_left: bool,
    over: Option<Error>,
    purges: u64,
    lives: u64,
    /// The duration of the lease, as the target granted it last.
    lease: Duration,
    /// The one that it granted instead, and that is of no use.
    short_lease: Option<Duration>,
    lease_log: LogLimit<()>,
}

impl Member {
    pub(crate) fn new(place: String, key: [u8; 16], support: Support, copies: Copies) -> Self {
        Self {
            place,
            key,
            block_bytes: support.block_bytes.into(),
            holding: Holding::new(copies.clone(), Duration::from_millis(support.callback_ms.into())),
            unanswered: Unanswered::new(&support),
            copies,
            holder: Holder::default(),
            client: None,
            proofs: BTreeMap::new(),
            taken: 0,
            paths: Paths::new(),
            answer_patience: Duration::from_millis(support.callback_ms.into()) / ANSWER_TRIES_PER_CALLBACK,
            outputs: VecDeque::new(),
            dropping: None,
            called_back: BTreeSet::new(),
            acknowledgements: VecDeque::new(),
            requests: VecDeque::new(),
            names_before: true,
            next_number: 0,
            leaving: None,
            has_left: false,
            over: None,
            purges: 0,
            lives: 0,
            lease: Duration::ZERO,
            short_lease: None,
            lease_log: LogLimit::default(),
        }
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// One path more, without a session.
    pub(crate) fn add_path(&mut self) -> PathNumber {
        self.paths.add()
    }

    /// Forgets a path that is used no more. With the last one the client ends, unless it has left: nobody would give up
    /// what it holds.
    pub(crate) fn remove_path(&mut self, path: PathNumber) {
        self.paths.remove(path);
        if self.paths.all().next().is_none() && !self.has_left {
            self.lose_paths();
        }
    }

    /// Whether another path has a session.
    pub(crate) fn has_other_path(&self, than: PathNumber) -> bool {
        self.over.is_none() && self.paths.has_other(than)
    }

    /// Wakes whom anything concerns that has changed, but the driver of `acting`.
    pub(crate) fn wake(&mut self, acting: PathNumber) {
        self.paths.wake(acting);
    }

    /// Notes that there is a session, in which the client must register.
    pub(crate) fn begin_session(&mut self, now: Instant, path: PathNumber) {
        self.paths.begin_session(now, path);
        self.names_before = true;
    }

    /// Notes that the session is lost, and the orders under way with it.
    pub(crate) fn end_session(&mut self, now: Instant, path: PathNumber) {
        let (lost, had_joined) = self.paths.end_session(now, path);
        if had_joined {
            // Requests for locks that still wait are sent again by the next registration.
            self.requests.clear();
        }
        if had_joined || !self.paths.has_other(path) {
            self.unanswered.clear();
        }
        let unanswered = lost.into_iter().rev().filter(|order| is_acknowledgement(&order.parameters));
        unanswered.for_each(|order| self.answer_again(order));
    }

    /// Whether commands that read or change blocks may leave on this path: it is the client's, and that lives.
    pub(crate) fn may_issue(&self, now: Instant, path: PathNumber) -> bool {
        self.paths.is_joined(path) && self.over.is_none() && self.holder.client(now).is_some()
    }

    /// Whether the target of this path does not know the client, which lives at that of another one.
    pub(crate) fn is_stranger(&self, path: PathNumber) -> bool {
        self.paths.is_stranger(path)
    }

    /// Waits until this path has joined; an error if it cannot.
    pub(crate) fn poll_joined(&mut self, context: &Context<'_>, path: PathNumber) -> Poll<Result<(), Error>> {
        if let Some(error) = self.over.clone().or_else(|| self.short_lease_error()) {
            return Poll::Ready(Err(error));
        }
        if self.paths.is_joined(path) {
            return Poll::Ready(Ok(()));
        }
        if self.paths.get(path).is_none() {
            return Poll::Ready(Err(Error::new(ErrorKind::Gone, format!("a path to {} has ended", self.place))));
        }
        if self.paths.is_stranger(path) {
            let words = format!(
                "the target at the end of another path does not know this host as a client of {}: two targets that do \
                 not know of each other lead to one logical unit, and what is written by one the other calls no copy \
                 back for. Give the URL of one of them, or several portals of one target",
                self.place
            );
            return Poll::Ready(Err(Error::new(ErrorKind::Unsupported, words)));
        }
        self.paths.watch(path, context.waker());
        Poll::Pending
    }

    /// Why the session of a path is to be dropped whose target has just granted a lease that is of no use.
    pub(crate) fn lease_refusal(&self, path: PathNumber) -> Option<Error> {
        self.paths.get(path).filter(|path| path.is_lease_refused).and_then(|_| self.short_lease_error())
    }

    fn short_lease_error(&self) -> Option<Error> {
        self.short_lease.map(|lease| short_lease(&self.place, lease))
    }

    /// Notes whether the session of a path has several connections.
    pub(crate) fn note_width(&mut self, path: PathNumber, is_wide: bool) {
        if let Some(path) = self.paths.get_mut(path) {
            path.is_wide = is_wide;
        }
    }

    /// Why the client has ended for good.
    pub(crate) fn over(&self) -> Option<&Error> {
        self.over.as_ref()
    }

    /// Whether the target restarted before the last registration. Returned once to each path after each.
    pub(crate) fn take_new_start(&mut self, path: PathNumber) -> bool {
        self.paths.get_mut(path).is_some_and(|path| std::mem::take(&mut path.is_new_start))
    }

    /// Whether the session is to be dropped: the target breaks the protocol.
    pub(crate) fn is_flooded(&self, path: PathNumber) -> bool {
        self.paths.get(path).is_some_and(|path| path.is_flooded)
    }

    /// Whether nothing of it is under way on this path.
    pub(crate) fn is_idle(&self, path: PathNumber) -> bool {
        self.paths.get(path).is_none_or(|path| path.under_way.is_empty())
    }

    /// The next time at which [`poll`](Self::poll) has something to do, or [`next_order`](Self::next_order) where this
    /// path `may_send`.
    pub(crate) fn next_deadline(&self, path: PathNumber, may_send: bool) -> Option<Instant> {
        let leaving = self.paths.get(path).and_then(|path| path.parts_until);
        let sending = if may_send && self.over.is_none() && !self.has_left { self.next_sending(path) } else { None };
        let unanswered = self.unanswered.next_deadline().filter(|_| self.over.is_none());
        let others = [self.holder.next_deadline(), self.holding.next_deadline(), leaving, sending, unanswered];
        others.into_iter().flatten().min()
    }

    fn next_sending(&self, number: PathNumber) -> Option<Instant> {
        let path = self.paths.get(number)?;
        let has_room = path.is_joined() && path.sent_count(is_acknowledgement) < ANSWERS_UNDER_WAY_MAX;
        let unanswered = self.paths.oldest_unanswered(number).filter(|_| has_room);
        let repeat = unanswered.map(|sent| sent + self.answer_patience);
        let renewal = if path.is_joined() { path.renewal_due(self.renewal_patience()) } else { None };
        self.paths.registration_due(number).into_iter().chain(repeat).chain(renewal).min()
    }

    pub(crate) fn status(&self, now: Instant) -> SharingStatus {
        let until = self.holder.lease_until().unwrap_or(now);
        let (asks, callbacks) = self.holding.traffic();
        SharingStatus {
            client: self.client.map(ClientId::bits),
            is_alive: self.over.is_none() && self.holder.client(now).is_some(),
            lease_left: until.since(now),
            purges: self.purges,
            ranges_held: self.copies.grants().map_or(0, |grants| grants.all(&[GrantStanding::Held]).len() as u64),
            asks,
            callbacks,
            lives: self.lives,
        }
    }

    /// Unregisters once all other orders are done, unless another path goes on. Returns whether that is complete.
    pub(crate) fn leave(&mut self, now: Instant, path: PathNumber) -> bool {
        let parting = self.paths.parting(path);
        if self.over.is_some() || self.has_left || parting == Parting::Free {
            return true;
        }
        let until = self.paths.begin_parting(path, now + LEAVE_TIMEOUT);
        if parting == Parting::Last {
            self.leaving.get_or_insert(path);
            self.copies.allow_until(None);
        }
        until <= now
    }

    /// Handles deadlines, and drops copies. Returns whether there was progress.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, now: Instant, path: PathNumber) -> bool {
        self.paths.register(path, context.waker());
        self.holder.handle_timeout(now);
        self.miss_answers(now);
        if self.paths.is_joined(path) && self.over.is_none() && self.leaving.is_none() {
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
        if has_progressed {
            self.paths.note_change();
        }
        has_progressed
    }

    /// Asks again for what waits at the target for long, and ends the client where an answer does
    /// not come.
    fn miss_answers(&mut self, now: Instant) {
        for request in self.unanswered.take_due(now) {
            self.holder.resend(now, request);
        }
        if self.over.is_none() && self.unanswered.is_overdue(now) {
            self.unanswered.clear();
            self.lose_answer();
        }
    }

    /// Takes over what the holder wants done.
    fn collect(&mut self) -> bool {
        let mut has_any = false;
        while let Some(output) = self.holder.poll_output() {
            has_any = true;
            match output {
                HolderOutput::Send(FromClient::Renew(_)) => self.paths.renew(),
                HolderOutput::Send(FromClient::Register { .. }) => {}
                HolderOutput::PurgeAll => {
                    self.copies.allow_until(None);
                    self.holding.begin_claiming();
                    self.outputs.push_back(output);
                }
                HolderOutput::Over(_) => {
                    self.copies.allow_until(None);
                    self.holding.lapse();
                    self.unanswered.clear();
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
            Some(HolderOutput::Refused(request, error)) => self.holding.refused(request, error),
            Some(HolderOutput::InUse(resource)) => {
                self.holding.begin_leaving(now, resource, self.holder.kept(resource));
            }
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
            if self.paths.all().any(|path| path.is_joined()) {
                if let Some(left_out) = self.lease_log.admit((), now) {
                    tracing::warn!(
                        place = self.place,
                        left_out,
                        "the lease of the shared LUN is over: nothing that is cached of it is used"
                    );
                }
                self.paths.begin_again(now);
                self.names_before = true;
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

    /// Ends the client: what it holds, or is claiming back, is known to nobody.
    fn lose_answer(&mut self) {
        let words = format!(
            "{} is shared, and its target took a registration or a request for a lock of this host and has said \
             nothing of it for longer than any may take: nothing is done there any more; detach, look at the data, \
             and attach again",
            self.place
        );
        self.end_because(words);
    }

    /// Ends the client: it has no way to the target, and gets none.
    fn lose_paths(&mut self) {
        let words = format!("{} is shared, and no session of this host with it goes on", self.place);
        self.end_because(words);
    }

    fn end_because(&mut self, words: String) {
        self.copies.allow_until(None);
        self.holding.lapse();
        self.over.get_or_insert_with(|| Error::new(ErrorKind::Gone, words));
        self.paths.note_change();
    }

    /// Handles the unit's report, with whatever command, that the client is dead.
    pub(crate) fn note_fenced(&mut self, now: Instant) {
        let Some(client) = self.client else { return self.end_for_good() };
        let renew = FromClient::Renew(client);
        self.holder.handle_reply(now, &renew, now, Err(LockError::Fenced(client)));
        self.end_for_good();
    }

    /// Handles the unit's report, with whatever command, that it does not know this path any more. The others that were
    /// under way say the same while the registration is on its way.
    pub(crate) fn note_unknown(&mut self, now: Instant, path: PathNumber) {
        self.paths.join_again(now, path);
        self.names_before = true;
    }

    /// The next command to send by this path, with its number. The target has room for so many answers and some
    /// renewals on each.
    pub(crate) fn next_order(&mut self, now: Instant, path: PathNumber) -> Option<(u64, Order)> {
        let order = self.due_order(now, path)?;
        let number = self.next_number;
        self.next_number += 1;
        self.paths.get_mut(path)?.send(number, order.clone(), now);
        Some((number, order))
    }

    fn due_order(&mut self, now: Instant, number: PathNumber) -> Option<Order> {
        if self.over.is_some() || self.has_left {
            return None;
        }
        match self.paths.take_registration(now, number) {
            Some(Registering::Alone) => return Some(self.registration(None, self.life_before())),
            Some(Registering::Joining) => return Some(self.registration(self.client, None)),
            None => {}
        }
        let client = self.client;
        let path = self.paths.get(number).filter(|path| path.is_joined())?;
        if path.sent_count(is_acknowledgement) < ANSWERS_UNDER_WAY_MAX
            && let Some(mut order) = self.due_acknowledgement(now, number)
        {
            if let Parameters::Acknowledge { taken, .. } = &mut order.parameters {
                *taken = self.taken;
            }
            return Some(order);
        }
        let patience = self.renewal_patience();
        let path = self.paths.get_mut(number)?;
        if path.renewal_due(patience).is_some_and(|due| due <= now) {
            path.is_renewal_due = false;
            return Some(Order { client, parameters: Parameters::Renew { taken: self.taken } });
        }
        let Some(leaving) = self.leaving else { return self.requests.pop_front() };
        let is_leave = |parameters: &Parameters| matches!(parameters, Parameters::Leave);
        if leaving == number && path.sent_count(is_leave) == 0 {
            return Some(Order { client, parameters: Parameters::Leave });
        }
        None
    }

    /// How long a renewal is under way before another connection of the session sends one, too.
    fn renewal_patience(&self) -> Duration {
        self.lease / RENEWAL_TRIES_PER_LEASE
    }

    /// The next acknowledgement, or one to which another path brings no answer.
    fn due_acknowledgement(&mut self, now: Instant, path: PathNumber) -> Option<Order> {
        let waiting = self.acknowledgements.pop_front();
        let patience = self.answer_patience;
        let unanswered = self.paths.oldest_unanswered(path).filter(|sent| *sent + patience <= now);
        let repeated = || self.paths.take_unanswered(unanswered?, path);
        waiting.or_else(repeated).filter(|order| order.client == self.client)
    }

    /// The life of before, as a registration that names no client shows it.
    fn life_before(&self) -> Option<LifeBefore> {
        let before = self.holder.reclaimable_life().or(self.client).filter(|_| self.names_before);
        let proof_of = |client| self.proofs.get(&client).copied().unwrap_or(NO_PROOF);
        before.map(|client| LifeBefore { client: client.bits(), proof: proof_of(client) })
    }

    fn registration(&self, client: Option<ClientId>, before: Option<LifeBefore>) -> Order {
        // What is read while the whole unit is held is kept no longer than that.
        let registers_reads = !self.copies.grants().is_some_and(Grants::is_whole);
        let parameters = Parameters::Register { key: self.key, registers_reads, before };
        Order { client, parameters }
    }

    /// An answer did not reach the target. What a start of before asked for, the one of now knows nothing of.
    fn answer_again(&mut self, order: Order) {
        if order.client == self.client {
            self.acknowledgements.push_front(order);
        }
    }

    /// Handles the end of an order.
    pub(crate) fn handle_answer(&mut self, now: Instant, path: PathNumber, number: u64, answer: Answer) {
        let under_way = self.paths.get_mut(path).and_then(|path| path.under_way.remove(&number));
        let Some(Sent { order, at: sent, is_void, .. }) = under_way else { return };
        match (&order.parameters, answer) {
            (_, Answer::Fenced) => self.note_fenced(now),
            (Parameters::Register { .. }, _) if is_void => {}
            (Parameters::Register { before, .. }, answer) => self.registered(now, path, &order, *before, answer),
            (Parameters::Renew { .. }, Answer::Done) => {
                if let Some(client) = order.client {
                    self.renewed(now, path, client, sent);
                }
            }
            // Nothing else asks for one while no lease lasts.
            (Parameters::Renew { .. }, Answer::Again | Answer::Refused) => self.paths.renew_later(now, path),
            (Parameters::Leave, _) => self.has_left = true,
            (Parameters::Lock { request, .. }, Answer::Done) => self.await_locks(now, RequestId(*request)),
            (_, Answer::Unknown) => {
                if is_acknowledgement(&order.parameters) {
                    self.answer_again(order);
                }
                self.note_unknown(now, path);
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

    /// A REGISTER was answered.
    fn registered(
        &mut self,
        now: Instant,
        path: PathNumber,
        order: &Order,
        before: Option<LifeBefore>,
        answer: Answer,
    ) {
        match (order.client, answer) {
            (None, Answer::Done) if self.paths.note_done(path) => self.rejoined(now, path),
            // Its message is to come.
            (None, Answer::Done) if !self.paths.is_joined(path) => self.unanswered.take_registration(now),
            (None, Answer::Refused) => self.note_unreclaimable(now, before),
            (Some(_), Answer::Done) if order.client == self.client => self.paths.note_joined(path),
            (Some(_), Answer::Refused) => self.paths.note_unknown(now, path),
            _ => {}
        }
    }

    /// The target has taken a request for locks. Its message may have come before.
    fn await_locks(&mut self, now: Instant, request: RequestId) {
        if self.holder.waiting().any(|waiting| waiting == request) {
            self.unanswered.take_request(now, request);
        }
    }

    /// What a life before held can be claimed back no more: that is all there is to be refused of a registration.
    fn note_unreclaimable(&mut self, now: Instant, before: Option<LifeBefore>) {
        if before.is_some() {
            self.paths.register_at_once(now);
        }
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

    /// A message of the target, by this path.
    pub(crate) fn handle_message(&mut self, now: Instant, path: PathNumber, message: &Message) {
        if self.is_flooded(path) || self.over.is_some() {
            return;
        }
        self.take_message(now, path, message);
        self.collect();
        self.paths.note_change();
        if self.owed_count() > OWED_MAX {
            self.drop_session(now);
        }
    }

    /// What is to be done for the target, and what is to be sent or under way.
    fn owed_count(&self) -> usize {
        let under_way = self.paths.all().map(|path| path.under_way.len()).sum::<usize>();
        let to_be_sent = self.acknowledgements.len() + self.requests.len() + under_way;
        self.outputs.len() + self.called_back.len() + to_be_sent
    }

    /// The target asks for more than it may. Nothing more is heard or sent in this session, and no copy is used before
    /// a life begins in another.
    fn drop_session(&mut self, now: Instant) {
        self.paths.flood();
        if let Some(client) = self.client {
            let renew = FromClient::Renew(client);
            self.holder.handle_reply(now, &renew, now, Err(LockError::LeaseOver(client)));
        }
        self.collect();
    }

    fn take_message(&mut self, now: Instant, path: PathNumber, message: &Message) {
        let client = ClientId::from_bits(message.client);
        let is_registered = matches!(message.body, MessageBody::Registered { key, .. } if key == self.key);
        if is_registered && self.refuses_lease(path, message) {
            return;
        }
        if self.client != Some(client) {
            if is_registered {
                self.begin_life(now, path, client, message);
            }
            return;
        }
        if is_registered {
            self.note_registered(now, path, message);
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
                self.unanswered.end(request);
                self.holder.handle_message(client, ToClient::Granted { request, transaction, locks });
            }
            MessageBody::Refused { request, reason, .. } => {
                let (request, error) = (RequestId(request), wire::refusal(reason));
                self.unanswered.end(request);
                self.holder.handle_message(client, ToClient::Refused { request, error });
            }
            MessageBody::Queued { request } => {
                let request = RequestId(request);
                if self.holder.waiting().any(|waiting| waiting == request) {
                    self.unanswered.queue(now, request);
                }
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

    /// Whether a registration brings a lease that is of no use. Then it counts as none, and the session is dropped.
    fn refuses_lease(&mut self, path: PathNumber, message: &Message) -> bool {
        let MessageBody::Registered { lease_ms, .. } = message.body else { return false };
        let lease = Duration::from_millis(lease_ms.into());
        self.short_lease = (lease < LEASE_MIN).then_some(lease);
        if self.short_lease.is_some() {
            self.paths.refuse_lease(path);
        }
        self.short_lease.is_some()
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
    fn begin_life(&mut self, now: Instant, path: PathNumber, client: ClientId, message: &Message) {
        if self.client.is_some_and(|before| before.boot_epoch() == client.boot_epoch()) {
            return self.note_fenced(now);
        }
        let Some(since) = self.paths.begin_life(path) else { return };
        self.note_terms(message);
        let is_new_start = self.client.is_some();
        self.paths.all_mut().for_each(|path| path.is_new_start = is_new_start);
        self.acknowledgements.clear();
        self.called_back.clear();
        (self.client, self.taken) = (Some(client), message.number);
        self.live(now, client, since);
        let nameable = [self.client, self.holder.reclaimable_life()];
        self.proofs.retain(|life, _| nameable.contains(&Some(*life)));
    }

    /// A REGISTERED message of the client, which any path may bring, and more than once.
    fn note_registered(&mut self, now: Instant, path: PathNumber, message: &Message) {
        self.note_terms(message);
        if self.paths.note_told(path) {
            self.rejoined(now, path);
        }
    }

    /// Continues the client's life in this session. A life that was over at this end goes on when a
    /// renewal is answered.
    fn rejoined(&mut self, now: Instant, path: PathNumber) {
        self.holder.handle_timeout(now);
        self.holding.ask_again(now);
        if let Some(path) = self.paths.get_mut(path) {
            path.is_renewal_due = true;
        }
    }

    /// Notes what the target says of the client in its REGISTERED message.
    fn note_terms(&mut self, message: &Message) {
        let MessageBody::Registered { lease_ms, proof, .. } = message.body else { return };
        self.proofs.insert(ClientId::from_bits(message.client), proof);
        self.lease = Duration::from_millis(lease_ms.into());
        self.unanswered.end_registration();
    }

    /// Handles the answer to a renewal that was sent at `sent`.
    fn renewed(&mut self, now: Instant, path: PathNumber, client: ClientId, sent: Instant) {
        self.paths.get_mut(path).into_iter().for_each(|path| path.note_renewal(sent));
        self.paths.note_renewed(sent);
        self.holder.handle_timeout(now);
        if self.holder.client(now) == Some(client) {
            self.holder.handle_reply(now, &FromClient::Renew(client), sent, Ok(Reply::Done));
        } else if self.client == Some(client) && self.paths.is_joined(path) {
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

/// The error of a unit whose target grants a lease that is of no use.
pub(crate) fn short_lease(place: &str, lease: Duration) -> Error {
    let words = format!(
        "{place} cannot be shared: its target grants a lease of {} ms, and one of less than {} ms is over before it \
         can be renewed; set a longer one there",
        lease.as_millis(),
        LEASE_MIN.as_millis()
    );
    Error::new(ErrorKind::Unsupported, words)
}

fn is_acknowledgement(parameters: &Parameters) -> bool {
    matches!(parameters, Parameters::Acknowledge { .. })
}

#[cfg(test)]
mod tests;
