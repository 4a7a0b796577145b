//! What a target may say that makes no sense: a client ignores it, or is over; it never keeps what it should have
//! dropped and believes to be registered.

use std::sync::Arc;
use std::task::Waker;

use base::clock::VirtualClock;
use scsi::sharing::{Lock, Mode, Reason, Resource};

use super::*;

const KEY: [u8; 16] = [7; 16];
const CLIENT: u64 = 1 << 32 | 1;
const NOW: Instant = Instant::START;
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

fn purge(callback: u64, first_block: u64, block_count: u64) -> MessageBody {
    MessageBody::Purge { callback, first_block, block_count, deadline_ms: 1000 }
}

fn poll(member: &mut Member) -> bool {
    member.poll(&mut Context::from_waker(Waker::noop()), NOW)
}

/// One whose REGISTER is on its way.
fn joining() -> Member {
    let mut member = Member::new("here".to_owned(), KEY, SUPPORT, Copies::new(Arc::new(VirtualClock::new())));
    member.begin_session(NOW);
    assert!(matches!(member.next_order(NOW), Some((0, Order { parameters: Parameters::Register { .. }, .. }))));
    member.handle_answer(NOW, 0, Answer::Done);
    member
}

/// One that has taken its first message.
fn joined() -> Member {
    let mut member = joining();
    member.handle_message(NOW, &message(CLIENT, 1, registered(KEY)));
    poll(&mut member);
    assert!(member.may_issue(NOW) && member.copies().may_use());
    member
}

#[test]
fn a_registration_of_another_key_is_not_its_own() {
    let mut member = joining();
    member.handle_message(NOW, &message(CLIENT, 1, registered([8; 16])));
    member.handle_message(NOW, &message(CLIENT, 1, purge(1, 0, 1)));
    poll(&mut member);
    assert!(!member.may_issue(NOW) && !member.copies().may_use());
    assert_eq!((member.status(NOW).purges, member.next_order(NOW)), (0, None));
    member.handle_message(NOW, &message(CLIENT, 1, registered(KEY)));
    assert!(member.may_issue(NOW));
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
        member.handle_message(NOW, &message(client, number, body));
        poll(&mut member);
        assert!(member.may_issue(NOW) && member.copies().may_use());
        assert_eq!((member.status(NOW).purges, member.next_order(NOW)), (0, None));
    }
    for number in [1, 99, u64::MAX] {
        member.handle_answer(NOW, number, Answer::Fenced);
    }
    assert!(member.over().is_none(), "nothing was asked under these numbers");
}

#[test]
fn what_it_does_not_hold_is_given_up_at_once() {
    let mut member = joined();
    let lock = Lock { resource: Resource::Group(0, 3), mode: None, grant: 9 };
    member.handle_message(NOW, &message(CLIENT, 2, MessageBody::CallBack { callback: 7, lock, deadline_ms: 0 }));
    poll(&mut member);
    let parameters = Parameters::Acknowledge { taken: 2, callback: 7, answer: sharing::CallbackAnswer::Done };
    let answer = Order { client: Some(ClientId::from_bits(CLIENT)), parameters };
    assert_eq!(member.next_order(NOW), Some((1, answer)));
}

/// Blocks that cannot be: whatever is meant, no copy stays.
#[test]
fn a_purge_of_blocks_that_cannot_be_drops_all() {
    for (first, count) in [(u64::MAX, 2), (u64::MAX - 1, u64::MAX), (1, u64::MAX), (5, 0)] {
        let mut member = joined();
        member.handle_message(NOW, &message(CLIENT, 2, purge(1, first, count)));
        poll(&mut member);
        let sent = member.next_order(NOW);
        let Some((_, Order { parameters: Parameters::Acknowledge { callback: 1, .. }, .. })) = sent else {
            panic!("{first}, {count}: {sent:?}");
        };
    }
}

#[test]
fn a_missing_message_ends_the_client() {
    let mut member = joined();
    member.handle_message(NOW, &message(CLIENT, 3, purge(1, 0, 1)));
    poll(&mut member);
    assert!(member.over().is_some() && !member.may_issue(NOW) && !member.copies().may_use());
    assert_eq!(member.next_order(NOW), None);
}

/// Another life in the same start of the target: this one was fenced.
#[test]
fn another_id_of_the_same_start_ends_the_client() {
    let mut member = joined();
    member.handle_message(NOW, &message(CLIENT + 1, 1, registered(KEY)));
    assert!(member.over().is_some() && !member.copies().may_use());
}
