//! Ranges of the unit that a client holds alone: it may have dirty data of them, so other clients'
//! commands for these blocks wait for it, and no other client has a copy.

mod common;

use std::time::Duration;

use common::{TestServer, range, settings};
use locks::gate::Passage;
use locks::identity::{BootEpoch, ClientId, CommandId, RequestId};
use locks::manager::Output;
use locks::message::{ToClient, Wanted};
use locks::mode::Mode;
use locks::resource::{FileId, GroupIndex, Resource};
use locks::settings::{Settings, Start};

const UNIT: Resource = Resource::File(FileId::LOGICAL_UNIT);

fn part(index: u64) -> Resource {
    Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(index))
}

fn alone(index: u64) -> [Wanted; 2] {
    [(UNIT, Mode::D_IX), (part(index), Mode::D_X)]
}

fn passed(server: &mut TestServer) -> Vec<CommandId> {
    let pass = |output| match output {
        Output::Pass(command, _) => Some(command),
        _ => None,
    };
    server.outputs().into_iter().filter_map(pass).collect()
}

/// Groups have 16 blocks.
fn holding(server: &mut TestServer) -> ClientId {
    let client = server.client();
    server.granted(client, &alone(0));
    client
}

#[test]
fn whatever_others_ask_of_a_range_waits_for_who_holds_it_alone() {
    for is_read in [true, false] {
        for is_stock in [true, false] {
            let mut server = TestServer::new();
            let (one, two) = (holding(&mut server), server.client());
            let by = (!is_stock).then_some(two);
            let (command, passage) = match is_read {
                true => server.read(by, 15, 2),
                false => server.change(by, 15, 2),
            };
            assert_eq!(passage, None);
            let (callback, resource, to) = server.callback(one);
            assert_eq!((resource, to), (part(0), None));
            // It writes its dirty data.
            let (own, passage) = server.change(Some(one), 15, 1);
            assert_eq!(passage, Some(Passage::Change));
            server.end(own);
            assert_eq!(passed(&mut server), []);
            server.done(one, callback).unwrap();
            assert_eq!(passed(&mut server), [command]);
        }
    }
}

#[test]
fn other_ranges_and_its_own_commands_wait_for_nobody() {
    let mut server = TestServer::new();
    let (one, two) = (holding(&mut server), server.client());
    assert!(matches!(server.read(Some(one), 0, 16).1, Some(Passage::Read(Some(_)))));
    assert!(matches!(server.read(Some(two), 16, 16).1, Some(Passage::Read(Some(_)))));
    assert_eq!(server.change(None, 32, 16).1, Some(Passage::Change));
    assert_eq!(server.mail(one), []);
}

#[test]
fn a_command_over_several_ranges_waits_for_all_that_are_held_and_may_be_given_up() {
    let mut server = TestServer::new();
    let (one, two) = (holding(&mut server), server.client());
    server.granted(two, &alone(1));
    let (command, passage) = server.read(None, 0, 32);
    assert_eq!(passage, None);
    let ((first, ..), (second, ..)) = (server.callback(one), server.callback(two));
    server.done(one, first).unwrap();
    assert_eq!(passed(&mut server), []);
    // The command is cancelled while it waits.
    server.manager.cancel_command(server.now, command).unwrap();
    server.done(two, second).unwrap();
    assert_eq!(passed(&mut server), []);
}

#[test]
fn nobody_else_has_a_copy_of_what_is_held_alone() {
    let mut server = TestServer::new();
    let (one, two) = (server.client(), server.client());
    server.read(Some(two), 3, 1);
    let request = server.queued(one, &alone(0));
    let (purge, blocks, _) = server.purge(two);
    assert_eq!(blocks, range(0, 16));
    // It arrives while the range is being cleared, and would read the content from before the first
    // write.
    let (late, passage) = server.read(Some(two), 3, 1);
    assert_eq!((passage, server.mode(one, part(0))), (None, None));
    server.done(two, purge).unwrap();
    assert_eq!(server.mode(one, part(0)), Some(Mode::D_X));
    let [ToClient::Granted { request: granted, .. }, ToClient::Callback { number, .. }] = server.mail(one)[..] else {
        panic!("it is granted, and called back for the read");
    };
    assert_eq!(granted, request);
    assert_eq!(passed(&mut server), []);
    server.done(one, number).unwrap();
    assert_eq!(passed(&mut server), [late]);
}

#[test]
fn a_range_is_not_held_alone_before_what_others_changed_there_has_ended() {
    let mut server = TestServer::new();
    let one = server.client();
    let (change, passage) = server.change(None, 3, 1);
    assert_eq!(passage, Some(Passage::Change));
    let request = server.queued(one, &alone(0));
    assert_eq!(server.mode(one, part(0)), None);
    server.end(change);
    assert_eq!(server.told(one), request);
}

