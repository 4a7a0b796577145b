//! One client by several paths: which of them says what, and what none says while a lost one may still bring something.

use super::*;

pub(super) const TWO: PathNumber = PathNumber(1);
const THREE: PathNumber = PathNumber(2);
/// How long an answer is under way before another path sends it, too.
const PATIENCE: Duration = Duration::from_millis(SUPPORT.callback_ms as u64 / 4);
const MOMENT: Duration = Duration::from_millis(1);

/// The next order of a path is a REGISTER. Its number, and the client that it names.
pub(super) fn registering(member: &mut Member, now: Instant, path: PathNumber) -> (u64, Option<u64>) {
    let sent = member.next_order(now, path);
    let Some((number, Order { client, parameters: Parameters::Register { key: KEY, .. } })) = sent else {
        panic!("{sent:?}")
    };
    (number, client.map(ClientId::bits))
}

/// Another path joins: it names the client.
pub(super) fn join(member: &mut Member, now: Instant, path: PathNumber) {
    let (number, named) = registering(member, now, path);
    assert_eq!(named, Some(CLIENT));
    assert!(!member.may_issue(now, path));
    member.handle_answer(now, path, number, Answer::Done);
    assert!(member.may_issue(now, path));
}

/// A client of so many paths, all of which have joined.
pub(super) fn joined_by(count: u32) -> Member {
    let mut member = joined();
    for number in 1..count {
        let path = member.add_path();
        assert_eq!(path, PathNumber(number));
        member.begin_session(NOW, path);
        join(&mut member, NOW, path);
    }
    member
}

fn is_renewal(order: &Option<(u64, Order)>) -> bool {
    matches!(order, Some((_, Order { parameters: Parameters::Renew { .. }, .. })))
}

#[test]
fn while_a_lost_path_may_still_bring_something_nothing_is_sent_for_blocks() {
    for lost in [ONE, TWO] {
        let mut member = joined_by(2);
        let other = if lost == ONE { TWO } else { ONE };
        member.end_session(NOW, lost);
        assert!(!member.may_issue(NOW, other) && member.copies().may_use());
        let (number, named) = registering(&mut member, NOW, other);
        assert_eq!(named, None, "so the lost path is the client's no more");
        assert_eq!(member.next_order(NOW, other), None);
        member.handle_message(NOW, other, &message(CLIENT, 2, registered(KEY)));
        assert!(!member.may_issue(NOW, other), "that may be the answer to an earlier one");
        member.handle_answer(NOW, other, number, Answer::Done);
        assert!(member.may_issue(NOW, other) && member.copies().may_use());
        member.begin_session(NOW, lost);
        join(&mut member, NOW, lost);
        assert_eq!(member.status(NOW).lives, 1);
    }
}

/// It was sent before the other path was lost, and the target may get what that had sent after it.
#[test]
fn an_answer_to_a_registration_of_before_a_path_was_lost_counts_for_nothing() {
    let mut member = joined_by(2);
    assert_eq!(member.add_path(), THREE);
    member.begin_session(NOW, THREE);
    let (before, named) = registering(&mut member, NOW, THREE);
    assert_eq!(named, Some(CLIENT));
    member.end_session(NOW, ONE);
    member.handle_answer(NOW, THREE, before, Answer::Done);
    assert!(!member.may_issue(NOW, THREE));
    // The same with one that takes the paths of before from the client.
    let (before, named) = registering(&mut member, NOW, TWO);
    assert_eq!(named, None);
    member.handle_message(NOW, TWO, &message(CLIENT, 2, registered(KEY)));
    let later = NOW + REGISTRATION_WAIT;
    let (number, _) = registering(&mut member, later, THREE);
    member.handle_message(later, THREE, &message(CLIENT, 2, registered(KEY)));
    member.handle_answer(later, THREE, number, Answer::Done);
    assert!(member.may_issue(later, THREE));
    member.end_session(later, THREE);
    member.handle_answer(later, TWO, before, Answer::Done);
    assert!(!member.may_issue(later, TWO), "what the third sent meanwhile may come later");
}

/// The target may have started again: then it makes another client of who registers.
#[test]
fn a_registration_that_was_carried_out_counts_when_it_is_known_whose_it_is() {
    let mut member = joined_by(2);
    member.end_session(NOW, ONE);
    let (number, _) = registering(&mut member, NOW, TWO);
    member.handle_answer(NOW, TWO, number, Answer::Done);
    assert!(!member.may_issue(NOW, TWO));
    member.handle_message(NOW, TWO, &registered_as(2 << 32 | 5));
    poll_at(&mut member, NOW);
    assert!(member.may_issue(NOW, TWO));
    assert_eq!((member.status(NOW).client, member.status(NOW).lives), (Some(2 << 32 | 5), 2));
    assert!(member.take_new_start(ONE) && member.take_new_start(TWO) && !member.take_new_start(TWO));
}

