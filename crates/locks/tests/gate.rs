//! Changes of blocks, and the clients' copies of them.

mod common;

use common::{TestServer, range, settings};
use locks::gate::{Change, Passage};
use locks::identity::{BootEpoch, CommandId};
use locks::limits::Limits;
use locks::manager::Output;
use locks::message::{CallbackAnswer, ToClient};
use locks::mode::Mode;
use locks::resource::Resource;
use locks::settings::{Settings, Start};

fn passes(server: &mut TestServer) -> Vec<(CommandId, Passage)> {
    let pass = |output| match output {
        Output::Pass(command, passage) => Some((command, passage)),
        _ => None,
    };
    server.outputs().into_iter().filter_map(pass).collect()
}

#[test]
fn a_change_passes_when_every_other_copy_is_purged() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    for client in [a, b, c] {
        assert!(matches!(server.read(Some(client), 10, 10).1, Some(Passage::Read(Some(_)))));
    }
    let (change, passage) = server.change(Some(a), 15, 10);
    assert_eq!(passage, None);
    assert_eq!(server.mail(a), [], "its own copy is its own affair");
    let ((of_b, ..), (of_c, ..)) = (server.purge(b), server.purge(c));
    server.done(b, of_b).unwrap();
    assert_eq!(passes(&mut server), []);
    server.done(c, of_c).unwrap();
    assert_eq!(passes(&mut server), [(change, Passage::Change)]);
    server.end(change);
    let (second, passage) = server.change(Some(a), 15, 10);
    assert_eq!(passage, Some(Passage::Change), "nobody has a copy now");
    server.end(second);
    let (_, passage) = server.change(Some(a), 14, 1);
    assert_eq!(passage, None, "what was not changed is still registered");
}

/// Race 1, at the target: the read waits for the change, and the change for the reader's answer,
/// which does not depend on the read.
#[test]
fn a_read_waits_behind_a_change_that_waits_for_the_reader() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    server.read(Some(a), 0, 4);
    let (change, _) = server.change(Some(b), 0, 4);
    let (read, passage) = server.read(Some(a), 2, 4);
    assert_eq!(passage, None);
    let (number, _, purged) = server.purge(a);
    server.done(a, number).unwrap();
    assert_eq!(passes(&mut server), [(change, Passage::Change)]);
    server.end(change);
    let [(passed, Passage::Read(Some(generation)))] = passes(&mut server)[..] else { panic!("the read passes") };
    assert_eq!(passed, read);
    assert!(generation >= purged, "what it reads now is new");
}

/// Race 6: a change without a client id purges the copies of all clients.
#[test]
fn a_change_by_a_stock_initiator_purges_everybody() {
    let mut server = TestServer::new();
    let a = server.client();
    server.read(Some(a), 0, 4);
    let (change, passage) = server.change(None, 0, 1000);
    assert_eq!(passage, None);
    let (number, asked, _) = server.purge(a);
    assert_eq!(asked, range(0, 1000));
    server.done(a, number).unwrap();
    assert_eq!(passes(&mut server), [(change, Passage::Change)]);
}

/// Race 4: the purge carries a larger generation than what was read before it, whichever comes first.
#[test]
fn what_was_read_before_a_purge_has_a_smaller_generation() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    let (_, Some(Passage::Read(Some(read)))) = server.read(Some(a), 0, 4) else { panic!() };
    server.change(Some(b), 0, 4);
    let (_, _, purged) = server.purge(a);
    assert!(read < purged);
}

#[test]
fn changes_of_the_same_blocks_pass_in_order() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    let (first, passage) = server.change(Some(a), 0, 4);
    assert_eq!(passage, Some(Passage::Change));
    let (second, passage) = server.change(Some(b), 3, 4);
    assert_eq!(passage, None);
    let (_, beside) = server.change(Some(b), 100, 4);
    assert_eq!(beside, Some(Passage::Change));
    let (third, _) = server.change(None, 0, 1);
    assert!(server.manager.end_change(server.now, first, true).unwrap().is_some(), "a keeps what it wrote");
    assert_eq!(passes(&mut server), [], "and is asked for it");
    let asked: Vec<_> = server.mail(a);
    assert_eq!(asked.len(), 2, "by both");
    for (client, number) in
        server.manager.callbacks().open().map(|(client, number, _)| (client, number)).collect::<Vec<_>>()
    {
        server.done(client, number).unwrap();
    }
    let passed: Vec<_> = passes(&mut server).into_iter().map(|(command, _)| command).collect();
    assert!(passed.contains(&second) && passed.contains(&third));
}

/// Race 5.
#[test]
fn a_change_that_is_given_up_leaves_no_copy_that_nobody_knows_of() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    server.read(Some(a), 0, 4);
    let (change, _) = server.change(Some(b), 0, 4);
    let (number, ..) = server.purge(a);
    server.manager.cancel_command(server.now, change).unwrap();
    // The answer to the purge is on its way, and would end whatever is registered now.
    let (read, passage) = server.read(Some(a), 0, 4);
    assert_eq!(passage, None, "it waits for that answer");
    server.done(a, number).unwrap();
    assert!(matches!(passes(&mut server)[..], [(passed, Passage::Read(Some(_)))] if passed == read));
    assert_eq!(server.manager.gate().registrations().count(), 1);
}

