//! The order of requests, callbacks, and the fencing of holders that do not answer.

mod common;

use std::time::Duration;

use common::{BLOCK, FILE, TestServer, group, settings};
use locks::error::LockError;
use locks::identity::{BootEpoch, CallbackNumber, Owner, TransactionId};
use locks::limits::{FENCED_REMEMBERED_MAX, Limits};
use locks::manager::{FenceReason, Output};
use locks::message::{Answer, ToClient};
use locks::mode::Mode;
use locks::resource::Resource;
use locks::settings::{Settings, Start};

const SECOND: Duration = Duration::from_secs(1);
const OTHER: Resource = Resource::Metadata(4);

#[test]
fn nobody_passes_a_request_that_it_conflicts_with() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_S)]);
    server.queued(b, &[(BLOCK, Mode::M_X)]);
    let last = server.queued(c, &[(BLOCK, Mode::M_S)]);
    let (number, resource, to) = server.callback(a);
    assert_eq!((resource, to), (BLOCK, None));
    assert_eq!(server.mail(c), [], "it has nothing that is wanted");
    server.done(a, number).unwrap();
    // It gets the grant before the callback.
    let [ToClient::Granted { .. }, ToClient::Callback { number, to, .. }] = *server.mail(b) else { panic!() };
    assert_eq!(to, Some(Mode::M_S), "the writer may keep what fits beside the reader");
    server.done(b, number).unwrap();
    assert_eq!(server.told(c), last);
    assert_eq!((server.mode(b, BLOCK), server.mode(c, BLOCK)), (Some(Mode::M_S), Some(Mode::M_S)));
}

/// Race 3: neither waits for ever for the other's shared lock.
#[test]
fn two_holders_of_a_shared_lock_that_both_want_to_change_it_follow_each_other() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    for client in [a, b] {
        server.granted(client, &[(BLOCK, Mode::M_S)]);
    }
    let first = server.queued(a, &[(BLOCK, Mode::M_X)]);
    let second = server.queued(b, &[(BLOCK, Mode::M_X)]);
    assert_eq!(server.mail(a), [], "the first keeps its lock");
    let (number, ..) = server.callback(b);
    server.done(b, number).unwrap();
    assert_eq!((server.mode(a, BLOCK), server.mode(b, BLOCK)), (Some(Mode::M_X), None));
    let [ToClient::Granted { request, .. }, ToClient::Callback { number, .. }] = *server.mail(a) else { panic!() };
    assert_eq!(request, first);
    server.done(a, number).unwrap();
    assert_eq!(server.told(b), second);
}

/// Race 3, with both locks in use: one of the two is refused, and gives up.
#[test]
fn two_upgrades_of_locks_in_use_are_a_deadlock_that_the_younger_loses() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    for client in [a, b] {
        server.granted(client, &[(BLOCK, Mode::M_S)]);
    }
    server.queued(a, &[(BLOCK, Mode::M_X)]);
    let second = server.queued(b, &[(BLOCK, Mode::M_X)]);
    let (number, ..) = server.callback(b);
    server.in_use(b, number).unwrap();
    assert_eq!(server.mail(b), [ToClient::Refused { request: second, error: LockError::Deadlock }]);
    server.done(b, number).unwrap();
    server.told(a);
}

#[test]
fn a_holder_that_wants_more_comes_before_who_has_nothing() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    for client in [a, b] {
        server.granted(client, &[(BLOCK, Mode::M_S)]);
    }
    server.queued(c, &[(BLOCK, Mode::M_X)]);
    // The stranger's request called both back. Once a callback is answered by keeping nothing, that
    // owner's request is a plain one.
    let (of_a, ..) = server.callback(a);
    let (of_b, ..) = server.callback(b);
    server.queued(a, &[(BLOCK, Mode::M_X)]);
    server.done(a, of_a).unwrap();
    server.done(b, of_b).unwrap();
    assert_eq!(server.mode(c, BLOCK), Some(Mode::M_X), "who was called back does not pass who called");

    let mut server = TestServer::with(Settings { hold_time_min: SECOND, ..settings() }, Start::first());
    let (a, b, c) = (server.client(), server.client(), server.client());
    for client in [a, b] {
        server.granted(client, &[(BLOCK, Mode::M_S)]);
    }
    server.queued(c, &[(BLOCK, Mode::M_X)]);
    let upgrade = server.queued(a, &[(BLOCK, Mode::M_X)]);
    server.advance(SECOND);
    assert_eq!(server.mail(a), []);
    let (number, ..) = server.callback(b);
    server.done(b, number).unwrap();
    assert_eq!(server.told(a), upgrade);
    assert_eq!(server.mode(c, BLOCK), None);
}

