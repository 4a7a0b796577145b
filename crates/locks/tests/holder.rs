//! The client's end: callbacks and uses, messages that overtake each other, leases, the target's restart.

mod common;

use std::time::Duration;

use base::clock::Instant;
use common::{BLOCK, FILE, TestServer, group, range, settings};
use locks::error::LockError;
use locks::gate::Passage;
use locks::holder::{Holder, HolderOutput};
use locks::identity::{BootEpoch, CallbackNumber, ClientId, Generation, GrantNumber, RequestId, TransactionId};
use locks::message::{CallbackAnswer, FromClient, GrantedLock, Registration, Reply, ToClient, Wanted};
use locks::mode::Mode;
use locks::resource::Resource;
use locks::settings::Profile;

const NOW: Instant = Instant::from_nanoseconds(5_000_000_000);

struct Host {
    holder: Holder,
    id: ClientId,
}

impl Host {
    fn new() -> Self {
        let id = ClientId::new(BootEpoch(1), 1);
        let mut host = Self { holder: Holder::default(), id };
        host.registered(id, None, NOW);
        host
    }

    fn registered(&mut self, client: ClientId, previous: Option<ClientId>, sent: Instant) {
        let lease = settings().lease;
        let registration = Registration { client, lease, boot_epoch: client.boot_epoch(), is_in_grace: false };
        self.holder.handle_reply(sent, &FromClient::Register { previous }, sent, Ok(Reply::Registered(registration)));
        self.id = client;
    }

    /// The client learns that the target has restarted.
    fn wrong_epoch(&mut self, epoch: u32) {
        let error = Err(LockError::WrongEpoch(BootEpoch(epoch)));
        self.holder.handle_reply(NOW, &FromClient::Renew(self.id), NOW, error);
    }

    fn outputs(&mut self) -> Vec<HolderOutput> {
        std::iter::from_fn(|| self.holder.poll_output()).collect()
    }

    /// Requests locks, and takes the message that is sent.
    fn ask(&mut self, batch: &[Wanted]) -> (RequestId, FromClient) {
        let request = self.holder.request(NOW, TransactionId::OWN, batch.to_vec()).unwrap();
        match self.outputs().pop() {
            Some(HolderOutput::Send(message)) => (request, message),
            other => panic!("{other:?}"),
        }
    }

    fn grant(&mut self, message: &FromClient, locks: &[(Resource, Mode, u64)]) {
        let lock = |&(resource, mode, number)| GrantedLock { resource, mode, number: GrantNumber(number) };
        self.holder.handle_reply(NOW, message, NOW, Ok(Reply::Granted(locks.iter().map(lock).collect())));
    }

    fn hold(&mut self, locks: &[(Resource, Mode, u64)]) {
        let (_, message) = self.ask(&locks.iter().map(|(resource, mode, _)| (*resource, *mode)).collect::<Vec<_>>());
        self.grant(&message, locks);
        self.outputs();
    }

    fn call_back(&mut self, number: u64, resource: Resource, grant: u64, to: Option<Mode>) {
        let (number, grant) = (CallbackNumber(number), GrantNumber(grant));
        self.holder.handle_message(self.id, ToClient::Callback { number, resource, grant, to });
    }

    fn answer(&self, number: u64, answer: CallbackAnswer) -> HolderOutput {
        HolderOutput::Send(FromClient::Acknowledge(self.id, CallbackNumber(number), answer))
    }
}

#[test]
fn what_is_not_in_use_is_given_up_before_the_answer_is_sent() {
    let mut host = Host::new();
    host.hold(&[(BLOCK, Mode::M_X, 1)]);
    host.call_back(1, BLOCK, 1, Some(Mode::M_S));
    let done = host.answer(1, CallbackAnswer::Done);
    assert_eq!(host.outputs(), [HolderOutput::GiveUp(BLOCK, Some(Mode::M_S)), done]);
    assert!(host.holder.begin_use(NOW, BLOCK, Mode::M_S));
    assert!(!host.holder.begin_use(NOW, BLOCK, Mode::M_X));
}

