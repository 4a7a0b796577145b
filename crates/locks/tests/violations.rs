//! Each rule that a client can break, and its own error. A refused request changes nothing.

mod common;

use common::{BLOCK, FILE, TestServer, group, settings};
use locks::error::{LockError, Table};
use locks::identity::{BootEpoch, CallbackNumber, ClientId, GrantNumber, Owner, RequestId, TransactionId};
use locks::limits::Limits;
use locks::manager::{FenceReason, Output};
use locks::message::{Answer, Release};
use locks::mode::Mode;
use locks::open_files::OpenMode;
use locks::resource::{FileId, GroupIndex, Resource};
use locks::settings::{Settings, Start};

#[track_caller]
fn refused(server: &mut TestServer, client: ClientId, batch: &[(Resource, Mode)], error: LockError) {
    let before = server.manager.table().clone();
    assert_eq!(server.lock(client, batch), Err(error));
    assert_eq!(*server.manager.table(), before, "a refused request changes nothing");
}

#[test]
fn rules_between_files_and_block_groups_are_kept() {
    let mut server = TestServer::new();
    let a = server.client();
    refused(&mut server, a, &[(group(0), Mode::D_S)], LockError::LeafBeforeRoot(group(0)));
    refused(&mut server, a, &[(group(0), Mode::D_S), (FILE, Mode::D_IS)], LockError::LeafBeforeRoot(group(0)));
    server.granted(a, &[(FILE, Mode::D_IS), (group(0), Mode::D_S)]);
    refused(&mut server, a, &[(group(1), Mode::D_X)], LockError::RootTooWeak(group(1), Mode::D_X, Mode::D_IS));
    refused(&mut server, a, &[(group(1), Mode::D_IS)], LockError::IntentionOnLeaf(group(1), Mode::D_IS));
    refused(&mut server, a, &[(group(1), Mode::M_S)], LockError::WrongKind(group(1), Mode::M_S));
    refused(&mut server, a, &[(BLOCK, Mode::D_S)], LockError::WrongKind(BLOCK, Mode::D_S));
    assert_eq!(server.unlock(a, FILE, None), Err(LockError::RootBeforeLeaf(FILE)));
    assert_eq!(server.unlock(a, FILE, Some(Mode::D_IX)), Err(LockError::NotWeaker(FILE, Mode::D_IS, Mode::D_IX)));
    server.granted(a, &[(FILE, Mode::D_IX), (group(1), Mode::D_X)]);
    assert_eq!(server.unlock(a, FILE, Some(Mode::D_IS)), Err(LockError::RootBeforeLeaf(FILE)));
    server.unlock(a, group(1), Some(Mode::D_S)).unwrap();
    server.unlock(a, FILE, Some(Mode::D_IS)).unwrap();
    let release = |server: &TestServer, resource| Release { resource, number: server.number(a, resource), to: None };
    let batch = [group(0), group(1), FILE].map(|resource| release(&server, resource));
    let wrong = [batch[0], batch[2], batch[1]];
    assert_eq!(server.manager.unlock(server.now, Owner::own(a), &wrong), Err(LockError::RootBeforeLeaf(FILE)));
    assert!(server.mode(a, group(0)).is_some(), "all or nothing");
    server.manager.unlock(server.now, Owner::own(a), &batch).unwrap();
    assert_eq!(server.mode(a, FILE), None);
}

#[test]
fn a_lock_on_the_whole_file_is_one_on_each_block_group() {
    let mut server = TestServer::new();
    let a = server.client();
    server.granted(a, &[(FILE, Mode::D_IX), (group(0), Mode::D_X)]);
    server.granted(a, &[(FILE, Mode::D_S)]);
    assert_eq!(server.mode(a, FILE), Some(Mode::D_X), "shared, and exclusive below, is exclusive");
    assert_eq!(server.mode(a, group(0)), None, "it is told apart no more");
    refused(&mut server, a, &[(group(1), Mode::D_X)], LockError::Implied(group(1)));
    let b = server.client();
    server.queued(b, &[(FILE, Mode::D_IS), (group(5), Mode::D_S)]);
    server.unlock(a, FILE, Some(Mode::D_S)).unwrap();
    assert_eq!(server.mode(b, group(5)), Some(Mode::D_S));
    refused(&mut server, a, &[(group(1), Mode::D_X)], LockError::RootTooWeak(group(1), Mode::D_X, Mode::D_S));
}