#[test]
fn who_was_passed_by_a_conversion_goes_on_when_it_is_none_any_more() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_X)]);
    server.granted(b, &[(OTHER, Mode::M_S)]);
    let passed = server.queued(c, &[(BLOCK, Mode::M_S)]);
    server.queued(b, &[(BLOCK, Mode::M_X), (OTHER, Mode::M_X)]);
    let (number, ..) = server.callback(a);
    server.done(a, number).unwrap();
    assert_eq!(server.mode(c, BLOCK), None, "the conversion is first");
    server.granted(b, &[(OTHER, Mode::M_X)]);
    assert!(matches!(server.mail(c)[..], [ToClient::Granted { request, .. }, ..] if request == passed));
}

#[test]
fn a_lock_is_held_for_its_least_time_before_it_is_called_back() {
    let mut server = TestServer::with(Settings { hold_time_min: SECOND, ..settings() }, Start::first());
    let (a, b) = (server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_X)]);
    server.advance(SECOND / 2);
    server.queued(b, &[(BLOCK, Mode::M_S)]);
    assert_eq!(server.mail(a), []);
    assert_eq!(server.manager.next_deadline(), Some(server.now + SECOND / 2));
    server.advance(SECOND / 2);
    assert_eq!(server.callback(a).2, Some(Mode::M_S));
}

#[test]
fn a_file_that_is_called_back_takes_its_block_groups_along() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    server.granted(a, &[(FILE, Mode::D_IX), (group(0), Mode::D_X), (group(1), Mode::D_S)]);
    server.queued(b, &[(FILE, Mode::D_S)]);
    let (number, _, to) = server.callback(a);
    assert_eq!(to, Some(Mode::D_IS));
    server.done(a, number).unwrap();
    assert_eq!((server.mode(a, group(0)), server.mode(a, FILE)), (Some(Mode::D_S), Some(Mode::D_IS)));
    server.queued(c, &[(FILE, Mode::D_X)]);
    let (number, ..) = server.callback(a);
    server.done(a, number).unwrap();
    assert_eq!((server.mode(a, group(0)), server.mode(a, FILE)), (None, None));
}

#[test]
fn a_block_group_is_never_granted_without_its_file() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    server.granted(a, &[(FILE, Mode::D_IX)]);
    server.granted(b, &[(FILE, Mode::D_IX), (group(0), Mode::D_X)]);
    server.queued(a, &[(group(0), Mode::D_X)]);
    server.queued(c, &[(FILE, Mode::D_X)]);
    server.mail(b);
    let numbers: Vec<_> = server.manager.callbacks().open().map(|(client, number, _)| (client, number)).collect();
    for (client, number) in numbers {
        server.done(client, number).unwrap();
    }
    assert!(server.mode(a, group(0)).is_none() || server.mode(a, FILE) == Some(Mode::D_IX));
}

#[test]
fn a_deferral_prolongs_a_callback_by_steps_to_its_bound_and_then_the_holder_is_fenced() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_X)]);
    server.queued(b, &[(BLOCK, Mode::M_S)]);
    let (number, ..) = server.callback(a);
    let sent = server.now;
    let end = sent + settings().callback_time_max;
    while server.now < end {
        assert_eq!(server.fences(), []);
        server.in_use(a, number).unwrap();
        let deadline = server.manager.callbacks().next_deadline().unwrap();
        assert!(deadline <= end && deadline > server.now);
        for client in [a, b] {
            server.manager.renew(server.now, client).unwrap();
        }
        server.advance(4 * SECOND);
    }
    assert_eq!(server.fences(), [(a, FenceReason::CallbackUnanswered)]);
    assert_eq!(server.mode(b, BLOCK), None, "nothing passes on before the fence is there");
    server.manager.fenced(server.now, a);
    assert_eq!(server.mode(b, BLOCK), None, "and before it uses nothing any more that it has not heard is over");
    server.end_fence(a, &[b]);
    assert_eq!(server.mode(b, BLOCK), Some(Mode::M_S));
}

#[test]
fn a_callback_without_an_answer_fences_at_its_deadline_and_not_before() {
    let settings = Settings { lease: 100 * SECOND, ..settings() };
    let time = settings.callback_time;
    let mut server = TestServer::with(settings, Start::first());
    let (a, b) = (server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_X)]);
    server.queued(b, &[(BLOCK, Mode::M_S)]);
    server.advance(time - Duration::from_nanos(1));
    assert_eq!(server.fences(), []);
    server.advance(Duration::from_nanos(1));
    assert_eq!(server.fences(), [(a, FenceReason::CallbackUnanswered)]);
}

