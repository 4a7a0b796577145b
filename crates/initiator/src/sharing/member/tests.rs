//! Nonsense from a target: the client ignores it, or ends. It never keeps a copy that it should
//! have dropped, nor believes wrongly that it is registered.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use base::clock::VirtualClock;
use block::Keeper;
use scsi::sharing::{Lock, Mode, Reason, Resource};

use super::*;
use crate::limits::{REGISTRATION_WAIT, UNKNOWN_WAIT};

mod asked_once;
mod leases;
mod parting;
mod several_paths;

const KEY: [u8; 16] = [7; 16];
const CLIENT: u64 = 1 << 32 | 1;
const NOW: Instant = Instant::START;
/// The first path of a client.
const ONE: PathNumber = PathNumber(0);
const SUPPORT: Support = Support {
    is_paper_profile: false,
    locks_max: 64,
    lease_ms: 10_000,
    callback_ms: 10_000,
    callback_ms_max: 60_000,
    hold_ms_min: 20,
    block_bytes: 4096,
    untaken_max: 64,
    prefetch_registers: true,
    withholds: true,
};

fn message(client: u64, number: u64, body: MessageBody) -> Message {
    Message { lun: 0, client, number, body }
}

fn registered(key: [u8; 16]) -> MessageBody {
    MessageBody::Registered { lease_ms: 10_000, grace_ms: 0, key, proof: [9; 32] }
}

/// What shows a life to be the client's, another one for each start.
fn proof_of(client: u64) -> Proof {
    [(client >> 32) as u8; 32]
}

fn registered_as(client: u64) -> Message {
    let body = MessageBody::Registered { lease_ms: 10_000, grace_ms: 0, key: KEY, proof: proof_of(client) };
    message(client, 1, body)
}

fn purge(callback: u64, first_block: u64, block_count: u64) -> MessageBody {
    MessageBody::Purge { callback, first_block, block_count, deadline_ms: 1000 }
}

fn poll(member: &mut Member) -> bool {
    poll_at(member, NOW)
}

fn poll_at(member: &mut Member, now: Instant) -> bool {
    member.poll(&mut Context::from_waker(Waker::noop()), now, ONE)
}

/// A client whose REGISTER is under way.
fn joining() -> Member {
    let mut member = Member::new("here".to_owned(), KEY, SUPPORT, Copies::new(Arc::new(VirtualClock::new())));
    assert_eq!(member.add_path(), ONE);
    member.begin_session(NOW, ONE);
    assert!(matches!(member.next_order(NOW, ONE), Some((0, Order { parameters: Parameters::Register { .. }, .. }))));
    member.handle_answer(NOW, ONE, 0, Answer::Done);
    member
}

/// A client that has handled its first message.
fn joined() -> Member {
    let mut member = joining();
    member.handle_message(NOW, ONE, &message(CLIENT, 1, registered(KEY)));
    poll(&mut member);
    assert!(member.may_issue(NOW, ONE) && member.copies().may_use());
    member
}

#[test]
fn a_registration_of_another_key_is_not_its_own() {
    let mut member = joining();
    member.handle_message(NOW, ONE, &message(CLIENT, 1, registered([8; 16])));
    member.handle_message(NOW, ONE, &message(CLIENT, 1, purge(1, 0, 1)));
    poll(&mut member);
    assert!(!member.may_issue(NOW, ONE) && !member.copies().may_use());
    assert_eq!((member.status(NOW).purges, member.next_order(NOW, ONE)), (0, None));
    member.handle_message(NOW, ONE, &message(CLIENT, 1, registered(KEY)));
    assert!(member.may_issue(NOW, ONE));
}

#[test]
fn what_is_for_another_or_old_or_was_never_asked_for_changes_nothing() {
    let mut member = joined();
    let lock = Lock { resource: Resource::Metadata(1), mode: Some(Mode::MetadataExclusive), grant: 1 };
    for (client, number, body) in [
        (CLIENT + 1, 2, purge(1, 0, 1)),
        (CLIENT, 1, purge(1, 0, 1)),
        (CLIENT, 0, purge(1, 0, 1)),
        (CLIENT, 2, MessageBody::Granted { request: 5, transaction: 0, locks: vec![lock] }),
        (CLIENT, 3, MessageBody::Queued { request: 5 }),
        (CLIENT, 4, MessageBody::Refused { request: 5, reason: Reason::Deadlock, index: 9 }),
        (CLIENT, 5, MessageBody::LastClose { file: 1 }),
        (CLIENT, 6, MessageBody::Begun { transaction: 1, birth: 1 }),
        (CLIENT, 7, registered(KEY)),
    ] {
        member.handle_message(NOW, ONE, &message(client, number, body));
        poll(&mut member);
        assert!(member.may_issue(NOW, ONE) && member.copies().may_use());
        assert_eq!((member.status(NOW).purges, member.next_order(NOW, ONE)), (0, None));
    }
    for number in [1, 99, u64::MAX] {
        member.handle_answer(NOW, ONE, number, Answer::Fenced);
    }
    assert!(member.over().is_none(), "nothing was asked under these numbers");
}

