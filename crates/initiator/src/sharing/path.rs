//! The paths of a client: sessions through which it reaches one target.
//!
//! ```text
//!  no session ──begin──► Joining: REGISTER ──answered──► Joined ──lost──► no session
//!                           ▲                              │
//!                           └── another path was lost, or the target knows this one no more
//! ```
//! The first REGISTER is the client's alone: it names no client, and takes every other path from the client. That is
//! how what a lost session left behind is kept from landing later. The other paths join with REGISTERs that name the
//! client. So when a path is lost that had joined, all the others register again, one of them alone and first; until
//! it is answered no command for blocks leaves on any path.
//!
//! A path whose target does not know the client is a *stranger* as soon as another path has shown that the client
//! lives: its target and theirs do not know of each other. It never registers alone: that would move the client to a
//! target that calls no copy back for what is written through the other one. Where nothing was shown yet, it waits for
//! the others that long.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use base::clock::Instant;
use scsi::sharing::Parameters;

use super::order::Order;
use super::spacing::Spacing;
use crate::limits::{REGISTRATION_WAIT, REJOIN_WAIT_MAX, RENEWAL_WAIT_MAX, RENEWALS_UNDER_WAY_MAX, UNKNOWN_WAIT};

/// The number of a path among those of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PathNumber(pub(super) u32);

/// What a path is for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has no session, or one that is not to be used any more.
    Away,
    Joining(Joining),
    Joined,
}

/// The state of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joining {
    /// When REGISTER is sent, for the first time or again, while others have joined.
    due: Instant,
    /// How often REGISTER was sent without naming the client.
    alone_count: u32,
    /// The target has carried such a REGISTER out.
    is_done: bool,
    /// A REGISTERED message of the client has come by this path.
    is_told: bool,
}

/// How a path registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registering {
    /// Without naming the client: it makes or keeps the client, which has this path alone then.
    Alone,
    /// As one more path of the client.
    Joining,
}

/// What a path that is closed still has to do for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parting {
    /// Nothing: another one goes on, or its target does not know the client by it.
    Free,
    /// It waits for a registration: its own, without which it cannot unregister the client, or that of the other one
    /// which is to go on.
    Waiting,
    /// It is the last one, and unregisters the client.
    Last,
}

/// An order that is under way.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) order: Order,
    pub(super) at: Instant,
    /// It was sent again, by another path or connection, since this one brought no answer.
    is_repeated: bool,
    /// A registration of before the path had to register again: its answer says nothing of now.
    pub(super) is_void: bool,
}

/// One path.
pub(super) struct Path {
    pub(super) standing: Standing,
    /// It had joined in this session, so commands of it may be under way.
    was_joined: bool,
    pub(super) is_renewal_due: bool,
    /// The next renewal is sent no sooner: the last ones were not carried out.
    renewal_from: Instant,
    renewals: Spacing,
    /// Registrations that are of no use: the lease is over at once, or the target knows no such client.
    rejoins: Spacing,
    /// Its session has several connections, and what is stuck on one of them may go by another.
    pub(super) is_wide: bool,
    /// Orders under way by number.
    pub(super) under_way: BTreeMap<u64, Sent>,
    /// The target has started again, which the engine of this path has not heard.
    pub(super) is_new_start: bool,
    /// The target asked for more than it may. Until the next session nothing that it says is heard.
    pub(super) is_flooded: bool,
    /// The target grants a lease that is of no use. Until the next session nothing is sent.
    pub(super) is_lease_refused: bool,
    /// When its target said that it does not know the client.
    unknown_since: Option<Instant>,
    /// Another path has shown since that the client lives.
    is_stranger: bool,
    /// It was one when it was asked last, in this session or in one before.
    was_stranger: bool,
    /// How long it takes part in unregistering the client, since it is closed.
    pub(super) parts_until: Option<Instant>,
    driver: Option<Waker>,
    /// Who waits until it has joined.
    watchers: Vec<Waker>,
}