/// Race 7, for locks: the locks of a frozen client pass on only after the fence, and the client is
/// refused when it wakes.
#[test]
fn a_silent_client_is_fenced_before_what_it_held_passes_on() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_X)]);
    server.queued(b, &[(BLOCK, Mode::M_X)]);
    server.advance(settings().lease - SECOND);
    server.manager.renew(server.now, b).unwrap();
    server.advance(SECOND);
    assert_eq!(server.fences(), [(a, FenceReason::LeaseOver)]);
    assert_eq!(server.mode(b, BLOCK), None);
    assert_eq!(server.done(a, CallbackNumber(1)), Err(LockError::Fenced(a)), "its answer comes too late");
    assert_eq!(server.mode(b, BLOCK), None);
    server.manager.fenced(server.now, b);
    assert_eq!(server.mode(b, BLOCK), None, "only what was to be fenced is");
    server.manager.fenced(server.now, a);
    server.told(b);
    assert_eq!(server.manager.clients().fenced().collect::<Vec<_>>(), [a]);
}

#[test]
fn of_very_many_clients_that_were_fenced_the_last_are_named() {
    let mut server = TestServer::new();
    let clients: Vec<_> = (0..FENCED_REMEMBERED_MAX + 3).map(|_| server.client()).collect();
    server.advance(settings().lease);
    for &client in &clients {
        server.manager.fenced(server.now, client);
    }
    assert_eq!(server.manager.clients().fenced().collect::<Vec<_>>(), clients[3..]);
}

/// Race 11: a client that falsely says that it gave a lock up harms only itself.
#[test]
fn a_client_that_answers_what_it_was_not_asked_gives_up_only_its_own() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_X)]);
    server.granted(b, &[(OTHER, Mode::M_X)]);
    server.queued(c, &[(BLOCK, Mode::M_S)]);
    let (number, ..) = server.callback(a);
    assert_eq!(server.done(b, number), Err(LockError::UnknownCallback(number)));
    assert_eq!((server.mode(a, BLOCK), server.mode(b, OTHER)), (Some(Mode::M_X), Some(Mode::M_X)));
}

/// Race 12.
#[test]
fn a_client_that_does_not_take_its_messages_is_fenced() {
    let limits = Limits { mailbox_max: 2, ..Limits::default() };
    let mut server = TestServer::with(Settings { limits, ..settings() }, Start::first());
    let (a, b) = (server.client(), server.client());
    let blocks: Vec<_> = (0..3).map(|block| (Resource::Metadata(block), Mode::M_X)).collect();
    server.granted(a, &blocks);
    server.queued(b, &blocks[..2]);
    assert_eq!(server.fences(), []);
    server.queued(b, &blocks[2..]);
    assert_eq!(server.fences(), [(a, FenceReason::MailboxFull)]);
    server.end_fence(a, &[b]);
    assert_eq!(server.mode(b, blocks[2].0), Some(Mode::M_X));
}

#[test]
fn the_youngest_of_a_circle_gives_way_and_stays_as_old_when_it_tries_again() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    let old = server.transaction(a, 1);
    let young = server.transaction(b, 1);
    // One of the locks is of metadata, one of data: the circle spans both lock managers of the
    // paper.
    for (owner, wanted) in [(old, (BLOCK, Mode::M_X)), (young, (FILE, Mode::D_X))] {
        assert!(matches!(server.ask(owner, &[wanted]).1, Ok(Answer::Granted(_))));
    }
    let (request, answer) = server.ask(old, &[(FILE, Mode::D_S)]);
    assert_eq!(answer, Ok(Answer::Queued));
    assert_eq!(server.ask(young, &[(BLOCK, Mode::M_S)]).1, Err(LockError::Deadlock));
    assert_eq!(server.ask(young, &[(OTHER, Mode::M_S)]).1, Err(LockError::Deadlock), "it has to end");
    let age = server.manager.transactions().all().find(|(owner, _)| *owner == young).unwrap().1.birth;
    server.manager.end_transaction(server.now, b, young.transaction).unwrap();
    assert_eq!(server.told(a), request);
    let again = Owner { transaction: TransactionId(2), ..young };
    assert_eq!(server.manager.begin_transaction(server.now, b, again.transaction, Some(age)), Ok(age));
    server.manager.end_transaction(server.now, a, old.transaction).unwrap();
    let newer = server.transaction(a, 2);
    for (owner, wanted) in [(newer, (BLOCK, Mode::M_X)), (again, (FILE, Mode::D_X))] {
        assert!(matches!(server.ask(owner, &[wanted]).1, Ok(Answer::Granted(_))));
    }
    let (waiting, answer) = server.ask(newer, &[(FILE, Mode::D_S)]);
    assert_eq!(answer, Ok(Answer::Queued));
    assert_eq!(server.ask(again, &[(BLOCK, Mode::M_S)]).1, Ok(Answer::Queued), "it is the older one now");
    assert_eq!(server.mail(a), [ToClient::Refused { request: waiting, error: LockError::Deadlock }]);
}

