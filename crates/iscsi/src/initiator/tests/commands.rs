//! Commands: when they leave, by the target's window, and how each ends.

use super::*;

/// RFC 7143 4.2.2.1: commands wait for the window and are numbered as they leave, over the end of the numbers.
#[test]
fn commands_wait_for_the_window() {
    let mut pair = Pair::logged_in(Offer::target());
    assert_eq!(pair.session.window(), 8);
    (0..12).for_each(|token| pair.submit(token, Data::None));
    let sent = pair.sent();
    let numbers: Vec<u32> = sent
        .iter()
        .map(|pdu| match pdu.header.bhs {
            Ok(Bhs::ScsiCommand(command)) => command.cmd_sn.0,
            ref other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(numbers, [u32::MAX, 0, 1, 2, 3, 4, 5, 6]);
    let Ok(Bhs::ScsiCommand(first)) = sent[0].header.bhs else { unreachable!() };
    (pair.exp_cmd_sn, pair.max_cmd_sn) = (Serial32(7), Serial32(8));
    let response = pair.response(first.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    assert_eq!(pair.completed().token, 0);
    assert_eq!(pair.sent().len(), 2);
    // A window that shrinks is ignored.
    (pair.exp_cmd_sn, pair.max_cmd_sn) = (Serial32(3), Serial32(4));
    let Ok(Bhs::ScsiCommand(second)) = sent[1].header.bhs else { unreachable!() };
    let response = pair.response(second.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    assert_eq!((pair.session.window(), pair.sent().len()), (0, 0));
}

/// RFC 7143 4.2.2.1: it carries the CmdSN that the next command will have, and does not use it up.
#[test]
fn an_immediate_command_passes_a_closed_window_with_its_data() {
    let mut pair = Pair::logged_in(Offer::target());
    (0..9).for_each(|token| pair.submit(token, Data::None));
    assert_eq!(pair.sent().len(), 8);
    assert_eq!(pair.session.window(), 0);
    let (cdb, attribute, timeout) = ([0xc4; 16], TaskAttribute::Simple, Duration::from_secs(30));
    let command = Command { token: 77, lun: LUN, cdb, attribute, data: write_of(24), timeout };
    pair.session.submit_immediate(pair.now, command);
    let sent = pair.sent();
    assert_eq!((sent.len(), sent[0].data.bytes().len()), (1, 24));
    let Ok(Bhs::ScsiCommand(immediate)) = sent[0].header.bhs else { panic!("a command") };
    assert!(immediate.is_immediate && immediate.is_final);
    let response = pair.response(immediate.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    assert_eq!(pair.completed().token, 77);
    (pair.exp_cmd_sn, pair.max_cmd_sn) = (pair.exp_cmd_sn.plus(8), pair.max_cmd_sn.plus(8));
    let (next, _) = {
        let response = pair.response(immediate.initiator_task_tag, 0);
        pair.send(&response, Vec::new()).unwrap();
        let mut sent = pair.sent();
        let Ok(Bhs::ScsiCommand(next)) = sent[0].header.bhs else { panic!("a command") };
        (next, sent.remove(0))
    };
    assert_eq!((next.cmd_sn, next.is_immediate), (immediate.cmd_sn, false));
}

#[test]
fn good_without_the_data_is_a_failure() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(read_of(512));
    let response = pair.response(command.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    assert!(matches!(pair.completed().outcome, Outcome::Failed(_)));
}

#[test]
fn sense_data_comes_along() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(Data::None);
    let response = pair.response(command.initiator_task_tag, 2);
    pair.send(&response, vec![0, 3, 0x70, 0, 6, 99]).unwrap();
    assert!(matches!(pair.completed().outcome, Outcome::Status { status: 2, sense, .. } if sense == [0x70, 0, 6]));
}

#[test]
fn a_lost_session_gives_everything_back_in_order() {
    let mut pair = Pair::logged_in(Offer::target());
    for token in 0..12 {
        pair.submit(token, if token % 2 == 0 { write_of(512) } else { read_of(512) });
    }
    let sent = pair.sent();
    let Ok(Bhs::ScsiCommand(third)) = sent[2].header.bhs else { panic!("a command") };
    let response = pair.response(third.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    drop(pair.connection);
    let returned = pair.session.take_all();
    assert_eq!(returned.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert!(returned.iter().all(|(_, buffer)| buffer.len() == 512));
    assert_eq!(pair.session.outstanding_count(), 0);
}

#[test]
fn a_window_that_stays_closed_is_told_apart() {
    let mut pair = Pair::logged_in(Offer::target());
    (0..9).for_each(|token| pair.submit(token, Data::None));
    assert_eq!(pair.sent().len(), 8);
    pair.pass(Duration::from_secs(30)).unwrap();
    let completed = pair.completed();
    assert_eq!((completed.token, completed.outcome), (8, Outcome::NotSent));
}

#[test]
fn a_rejected_command_fails_alone() {
    let mut pair = Pair::logged_in(Offer::target());
    let (command, _) = pair.issue(Data::None);
    let reject = |pair: &mut Pair, reason| Reject {
        reason,
        stat_sn: pair.next_stat_sn(),
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
        data_sn: Serial32(0),
    };
    let header = reject(&mut pair, RejectReason::InvalidPduField);
    pair.send(&header, command.to_bytes().to_vec()).unwrap();
    assert!(matches!(pair.completed().outcome, Outcome::Failed(words) if words.contains("Invalid PDU field")));
    let header = reject(&mut pair, RejectReason::ProtocolError);
    assert_eq!(pair.send(&header, vec![1, 2, 3]), Err(ConnectionError::Rejected(RejectReason::ProtocolError)));
}