#[test]
fn the_others_join_again_when_one_has_registered_alone() {
    let mut member = joined_by(3);
    member.end_session(NOW, TWO);
    let (number, named) = registering(&mut member, NOW, ONE);
    assert_eq!((named, member.next_order(NOW, THREE)), (None, None));
    member.handle_message(NOW, ONE, &message(CLIENT, 2, registered(KEY)));
    member.handle_answer(NOW, ONE, number, Answer::Done);
    assert!(member.may_issue(NOW, ONE));
    join(&mut member, NOW, THREE);
}

/// The path is dead, and nobody has noticed yet.
#[test]
fn a_registration_that_stays_unanswered_is_tried_by_another_path() {
    let mut member = joined_by(3);
    member.end_session(NOW, THREE);
    let (late, _) = registering(&mut member, NOW, ONE);
    assert_eq!(member.next_deadline(TWO, true), Some(NOW + REGISTRATION_WAIT));
    assert_eq!(member.next_order(NOW, TWO), None);
    let later = NOW + REGISTRATION_WAIT;
    assert_eq!(member.next_order(later, ONE), None, "it has had its time");
    let (number, named) = registering(&mut member, later, TWO);
    assert_eq!(named, None);
    member.handle_message(later, TWO, &message(CLIENT, 2, registered(KEY)));
    member.handle_answer(later, TWO, number, Answer::Done);
    assert!(member.may_issue(later, TWO) && !member.may_issue(later, ONE));
    member.handle_answer(later, ONE, late, Answer::Done);
    assert!(!member.may_issue(later, ONE), "the other one came behind it");
    join(&mut member, later, ONE);
}

#[test]
fn a_message_is_taken_once_from_whichever_path_brings_it_first() {
    let mut member = joined_by(2);
    let purges: Vec<Message> = (2..6).map(|number| message(CLIENT, number, purge(number, number, 1))).collect();
    member.handle_message(NOW, TWO, &purges[0]);
    member.handle_message(NOW, TWO, &purges[1]);
    purges[..3].iter().for_each(|purge| member.handle_message(NOW, ONE, purge));
    member.handle_message(NOW, TWO, &purges[2]);
    member.handle_message(NOW, TWO, &purges[3]);
    poll(&mut member);
    assert_eq!((member.status(NOW).purges, member.over().is_none()), (4, true));
    let mut answered: Vec<u64> = (2..4).map(|callback| take_done(&mut member, NOW, callback)).collect();
    for callback in 4..6 {
        let sent = member.next_order(NOW, TWO);
        let Some((number, Order { parameters: Parameters::Acknowledge { callback: its, .. }, .. })) = sent else {
            panic!("{sent:?}");
        };
        assert_eq!(its, callback, "each path answers");
        answered.push(number);
    }
    assert_eq!((member.next_order(NOW, ONE), member.next_order(NOW, TWO)), (None, None));
}

#[test]
fn an_answer_that_gets_none_itself_goes_by_another_path_too_and_once() {
    let mut member = joined_by(2);
    member.handle_message(NOW, ONE, &message(CLIENT, 2, purge(1, 0, 1)));
    poll(&mut member);
    take_done(&mut member, NOW, 1);
    let soon = NOW + (PATIENCE - MOMENT);
    assert_eq!(member.next_order(soon, TWO), None);
    assert_eq!(member.next_deadline(TWO, true), Some(NOW + PATIENCE));
    let late = NOW + PATIENCE;
    assert_eq!(member.next_order(late, ONE), None, "not where it is under way");
    let sent = member.next_order(late, TWO);
    assert!(
        matches!(sent, Some((_, Order { parameters: Parameters::Acknowledge { callback: 1, .. }, .. }))),
        "{sent:?}"
    );
    assert_eq!((member.next_order(late, TWO), member.next_order(late, ONE)), (None, None));
    // What is due while no order may be sent keeps nobody busy.
    assert!(member.next_deadline(TWO, false) > Some(late));
}

#[test]
fn a_lease_goes_on_while_any_path_renews_it() {
    let mut member = joined_by(2);
    for third in 1..30 {
        let now = NOW + Duration::from_millis(3334) * third;
        poll_at(&mut member, now);
        assert_eq!(is_renewal(&member.next_order(now, ONE)), third == 1, "the first one is never answered");
        let renewal = member.next_order(now, TWO);
        assert!(is_renewal(&renewal), "{renewal:?}");
        member.handle_answer(now, TWO, renewal.expect("it is there").0, Answer::Done);
        assert!(member.copies().may_use() && member.may_issue(now, TWO));
    }
    assert_eq!(member.status(NOW).lives, 1);
}