#[test]
fn what_it_does_not_hold_is_given_up_at_once() {
    let mut member = joined();
    let lock = Lock { resource: Resource::Group(0, 3), mode: None, grant: 9 };
    member.handle_message(NOW, ONE, &message(CLIENT, 2, MessageBody::CallBack { callback: 7, lock, deadline_ms: 0 }));
    poll(&mut member);
    let parameters = Parameters::Acknowledge { taken: 2, callback: 7, answer: sharing::CallbackAnswer::Done };
    let answer = Order { client: Some(ClientId::from_bits(CLIENT)), parameters };
    assert_eq!(member.next_order(NOW, ONE), Some((1, answer)));
}

/// A purge of a malformed range: no copy stays, whatever range was meant.
#[test]
fn a_purge_of_blocks_that_cannot_be_drops_all() {
    for (first, count) in [(u64::MAX, 2), (u64::MAX - 1, u64::MAX), (1, u64::MAX), (5, 0)] {
        let mut member = joined();
        member.handle_message(NOW, ONE, &message(CLIENT, 2, purge(1, first, count)));
        poll(&mut member);
        let sent = member.next_order(NOW, ONE);
        let Some((_, Order { parameters: Parameters::Acknowledge { callback: 1, .. }, .. })) = sent else {
            panic!("{first}, {count}: {sent:?}");
        };
    }
}

#[test]
fn a_missing_message_ends_the_client() {
    let mut member = joined();
    member.handle_message(NOW, ONE, &message(CLIENT, 3, purge(1, 0, 1)));
    poll(&mut member);
    assert!(member.over().is_some() && !member.may_issue(NOW, ONE) && !member.copies().may_use());
    assert_eq!(member.next_order(NOW, ONE), None);
}

/// A new id in the same start of the target: this client was fenced.
#[test]
fn another_id_of_the_same_start_ends_the_client() {
    let mut member = joined();
    member.handle_message(NOW, ONE, &message(CLIENT + 1, 1, registered(KEY)));
    assert!(member.over().is_some() && !member.copies().may_use());
}

/// Copies that are dropped only when the test allows it.
#[derive(Default)]
struct Slow(Arc<AtomicBool>);

impl Keeper for Slow {
    fn revoke(&self, _: ByteRange) -> Dropped {
        let may = Arc::clone(&self.0);
        Box::pin(poll_fn(move |_| if may.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }))
    }
}

/// Checks that the next order is the answer *done* to this callback. Returns the order's number.
fn take_done(member: &mut Member, now: Instant, answered: u64) -> u64 {
    match member.next_order(now, ONE) {
        Some((number, Order { parameters: Parameters::Acknowledge { callback, answer, .. }, .. })) => {
            assert_eq!((callback, answer), (answered, sharing::CallbackAnswer::Done));
            number
        }
        other => panic!("{other:?} is no answer to {answered}"),
    }
}

/// The session goes on, and the client registers in it again with a message of this number.
fn rejoin(member: &mut Member, now: Instant, message_number: u64) {
    let sent = member.next_order(now, ONE);
    let Some((number, Order { parameters: Parameters::Register { .. }, .. })) = sent else { panic!("{sent:?}") };
    member.handle_answer(now, ONE, number, Answer::Done);
    member.handle_message(now, ONE, &message(CLIENT, message_number, registered(KEY)));
    poll_at(member, now);
}

