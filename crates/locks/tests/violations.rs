//! Each rule that a client can break, and the error that says which it was. Nothing is changed by what is refused.

mod common;

use common::{BLOCK, FILE, Site, group, settings};
use locks::error::{LockError, Table};
use locks::identity::{BootEpoch, CallbackNumber, ClientId, GrantNumber, Owner, RequestId, TransactionId};
use locks::limits::Limits;
use locks::message::{Answer, Release};
use locks::mode::Mode;
use locks::open_files::OpenMode;
use locks::resource::{FileId, GroupIndex, Resource};
use locks::settings::{Settings, Start};

#[track_caller]
fn refused(site: &mut Site, client: ClientId, batch: &[(Resource, Mode)], error: LockError) {
    let before = site.manager.table().clone();
    assert_eq!(site.lock(client, batch), Err(error));
    assert_eq!(*site.manager.table(), before, "a refused request changes nothing");
}

#[test]
fn rules_between_files_and_block_groups_are_kept() {
    let mut site = Site::new();
    let a = site.client();
    refused(&mut site, a, &[(group(0), Mode::D_S)], LockError::LeafBeforeRoot(group(0)));
    refused(&mut site, a, &[(group(0), Mode::D_S), (FILE, Mode::D_IS)], LockError::LeafBeforeRoot(group(0)));
    site.granted(a, &[(FILE, Mode::D_IS), (group(0), Mode::D_S)]);
    refused(&mut site, a, &[(group(1), Mode::D_X)], LockError::RootTooWeak(group(1), Mode::D_X, Mode::D_IS));
    refused(&mut site, a, &[(group(1), Mode::D_IS)], LockError::IntentionOnLeaf(group(1), Mode::D_IS));
    refused(&mut site, a, &[(group(1), Mode::M_S)], LockError::WrongKind(group(1), Mode::M_S));
    refused(&mut site, a, &[(BLOCK, Mode::D_S)], LockError::WrongKind(BLOCK, Mode::D_S));
    assert_eq!(site.unlock(a, FILE, None), Err(LockError::RootBeforeLeaf(FILE)));
    assert_eq!(site.unlock(a, FILE, Some(Mode::D_IX)), Err(LockError::NotWeaker(FILE, Mode::D_IS, Mode::D_IX)));
    site.granted(a, &[(FILE, Mode::D_IX), (group(1), Mode::D_X)]);
    assert_eq!(site.unlock(a, FILE, Some(Mode::D_IS)), Err(LockError::RootBeforeLeaf(FILE)));
    site.unlock(a, group(1), Some(Mode::D_S)).unwrap();
    site.unlock(a, FILE, Some(Mode::D_IS)).unwrap();
    let release = |site: &Site, resource| Release { resource, number: site.number(a, resource), to: None };
    let batch = [group(0), group(1), FILE].map(|resource| release(&site, resource));
    let wrong = [batch[0], batch[2], batch[1]];
    assert_eq!(site.manager.unlock(site.now, Owner::own(a), &wrong), Err(LockError::RootBeforeLeaf(FILE)));
    assert!(site.mode(a, group(0)).is_some(), "all or nothing");
    site.manager.unlock(site.now, Owner::own(a), &batch).unwrap();
    assert_eq!(site.mode(a, FILE), None);
}

#[test]
fn a_lock_on_the_whole_file_is_one_on_each_block_group() {
    let mut site = Site::new();
    let a = site.client();
    site.granted(a, &[(FILE, Mode::D_IX), (group(0), Mode::D_X)]);
    site.granted(a, &[(FILE, Mode::D_S)]);
    assert_eq!(site.mode(a, FILE), Some(Mode::D_X), "shared, and exclusive below, is exclusive");
    assert_eq!(site.mode(a, group(0)), None, "it is told apart no more");
    refused(&mut site, a, &[(group(1), Mode::D_X)], LockError::Implied(group(1)));
    let b = site.client();
    site.queued(b, &[(FILE, Mode::D_IS), (group(5), Mode::D_S)]);
    site.unlock(a, FILE, Some(Mode::D_S)).unwrap();
    assert_eq!(site.mode(b, group(5)), Some(Mode::D_S));
    refused(&mut site, a, &[(group(1), Mode::D_X)], LockError::RootTooWeak(group(1), Mode::D_X, Mode::D_S));
}