#[test]
fn what_is_in_use_is_given_up_when_the_last_use_ends_and_new_uses_wait() {
    let mut host = Host::new();
    host.hold(&[(BLOCK, Mode::M_X, 1)]);
    assert!(host.holder.begin_use(NOW, BLOCK, Mode::M_X));
    assert!(host.holder.begin_use(NOW, BLOCK, Mode::M_S));
    host.call_back(1, BLOCK, 1, None);
    assert_eq!(host.outputs(), [host.answer(1, CallbackAnswer::InUse), HolderOutput::InUse(BLOCK)]);
    assert!(!host.holder.begin_use(NOW, BLOCK, Mode::M_S), "or the callback would never be answered");
    host.holder.end_use(BLOCK, Mode::M_S);
    assert_eq!(host.outputs(), []);
    host.holder.end_use(BLOCK, Mode::M_X);
    assert_eq!(host.outputs(), [HolderOutput::GiveUp(BLOCK, None), host.answer(1, CallbackAnswer::Done)]);
}

#[test]
fn a_use_that_fits_beside_the_other_client_goes_on() {
    let mut host = Host::new();
    host.hold(&[(BLOCK, Mode::M_X, 1)]);
    assert!(host.holder.begin_use(NOW, BLOCK, Mode::M_S));
    host.call_back(1, BLOCK, 1, Some(Mode::M_S));
    assert_eq!(host.outputs()[1], host.answer(1, CallbackAnswer::Done));
}

#[test]
fn a_use_of_a_block_group_keeps_its_file() {
    let mut host = Host::new();
    host.hold(&[(FILE, Mode::D_IX, 1), (group(0), Mode::D_X, 2)]);
    assert!(host.holder.begin_use(NOW, group(0), Mode::D_X));
    host.call_back(1, FILE, 1, Some(Mode::D_IS));
    assert_eq!(host.outputs()[0], host.answer(1, CallbackAnswer::InUse));
    host.holder.end_use(group(0), Mode::D_X);
    assert_eq!(host.outputs().len(), 2);
    assert_eq!(host.holder.held().collect::<Vec<_>>(), [(FILE, Mode::D_IS), (group(0), Mode::D_S)]);
}

#[test]
fn a_lock_on_the_file_is_used_for_its_block_groups() {
    let mut host = Host::new();
    host.hold(&[(FILE, Mode::D_X, 1)]);
    assert!(host.holder.begin_use(NOW, group(4), Mode::D_X));
    host.call_back(1, FILE, 1, Some(Mode::D_IX));
    assert_eq!(host.outputs()[0], host.answer(1, CallbackAnswer::InUse), "the group itself is not locked");
    host.holder.end_use(group(4), Mode::D_X);
    assert!(!host.holder.begin_use(NOW, group(4), Mode::D_X));
}

#[test]
fn a_grant_that_its_callback_overtook_is_void() {
    let mut host = Host::new();
    let (request, message) = host.ask(&[(BLOCK, Mode::M_X)]);
    host.call_back(1, BLOCK, 1, None);
    assert_eq!(host.outputs(), [host.answer(1, CallbackAnswer::Done)]);
    host.grant(&message, &[(BLOCK, Mode::M_X, 1)]);
    assert_eq!(
        host.outputs(),
        [HolderOutput::Send(message.clone())],
        "it was given up before it was heard of: once more"
    );
    assert_eq!(host.holder.held().next(), None);
    host.grant(&message, &[(BLOCK, Mode::M_X, 2)]);
    assert!(matches!(host.outputs()[..], [HolderOutput::Granted(granted, _)] if granted == request));
}

#[test]
fn a_grant_that_nobody_waits_for_is_not_believed() {
    let mut host = Host::new();
    let (request, message) = host.ask(&[(BLOCK, Mode::M_X)]);
    host.holder.cancel(NOW, request);
    host.grant(&message, &[(BLOCK, Mode::M_X, 1)]);
    assert_eq!(host.holder.held().next(), None);
    host.outputs();
    host.call_back(1, BLOCK, 1, None);
    assert_eq!(host.outputs(), [host.answer(1, CallbackAnswer::Done)], "the target gets it back");
}

#[test]
fn a_callback_of_an_older_grant_takes_nothing() {
    let mut host = Host::new();
    host.hold(&[(BLOCK, Mode::M_X, 2)]);
    host.call_back(1, BLOCK, 1, None);
    assert_eq!(host.outputs(), [host.answer(1, CallbackAnswer::Done)]);
    assert!(host.holder.begin_use(NOW, BLOCK, Mode::M_X));
}

#[test]
fn a_lock_is_released_when_nothing_uses_it() {
    let mut host = Host::new();
    host.hold(&[(FILE, Mode::D_IX, 1), (group(0), Mode::D_X, 2)]);
    assert!(!host.holder.release(NOW, FILE, None), "leaves are released before");
    assert!(host.holder.begin_use(NOW, group(0), Mode::D_S));
    assert!(!host.holder.release(NOW, group(0), None));
    assert!(host.holder.release(NOW, group(0), Some(Mode::D_S)));
    host.holder.end_use(group(0), Mode::D_S);
    assert!(host.holder.release(NOW, group(0), None) && host.holder.release(NOW, FILE, None));
    assert_eq!(host.holder.held().next(), None);
}