/// The target may have been stopped: its lease goes on, and a client that does not answer is
/// fenced.
#[test]
fn what_comes_when_the_lease_is_over_is_answered_behind_all_drops() {
    let mut member = joined();
    let cache = Arc::new(Slow::default());
    let keeper: Arc<dyn Keeper> = cache.clone();
    member.copies().add_keeper(Arc::downgrade(&keeper));
    let late = NOW + Duration::from_secs(13);
    member.handle_message(late, ONE, &message(CLIENT, 2, purge(1, 0, 1)));
    let lock = Lock { resource: Resource::Group(0, 3), mode: None, grant: 9 };
    member.handle_message(late, ONE, &message(CLIENT, 3, MessageBody::CallBack { callback: 2, lock, deadline_ms: 0 }));
    poll_at(&mut member, late);
    assert_eq!(member.next_order(late, ONE), None, "the copies are not dropped");
    cache.0.store(true, Ordering::Relaxed);
    poll_at(&mut member, late);
    rejoin(&mut member, late, 4);
    let asked = [1, 2].map(|callback| take_done(&mut member, late, callback));
    // Its life goes on when this is answered.
    let Some((renewal, Order { parameters: Parameters::Renew { .. }, .. })) = member.next_order(late, ONE) else {
        panic!("it renews its lease");
    };
    cache.0.store(false, Ordering::Relaxed);
    member.handle_message(late, ONE, &message(CLIENT, 5, purge(3, 7, 1)));
    poll_at(&mut member, late);
    asked.into_iter().for_each(|number| member.handle_answer(late, ONE, number, Answer::Done));
    assert_eq!(member.next_order(late, ONE), None, "the copies are not dropped");
    member.handle_answer(late, ONE, renewal, Answer::Done);
    cache.0.store(true, Ordering::Relaxed);
    poll_at(&mut member, late);
    take_done(&mut member, late, 3);
    assert!(member.may_issue(late, ONE) && member.over().is_none());
}

#[test]
fn an_answer_that_waits_when_the_lease_ends_is_sent_when_the_client_is_back() {
    for is_under_way in [false, true] {
        let mut member = joined();
        member.handle_message(NOW, ONE, &message(CLIENT, 2, purge(1, 0, 1)));
        poll(&mut member);
        if is_under_way {
            take_done(&mut member, NOW, 1);
        }
        member.end_session(NOW, ONE);
        let late = NOW + Duration::from_secs(13);
        poll_at(&mut member, late);
        member.begin_session(late, ONE);
        rejoin(&mut member, late, 3);
        take_done(&mut member, late, 1);
    }
}

/// Each has its own deadline at the target, from when it was asked.
#[test]
fn answers_do_not_wait_for_each_other_and_all_of_them_are_sent_again_in_a_new_session() {
    let mut member = joined();
    let under_way = ANSWERS_UNDER_WAY_MAX as u64;
    for callback in 1..=under_way + 10 {
        member.handle_message(NOW, ONE, &message(CLIENT, 1 + callback, purge(callback, callback, 1)));
    }
    poll(&mut member);
    let sent: Vec<u64> = (1..=under_way).map(|callback| take_done(&mut member, NOW, callback)).collect();
    assert_eq!(member.next_order(NOW, ONE), None, "the target has room for so many");
    member.handle_answer(NOW, ONE, sent[1], Answer::Done);
    take_done(&mut member, NOW, under_way + 1);
    member.handle_answer(NOW, ONE, sent[3], Answer::Again);
    take_done(&mut member, NOW, 4);
    member.end_session(NOW, ONE);
    member.begin_session(NOW, ONE);
    rejoin(&mut member, NOW, under_way + 12);
    let mut answered = BTreeSet::new();
    while let Some((number, order)) = member.next_order(NOW, ONE) {
        if let Parameters::Acknowledge { callback, .. } = order.parameters {
            assert!(answered.insert(callback), "{callback} is sent twice");
        }
        member.handle_answer(NOW, ONE, number, Answer::Done);
    }
    assert!(answered.into_iter().eq((1..=under_way + 10).filter(|callback| *callback != 2)));
}

/// They are on their way when the target says of each that it knows no such client: one registration comes of that.
#[test]
fn answers_that_a_target_does_not_know_the_client_of_are_one_reason_to_register() {
    let mut member = joined();
    for callback in 1..=3 {
        member.handle_message(NOW, ONE, &message(CLIENT, 1 + callback, purge(callback, callback, 1)));
    }
    poll(&mut member);
    let sent = [1, 2, 3].map(|callback| take_done(&mut member, NOW, callback));
    member.handle_answer(NOW, ONE, sent[0], Answer::Unknown);
    let Some((registration, Order { parameters: Parameters::Register { .. }, .. })) = member.next_order(NOW, ONE)
    else {
        panic!("it registers");
    };
    member.handle_answer(NOW, ONE, sent[1], Answer::Unknown);
    assert_eq!(member.next_order(NOW, ONE), None, "it has");
    member.handle_answer(NOW, ONE, registration, Answer::Done);
    member.handle_message(NOW, ONE, &message(2 << 32 | 1, 1, registered(KEY)));
    member.handle_answer(NOW, ONE, sent[2], Answer::Again);
    poll(&mut member);
    assert!(member.may_issue(NOW, ONE));
    assert_eq!(member.next_order(NOW, ONE), None, "nobody waits for what a target before asked");
}