#[test]
fn what_is_not_there_or_not_held_is_refused() {
    let mut site = Site::new();
    let a = site.client();
    let past = Resource::Metadata(1000);
    refused(&mut site, a, &[(past, Mode::M_S)], LockError::BeyondEnd(past));
    let whole = Resource::File(FileId::LOGICAL_UNIT);
    let past = Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(63));
    refused(&mut site, a, &[(whole, Mode::D_IX), (past, Mode::D_X)], LockError::BeyondEnd(past));
    let last = Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(62));
    site.granted(a, &[(whole, Mode::D_IX), (last, Mode::D_X)]);
    let release = Release { resource: BLOCK, number: GrantNumber(1), to: None };
    assert_eq!(site.manager.unlock(site.now, Owner::own(a), &[release]), Err(LockError::NotHeld(BLOCK)));
    site.granted(a, &[(BLOCK, Mode::M_S)]);
    let old = site.number(a, BLOCK);
    site.granted(a, &[(BLOCK, Mode::M_S)]);
    let release = Release { resource: BLOCK, number: old, to: None };
    assert_eq!(
        site.manager.unlock(site.now, Owner::own(a), &[release]),
        Err(LockError::NotHeld(BLOCK)),
        "a newer grant stays"
    );
    refused(&mut site, a, &[], LockError::BatchLength(64));
    let many: Vec<_> = (0..65).map(|block| (Resource::Metadata(block), Mode::M_S)).collect();
    refused(&mut site, a, &many, LockError::BatchLength(64));
}

#[test]
fn lives_that_are_over_are_told_apart() {
    let start = Start { boot_epoch: BootEpoch(5), ..Start::first() };
    let mut site = Site::with(settings(), start);
    let (a, b) = (site.client(), site.client());
    assert_eq!(a, ClientId::new(BootEpoch(5), 1));
    let before = ClientId::new(BootEpoch(4), 1);
    assert_eq!(site.lock(before, &[(BLOCK, Mode::M_S)]), Err(LockError::WrongEpoch(BootEpoch(5))));
    let never = ClientId::new(BootEpoch(5), 9);
    assert_eq!(site.lock(never, &[(BLOCK, Mode::M_S)]), Err(LockError::Fenced(never)));
    site.manager.fence(site.now, b).unwrap();
    assert_eq!(site.lock(b, &[(BLOCK, Mode::M_S)]), Err(LockError::Fenced(b)));
    assert_eq!(site.manager.fence(site.now, b), Err(LockError::Fenced(b)));
    site.now = site.now + settings().lease;
    assert_eq!(site.lock(a, &[(BLOCK, Mode::M_S)]), Err(LockError::LeaseOver(a)));
    assert_eq!(site.manager.renew(site.now, a), Err(LockError::LeaseOver(a)), "a life does not begin again");
    let c = site.client();
    assert_eq!(c, ClientId::new(BootEpoch(5), 3), "a number is never given again");
}

#[test]
fn transactions_keep_their_locks_and_their_numbers() {
    let mut site = Site::new();
    let a = site.client();
    let first = site.transaction(a, 1);
    let no = Owner { transaction: TransactionId(2), ..first };
    assert_eq!(site.ask(no, &[(BLOCK, Mode::M_S)]).1, Err(LockError::NoTransaction(TransactionId(2))));
    let (_, answer) = site.ask(first, &[(BLOCK, Mode::M_S)]);
    let Ok(Answer::Granted(locks)) = answer else { panic!("{answer:?}") };
    let release = Release { resource: BLOCK, number: locks[0].number, to: None };
    assert_eq!(site.manager.unlock(site.now, first, &[release]), Err(LockError::HeldUntilEnd));
    assert!(site.manager.begin_transaction(site.now, a, TransactionId(1), None).is_ok(), "its answer was lost");
    site.manager.end_transaction(site.now, a, TransactionId(1)).unwrap();
    site.manager.end_transaction(site.now, a, TransactionId(1)).unwrap();
    let again = site.manager.begin_transaction(site.now, a, TransactionId(1), None);
    assert_eq!(again, Err(LockError::TransactionReused(TransactionId(1))));
    let own = site.manager.end_transaction(site.now, a, TransactionId::OWN);
    assert_eq!(own, Err(LockError::NoTransaction(TransactionId::OWN)));
}

#[test]
fn callbacks_that_were_never_sent_cannot_be_answered() {
    let mut site = Site::new();
    let (a, b, c) = (site.client(), site.client(), site.client());
    site.granted(a, &[(BLOCK, Mode::M_X)]);
    site.queued(b, &[(BLOCK, Mode::M_X)]);
    let (number, ..) = site.callback(a);
    for (liar, number) in [(c, number), (a, CallbackNumber(2)), (a, CallbackNumber(0))] {
        assert_eq!(site.done(liar, number), Err(LockError::UnknownCallback(number)));
        assert_eq!(site.mode(a, BLOCK), Some(Mode::M_X), "nobody is affected");
    }
    site.done(a, number).unwrap();
    assert_eq!(site.mode(b, BLOCK), Some(Mode::M_X));
    site.done(a, number).unwrap();
    site.read(Some(a), 0, 8);
    site.change(Some(b), 0, 1);
    let (number, ..) = site.purge(a);
    assert_eq!(site.in_use(a, number), Err(LockError::NotDeferrable(number)));
}