#[test]
fn what_is_not_there_or_not_held_is_refused() {
    let mut server = TestServer::new();
    let a = server.client();
    let past = Resource::Metadata(1000);
    refused(&mut server, a, &[(past, Mode::M_S)], LockError::BeyondEnd(past));
    let whole = Resource::File(FileId::LOGICAL_UNIT);
    let past = Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(63));
    refused(&mut server, a, &[(whole, Mode::D_IX), (past, Mode::D_X)], LockError::BeyondEnd(past));
    let last = Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(62));
    server.granted(a, &[(whole, Mode::D_IX), (last, Mode::D_X)]);
    let release = Release { resource: BLOCK, number: GrantNumber(1), to: None };
    assert_eq!(server.manager.unlock(server.now, Owner::own(a), &[release]), Err(LockError::NotHeld(BLOCK)));
    server.granted(a, &[(BLOCK, Mode::M_S)]);
    let old = server.number(a, BLOCK);
    server.granted(a, &[(BLOCK, Mode::M_S)]);
    let release = Release { resource: BLOCK, number: old, to: None };
    assert_eq!(
        server.manager.unlock(server.now, Owner::own(a), &[release]),
        Err(LockError::NotHeld(BLOCK)),
        "a newer grant stays"
    );
    refused(&mut server, a, &[], LockError::BatchLength(64));
    let many: Vec<_> = (0..65).map(|block| (Resource::Metadata(block), Mode::M_S)).collect();
    refused(&mut server, a, &many, LockError::BatchLength(64));
}

#[test]
fn lives_that_are_over_are_told_apart() {
    let start = Start { boot_epoch: BootEpoch(5), ..Start::first() };
    let mut server = TestServer::with(settings(), start);
    let (a, b) = (server.client(), server.client());
    assert_eq!(a, ClientId::new(BootEpoch(5), 1));
    let before = ClientId::new(BootEpoch(4), 1);
    assert_eq!(server.lock(before, &[(BLOCK, Mode::M_S)]), Err(LockError::WrongEpoch(BootEpoch(5))));
    let never = ClientId::new(BootEpoch(5), 9);
    assert_eq!(server.lock(never, &[(BLOCK, Mode::M_S)]), Err(LockError::Fenced(never)));
    server.manager.fence(server.now, b).unwrap();
    assert_eq!(server.lock(b, &[(BLOCK, Mode::M_S)]), Err(LockError::Fenced(b)));
    assert_eq!(server.manager.fence(server.now, b), Err(LockError::Fenced(b)));
    server.now = server.now + settings().lease;
    assert_eq!(server.lock(a, &[(BLOCK, Mode::M_S)]), Err(LockError::LeaseOver(a)));
    assert_eq!(server.manager.renew(server.now, a), Err(LockError::LeaseOver(a)), "a life does not begin again");
    let c = server.client();
    assert_eq!(c, ClientId::new(BootEpoch(5), 3), "a number is never given again");
}

#[test]
fn transactions_keep_their_locks_and_their_numbers() {
    let mut server = TestServer::new();
    let a = server.client();
    let first = server.transaction(a, 1);
    let no = Owner { transaction: TransactionId(2), ..first };
    assert_eq!(server.ask(no, &[(BLOCK, Mode::M_S)]).1, Err(LockError::NoTransaction(TransactionId(2))));
    let (_, answer) = server.ask(first, &[(BLOCK, Mode::M_S)]);
    let Ok(Answer::Granted(locks)) = answer else { panic!("{answer:?}") };
    let release = Release { resource: BLOCK, number: locks[0].number, to: None };
    assert_eq!(server.manager.unlock(server.now, first, &[release]), Err(LockError::HeldUntilEnd));
    assert!(server.manager.begin_transaction(server.now, a, TransactionId(1), None).is_ok(), "its answer was lost");
    server.manager.end_transaction(server.now, a, TransactionId(1)).unwrap();
    server.manager.end_transaction(server.now, a, TransactionId(1)).unwrap();
    let again = server.manager.begin_transaction(server.now, a, TransactionId(1), None);
    assert_eq!(again, Err(LockError::TransactionReused(TransactionId(1))));
    let own = server.manager.end_transaction(server.now, a, TransactionId::OWN);
    assert_eq!(own, Err(LockError::NoTransaction(TransactionId::OWN)));
}

#[test]
fn callbacks_that_were_never_sent_cannot_be_answered() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_X)]);
    server.queued(b, &[(BLOCK, Mode::M_X)]);
    let (number, ..) = server.callback(a);
    for (liar, number) in [(c, number), (a, CallbackNumber(2)), (a, CallbackNumber(0))] {
        assert_eq!(server.done(liar, number), Err(LockError::UnknownCallback(number)));
        assert_eq!(server.mode(a, BLOCK), Some(Mode::M_X), "nobody is affected");
    }
    server.done(a, number).unwrap();
    assert_eq!(server.mode(b, BLOCK), Some(Mode::M_X));
    server.done(a, number).unwrap();
    server.read(Some(a), 0, 8);
    server.change(Some(b), 0, 1);
    let (number, ..) = server.purge(a);
    assert_eq!(server.in_use(a, number), Err(LockError::NotDeferrable(number)));
}