/// The target takes no answers, or asks faster than they leave.
#[test]
fn a_target_that_asks_for_more_than_it_may_is_heard_no_more_and_no_copy_is_used() {
    let lock = Lock { resource: Resource::Group(0, 3), mode: None, grant: 9 };
    let call_back = |callback| MessageBody::CallBack { callback, lock, deadline_ms: 0 };
    for (is_lock, polls) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut member = joined();
        let mut heard = 0;
        while !member.is_flooded(ONE) {
            heard += 1;
            assert!(heard < 100_000, "it hears {heard} callbacks and has an end to nothing");
            let body = if is_lock { call_back(heard) } else { purge(heard, heard, 1) };
            member.handle_message(NOW, ONE, &message(CLIENT, 1 + heard, body));
            if polls {
                poll(&mut member);
                while member.next_order(NOW, ONE).is_some() {}
            }
        }
        assert!(heard as usize > OWED_MAX / 4, "{heard} may be asked");
        member.handle_message(NOW, ONE, &message(CLIENT, 2 + heard, purge(1 + heard, 0, 1)));
        poll(&mut member);
        assert!(!member.may_issue(NOW, ONE) && !member.copies().may_use() && member.over().is_none());
        assert_eq!((member.next_order(NOW, ONE), member.status(NOW).lives), (None, 1));
        member.end_session(NOW, ONE);
        member.begin_session(NOW, ONE);
        rejoin(&mut member, NOW, 2 + heard);
        assert!(!member.copies().may_use(), "its life goes on when a renewal is answered");
        let mut answered = 0;
        while let Some((number, order)) = member.next_order(NOW, ONE) {
            answered += u64::from(is_acknowledgement(&order.parameters));
            member.handle_answer(NOW, ONE, number, Answer::Done);
            poll(&mut member);
        }
        assert!(answered >= heard, "{answered} of {heard}");
        assert!(member.may_issue(NOW, ONE) && member.copies().may_use());
    }
}

/// Sent to the target's next start it would be refused as a stranger's, again and again.
#[test]
fn an_answer_to_a_target_that_has_started_again_is_not_sent() {
    let mut member = joined();
    let cache = Arc::new(Slow::default());
    let keeper: Arc<dyn Keeper> = cache.clone();
    member.copies().add_keeper(Arc::downgrade(&keeper));
    member.handle_message(NOW, ONE, &message(CLIENT, 2, purge(1, 0, 1)));
    poll(&mut member);
    member.end_session(NOW, ONE);
    member.begin_session(NOW, ONE);
    let Some((number, _)) = member.next_order(NOW, ONE) else { panic!("it registers") };
    member.handle_answer(NOW, ONE, number, Answer::Done);
    member.handle_message(NOW, ONE, &message(2 << 32 | 1, 1, registered(KEY)));
    cache.0.store(true, Ordering::Relaxed);
    poll(&mut member);
    assert!(member.may_issue(NOW, ONE) && member.copies().may_use());
    assert_eq!(member.next_order(NOW, ONE), None);
}

/// One whose REGISTER is answered, and that may hold ranges of a MiB alone.
fn joined_with_grants() -> Member {
    let copies = Copies::with_grants(Arc::new(VirtualClock::new()), 1 << 20);
    let mut member = Member::new("here".to_owned(), KEY, SUPPORT, copies);
    assert_eq!(member.add_path(), ONE);
    member.begin_session(NOW, ONE);
    assert_eq!(named_before(&mut member), None);
    member.handle_message(NOW, ONE, &registered_as(CLIENT));
    poll(&mut member);
    member
}

/// The life that the next order, a REGISTER, names as the one before, which the target has got.
fn named_before(member: &mut Member) -> Option<LifeBefore> {
    let sent = member.next_order(NOW, ONE);
    let Some((number, Order { parameters: Parameters::Register { before, .. }, .. })) = sent else {
        panic!("{sent:?}")
    };
    member.handle_answer(NOW, ONE, number, Answer::Done);
    before
}

