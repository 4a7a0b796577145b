//! Paths that are closed: the last of them unregisters the client, also where it had not joined yet.

use super::several_paths::{TWO, join, joined_by, registering};
use super::*;
use crate::limits::LEAVE_TIMEOUT;

/// The next order of a path, but for renewals, is a LEAVE. Its number.
fn leaving(member: &mut Member, now: Instant, path: PathNumber) -> u64 {
    loop {
        match member.next_order(now, path) {
            Some((number, Order { parameters: Parameters::Leave, .. })) => return number,
            Some((_, Order { parameters: Parameters::Renew { .. }, .. })) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn only_the_last_path_leaves() {
    let mut member = joined_by(2);
    assert!(member.leave(NOW, ONE) && member.copies().may_use());
    assert_eq!(member.next_order(NOW, ONE), None);
    member.remove_path(ONE);
    assert!(!member.leave(NOW, TWO) && !member.copies().may_use());
    let sent = leaving(&mut member, NOW, TWO);
    assert_eq!(member.next_deadline(TWO, true), Some(NOW + LEAVE_TIMEOUT));
    member.handle_answer(NOW, TWO, sent, Answer::Done);
    assert!(member.leave(NOW, TWO));
}

/// A client by one path, and by a second one that has just come back.
fn with_one_back() -> Member {
    let mut member = joined();
    assert_eq!(member.add_path(), TWO);
    member.begin_session(NOW, TWO);
    member
}

/// The one that has joined waits for the other, to which it leaves the client; or else unregisters it.
#[test]
fn a_client_is_unregistered_though_one_of_its_paths_has_not_joined_when_both_are_closed() {
    let mut member = with_one_back();
    assert!(!member.leave(NOW, ONE) && member.copies().may_use(), "the other one may go on");
    join(&mut member, NOW, TWO);
    assert!(member.leave(NOW, ONE));
    member.remove_path(ONE);
    assert!(!member.leave(NOW, TWO));
    leaving(&mut member, NOW, TWO);

    let mut member = with_one_back();
    assert!(!member.leave(NOW, ONE));
    member.end_session(NOW, TWO);
    assert!(!member.leave(NOW, ONE));
    leaving(&mut member, NOW, ONE);

    let mut member = with_one_back();
    assert!(member.leave(NOW, TWO), "the other one has joined");
    member.remove_path(TWO);
    assert!(!member.leave(NOW, ONE));
    leaving(&mut member, NOW, ONE);
}

/// Its registration may be under way: it waits for the answer.
#[test]
fn a_path_that_is_closed_before_it_has_joined_leaves_when_it_has() {
    let mut member = with_one_back();
    registering(&mut member, NOW, TWO);
    assert!(!member.leave(NOW, ONE));
    let late = NOW + LEAVE_TIMEOUT;
    assert!(member.leave(late, ONE), "it does not wait for ever");
    member.remove_path(ONE);
    assert!(!member.leave(late, TWO));
    let (number, named) = registering(&mut member, late, TWO);
    assert_eq!(named, None, "it is the only one");
    member.handle_answer(late, TWO, number, Answer::Done);
    member.handle_message(late, TWO, &message(CLIENT, 2, registered(KEY)));
    assert!(!member.leave(late, TWO));
    leaving(&mut member, late, TWO);

    let mut silent = joining();
    assert!(!silent.leave(NOW, ONE));
    assert!(silent.leave(NOW + LEAVE_TIMEOUT, ONE), "nor for an answer that does not come");
}