/// Two purges of the same copies, the first of a change that was cancelled: the answer to the later
/// one must not end registrations made since the first.
#[test]
fn what_is_registered_after_a_purge_stays_when_another_is_answered() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    server.read(Some(a), 0, 4);
    let (given_up, _) = server.change(Some(b), 0, 2);
    let mut numbers = vec![server.purge(a).0];
    server.manager.cancel_command(server.now, given_up).unwrap();
    let (change, passage) = server.change(None, 1, 3);
    assert_eq!(passage, None);
    for message in server.mail(a) {
        let ToClient::Purge { number, .. } = message else { panic!("{message:?}") };
        numbers.insert(0, number);
    }
    // The later one first: messages on several connections overtake each other.
    let first = numbers.remove(0);
    server.done(a, first).unwrap();
    assert_eq!(passes(&mut server), [], "one copy is not dropped yet");
    let (read, _) = server.read(Some(a), 3, 1);
    for number in numbers {
        server.done(a, number).unwrap();
    }
    assert_eq!(passes(&mut server), [(change, Passage::Change)]);
    server.end(change);
    assert!(matches!(passes(&mut server)[..], [(passed, Passage::Read(Some(_)))] if passed == read));
    assert_eq!(server.manager.gate().registrations().all().collect::<Vec<_>>(), [(a, range(3, 1))]);
}

#[test]
fn copies_that_are_being_dropped_are_not_asked_for_again() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    server.read(Some(a), 0, 4);
    let (given_up, _) = server.change(Some(b), 0, 4);
    let (number, ..) = server.purge(a);
    server.manager.cancel_command(server.now, given_up).unwrap();
    let (change, passage) = server.change(None, 0, 4);
    assert_eq!((passage, server.mail(a)), (None, vec![]), "it was asked");
    server.done(a, number).unwrap();
    assert_eq!(passes(&mut server), [(change, Passage::Change)]);
}

/// Race 13.
#[test]
fn a_full_table_calls_the_oldest_registration_back_and_forgets_nothing() {
    let limits = Limits { registrations_max: 2, ..Limits::default() };
    let mut server = TestServer::with(Settings { limits, ..settings() }, Start::first());
    let (a, b) = (server.client(), server.client());
    server.read(Some(a), 0, 1);
    server.read(Some(a), 10, 1);
    let (read, passage) = server.read(Some(b), 20, 1);
    assert_eq!(passage, None, "what is not registered must not be kept");
    let (number, asked, _) = server.purge(a);
    assert_eq!(asked, range(0, 1));
    assert_eq!(server.manager.gate().registrations().count(), 2, "it counts until it is purged");
    server.done(a, number).unwrap();
    assert!(matches!(passes(&mut server)[..], [(passed, Passage::Read(Some(_)))] if passed == read));
}

#[test]
fn a_full_table_does_not_grow_when_a_purge_would_cut_a_range_in_pieces() {
    let limits = Limits { registrations_max: 2, ..Limits::default() };
    let mut server = TestServer::with(Settings { limits, ..settings() }, Start::first());
    let (a, b) = (server.client(), server.client());
    server.read(Some(a), 0, 10);
    server.read(Some(b), 50, 1);
    let (change, _) = server.change(None, 4, 1);
    let (number, asked, _) = server.purge(a);
    assert_eq!(asked, range(0, 10), "all of it goes");
    assert_eq!(server.manager.gate().registrations().count(), 2);
    server.done(a, number).unwrap();
    assert_eq!(passes(&mut server), [(change, Passage::Change)]);
    assert_eq!(server.manager.gate().registrations().count(), 1);
}

/// The dirty blocks of a host that is asked to drop them: if its write waited for the change that
/// asks, both would wait until the deadline.
#[test]
fn who_holds_a_range_alone_writes_it_before_the_change_that_calls_it_back() {
    let mut server = TestServer::new();
    let a = server.client();
    server.granted(a, &[(Resource::Metadata(4), Mode::M_X), (Resource::Metadata(5), Mode::M_X)]);
    server.read(Some(a), 4, 2);
    let (change, passage) = server.change(None, 0, 8);
    assert_eq!(passage, None);
    let (number, ..) = server.purge(a);
    let (behind, passage) = server.change(Some(a), 6, 1);
    assert_eq!(passage, None, "it does not hold that block");
    let (first, passage) = server.change(Some(a), 4, 2);
    assert_eq!(passage, Some(Passage::Change));
    server.manager.acknowledge(server.now, a, number, CallbackAnswer::GettingOn).unwrap();
    server.done(a, number).unwrap();
    assert_eq!(passes(&mut server), [], "a client that says so too early harms nobody: its write is under way");
    server.end(first);
    assert_eq!(passes(&mut server), [(change, Passage::Change)]);
    server.end(change);
    assert_eq!(passes(&mut server), [(behind, Passage::Change)]);
}

#[test]
fn a_change_waits_for_the_fence_of_a_reader_that_does_not_answer() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    server.read(Some(a), 0, 4);
    let (change, _) = server.change(None, 0, 4);
    server.advance(settings().lease / 2);
    server.manager.renew(server.now, b).unwrap();
    server.advance(settings().lease / 2);
    assert_eq!(server.fences().len(), 1);
    server.manager.fenced(server.now, a);
    assert_eq!(passes(&mut server), [(change, Passage::Change)]);
}

#[test]
fn after_a_start_only_what_was_lost_is_written_before_the_grace_period_ends() {
    let start = Start { boot_epoch: BootEpoch(2), longest_lease: Some(settings().lease), ..Start::first() };
    let mut server = TestServer::with(settings(), start);
    let (change, passage) = server.change(None, 0, 4);
    assert_eq!(passage, None, "who has copies is not known");
    let again = Change { range: range(10, 1), by: None, is_under_grant: true };
    let passage = server.manager.begin_change(server.now, CommandId(50), again).unwrap();
    assert_eq!(passage, Some(Passage::Change));
    server.advance(settings().lease);
    server.manager.grace_end_kept(server.now);
    assert_eq!(passes(&mut server), [(change, Passage::Change)]);
}