/// The next order asks for this range of a MiB alone. Its number, and whether it claims it back.
fn asked_for(member: &mut Member, group: u64) -> (u64, bool) {
    let sent = member.next_order(NOW, ONE);
    let Some((_, Order { parameters: Parameters::Lock { request, is_reclaim, locks, .. }, .. })) = sent else {
        panic!("{sent:?}");
    };
    assert_eq!(locks.last().map(|lock| lock.resource), Some(Resource::Group(0, group)), "{locks:?}");
    (request, is_reclaim)
}

fn granted(request: u64, group: u64) -> MessageBody {
    let lock = |resource, mode| Lock { resource, mode: Some(mode), grant: 1 };
    let locks =
        vec![lock(Resource::File(0), Mode::IntentionExclusive), lock(Resource::Group(0, group), Mode::Exclusive)];
    MessageBody::Granted { request, transaction: 0, locks }
}

/// One that holds the first MiB, and has come to the second start of its target: it has asked there for what it held,
/// and not been answered. The life that had it, and the one of that start.
fn reclaiming() -> (Member, u64, u64) {
    let mut member = joined_with_grants();
    member.copies().grants().expect("it may hold ranges").want(ByteRange { offset: 0, length: 4096 });
    poll(&mut member);
    let (request, is_reclaim) = asked_for(&mut member, 0);
    assert!(!is_reclaim);
    member.handle_message(NOW, ONE, &message(CLIENT, 2, granted(request, 0)));
    poll(&mut member);
    assert_eq!(standing(&member), Some(GrantStanding::Held));
    let second = 2 << 32 | 1;
    start_again(&mut member);
    assert_eq!(named_before(&mut member), Some(LifeBefore { client: CLIENT, proof: proof_of(CLIENT) }));
    member.handle_message(NOW, ONE, &registered_as(second));
    poll(&mut member);
    assert!(asked_for(&mut member, 0).1);
    assert_eq!(standing(&member), Some(GrantStanding::Claimed));
    (member, CLIENT, second)
}

fn standing(member: &Member) -> Option<GrantStanding> {
    member.copies().grants().and_then(|grants| grants.standing(0))
}

/// The session is lost with the target, and there is another one.
fn start_again(member: &mut Member) {
    member.end_session(NOW, ONE);
    poll(member);
    member.begin_session(NOW, ONE);
}

/// The last life has held nothing yet: others may have been given what it would claim back by it.
#[test]
fn what_was_not_claimed_back_at_a_second_start_is_claimed_at_the_third_from_the_life_that_had_it() {
    let (mut member, first, _) = reclaiming();
    for start in 3..6 {
        start_again(&mut member);
        assert_eq!(named_before(&mut member), Some(LifeBefore { client: first, proof: proof_of(first) }));
        member.handle_message(NOW, ONE, &registered_as(start << 32 | 7));
        poll(&mut member);
        assert!(member.may_issue(NOW, ONE) && member.over().is_none());
        let (request, is_reclaim) = asked_for(&mut member, 0);
        assert!(is_reclaim, "start {start}");
        if start == 5 {
            member.handle_message(NOW, ONE, &message(start << 32 | 7, 2, granted(request, 0)));
            poll(&mut member);
        }
    }
    assert_eq!(standing(&member), Some(GrantStanding::Held));
    start_again(&mut member);
    let last = 5 << 32 | 7;
    assert_eq!(named_before(&mut member), Some(LifeBefore { client: last, proof: proof_of(last) }), "it had all of it");
}

/// The target has given it to others since: it is given up, and with it what is claimed of the last life is not.
#[test]
fn a_target_that_takes_the_life_that_had_it_no_more_is_shown_the_last_one() {
    let (mut member, first, second) = reclaiming();
    start_again(&mut member);
    let mut refused = |named: u64| {
        let sent = member.next_order(NOW, ONE);
        let Some((number, Order { parameters: Parameters::Register { before, .. }, .. })) = sent else {
            panic!("{sent:?}");
        };
        assert_eq!(before, Some(LifeBefore { client: named, proof: proof_of(named) }));
        member.handle_answer(NOW, ONE, number, Answer::Refused);
        poll(&mut member);
    };
    refused(first);
    refused(second);
    assert_eq!(standing(&member), None, "nothing was dirty there");
    assert_eq!(named_before(&mut member), None);
    member.handle_message(NOW, ONE, &registered_as(3 << 32 | 1));
    poll(&mut member);
    assert!(member.may_issue(NOW, ONE) && member.over().is_none());
    assert_eq!(member.next_order(NOW, ONE), None, "nothing is claimed");
}

