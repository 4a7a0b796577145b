//! Renewals that are not carried out or not answered, and leases that are over at once.

use super::*;
use crate::limits::{RENEWALS_UNDER_WAY_MAX, SHARING_WAIT_MIN};

const MOMENT: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_millis(SUPPORT.lease_ms as u64);

fn granting(lease: Duration) -> MessageBody {
    MessageBody::Registered { lease_ms: lease.as_millis() as u32, grace_ms: 0, key: KEY, proof: [9; 32] }
}

/// The next order is a renewal. Its number.
fn renewal(member: &mut Member, now: Instant) -> u64 {
    match member.next_order(now, ONE) {
        Some((number, Order { parameters: Parameters::Renew { .. }, .. })) => number,
        other => panic!("{other:?} is no renewal"),
    }
}

/// Nothing but its answer makes a life go on that was over at this end.
#[test]
fn a_renewal_that_was_not_carried_out_stays_due_and_is_sent_later_and_later() {
    for answer in [Answer::Again, Answer::Refused] {
        let mut member = joined();
        let late = NOW + LEASE + Duration::from_secs(3);
        poll_at(&mut member, late);
        rejoin(&mut member, late, 2);
        let first = renewal(&mut member, late);
        member.handle_answer(late, ONE, first, answer);
        let second = renewal(&mut member, late);
        assert_eq!(member.next_order(late, ONE), None, "one at a time");
        member.handle_answer(late, ONE, second, answer);
        assert_eq!(member.next_order(late, ONE), None);
        let later = late + SHARING_WAIT_MIN;
        assert_eq!(member.next_deadline(ONE, true), Some(later));
        let third = renewal(&mut member, later);
        member.handle_answer(later, ONE, third, Answer::Done);
        poll_at(&mut member, later);
        assert!(member.may_issue(later, ONE) && member.copies().may_use());
        assert_eq!(member.next_order(later, ONE), None);
    }
}

/// A link that is slower than the lease is long.
#[test]
fn a_lease_that_is_over_before_it_is_answered_is_asked_for_later_and_later() {
    let round_trip = LEASE_MIN;
    let mut member = Member::new("here".to_owned(), KEY, SUPPORT, Copies::new(Arc::new(VirtualClock::new())));
    member.add_path();
    member.begin_session(NOW, ONE);
    let (mut now, mut sent, mut messages) = (NOW, 0, 0);
    let time = Duration::from_secs(1000);
    while now < NOW + time {
        poll_at(&mut member, now);
        let Some((number, order)) = member.next_order(now, ONE) else {
            now = member.next_deadline(ONE, true).map_or(now + MOMENT, |at| at.max(now + MOMENT));
            continue;
        };
        now = now + round_trip;
        sent += 1;
        member.handle_answer(now, ONE, number, Answer::Done);
        if matches!(order.parameters, Parameters::Register { .. }) {
            messages += 1;
            member.handle_message(now, ONE, &message(CLIENT, messages, granting(round_trip)));
        }
        assert!(!member.may_issue(now, ONE) && member.over().is_none());
    }
    let each = time / sent;
    assert!(sent > 100 && each > round_trip * 2, "{sent} orders, one in {each:?}");
}

/// What is stuck on one connection keeps no lease from being renewed by another one.
#[test]
fn a_renewal_without_an_answer_goes_by_another_connection_of_the_session_if_it_has_one() {
    let third = NOW + (LEASE / 3 + MOMENT);
    let mut narrow = joined();
    poll_at(&mut narrow, third);
    renewal(&mut narrow, third);
    let late = NOW + LEASE * 9 / 10;
    poll_at(&mut narrow, late);
    assert_eq!(narrow.next_order(late, ONE), None, "it would be stuck behind the first one");

    let mut member = joined();
    member.note_width(ONE, true);
    let patience = member.renewal_patience();
    poll_at(&mut member, third);
    renewal(&mut member, third);
    assert_eq!(member.next_order(third + (patience - MOMENT), ONE), None);
    let mut now = third + patience;
    assert_eq!(member.next_deadline(ONE, true), Some(now));
    // The first one is never answered.
    for _ in 0..20 {
        let sent = renewal(&mut member, now);
        member.handle_answer(now, ONE, sent, Answer::Done);
        poll_at(&mut member, now);
        assert_eq!(member.next_order(now, ONE), None, "the lease is renewed");
        now = now + LEASE / 3;
        poll_at(&mut member, now);
        assert!(member.may_issue(now, ONE));
    }
    assert_eq!(member.status(now).lives, 1);
}

#[test]
fn so_many_renewals_are_under_way_and_no_more() {
    let mut member = joined();
    member.note_width(ONE, true);
    let mut sent = 0;
    for second in 4..100 {
        let now = NOW + Duration::from_secs(second);
        member.paths.renew();
        sent += usize::from(member.next_order(now, ONE).is_some());
    }
    assert_eq!(sent, RENEWALS_UNDER_WAY_MAX);
}

#[test]
fn a_lease_that_is_too_short_counts_as_none_and_the_session_is_dropped_until_another_one() {
    let mut member = joining();
    member.handle_message(NOW, ONE, &message(CLIENT, 1, granting(LEASE_MIN - MOMENT)));
    poll(&mut member);
    assert!(member.lease_refusal(ONE).is_some_and(|error| error.kind() == ErrorKind::Unsupported));
    assert!(!member.may_issue(NOW, ONE) && !member.copies().may_use() && member.over().is_none());
    assert_eq!(member.next_order(NOW + LEASE, ONE), None);
    member.end_session(NOW, ONE);
    member.begin_session(NOW, ONE);
    assert!(member.lease_refusal(ONE).is_none());
    assert_eq!(named_before(&mut member), None);
    member.handle_message(NOW, ONE, &message(CLIENT, 1, granting(LEASE_MIN)));
    poll(&mut member);
    assert!(member.lease_refusal(ONE).is_none() && member.may_issue(NOW, ONE));
}
