//! Requests that wait for each other in a circle: each way in which one can form, and random ones
//! against an exhaustive search.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use base::random::Random;
use common::{TestServer, settings};
use locks::error::LockError;
use locks::identity::{ClientId, Owner};
use locks::limits::{Limits, SEARCH_REST};
use locks::message::{Answer, ToClient};
use locks::mode::Mode;
use locks::queue::TicketNumber;
use locks::resource::Resource;
use locks::settings::{Settings, Start};

const R: Resource = Resource::Metadata(1);
const S: Resource = Resource::Metadata(2);
const T: Resource = Resource::Metadata(3);

fn own<const N: usize>(server: &mut TestServer) -> [ClientId; N] {
    [(); N].map(|()| server.client())
}

#[track_caller]
fn granted(server: &mut TestServer, owner: Owner, wanted: (Resource, Mode)) {
    assert!(matches!(server.ask(owner, &[wanted]).1, Ok(Answer::Granted(_))), "{wanted:?}");
}

#[track_caller]
fn waits(server: &mut TestServer, owner: Owner, batch: &[(Resource, Mode)]) {
    assert_eq!(server.ask(owner, batch).1, Ok(Answer::Queued), "{batch:?}");
}

#[test]
fn a_circle_goes_through_any_of_the_requests_ahead() {
    let mut server = TestServer::new();
    let [a, b, c, d] = own(&mut server);
    let transaction = server.transaction(a, 1);
    server.granted(b, &[(R, Mode::M_X)]);
    granted(&mut server, transaction, (S, Mode::M_X));
    // The first waits for the transaction, too, the second only for the holder.
    server.queued(c, &[(R, Mode::M_S), (S, Mode::M_S)]);
    server.queued(d, &[(R, Mode::M_S)]);
    assert_eq!(server.ask(transaction, &[(R, Mode::M_X)]).1, Ok(Answer::Queued), "the younger one gives way");
    assert!(matches!(*server.mail(c), [ToClient::Refused { error: LockError::Deadlock, .. }]));
}

#[test]
fn a_circle_closes_where_a_conversion_comes_before_who_was_there() {
    let mut server = TestServer::new();
    let [a, b, c] = own(&mut server);
    let transaction = server.transaction(b, 1);
    server.granted(a, &[(R, Mode::M_S)]);
    granted(&mut server, transaction, (R, Mode::M_S));
    server.granted(c, &[(S, Mode::M_X)]);
    waits(&mut server, transaction, &[(S, Mode::M_X)]);
    // It comes before the transaction at S, and waits for the transaction at R.
    assert_eq!(server.lock(a, &[(R, Mode::M_X), (S, Mode::M_X)]), Err(LockError::Deadlock));
}

#[test]
fn a_circle_closes_where_the_last_of_its_holders_defers() {
    let mut server = TestServer::new();
    let [a, b] = own(&mut server);
    server.granted(a, &[(R, Mode::M_X)]);
    server.granted(b, &[(S, Mode::M_X)]);
    server.queued(a, &[(S, Mode::M_X)]);
    let waiting = server.queued(b, &[(R, Mode::M_X)]);
    let ((of_a, ..), (of_b, ..)) = (server.callback(a), server.callback(b));
    server.in_use(b, of_b).unwrap();
    assert_eq!((server.mail(a), server.mail(b)), (vec![], vec![]), "one of them may come to its end");
    server.in_use(a, of_a).unwrap();
    assert_eq!(server.mail(b), [ToClient::Refused { request: waiting, error: LockError::Deadlock }]);
}

#[test]
fn a_circle_closes_where_a_transaction_is_given_what_others_wait_for() {
    let mut server = TestServer::new();
    let [a, b, c] = own(&mut server);
    let transaction = server.transaction(a, 1);
    server.granted(c, &[(R, Mode::M_X)]);
    server.granted(b, &[(S, Mode::M_X)]);
    waits(&mut server, transaction, &[(S, Mode::M_X)]);
    let (number, ..) = server.callback(b);
    server.in_use(b, number).unwrap();
    waits(&mut server, transaction, &[(R, Mode::M_X)]);
    let waiting = server.queued(b, &[(R, Mode::M_X)]);
    assert_eq!(server.mail(b), [], "what the transaction is given at R it may give back before it has S");
    server.unlock(c, R, None).unwrap();
    assert_eq!(server.mail(b), [ToClient::Refused { request: waiting, error: LockError::Deadlock }]);
}

#[test]
fn a_request_that_is_given_up_lets_those_behind_it_pass() {
    let mut server = TestServer::new();
    let [a, b, c] = own(&mut server);
    server.granted(a, &[(R, Mode::M_S)]);
    let first = server.queued(b, &[(R, Mode::M_X)]);
    let second = server.queued(c, &[(R, Mode::M_S)]);
    server.manager.cancel(server.now, b, first).unwrap();
    assert_eq!(server.told(c), second);
}