#[test]
fn a_number_of_a_request_means_one_request() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_X)]);
    let request = server.queued(b, &[(BLOCK, Mode::M_S)]);
    let again = |server: &mut TestServer, batch: &[_]| server.manager.lock(server.now, Owner::own(b), request, batch);
    assert_eq!(again(&mut server, &[(BLOCK, Mode::M_S)]), Ok(Answer::Queued));
    assert_eq!(again(&mut server, &[(FILE, Mode::D_S)]), Err(LockError::RequestReused));
    let (number, ..) = server.callback(a);
    server.done(a, number).unwrap();
    assert!(
        matches!(again(&mut server, &[(BLOCK, Mode::M_S)]), Ok(Answer::Granted(_))),
        "the grant was lost on its way"
    );
}

#[test]
fn every_table_that_is_full_says_so() {
    let limits = Limits {
        clients_max: 2,
        grants_of_client_max: 2,
        waiting_of_client_max: 1,
        transactions_of_client_max: 1,
        opens_of_client_max: 1,
        commands_max: 1,
        ..Limits::default()
    };
    let mut server = TestServer::with(Settings { limits, ..settings() }, Start::first());
    let (a, b) = (server.client(), server.client());
    let full = |table| Err(LockError::Full(table));
    assert_eq!(server.manager.register(server.now, None).map(|_| ()), full(Table::Clients));
    server.granted(a, &[(BLOCK, Mode::M_X), (Resource::Metadata(9), Mode::M_X)]);
    assert_eq!(server.lock(a, &[(Resource::Metadata(4), Mode::M_S)]).map(|_| ()), full(Table::Grants));
    server.queued(b, &[(BLOCK, Mode::M_S)]);
    assert_eq!(server.lock(b, &[(Resource::Metadata(9), Mode::M_S)]).map(|_| ()), full(Table::Waiting));
    server.transaction(a, 1);
    let second = server.manager.begin_transaction(server.now, a, TransactionId(2), None);
    assert_eq!(second.map(|_| ()), full(Table::Transactions));
    server.manager.open_file(server.now, a, FileId(1), OpenMode::Read).unwrap();
    assert_eq!(server.manager.open_file(server.now, a, FileId(2), OpenMode::Read), full(Table::OpenFiles));
    let (first, _) = server.change(None, 0, 1);
    let second = locks::identity::CommandId(99);
    let read = |server: &mut TestServer, command| {
        server.manager.read(server.now, command, common::range(0, 1), None).map(|_| ())
    };
    assert_eq!(read(&mut server, second), full(Table::Commands));
    assert_eq!(read(&mut server, first), Err(LockError::CommandState(first)));
    assert_eq!(
        server.manager.cancel_command(server.now, first),
        Err(LockError::CommandState(first)),
        "it is under way"
    );
    assert_eq!(server.manager.end_change(server.now, second, true), Err(LockError::CommandState(second)));
}

#[test]
fn files_stay_open_until_the_last_close() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    let file = FileId(12);
    for client in [a, a, b] {
        server.manager.open_file(server.now, client, file, OpenMode::Read).unwrap();
    }
    assert_eq!(server.manager.close_file(server.now, a, file, OpenMode::Write), Err(LockError::NotOpen(file)));
    assert_eq!(server.manager.close_file(server.now, a, file, OpenMode::Read), Ok(false));
    assert_eq!(server.manager.close_file(server.now, b, file, OpenMode::Read), Ok(false));
    assert_eq!(server.manager.close_file(server.now, b, file, OpenMode::Read), Err(LockError::NotOpen(file)));
    server.manager.fence(server.now, a).unwrap();
    assert!(server.manager.open_files().is_open(file));
    server.outputs();
    server.end_fence(a, &[b]);
    assert_eq!(server.outputs(), [Output::LastClose]);
}

