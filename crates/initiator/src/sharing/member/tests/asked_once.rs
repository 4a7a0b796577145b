//! Requests for locks over answers, messages and sessions that come in another order.

use super::*;

/// A request that has not left when the session is lost is sent by the next registration, and by nothing else.
#[test]
fn a_request_that_had_not_left_when_its_session_was_lost_is_sent_once() {
    let mut member = asking();
    poll(&mut member);
    member.end_session(NOW, ONE);
    member.begin_session(NOW, ONE);
    rejoin(&mut member, NOW, 2);
    let (_, requests) = live_for(&mut member, NOW, Duration::from_secs(1));
    assert_eq!(requests.len(), 1, "{requests:?}");
}

/// The locks are granted before the target has said that it has the request: nothing more is to come.
#[test]
fn a_request_whose_message_came_before_its_answer_is_waited_for_no_more() {
    let mut member = asking();
    poll(&mut member);
    let sent = member.next_order(NOW, ONE);
    let Some((number, Order { parameters: Parameters::Lock { request, .. }, .. })) = sent else { panic!("{sent:?}") };
    member.handle_message(NOW, ONE, &message(CLIENT, 2, granted(request, 0)));
    member.handle_answer(NOW, ONE, number, Answer::Done);
    let (now, again) = live_for(&mut member, NOW, 2 * answer_time());
    assert!(member.over().is_none() && member.may_issue(now, ONE) && again.is_empty(), "{again:?}");
    assert_eq!(standing(&member), Some(GrantStanding::Held));
}