/// A message of the gate fences a client whose mailbox is full, and a request waits behind a lock
/// request of that client.
#[test]
fn what_a_fence_frees_is_looked_at_at_once_wherever_it_came_from() {
    let limits = Limits { mailbox_max: 1, ..Limits::default() };
    let mut server = TestServer::with(Settings { limits, ..settings() }, Start::first());
    let [a, b, c] = own(&mut server);
    server.granted(a, &[(R, Mode::M_S)]);
    server.granted(b, &[(T, Mode::M_X)]);
    server.read(Some(b), 0, 1);
    server.queued(b, &[(R, Mode::M_X)]);
    let waiting = server.queued(c, &[(R, Mode::M_S)]);
    server.queued(a, &[(T, Mode::M_X)]);
    // The callback of T has filled the mailbox.
    server.change(None, 0, 1);
    assert!(server.manager.next_deadline().is_some_and(|at| at <= server.now));
    server.advance(std::time::Duration::ZERO);
    assert_eq!(server.told(c), waiting);
    assert!(server.manager.next_deadline().is_some_and(|at| at > server.now));
}

/// Whether a ticket is in a circle, by examining every edge.
fn is_in_circle(server: &TestServer, start: TicketNumber) -> bool {
    let (mut seen, mut left) = (BTreeSet::new(), edges(server, start));
    while let Some(ticket) = left.pop() {
        if ticket == start {
            return true;
        }
        if seen.insert(ticket) {
            left.extend(edges(server, ticket));
        }
    }
    false
}

fn edges(server: &TestServer, number: TicketNumber) -> Vec<TicketNumber> {
    let table = server.manager.table();
    let ticket = table.ticket(number).unwrap();
    let called = |owner, at| table.grant(owner, at).and_then(|grant| grant.callback);
    let converts = |owner: Owner, wanted: &[(Resource, Mode)]| {
        wanted.iter().any(|(at, mode)| {
            table.grant(owner, *at).is_some_and(|held| held.callback.is_none() && !held.mode.covers(*mode))
        })
    };
    let turn = |number: TicketNumber| {
        let ticket = table.ticket(number).unwrap();
        (!converts(ticket.owner, &ticket.wanted), number)
    };
    let mut found = Vec::new();
    for (at, mode) in ticket.wanted.iter().copied() {
        let held = table.grant(ticket.owner, at);
        match called(ticket.owner, at) {
            Some(callback) => found.extend(callback.is_deferred.then_some(number)),
            None if held.is_some_and(|held| held.mode.covers(mode)) => continue,
            None => {
                for (holder, _, grant) in table.all_grants().filter(|(_, place, _)| *place == at) {
                    let stays = !holder.is_own() || called(holder, at).is_some_and(|callback| callback.is_deferred);
                    if holder != ticket.owner && grant.mode.conflicts(mode) && stays {
                        found.extend(table.tickets_of(holder));
                    }
                }
            }
        }
        found.extend(table.tickets().filter_map(|(other, its)| {
            let conflicts = its.wanted.iter().any(|(place, wanted)| *place == at && wanted.conflicts(mode));
            (its.owner != ticket.owner && turn(other) < turn(number) && conflicts).then_some(other)
        }));
    }
    found
}

#[test]
fn no_circle_is_left() {
    let test = block::crash_test!();
    let mut refused = 0;
    for seed in test.seeds(1, 50, 1) {
        let _printed = test.on_panic(seed, None);
        refused += Circles::new(seed, Limits::default()).run();
    }
    assert!(test.seeds(1, 50, 1).count() < 100 || refused > 100, "{refused} circles are too few");
}

/// A search that is interrupted again and again, while others request and give up, finally finds
/// all circles, and no others.
#[test]
fn a_search_in_pieces_leaves_no_circle_and_refuses_only_who_is_in_one() {
    let test = block::crash_test!();
    let mut refused = 0;
    for seed in test.seeds(1, 100, 1) {
        let _printed = test.on_panic(seed, None);
        let limits = Limits { search_steps_max: 1 + seed as usize % 40, ..Limits::default() };
        refused += Circles::new(seed, limits).run_with_rests();
    }
    assert!(test.seeds(1, 100, 1).count() < 100 || refused > 100, "{refused} circles are too few");
}

/// Clients and transactions that request a few blocks, defer callbacks, and give locks up.
struct Circles {
    server: TestServer,
    clients: [ClientId; 4],
    transactions: Vec<Owner>,
    random: Random,
    refused: usize,
}

impl Circles {
    fn new(seed: u64, limits: Limits) -> Self {
        let mut server = TestServer::with(Settings { limits, ..settings() }, Start::first());
        let clients = own(&mut server);
        let transactions = clients[..2].iter().map(|client| server.transaction(*client, 1)).collect();
        Self { server, clients, transactions, random: Random::new(seed), refused: 0 }
    }

    fn run(mut self) -> usize {
        for _ in 0..120 {
            self.step();
            for (number, ticket) in self.server.manager.table().tickets() {
                assert!(!is_in_circle(&self.server, number), "{ticket:?} is in a circle");
            }
        }
        self.refused
    }