impl Path {
    fn new() -> Self {
        Self {
            standing: Standing::Away,
            was_joined: false,
            is_renewal_due: false,
            renewal_from: Instant::START,
            renewals: Spacing::new(RENEWAL_WAIT_MAX),
            rejoins: Spacing::new(REJOIN_WAIT_MAX),
            is_wide: false,
            under_way: BTreeMap::new(),
            is_new_start: false,
            is_flooded: false,
            is_lease_refused: false,
            unknown_since: None,
            is_stranger: false,
            was_stranger: false,
            parts_until: None,
            driver: None,
            watchers: Vec::new(),
        }
    }

    /// It is to register, whatever it had sent or heard before.
    fn join(&mut self, at: Instant) {
        self.under_way.values_mut().for_each(|sent| sent.is_void |= sent.is_registration());
        self.standing = Standing::Joining(Joining { due: at, alone_count: 0, is_done: false, is_told: false });
    }

    pub(super) fn is_joined(&self) -> bool {
        self.standing == Standing::Joined
    }

    fn is_joining(&self) -> bool {
        matches!(self.standing, Standing::Joining(_))
    }

    /// Whether it has a session that is, or may soon be, the client's.
    fn is_its_clients(&self) -> bool {
        self.standing != Standing::Away && self.unknown_since.is_none() && !self.was_stranger
    }

    /// Count of orders of a kind that are under way.
    pub(super) fn sent_count(&self, is_one: impl Fn(&Parameters) -> bool) -> usize {
        self.under_way.values().filter(|sent| is_one(&sent.order.parameters)).count()
    }

    /// When a renewal is sent: one that is due; or another one beside those that got no answer for so long.
    pub(super) fn renewal_due(&self, patience: Duration) -> Option<Instant> {
        let sent = || self.under_way.values().filter(|sent| sent.is_renewal());
        if sent().count() >= RENEWALS_UNDER_WAY_MAX {
            return None;
        }
        match sent().filter(|sent| !sent.is_repeated).map(|sent| sent.at).max() {
            None => self.is_renewal_due.then_some(self.renewal_from),
            Some(last) => self.is_wide.then(|| self.renewal_from.max(last + patience)),
        }
    }

    /// A renewal that was sent at `sent` was carried out: nobody waits for the earlier ones.
    pub(super) fn note_renewal(&mut self, sent: Instant) {
        let earlier = self.under_way.values_mut().filter(|other| other.is_renewal() && other.at <= sent);
        earlier.for_each(|other| other.is_repeated = true);
    }

    /// Notes that an order is under way.
    pub(super) fn send(&mut self, number: u64, order: Order, at: Instant) {
        self.under_way.insert(number, Sent { order, at, is_repeated: false, is_void: false });
    }
}

/// All paths of a client.
pub(super) struct Paths {
    paths: BTreeMap<PathNumber, Path>,
    next: u32,
    /// When a path registers alone the next time, while none has joined.
    alone_due: Instant,
    /// When one did for the first time since the last one had joined.
    alone_since: Option<Instant>,
    /// Something has changed that may concern any path.
    is_changed: bool,
}

impl Paths {
    pub(super) fn new() -> Self {
        Self { paths: BTreeMap::new(), next: 0, alone_due: Instant::START, alone_since: None, is_changed: false }
    }

    /// One path more, without a session.
    pub(super) fn add(&mut self) -> PathNumber {
        let number = PathNumber(self.next);
        self.next += 1;
        self.paths.insert(number, Path::new());
        number
    }

    /// Forgets a path that is used no more.
    pub(super) fn remove(&mut self, path: PathNumber) {
        let removed = self.paths.remove(&path);
        removed.into_iter().flat_map(|path| path.watchers).for_each(Waker::wake);
        self.is_changed = true;
    }

    pub(super) fn get(&self, path: PathNumber) -> Option<&Path> {
        self.paths.get(&path)
    }