#[test]
fn batches_that_name_the_same_in_any_order_are_no_deadlock() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    server.granted(c, &[(BLOCK, Mode::M_X), (OTHER, Mode::M_X)]);
    server.queued(a, &[(BLOCK, Mode::M_X), (OTHER, Mode::M_X)]);
    server.queued(b, &[(OTHER, Mode::M_X), (BLOCK, Mode::M_X)]);
    let numbers: Vec<_> = server.manager.callbacks().open().map(|(_, number, _)| number).collect();
    server.done(c, numbers[0]).unwrap();
    assert!([a, b].iter().all(|client| server.mode(*client, BLOCK).is_none()), "who waits holds nothing of it");
    server.done(c, numbers[1]).unwrap();
    assert_eq!(server.mode(a, BLOCK), Some(Mode::M_X));
}

#[test]
fn only_reclaims_are_granted_until_the_end_of_the_grace_period_is_durable() {
    let start = Start { boot_epoch: BootEpoch(2), longest_lease: Some(10 * SECOND), ..Start::first() };
    let mut server = TestServer::with(settings(), start);
    let before = |number| locks::identity::ClientId::new(BootEpoch(1), number);
    let a = server.manager.register(server.now, Some(before(1))).unwrap().client;
    let b = server.manager.register(server.now, Some(before(2))).unwrap().client;
    assert_eq!(
        server.manager.register(server.now, Some(before(1))),
        Err(LockError::NotReclaimable(before(1))),
        "one heir"
    );
    let c = server.client();
    let request = locks::identity::RequestId(1);
    assert_eq!(server.lock(c, &[(BLOCK, Mode::M_S)]), Err(LockError::Grace));
    let reclaim =
        |server: &mut TestServer, client| server.manager.reclaim(server.now, client, request, &[(BLOCK, Mode::M_X)]);
    assert!(reclaim(&mut server, a).is_ok());
    assert!(reclaim(&mut server, a).is_ok(), "again: its answer was lost");
    assert_eq!(reclaim(&mut server, b), Err(LockError::ReclaimConflict(BLOCK)));
    assert_eq!(reclaim(&mut server, c), Err(LockError::NotReclaimable(c)));
    server.advance(9 * SECOND);
    for client in [a, b, c] {
        server.manager.renew(server.now, client).unwrap();
    }
    assert_eq!(server.outputs(), []);
    server.advance(SECOND);
    assert_eq!(server.outputs(), [Output::KeepGraceEnd(BootEpoch(2))]);
    assert_eq!(reclaim(&mut server, b), Err(LockError::GraceOver));
    assert!(reclaim(&mut server, a).is_ok(), "what it has is not late");
    assert_eq!(
        server.lock(c, &[(OTHER, Mode::M_S)]),
        Err(LockError::Grace),
        "a second start would let it be reclaimed"
    );
    server.manager.grace_end_kept(server.now);
    server.granted(c, &[(OTHER, Mode::M_S)]);
    assert_eq!(server.manager.register(server.now, Some(before(3))), Err(LockError::NotReclaimable(before(3))));
}

/// Race 9.
#[test]
fn what_was_held_two_starts_ago_is_reclaimed_only_if_nothing_was_granted_since() {
    let old = locks::identity::ClientId::new(BootEpoch(1), 1);
    let start = |from| Start {
        boot_epoch: BootEpoch(3),
        reclaimable_from: BootEpoch(from),
        longest_lease: Some(SECOND),
        ..Start::first()
    };
    let mut cut_short = TestServer::with(settings(), start(1));
    assert!(cut_short.manager.register(cut_short.now, Some(old)).is_ok());
    let mut had_ended = TestServer::with(settings(), start(2));
    assert_eq!(had_ended.manager.register(had_ended.now, Some(old)), Err(LockError::NotReclaimable(old)));
}

#[test]
fn who_left_was_not_fenced() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_X)]);
    server.queued(b, &[(BLOCK, Mode::M_X)]);
    server.manager.leave(server.now, a).unwrap();
    assert_eq!(server.fences(), [(a, FenceReason::Left)]);
    server.manager.fenced(server.now, a);
    assert_eq!(server.mode(b, BLOCK), Some(Mode::M_X), "nobody has to wait for the end of its lease");
    assert_eq!(server.manager.clients().fenced().count(), 0);
}