    fn run_with_rests(mut self) -> usize {
        for _ in 0..10 {
            (0..self.random.below(12)).for_each(|_| self.step());
            self.rest();
        }
        while self.server.manager.next_deadline().is_some_and(|due| due <= self.server.now + SEARCH_REST) {
            self.rest();
        }
        for (number, ticket) in self.server.manager.table().tickets() {
            assert!(!is_in_circle(&self.server, number), "{ticket:?} is in a circle");
        }
        self.refused
    }

    /// Lets only the search go on.
    fn rest(&mut self) {
        self.clients.iter().for_each(|client| drop(self.server.mail(*client)));
        let table = self.server.manager.table();
        let is_in_it = |(number, _): &(TicketNumber, _)| is_in_circle(&self.server, *number);
        let in_circles: Vec<_> =
            table.tickets().filter(is_in_it).map(|(_, ticket)| (ticket.owner.client, ticket.request)).collect();
        self.server.advance(SEARCH_REST);
        for client in self.clients {
            for message in self.server.mail(client) {
                if let ToClient::Refused { request, .. } = message {
                    assert!(in_circles.contains(&(client, request)), "{request:?} of {client:?} was in no circle");
                    self.refused += 1;
                }
            }
        }
    }

    fn step(&mut self) {
        let client = self.clients[self.random.below(4) as usize];
        match self.random.below(8) {
            0..5 => self.ask(client),
            5 => self.give_up(client),
            _ => self.read_mail(client),
        }
    }

    fn ask(&mut self, client: ClientId) {
        let batch: Vec<_> = (0..=self.random.below(2))
            .map(|_| {
                let mode = if self.random.chance(0.5) { Mode::M_S } else { Mode::M_X };
                (Resource::Metadata(self.random.below(4)), mode)
            })
            .collect();
        let transaction = self.transactions.iter().copied().find(|owner| owner.client == client);
        let owner = transaction.filter(|_| self.random.chance(0.5)).unwrap_or(Owner::own(client));
        if self.server.ask(owner, &batch).1 == Err(LockError::Deadlock) {
            self.refused += 1;
            self.end_transaction(owner);
        }
    }

    fn end_transaction(&mut self, owner: Owner) {
        let Some(at) = self.transactions.iter().position(|open| *open == owner) else { return };
        self.server.manager.end_transaction(self.server.now, owner.client, owner.transaction).unwrap();
        self.transactions[at] = self.server.transaction(owner.client, owner.transaction.0 + 1);
    }

    /// Gives up a client's first lock, or its first waiting request.
    fn give_up(&mut self, client: ClientId) {
        let table = self.server.manager.table();
        let held = table.grants_of(Owner::own(client)).next().map(|(resource, _)| resource);
        let waiting = table.tickets().find(|(_, ticket)| ticket.owner.client == client).map(|(_, its)| its.request);
        match (held.filter(|_| self.random.chance(0.5)), waiting) {
            (Some(resource), _) => self.server.unlock(client, resource, None).unwrap(),
            (None, Some(request)) => self.server.manager.cancel(self.server.now, client, request).unwrap(),
            (None, None) => {}
        }
    }

    fn read_mail(&mut self, client: ClientId) {
        for message in self.server.mail(client) {
            match message {
                ToClient::Callback { number, .. } if self.random.chance(0.6) => {
                    self.server.in_use(client, number).unwrap();
                }
                ToClient::Callback { number, .. } => self.server.done(client, number).unwrap(),
                ToClient::Refused { .. } => self.refused += 1,
                _ => {}
            }
        }
    }
}

/// After a search of a large graph there is a rest, whatever is requested; then the circle is
/// found.
#[test]
fn a_circle_among_very_many_is_found_a_little_later() {
    let mut server = TestServer::new();
    let [a, b] = own(&mut server);
    let mut transactions: Vec<Owner> = Vec::new();
    for number in 1..=200 {
        transactions.extend([server.transaction(a, number), server.transaction(b, number)]);
    }
    for transaction in &transactions {
        granted(&mut server, *transaction, (R, Mode::M_S));
    }
    waits(&mut server, transactions[0], &[(R, Mode::M_X)]);
    let asked = server.ask(transactions[1], &[(R, Mode::M_X)]);
    assert_eq!(asked.1, Ok(Answer::Queued), "it would be refused at once where few wait");
    assert!(server.mail(b).is_empty());
    let due = server.manager.next_deadline().expect("it is to be looked for");
    assert!(due <= server.now + Duration::from_millis(10));
    // In portions of the steps that are taken at once, each after a rest.
    let mut rests = 0;
    while server.manager.next_deadline().is_some_and(|due| due <= server.now + SEARCH_REST) {
        assert!(server.mail(b).is_empty());
        server.advance(SEARCH_REST);
        rests += 1;
    }
    assert!((2..=10).contains(&rests), "{rests} rests");
    assert!(matches!(*server.mail(b), [ToClient::Refused { error: LockError::Deadlock, .. }]));
    assert_eq!(server.manager.table().tickets().count(), 1, "the other one waits on");
}