/// Longer than whatever waits for other hosts may take.
fn answer_time() -> Duration {
    crate::sharing::unanswered::withheld_time(&SUPPORT)
}

/// Keeps the lease, and sends what is to be sent, for a while. Returns the numbers of requests for
/// locks that were sent, which the target has taken.
fn live_for(member: &mut Member, from: Instant, time: Duration) -> (Instant, Vec<u64>) {
    let (mut now, mut requests) = (from, Vec::new());
    while now < from + time && member.over().is_none() {
        now = now + Duration::from_millis(500);
        poll_at(member, now);
        while let Some((number, order)) = member.next_order(now, ONE) {
            if let Parameters::Lock { request, .. } = order.parameters {
                requests.push(request);
            }
            member.handle_answer(now, ONE, number, Answer::Done);
            poll_at(member, now);
        }
    }
    (now, requests)
}

/// One that asks for the first MiB.
fn asking() -> Member {
    let member = joined_with_grants();
    member.copies().grants().expect("it may hold ranges").want(ByteRange { offset: 0, length: 4096 });
    member
}

#[test]
fn a_target_that_takes_a_request_for_a_lock_and_says_nothing_is_not_waited_for() {
    let mut member = asking();
    let (now, requests) = live_for(&mut member, NOW, answer_time() - Duration::from_secs(1));
    assert!(requests.len() == 1 && member.over().is_none() && member.may_issue(now, ONE), "it may still say so");
    live_for(&mut member, now, Duration::from_secs(3));
    assert!(member.over().is_some_and(|error| error.to_string().contains("has said nothing")));
    assert!(!member.copies().may_use() && standing(&member).is_none());
}

/// It waits for other hosts. The message that the locks are held may be lost with a target that
/// says so only when it is asked again.
#[test]
fn a_target_that_says_that_a_request_waits_is_believed_as_long_as_it_says_so() {
    let mut member = asking();
    let (mut now, requests) = live_for(&mut member, NOW, Duration::from_secs(1));
    let [request] = requests[..] else { panic!("{requests:?}") };
    for number in 2..5 {
        member.handle_message(now, ONE, &message(CLIENT, number, MessageBody::Queued { request }));
        let asked_again;
        (now, asked_again) = live_for(&mut member, now, answer_time() + Duration::from_secs(1));
        assert_eq!(asked_again, [request]);
        assert!(member.over().is_none() && standing(&member) == Some(GrantStanding::Asked));
    }
    live_for(&mut member, now, answer_time());
    assert!(member.over().is_some(), "it says nothing when it is asked again");
}

#[test]
fn a_target_that_takes_a_claim_and_says_nothing_is_not_waited_for() {
    let (mut member, _, second) = reclaiming();
    let path = member.paths.get(ONE).expect("it has a path");
    let claim = path.under_way.keys().next().copied().expect("it is under way");
    member.handle_answer(NOW, ONE, claim, Answer::Done);
    live_for(&mut member, NOW, answer_time() + Duration::from_secs(1));
    assert!(member.over().is_some() && standing(&member) == Some(GrantStanding::Lost));
    assert_eq!(member.client, Some(ClientId::from_bits(second)));
}

#[test]
fn a_target_that_takes_a_registration_and_says_nothing_is_not_waited_for() {
    let mut member = joining();
    let (now, _) = live_for(&mut member, NOW, answer_time() - Duration::from_secs(1));
    assert!(member.over().is_none());
    live_for(&mut member, now, Duration::from_secs(3));
    assert!(member.over().is_some());
}

/// Each session has its own time, and what was answered has none.
#[test]
fn an_answer_that_comes_in_time_or_in_another_session_is_in_time() {
    let mut member = asking();
    let (now, requests) = live_for(&mut member, NOW, answer_time() - Duration::from_secs(1));
    let [request] = requests[..] else { panic!("{requests:?}") };
    member.end_session(now, ONE);
    member.begin_session(now, ONE);
    rejoin(&mut member, now, 2);
    let (now, again) = live_for(&mut member, now, answer_time() - Duration::from_secs(1));
    assert_eq!(again, [request]);
    member.handle_message(now, ONE, &message(CLIENT, 3, granted(request, 0)));
    let (now, _) = live_for(&mut member, now, 2 * answer_time());
    assert!(member.may_issue(now, ONE) && standing(&member) == Some(GrantStanding::Held));
}