    pub(super) fn get_mut(&mut self, path: PathNumber) -> Option<&mut Path> {
        self.paths.get_mut(&path)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Path> {
        self.paths.values()
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.paths.values_mut()
    }

    fn others(&self, than: PathNumber) -> impl Iterator<Item = &Path> {
        self.paths.iter().filter(move |(number, _)| **number != than).map(|(_, path)| path)
    }

    pub(super) fn is_joined(&self, path: PathNumber) -> bool {
        self.get(path).is_some_and(Path::is_joined)
    }

    fn has_joined_any(&self) -> bool {
        self.all().any(Path::is_joined)
    }

    /// Whether another path has a session that is, or may soon be, the client's.
    pub(super) fn has_other(&self, than: PathNumber) -> bool {
        self.others(than).any(Path::is_its_clients)
    }

    /// What a path that is closed still has to do. It leaves the client to another path only where that has joined: one
    /// that is closed before it has does not unregister it.
    pub(super) fn parting(&self, path: PathNumber) -> Parting {
        let Some(closed) = self.get(path).filter(|path| path.is_its_clients()) else { return Parting::Free };
        match (closed.is_joined(), self.has_other(path)) {
            _ if self.others(path).any(Path::is_joined) => Parting::Free,
            (true, true) => Parting::Waiting,
            (true, false) => Parting::Last,
            (false, true) => Parting::Free,
            (false, false) => Parting::Waiting,
        }
    }

    /// Notes that a path is closed, which takes part in unregistering the client at most `until` then. Returns until
    /// when, as it was noted first.
    pub(super) fn begin_parting(&mut self, path: PathNumber, until: Instant) -> Instant {
        self.paths.get_mut(&path).map_or(until, |path| *path.parts_until.get_or_insert(until))
    }

    /// Notes that a path has a session, in which it must register.
    pub(super) fn begin_session(&mut self, now: Instant, path: PathNumber) {
        let Some(begun) = self.paths.get_mut(&path) else { return };
        begun.join(now);
        (begun.was_joined, begun.is_flooded) = (false, false);
        begun.is_lease_refused = false;
        (begun.unknown_since, begun.is_stranger) = (None, false);
        if !self.has_joined_any() {
            self.alone_due = now;
        }
        self.is_changed = true;
    }

    /// Notes that the session of a path is lost. Returns the orders that were under way there, and whether the others
    /// register again.
    pub(super) fn end_session(&mut self, now: Instant, path: PathNumber) -> (Vec<Order>, bool) {
        let Some(ended) = self.paths.get_mut(&path) else { return (Vec::new(), false) };
        (ended.standing, ended.is_renewal_due) = (Standing::Away, false);
        let lost = std::mem::take(&mut ended.under_way).into_values().map(|sent| sent.order).collect();
        let was_joined = std::mem::take(&mut ended.was_joined);
        if was_joined {
            self.begin_anew(now);
        }
        self.is_changed = true;
        (lost, was_joined)
    }

    /// All that have a session register again, one of them alone.
    pub(super) fn begin_anew(&mut self, at: Instant) {
        self.paths.values_mut().filter(|path| path.standing != Standing::Away).for_each(|path| path.join(at));
        self.alone_due = at;
        self.is_changed = true;
    }

    /// The same where the lease is over: later and later if they have just done so.
    pub(super) fn begin_again(&mut self, now: Instant) {
        let joined = self.paths.values_mut().filter(|path| path.is_joined());
        let at = joined.map(|path| path.rejoins.after_failure(now)).max();
        self.begin_anew(at.unwrap_or(now));
    }

    /// The target does not know a path any more that had joined.
    pub(super) fn join_again(&mut self, now: Instant, path: PathNumber) {
        let Some(joining) = self.paths.get_mut(&path).filter(|path| path.is_joined()) else { return };
        let at = joining.rejoins.after_failure(now);
        joining.join(at);
        if !self.has_joined_any() {
            self.alone_due = at;
        }
        self.is_changed = true;
    }

    /// The sessions of all are dropped.
    pub(super) fn flood(&mut self) {
        for path in self.paths.values_mut().filter(|path| path.standing != Standing::Away) {
            (path.standing, path.is_flooded) = (Standing::Away, true);
        }
        self.is_changed = true;
    }

    /// How a path is to register now, if it is; it counts as sent.
    pub(super) fn take_registration(&mut self, now: Instant, path: PathNumber) -> Option<Registering> {
        let has_joined_any = self.has_joined_any();
        let turn = if has_joined_any { None } else { self.alone_turn() };
        let is_turn = turn.is_some_and(|(due, turn)| turn == path && due <= now);
        let Standing::Joining(joining) = &mut self.paths.get_mut(&path)?.standing else { return None };
        if has_joined_any {
            if joining.due > now {
                return None;
            }
            joining.due = now + REGISTRATION_WAIT;
            return Some(Registering::Joining);
        }
        if !is_turn {
            return None;
        }
        joining.alone_count += 1;
        self.alone_due = now + REGISTRATION_WAIT;
        self.alone_since.get_or_insert(now);
        self.is_changed = true;
        Some(Registering::Alone)
    }

    /// The path that registers alone next, and when: of those that tried least often the first.
    fn alone_turn(&self) -> Option<(Instant, PathNumber)> {
        let turn = |(number, path): (&PathNumber, &Path)| {
            let Standing::Joining(joining) = path.standing else { return None };
            let from = path.unknown_since.map_or(self.alone_due, |since| self.alone_due.max(since + UNKNOWN_WAIT));
            (!path.was_stranger).then_some((from, joining.alone_count, *number))
        };
        self.paths.iter().filter_map(turn).min().map(|(due, _, number)| (due, number))
    }

    /// When [`take_registration`](Self::take_registration) has something to do.
    pub(super) fn registration_due(&self, path: PathNumber) -> Option<Instant> {
        match self.get(path)?.standing {
            Standing::Joining(joining) if self.has_joined_any() => Some(joining.due),
            Standing::Joining(_) => self.alone_turn().filter(|(_, turn)| *turn == path).map(|(due, _)| due),
            Standing::Away | Standing::Joined => None,
        }
    }

    /// The next REGISTER alone is sent at once.
    pub(super) fn register_at_once(&mut self, now: Instant) {
        self.alone_due = now;
    }

    /// A REGISTER that named the client was carried out.
    pub(super) fn note_joined(&mut self, path: PathNumber) {
        let Some(joined) = self.paths.get_mut(&path).filter(|path| path.is_joining()) else { return };
        (joined.standing, joined.was_joined) = (Standing::Joined, true);
        (joined.unknown_since, joined.is_stranger, joined.was_stranger) = (None, false, false);
        self.alone_since = None;
        self.is_changed = true;
    }

    /// A REGISTER that named no client was carried out. Returns whether the path has joined by that.
    pub(super) fn note_done(&mut self, path: PathNumber) -> bool {
        self.note_part(path, |joining| joining.is_done |= joining.alone_count > 0)
    }

    /// A REGISTERED message of the client came by this path. Returns whether the path has joined by that.
    pub(super) fn note_told(&mut self, path: PathNumber) -> bool {
        self.note_part(path, |joining| joining.is_told |= joining.alone_count > 0)
    }

    fn note_part(&mut self, path: PathNumber, note: impl FnOnce(&mut Joining)) -> bool {
        let Some(Path { standing: Standing::Joining(joining), .. }) = self.paths.get_mut(&path) else { return false };
        note(joining);
        let has_joined = joining.is_done && joining.is_told;
        if has_joined {
            self.note_joined(path);
        }
        has_joined
    }

    /// Begins a life of the client by the registration of this path. Returns since when its lease counts; `None` where
    /// none was sent.
    pub(super) fn begin_life(&mut self, path: PathNumber) -> Option<Instant> {
        let is_joining = self.get(path).is_some_and(Path::is_joining);
        let since = self.alone_since.filter(|_| is_joining)?;
        self.note_joined(path);
        Some(since)
    }

    /// The target of a path does not know the client.
    pub(super) fn note_unknown(&mut self, now: Instant, path: PathNumber) {
        if let Some(path) = self.paths.get_mut(&path) {
            path.unknown_since.get_or_insert(now);
        }
        // Either the client lives no more, or that target is another one: the others ask theirs.
        self.renew();
    }

    /// Every path that has joined is to renew the lease.
    pub(super) fn renew(&mut self) {
        self.paths.values_mut().filter(|path| path.is_joined()).for_each(|path| path.is_renewal_due = true);
        self.is_changed = true;
    }

    /// A renewal was not carried out: it stays due, later each time.
    pub(super) fn renew_later(&mut self, now: Instant, path: PathNumber) {
        if let Some(path) = self.paths.get_mut(&path).filter(|path| path.is_joined()) {
            path.is_renewal_due = true;
            path.renewal_from = path.renewals.after_failure(now);
        }
    }

    /// The session of a path is to be dropped: the lease that was granted in it is of no use.
    pub(super) fn refuse_lease(&mut self, path: PathNumber) {
        if let Some(path) = self.paths.get_mut(&path) {
            (path.standing, path.is_lease_refused) = (Standing::Away, true);
            self.is_changed = true;
        }
    }

    /// A path's renewal, sent at `sent`, was answered: who was not known after that is a stranger.
    pub(super) fn note_renewed(&mut self, sent: Instant) {
        let unknown = self.paths.values_mut().filter(|path| path.unknown_since.is_some_and(|since| since <= sent));
        for path in unknown {
            (path.is_stranger, path.was_stranger) = (true, true);
            self.is_changed = true;
        }
    }

    pub(super) fn is_stranger(&self, path: PathNumber) -> bool {
        self.get(path).is_some_and(|path| path.is_stranger)
    }

    /// An acknowledgement that another path has under way since `before` or longer. It is marked as repeated.
    pub(super) fn take_unanswered(&mut self, before: Instant, than: PathNumber) -> Option<Order> {
        let others = self.paths.iter_mut().filter(|(number, _)| **number != than).map(|(_, path)| path);
        let mut sent = others.flat_map(|path| path.under_way.values_mut());
        let found = sent.find(|sent| !sent.is_repeated && sent.at <= before && sent.is_acknowledgement())?;
        found.is_repeated = true;
        Some(found.order.clone())
    }

    /// When the oldest of them was sent.
    pub(super) fn oldest_unanswered(&self, than: PathNumber) -> Option<Instant> {
        let sent = self.others(than).flat_map(|path| path.under_way.values());
        sent.filter(|sent| !sent.is_repeated && sent.is_acknowledgement()).map(|sent| sent.at).min()
    }

    pub(super) fn note_change(&mut self) {
        self.is_changed = true;
    }

    /// `driver`, which polls `path` now, is woken by what other paths bring.
    pub(super) fn register(&mut self, path: PathNumber, driver: &Waker) {
        let Some(path) = self.paths.get_mut(&path) else { return };
        if !path.driver.as_ref().is_some_and(|known| known.will_wake(driver)) {
            path.driver = Some(driver.clone());
        }
    }

    /// `watcher` is woken by every change of `path`.
    pub(super) fn watch(&mut self, path: PathNumber, watcher: &Waker) {
        if let Some(path) = self.paths.get_mut(&path) {
            path.watchers.push(watcher.clone());
        }
    }

    /// Wakes whom a change concerns, if there was one; not the driver of `than`, which acts now.
    pub(super) fn wake(&mut self, than: PathNumber) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        for (number, path) in &mut self.paths {
            path.watchers.drain(..).for_each(Waker::wake);
            if let Some(driver) = path.driver.as_ref().filter(|_| *number != than) {
                driver.wake_by_ref();
            }
        }
    }
}

impl Sent {
    fn is_renewal(&self) -> bool {
        matches!(self.order.parameters, Parameters::Renew { .. })
    }

    fn is_registration(&self) -> bool {
        matches!(self.order.parameters, Parameters::Register { .. })
    }

    fn is_acknowledgement(&self) -> bool {
        matches!(self.order.parameters, Parameters::Acknowledge { .. })
    }
}