/// Its own commands do not delay the grant: its cache keeps them in order.
#[test]
fn what_a_client_has_under_way_itself_does_not_keep_the_range_from_it() {
    let mut server = TestServer::new();
    let one = server.client();
    server.change(Some(one), 3, 1);
    server.read(Some(one), 4, 1);
    server.granted(one, &alone(0));
}

#[test]
fn a_request_that_is_given_up_while_its_range_is_cleared_holds_nobody_up() {
    let mut server = TestServer::new();
    let (one, two) = (server.client(), server.client());
    server.read(Some(two), 3, 1);
    let request = server.queued(one, &alone(0));
    let (purge, ..) = server.purge(two);
    let (read, passage) = server.read(None, 3, 1);
    assert_eq!(passage, None);
    server.manager.cancel(server.now, one, request).unwrap();
    assert_eq!(passed(&mut server), [read]);
    server.done(two, purge).unwrap();
    assert_eq!((server.mode(one, part(0)), server.mail(one)), (None, vec![]));
}

#[test]
fn who_waits_for_blocks_is_served_before_the_next_who_wants_them_alone() {
    let mut server = TestServer::new();
    let (one, two) = (holding(&mut server), server.client());
    server.queued(two, &alone(0));
    let (callback, ..) = server.callback(one);
    let (read, passage) = server.read(None, 0, 1);
    assert_eq!(passage, None);
    let (change, passage) = server.change(None, 0, 1);
    assert_eq!(passage, None);
    server.done(one, callback).unwrap();
    assert_eq!(passed(&mut server), [read, change]);
    assert_eq!(server.mode(two, part(0)), None, "the change is under way");
    server.end(change);
    assert_eq!(server.mode(two, part(0)), Some(Mode::D_X));
}

#[test]
fn a_range_is_held_for_a_while_before_a_command_of_others_calls_it_back() {
    let held = Duration::from_millis(20);
    let mut server = TestServer::with(Settings { hold_time_min: held, ..settings() }, Start::first());
    let one = holding(&mut server);
    let (read, passage) = server.read(None, 0, 1);
    assert_eq!((passage, server.mail(one)), (None, vec![]));
    server.advance(held);
    let (callback, ..) = server.callback(one);
    server.done(one, callback).unwrap();
    assert_eq!(passed(&mut server), [read]);
}

#[test]
fn what_waits_for_a_client_that_does_not_answer_goes_on_when_that_is_fenced() {
    let mut server = TestServer::new();
    let (one, two) = (holding(&mut server), server.client());
    let (read, passage) = server.read(Some(two), 0, 1);
    assert_eq!(passage, None);
    server.manager.fence(server.now, one).unwrap();
    assert_eq!(passed(&mut server), []);
    server.end_fence(one, &[two]);
    assert_eq!(passed(&mut server), [read]);
}

/// It may write its dirty data only when it has the range again.
#[test]
fn after_a_start_nothing_passes_what_may_be_reclaimed() {
    let lease = settings().lease;
    let start = Start { boot_epoch: BootEpoch(2), longest_lease: Some(lease), may_lack_writes: true, ..Start::first() };
    let mut server = TestServer::with(settings(), start);
    let before = ClientId::from_bits(1 << 32 | 1);
    let one = server.manager.register(server.now, Some(before)).unwrap().client;
    let (mine, passage) = server.read(None, 0, 1);
    assert_eq!(passage, None);
    let (change, passage) = server.change(None, 1, 1);
    assert_eq!(passage, None);
    let (elsewhere, passage) = server.read(None, 500, 1);
    assert_eq!(passage, None);
    server.manager.reclaim(server.now, one, RequestId(1), &alone(0)).unwrap();
    assert_eq!(server.change(Some(one), 0, 1).1, Some(Passage::Change), "it writes again what was lost");
    assert!(server.read(Some(one), 0, 1).1.is_none(), "behind its own change");
    assert_eq!(passed(&mut server), []);
    server.manager.renew(server.now, one).unwrap();
    server.advance(lease / 2);
    server.manager.renew(server.now, one).unwrap();
    server.advance(lease / 2);
    server.manager.grace_end_kept(server.now);
    assert_eq!(passed(&mut server), [elsewhere]);
    let (callback, ..) = server.callback(one);
    server.done(one, callback).unwrap();
    assert_eq!(passed(&mut server), [change], "the read waits behind what is under way");
    server.manager.cancel_command(server.now, mine).unwrap();
}