#[test]
fn files_of_a_fenced_client_are_one_output_and_those_of_one_that_leaves_none() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    let open = |server: &mut TestServer, client, files: std::ops::Range<u64>| {
        for file in files {
            server.manager.open_file(server.now, client, FileId(file), OpenMode::Write).unwrap();
        }
    };
    open(&mut server, a, 1..1000);
    server.manager.fence(server.now, a).unwrap();
    server.outputs();
    server.end_fence(a, &[b, c]);
    assert_eq!(server.outputs(), [Output::LastClose]);
    assert!(!server.manager.open_files().is_open(FileId(7)));
    open(&mut server, b, 1..1000);
    open(&mut server, c, 1..1000);
    server.manager.leave(server.now, b).unwrap();
    server.manager.fenced(server.now, b);
    assert_eq!(server.outputs(), [Output::Fence(b, FenceReason::Left)]);
    assert!(server.manager.open_files().is_open(FileId(7)));
    server.manager.leave(server.now, c).unwrap();
    server.manager.fenced(server.now, c);
    assert_eq!(server.outputs(), [Output::Fence(c, FenceReason::Left)], "it closes before it leaves");
}

#[test]
fn a_request_that_waits_can_be_given_up() {
    let mut server = TestServer::new();
    let (a, b, c) = (server.client(), server.client(), server.client());
    server.granted(a, &[(BLOCK, Mode::M_S)]);
    let exclusive = server.queued(b, &[(BLOCK, Mode::M_X)]);
    server.queued(c, &[(BLOCK, Mode::M_S)]);
    server.manager.cancel(server.now, b, exclusive).unwrap();
    assert_eq!(server.mode(c, BLOCK), Some(Mode::M_S), "who waited behind it waits no more");
    assert_eq!(server.manager.cancel(server.now, b, RequestId(77)), Ok(()));
}

#[test]
fn the_locks_that_wait_are_counted_as_well_as_the_requests() {
    let limits = Limits { waiting_locks_of_client_max: 3, ..Limits::default() };
    let mut server = TestServer::with(Settings { limits, ..settings() }, Start::first());
    let (a, b, c) = (server.client(), server.client(), server.client());
    let blocks = |blocks: [u64; 2]| blocks.map(|block| (Resource::Metadata(block), Mode::M_X));
    server.granted(a, &blocks([1, 2]));
    let waiting = server.queued(b, &blocks([1, 2]));
    assert_eq!(server.lock(b, &blocks([1, 2])).map(|_| ()), Err(LockError::Full(Table::Waiting)));
    server.queued(b, &[(Resource::Metadata(2), Mode::M_X)]);
    server.queued(c, &blocks([1, 2]));
    server.manager.cancel(server.now, b, waiting).unwrap();
    server.queued(b, &blocks([1, 2]));
}

#[test]
fn a_file_that_is_closed_leaves_room_for_another() {
    let limits = Limits { opens_of_client_max: 2, ..Limits::default() };
    let mut server = TestServer::with(Settings { limits, ..settings() }, Start::first());
    let (a, b) = (server.client(), server.client());
    let open = |server: &mut TestServer, client, file| {
        server.manager.open_file(server.now, client, FileId(file), OpenMode::Read)
    };
    for _ in 0..2 {
        open(&mut server, a, 1).unwrap();
        open(&mut server, a, 1).unwrap();
        assert_eq!(open(&mut server, a, 2), Err(LockError::Full(Table::OpenFiles)));
        open(&mut server, b, 1).unwrap();
        server.manager.close_file(server.now, a, FileId(1), OpenMode::Read).unwrap();
        open(&mut server, a, 2).unwrap();
        server.manager.close_file(server.now, a, FileId(2), OpenMode::Read).unwrap();
        server.manager.close_file(server.now, a, FileId(1), OpenMode::Read).unwrap();
        server.manager.close_file(server.now, b, FileId(1), OpenMode::Read).unwrap();
    }
}

/// A block group that is given up in part counts with its remaining mode when the file is given up.
#[test]
fn a_batch_gives_up_block_groups_in_part_before_their_file() {
    let mut server = TestServer::new();
    let a = server.client();
    server.granted(a, &[(FILE, Mode::D_IX), (group(1), Mode::D_X), (group(2), Mode::D_S)]);
    let release = |server: &TestServer, resource, to| Release { resource, number: server.number(a, resource), to };
    let to_shared = release(&server, FILE, Some(Mode::D_IS));
    assert_eq!(server.manager.unlock(server.now, Owner::own(a), &[to_shared]), Err(LockError::RootBeforeLeaf(FILE)));
    let whole = [release(&server, group(1), None), release(&server, FILE, None)];
    assert_eq!(server.manager.unlock(server.now, Owner::own(a), &whole), Err(LockError::RootBeforeLeaf(FILE)));
    let parts = [release(&server, group(1), Some(Mode::D_S)), to_shared];
    server.manager.unlock(server.now, Owner::own(a), &parts).unwrap();
    let held: Vec<_> = server.manager.table().all_grants().map(|(_, at, grant)| (at, grant.mode)).collect();
    assert_eq!(held, [(FILE, Mode::D_IS), (group(1), Mode::D_S), (group(2), Mode::D_S)]);
}