#[test]
fn a_number_of_a_request_means_one_request() {
    let mut site = Site::new();
    let (a, b) = (site.client(), site.client());
    site.granted(a, &[(BLOCK, Mode::M_X)]);
    let request = site.queued(b, &[(BLOCK, Mode::M_S)]);
    let again = |site: &mut Site, batch: &[_]| site.manager.lock(site.now, Owner::own(b), request, batch);
    assert_eq!(again(&mut site, &[(BLOCK, Mode::M_S)]), Ok(Answer::Queued));
    assert_eq!(again(&mut site, &[(FILE, Mode::D_S)]), Err(LockError::RequestReused));
    let (number, ..) = site.callback(a);
    site.done(a, number).unwrap();
    assert!(matches!(again(&mut site, &[(BLOCK, Mode::M_S)]), Ok(Answer::Granted(_))), "the grant was lost on its way");
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
    let mut site = Site::with(Settings { limits, ..settings() }, Start::first());
    let (a, b) = (site.client(), site.client());
    let full = |table| Err(LockError::Full(table));
    assert_eq!(site.manager.register(site.now, None).map(|_| ()), full(Table::Clients));
    site.granted(a, &[(BLOCK, Mode::M_X), (Resource::Metadata(9), Mode::M_X)]);
    assert_eq!(site.lock(a, &[(Resource::Metadata(4), Mode::M_S)]).map(|_| ()), full(Table::Grants));
    site.queued(b, &[(BLOCK, Mode::M_S)]);
    assert_eq!(site.lock(b, &[(Resource::Metadata(9), Mode::M_S)]).map(|_| ()), full(Table::Waiting));
    site.transaction(a, 1);
    let second = site.manager.begin_transaction(site.now, a, TransactionId(2), None);
    assert_eq!(second.map(|_| ()), full(Table::Transactions));
    site.manager.open_file(site.now, a, FileId(1), OpenMode::Read).unwrap();
    assert_eq!(site.manager.open_file(site.now, a, FileId(2), OpenMode::Read), full(Table::OpenFiles));
    let (first, _) = site.change(None, 0, 1);
    let second = locks::identity::CommandId(99);
    let read = |site: &mut Site, command| site.manager.read(site.now, command, common::range(0, 1), None).map(|_| ());
    assert_eq!(read(&mut site, second), full(Table::Commands));
    assert_eq!(read(&mut site, first), Err(LockError::CommandState(first)));
    assert_eq!(site.manager.cancel_command(site.now, first), Err(LockError::CommandState(first)), "it is under way");
    assert_eq!(site.manager.end_change(site.now, second, true), Err(LockError::CommandState(second)));
}

#[test]
fn files_stay_open_until_the_last_close() {
    let mut site = Site::new();
    let (a, b) = (site.client(), site.client());
    let file = FileId(12);
    for client in [a, a, b] {
        site.manager.open_file(site.now, client, file, OpenMode::Read).unwrap();
    }
    assert_eq!(site.manager.close_file(site.now, a, file, OpenMode::Write), Err(LockError::NotOpen(file)));
    assert_eq!(site.manager.close_file(site.now, a, file, OpenMode::Read), Ok(false));
    assert_eq!(site.manager.close_file(site.now, b, file, OpenMode::Read), Ok(false));
    assert_eq!(site.manager.close_file(site.now, b, file, OpenMode::Read), Err(LockError::NotOpen(file)));
    site.manager.fence(site.now, a).unwrap();
    assert!(site.manager.open_files().is_open(file));
    site.outputs();
    site.end_fence(a, &[b]);
    assert_eq!(site.outputs(), [locks::manager::Output::LastClose(file)]);
}

#[test]
fn a_request_that_waits_can_be_given_up() {
    let mut site = Site::new();
    let (a, b, c) = (site.client(), site.client(), site.client());
    site.granted(a, &[(BLOCK, Mode::M_S)]);
    let exclusive = site.queued(b, &[(BLOCK, Mode::M_X)]);
    site.queued(c, &[(BLOCK, Mode::M_S)]);
    site.manager.cancel(site.now, b, exclusive).unwrap();
    assert_eq!(site.mode(c, BLOCK), Some(Mode::M_S), "who waited behind it waits no more");
    assert_eq!(site.manager.cancel(site.now, b, RequestId(77)), Ok(()));
}