#[test]
fn a_target_that_knows_no_such_client_is_a_stranger_when_another_path_has_shown_that_it_lives() {
    for lives in [true, false] {
        let mut member = joined();
        assert_eq!(member.add_path(), TWO);
        member.begin_session(NOW, TWO);
        let (number, _) = registering(&mut member, NOW, TWO);
        member.handle_answer(NOW, TWO, number, Answer::Refused);
        assert!(!member.is_stranger(TWO) && !member.has_other_path(ONE));
        let renewal = member.next_order(NOW, ONE);
        assert!(is_renewal(&renewal), "it is asked at once: {renewal:?}");
        let answer = if lives { Answer::Done } else { Answer::Unknown };
        member.handle_answer(NOW, ONE, renewal.expect("it is there").0, answer);
        assert_eq!(member.is_stranger(TWO), lives);
        if !lives {
            assert_eq!(registering(&mut member, NOW, ONE).1, None, "the target has started again");
        }
    }
}

/// It would take the client to a target that knows nothing of the others there.
#[test]
fn a_stranger_does_not_register_for_the_client_and_who_may_be_one_waits_for_the_others() {
    for is_shown in [true, false] {
        let mut member = joined_by(2);
        member.end_session(NOW, TWO);
        let (alone, _) = registering(&mut member, NOW, ONE);
        member.handle_message(NOW, ONE, &message(CLIENT, 2, registered(KEY)));
        member.handle_answer(NOW, ONE, alone, Answer::Done);
        member.begin_session(NOW, TWO);
        let (number, _) = registering(&mut member, NOW, TWO);
        member.handle_answer(NOW, TWO, number, Answer::Refused);
        let renewal = member.next_order(NOW, ONE).expect("it is asked").0;
        if is_shown {
            member.handle_answer(NOW, ONE, renewal, Answer::Done);
            member.end_session(NOW, TWO);
            member.begin_session(NOW, TWO);
        }
        member.end_session(NOW, ONE);
        let early = NOW + (UNKNOWN_WAIT - MOMENT);
        assert_eq!((member.next_order(NOW, TWO), member.next_order(early, TWO)), (None, None));
        let (late, due) = (NOW + UNKNOWN_WAIT, member.next_deadline(TWO, true));
        match is_shown {
            true => assert_eq!(member.next_order(late + UNKNOWN_WAIT, TWO), None, "never"),
            false => {
                assert!(due <= Some(late), "{due:?}");
                assert_eq!(registering(&mut member, late, TWO).1, None, "the target may have started again");
            }
        }
        member.begin_session(late, ONE);
        let later = late + REGISTRATION_WAIT;
        assert_eq!(registering(&mut member, later, ONE).1, None, "who is none goes on");
    }
}

/// The answer says that the client lived when the renewal was carried out, which may have been before.
#[test]
fn a_renewal_that_was_sent_before_a_path_was_refused_does_not_make_a_stranger_of_it() {
    let mut member = joined();
    assert_eq!(member.add_path(), TWO);
    member.paths.renew();
    let early = member.next_order(NOW, ONE);
    assert!(is_renewal(&early), "{early:?}");
    let later = NOW + MOMENT;
    member.begin_session(later, TWO);
    let (number, _) = registering(&mut member, later, TWO);
    member.handle_answer(later, TWO, number, Answer::Refused);
    member.handle_answer(later, ONE, early.expect("it is there").0, Answer::Done);
    assert!(!member.is_stranger(TWO), "the target may have started again since");
    let renewal = member.next_order(later, ONE);
    assert!(is_renewal(&renewal), "{renewal:?}");
    member.handle_answer(later, ONE, renewal.expect("it is there").0, Answer::Done);
    assert!(member.is_stranger(TWO));
}

/// Requests are not left to it, nor the client.
#[test]
fn a_path_that_was_a_stranger_is_none_of_the_client_until_it_has_joined() {
    let mut member = joined();
    assert_eq!(member.add_path(), TWO);
    member.begin_session(NOW, TWO);
    let (number, _) = registering(&mut member, NOW, TWO);
    member.handle_answer(NOW, TWO, number, Answer::Refused);
    let renewal = member.next_order(NOW, ONE).expect("it is asked").0;
    member.handle_answer(NOW, ONE, renewal, Answer::Done);
    member.end_session(NOW, TWO);
    member.begin_session(NOW, TWO);
    assert!(!member.is_stranger(TWO) && !member.has_other_path(ONE), "it may be one again");
    join(&mut member, NOW, TWO);
    assert!(member.has_other_path(ONE));
}

/// The target answers a request so, which another path has taken the session from.
#[test]
fn a_path_that_its_target_does_not_know_any_more_joins_again() {
    let mut member = joined_by(2);
    member.note_unknown(NOW, TWO);
    assert!(!member.may_issue(NOW, TWO) && member.may_issue(NOW, ONE) && member.copies().may_use());
    let (number, named) = registering(&mut member, NOW, TWO);
    assert_eq!(named, Some(CLIENT));
    member.note_unknown(NOW, TWO);
    assert_eq!(member.next_order(NOW, TWO), None, "the others that were under way say the same");
    member.handle_answer(NOW, TWO, number, Answer::Done);
    assert!(member.may_issue(NOW, TWO));
}
