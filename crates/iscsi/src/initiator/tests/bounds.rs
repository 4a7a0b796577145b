//! What a target can make an initiator hold: everything is limited, and a target that exceeds a
//! limit loses its connection.

use super::*;
use crate::limits::{
    DISCOVERED_TARGETS_MAX, DROPPED_CONNECTIONS_MAX, EVENT_BYTES_MAX, EVENTS_WAITING_MAX, IMMEDIATE_REQUESTS_MAX,
    INITIATOR_TASKS_MAX, REPLIES_WAITING_MAX, SEND_TARGETS_BYTES_MAX, SENSE_BYTES_MAX, TEXT_RESPONSES_MAX,
    TRANSMIT_BYTES_HIGH,
};

/// Far more than any bound.
const MANY: usize = 20_000;

/// Repeats `say` until it is refused. Returns how often it was accepted, and the error.
fn until_refused(
    pair: &mut Pair,
    mut say: impl FnMut(&mut Pair) -> Result<(), ConnectionError>,
) -> (usize, ConnectionError) {
    let count = (0..MANY).find_map(|count| say(pair).err().map(|error| (count, error)));
    count.expect("there is a bound")
}

fn is_protocol_error(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::Protocol(_))
}

/// RFC 7143 4.2.2.1: the widest there is.
fn with_a_window_without_end() -> Pair {
    let mut pair = Pair::logged_in(Offer::target());
    (pair.exp_cmd_sn, pair.max_cmd_sn) = (Serial32(u32::MAX), Serial32((1 << 31) - 2));
    pair.submit(0, Data::None);
    let Ok(Bhs::ScsiCommand(first)) = pair.sent()[0].header.bhs else { panic!("a command was submitted") };
    let response = pair.response(first.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    pair
}

#[test]
fn a_window_without_end_lets_out_so_many_commands_and_no_more() {
    let mut pair = with_a_window_without_end();
    assert!(pair.session.window() as usize > 2 * INITIATOR_TASKS_MAX);
    (1..=2 * INITIATOR_TASKS_MAX as u64).for_each(|token| pair.submit(token, Data::None));
    let mut sent = Vec::new();
    while pair.connection.takes_commands(&pair.session) && pair.connection.send_next(&mut pair.session) {
        sent.extend(pair.flush());
    }
    assert_eq!(sent.len(), INITIATOR_TASKS_MAX);
    // The next one takes the place of one that has ended.
    let Ok(Bhs::ScsiCommand(second)) = sent[0].header.bhs else { panic!("commands were submitted") };
    let response = pair.response(second.initiator_task_tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    assert_eq!(pair.sent().len(), 1);
}

#[test]
fn data_is_not_queued_again_and_again() {
    let mut pair = Pair::logged_in(modest());
    let (command, _) = pair.issue(write_of(64 << 10));
    let r2t = pair.r2t(command.initiator_task_tag, 4096, 8192);
    let (count, error) = until_refused(&mut pair, |pair| pair.send(&r2t, Vec::new()));
    assert!(is_protocol_error(&error), "{error}");
    assert!(count * 8192 <= TRANSMIT_BYTES_HIGH + (256 << 10), "{count} bursts of 8 KiB are queued");
}

/// RFC 7143 4.2.2.1: a target may refuse more than a few. Further overdue tasks are ended by a
/// reset, which needs one more.
#[test]
fn so_many_commands_are_aborted_at_once_and_the_rest_by_a_reset() {
    let mut pair = with_a_window_without_end();
    (1..=3 * IMMEDIATE_REQUESTS_MAX as u64).for_each(|token| pair.submit(token, Data::None));
    assert_eq!(pair.sent().len(), 3 * IMMEDIATE_REQUESTS_MAX);
    pair.pass(Duration::from_secs(30)).unwrap();
    let functions = pair.functions_sent();
    let (aborts, resets): (Vec<&_>, Vec<&_>) =
        functions.iter().partition(|request| request.function == Ok(TaskManagementFunction::AbortTask));
    assert_eq!((aborts.len(), resets.len()), (IMMEDIATE_REQUESTS_MAX, 1));
    assert_eq!(resets[0].function, Ok(TaskManagementFunction::LogicalUnitReset));
}

/// The most data that a conforming target can have waiting: every command whole, none of it written
/// yet.
#[test]
fn all_data_of_all_commands_may_wait_at_once() {
    let mut pair = Pair::logged_in(modest());
    for token in 0..4 {
        pair.submit(token, write_of(3 << 20));
    }
    let sent = pair.sent();
    let command_of = |pdu: &ReceivedPdu| match pdu.header.bhs {
        Ok(Bhs::ScsiCommand(command)) => Some(command),
        _ => None,
    };
    let commands: Vec<_> = sent.iter().filter_map(command_of).collect();
    assert_eq!(commands.len(), 4);
    for command in commands {
        for offset in (4096..3 << 20).step_by(4096) {
            let r2t = pair.r2t(command.initiator_task_tag, offset, 4096);
            pair.send(&r2t, Vec::new()).unwrap();
        }
    }
}

fn ping(pair: &Pair) -> NopIn {
    NopIn {
        lun: 0,
        initiator_task_tag: None,
        target_transfer_tag: TargetTransferTag::new(5),
        stat_sn: pair.stat_sn,
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
    }
}

#[test]
fn pings_whose_answers_are_not_read_come_to_an_end() {
    let mut pair = Pair::logged_in(modest());
    let nop = ping(&pair);
    let (count, error) = until_refused(&mut pair, |pair| pair.send(&nop, Vec::new()));
    assert_eq!((count, is_protocol_error(&error)), (REPLIES_WAITING_MAX, true), "{error}");
}

#[test]
fn pings_whose_answers_are_read_do_not() {
    let mut pair = Pair::logged_in(modest());
    let nop = ping(&pair);
    for _ in 0..3 * REPLIES_WAITING_MAX / 8 {
        for _ in 0..8 {
            pair.send(&nop, Vec::new()).unwrap();
        }
        assert_eq!(pair.flush().len(), 8);
    }
}

fn message(pair: &mut Pair, event: AsyncEvent) -> AsyncMessage {
    let stat_sn = pair.next_stat_sn();
    AsyncMessage { lun: LUN, stat_sn, exp_cmd_sn: pair.exp_cmd_sn, max_cmd_sn: pair.max_cmd_sn, event }
}

#[test]
fn events_that_nobody_takes_are_bounded_in_number_and_size() {
    for event in [AsyncEvent::ScsiAsyncEvent, AsyncEvent::LogoutRequest { logout_within_seconds: 3 }] {
        let mut pair = Pair::logged_in(modest());
        let message = message(&mut pair, event);
        let data = long_sense();
        let (count, error) = until_refused(&mut pair, |pair| pair.send(&message, data.clone()));
        assert_eq!((count, is_protocol_error(&error)), (EVENTS_WAITING_MAX, true), "{error}");
        while let Some(event) = pair.connection.poll_event() {
            assert!(!matches!(event, Event::ScsiEvent { sense, .. } if sense != [7; SENSE_BYTES_MAX]));
        }
        pair.send(&message, data).expect("events that are taken make room");
    }
}

/// A data segment with 4,000 bytes of sense data.
fn long_sense() -> Vec<u8> {
    [&4_000_u16.to_be_bytes()[..], &[7; 4_000]].concat()
}

#[test]
fn of_what_a_target_says_of_a_command_or_by_itself_as_much_is_kept_as_it_can_be() {
    let mut pair = Pair::logged_in(modest());
    let (command, _) = pair.issue(Data::None);
    let response = pair.response(command.initiator_task_tag, 2);
    pair.send(&response, long_sense()).unwrap();
    let outcome = pair.completed().outcome;
    assert!(matches!(outcome, Outcome::Status { sense, .. } if sense == [7; SENSE_BYTES_MAX]));
    let vendors = AsyncEvent::Vendor { event: 255, code: 0, parameters: [0; 3] };
    let message = message(&mut pair, vendors);
    pair.send(&message, vec![7; 4_000]).unwrap();
    let event = pair.connection.poll_event();
    assert!(matches!(event, Some(Event::VendorEvent { data, .. }) if data == [7; EVENT_BYTES_MAX]));
}

#[test]
fn connections_that_are_dropped_are_remembered_once_each_and_not_without_end() {
    let mut pair = Pair::logged_in(modest());
    let dropped = |pair: &mut Pair, cid| {
        let message = message(pair, AsyncEvent::ConnectionDrop { cid, wait_seconds: 0, retain_seconds: 0 });
        pair.send(&message, Vec::new())
    };
    for _ in 0..2 * DROPPED_CONNECTIONS_MAX {
        dropped(&mut pair, 77).unwrap();
    }
    assert_eq!((pair.connection.poll_dropped(), pair.connection.poll_dropped()), (Some(77), None));
    let mut cid = 100;
    let (count, error) = until_refused(&mut pair, |pair| {
        cid += 1;
        dropped(pair, cid)
    });
    assert_eq!((count, is_protocol_error(&error)), (DROPPED_CONNECTIONS_MAX, true), "{error}");
}

/// Answers the request for the next piece of a list with this one.
fn list(pair: &mut Pair, piece: &[u8], is_last: bool) -> Result<(), ConnectionError> {
    let sent = pair.flush();
    let Ok(Bhs::TextRequest(request)) = sent[0].header.bhs else { panic!("the next piece is asked for") };
    let response = TextResponse {
        is_continued: false,
        lun: 0,
        initiator_task_tag: request.initiator_task_tag,
        target_transfer_tag: TargetTransferTag::new(9).filter(|_| !is_last),
        stat_sn: pair.next_stat_sn(),
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
    };
    pair.send(&response, piece.to_vec())
}

#[test]
fn a_list_of_targets_comes_in_so_many_pieces_and_no_more() {
    let mut pair = Pair::logged_in(modest());
    pair.connection.send_targets(&mut pair.session);
    let (count, error) = until_refused(&mut pair, |pair| list(pair, &[], false));
    assert_eq!((count, is_protocol_error(&error)), (TEXT_RESPONSES_MAX, true), "{error}");
}

#[test]
fn a_list_of_targets_has_so_many_bytes_and_no_more() {
    const PIECE_BYTES: usize = 4096;
    let mut pair = Pair::logged_in(modest());
    pair.connection.send_targets(&mut pair.session);
    let piece = [b"TargetAddress=".as_slice(), &[b'a'; PIECE_BYTES - 15], b"\0"].concat();
    let (count, error) = until_refused(&mut pair, |pair| list(pair, &piece, false));
    assert_eq!(count, SEND_TARGETS_BYTES_MAX / PIECE_BYTES, "{error}");
}

/// A truncated list would hide the other targets.
#[test]
fn a_list_of_more_targets_than_are_looked_at_is_refused_and_not_cut() {
    for (count, is_taken) in [(DISCOVERED_TARGETS_MAX, true), (DISCOVERED_TARGETS_MAX + 1, false)] {
        let mut pair = Pair::logged_in(modest());
        pair.connection.send_targets(&mut pair.session);
        let names: Vec<String> = (0..count).map(|number| format!("TargetName=iqn.2026-01.a:{number}\0")).collect();
        let mut answer = Ok(());
        for (index, piece) in names.chunks(100).enumerate() {
            assert!(answer.is_ok(), "{answer:?}");
            answer = list(&mut pair, piece.concat().as_bytes(), (index + 1) * 100 >= count);
        }
        assert_eq!(answer.is_ok(), is_taken, "{count} targets: {answer:?}");
    }
}

/// A new read would wait behind all of it.
#[test]
fn no_more_commands_leave_the_queue_while_much_data_is_to_be_sent() {
    let mut pair = with_a_window_without_end();
    for token in 1..=100 {
        pair.submit(token, write_of(1 << 20));
    }
    while pair.connection.takes_commands(&pair.session) && pair.connection.send_next(&mut pair.session) {}
    let sent = pair.flush();
    let bytes: usize = sent.iter().map(|pdu| pdu.data.bytes().len()).sum();
    assert!((TRANSMIT_BYTES_HIGH..=TRANSMIT_BYTES_HIGH + (1 << 20)).contains(&bytes), "{bytes} bytes");
}