/// "An M_X lock is always released immediately after the involved operations have finished", and M_S stays (section 3.1
/// of the paper).
#[test]
fn in_the_papers_profile_only_a_shared_lock_of_metadata_is_kept() {
    let mut host = Host { holder: Holder::of(Profile::Paper), ..Host::new() };
    host.registered(host.id, None, NOW);
    host.outputs();
    let other = Resource::Metadata(4);
    host.hold(&[(BLOCK, Mode::M_X, 1), (other, Mode::M_S, 2), (FILE, Mode::D_IX, 3), (group(0), Mode::D_X, 4)]);
    for (resource, mode) in [(BLOCK, Mode::M_X), (other, Mode::M_S), (group(0), Mode::D_X)] {
        assert!(host.holder.begin_use(NOW, resource, mode) && host.holder.begin_use(NOW, resource, mode));
        host.holder.end_use(resource, mode);
        assert!(host.holder.begin_use(NOW, resource, mode), "one use of {resource} is left");
        host.holder.end_use(resource, mode);
        host.holder.end_use(resource, mode);
    }
    assert_eq!(host.holder.held().collect::<Vec<_>>(), [(other, Mode::M_S)]);
    let unlock = |output: &HolderOutput| match output {
        HolderOutput::Send(FromClient::Unlock(_, batch)) => Some(batch[0].resource),
        _ => None,
    };
    let released: Vec<_> = host.outputs().iter().filter_map(unlock).collect();
    assert_eq!(released, [BLOCK, group(0), FILE], "leaf before root");
}

/// The client gives up first, whatever the delay of its messages and the rate of its clock.
#[test]
fn a_lease_is_over_at_the_client_before_it_is_at_the_target() {
    let mut server = TestServer::new();
    let sent = server.now;
    server.now = server.now + Duration::from_secs(2);
    let client = server.client();
    let mut host = Host::new();
    host.holder = Holder::default();
    host.registered(client, None, sent);
    host.hold(&[(BLOCK, Mode::M_X, 1)]);
    let end = host.holder.next_deadline().unwrap().max(sent + settings().lease * 99 / 100);
    assert!(end < sent + settings().lease && end < server.manager.next_deadline().unwrap());
    assert_eq!(host.holder.client(end), None);
    assert!(!host.holder.begin_use(end, BLOCK, Mode::M_X));
    host.holder.handle_timeout(end);
    assert!(host.outputs().contains(&HolderOutput::Over(LockError::LeaseOver(client))));
    assert_eq!(host.holder.held().next(), None);
}

#[test]
fn a_renewal_counts_from_when_it_was_sent() {
    let mut host = Host::new();
    let lease = settings().lease;
    let sent = NOW + lease / 3;
    host.holder.handle_timeout(sent);
    let renewal = FromClient::Renew(host.id);
    assert_eq!(host.outputs(), [HolderOutput::Send(renewal.clone())]);
    host.holder.handle_reply(sent + lease / 3, &renewal, sent, Ok(Reply::Done));
    let end = sent + lease * 99 / 100;
    assert!(host.holder.client(end).is_none());
    assert!(host.holder.client(Instant::from_nanoseconds(end.as_nanoseconds() - 1)).is_some());
}

#[test]
fn after_a_restart_of_the_target_what_is_held_is_reclaimed_before_it_is_used() {
    let mut host = Host::new();
    host.hold(&[(BLOCK, Mode::M_X, 7)]);
    let old = host.id;
    host.holder.handle_reply(NOW, &FromClient::Renew(old), NOW, Err(LockError::WrongEpoch(BootEpoch(2))));
    assert_eq!(host.outputs(), [HolderOutput::Send(FromClient::Register { previous: Some(old) })]);
    host.registered(ClientId::new(BootEpoch(2), 4), Some(old), NOW);
    let outputs = host.outputs();
    assert_eq!(outputs[0], HolderOutput::PurgeAll);
    let HolderOutput::Send(message @ FromClient::Lock { is_reclaim: true, .. }) = &outputs[1] else {
        panic!("{outputs:?}")
    };
    assert!(!host.holder.begin_use(NOW, BLOCK, Mode::M_X));
    host.grant(message, &[(BLOCK, Mode::M_X, 1)]);
    assert!(host.holder.begin_use(NOW, BLOCK, Mode::M_X));
}

#[test]
fn what_cannot_be_reclaimed_is_given_up() {
    let mut host = Host::new();
    host.hold(&[(BLOCK, Mode::M_X, 7)]);
    let old = host.id;
    host.holder.handle_reply(NOW, &FromClient::Renew(old), NOW, Err(LockError::WrongEpoch(BootEpoch(2))));
    host.registered(ClientId::new(BootEpoch(2), 4), Some(old), NOW);
    let Some(HolderOutput::Send(message)) = host.outputs().pop() else { panic!() };
    host.holder.handle_reply(NOW, &message, NOW, Err(LockError::ReclaimConflict(BLOCK)));
    assert_eq!(host.outputs()[0], HolderOutput::GiveUp(BLOCK, None));
}

/// Race 9: two starts within one lease. Locks of the first life are reclaimed from that life, since
/// the second may never have held them.
#[test]
fn what_was_not_reclaimed_when_the_target_starts_once_more_is_reclaimed_from_the_life_that_had_it() {
    let mut host = Host::new();
    host.hold(&[(BLOCK, Mode::M_X, 7)]);
    let first = host.id;
    host.wrong_epoch(2);
    host.registered(ClientId::new(BootEpoch(2), 4), Some(first), NOW);
    host.outputs();
    host.wrong_epoch(3);
    assert_eq!(host.outputs(), [HolderOutput::Send(FromClient::Register { previous: Some(first) })]);
    host.registered(ClientId::new(BootEpoch(3), 1), Some(first), NOW);
    let outputs = host.outputs();
    let is_reclaim = |output: &HolderOutput| {
        let wanted = vec![(BLOCK, Mode::M_X)];
        matches!(output, HolderOutput::Send(FromClient::Lock { is_reclaim: true, batch, .. }) if *batch == wanted)
    };
    assert!(outputs.iter().any(is_reclaim), "{outputs:?}");
}

#[test]
fn what_was_not_reclaimed_is_given_up_when_the_life_that_had_it_reclaims_no_more() {
    let mut host = Host::new();
    host.hold(&[(BLOCK, Mode::M_X, 7)]);
    let (first, second) = (host.id, ClientId::new(BootEpoch(2), 4));
    host.wrong_epoch(2);
    host.registered(second, Some(first), NOW);
    host.wrong_epoch(3);
    host.outputs();
    let register = FromClient::Register { previous: Some(first) };
    host.holder.handle_reply(NOW, &register, NOW, Err(LockError::NotReclaimable(first)));
    let outputs = host.outputs();
    let again = HolderOutput::Send(FromClient::Register { previous: Some(second) });
    assert!(outputs.contains(&HolderOutput::GiveUp(BLOCK, None)) && outputs.contains(&again), "{outputs:?}");
}

/// Race 4, at the client: the purge comes first, or the data.
#[test]
fn data_that_a_purge_overtook_is_not_kept() {
    let mut host = Host::new();
    let fetches = [(0, 4), (8, 4), (0, 4)].map(|(first, count)| host.holder.begin_fetch(range(first, count)));
    let purge = ToClient::Purge { number: CallbackNumber(1), range: range(2, 4), generation: Generation(9) };
    host.holder.handle_message(host.id, purge);
    assert_eq!(host.outputs(), [HolderOutput::Purge(range(2, 4)), host.answer(1, CallbackAnswer::Done)]);
    assert!(!host.holder.end_fetch(fetches[0], Some(Generation(8))), "read before the purge");
    assert!(host.holder.end_fetch(fetches[1], Some(Generation(8))), "other blocks");
    assert!(host.holder.end_fetch(fetches[2], Some(Generation(9))), "read after it");
    let unregistered = host.holder.begin_fetch(range(0, 1));
    assert!(!host.holder.end_fetch(unregistered, None));
}

#[test]
fn what_the_target_calls_old_the_client_does_not_keep() {
    let mut server = TestServer::new();
    let (a, b) = (server.client(), server.client());
    let mut host = Host::new();
    host.holder = Holder::default();
    host.registered(a, None, server.now);
    let fetch = host.holder.begin_fetch(range(0, 4));
    let (_, Some(Passage::Read(generation))) = server.read(Some(a), 0, 4) else { panic!() };
    server.change(Some(b), 0, 4);
    server.mail(a).into_iter().for_each(|message| host.holder.handle_message(a, message));
    assert!(!host.holder.end_fetch(fetch, generation));
}
