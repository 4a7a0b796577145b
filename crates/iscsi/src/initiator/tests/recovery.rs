//! The requests of a connection that takes over the tasks of a lost one, and its handling of the
//! answers.

use super::*;
use crate::initiator::{Completed, Outcome, Removed};

/// CID of the connection that is lost.
const LOST: u16 = 99;

fn pair(level: u8) -> Pair {
    let offer = Offer { error_recovery_level: level, default_time2retain: 20, ..Offer::initiator() };
    Pair::logged_in_as(LoginConfig { offer, ..config() }, Offer { error_recovery_level: 2, ..Offer::target() })
}

/// A command that was sent on the connection that is lost.
fn issue(pair: &mut Pair, token: u64, data: Data) -> ScsiCommand {
    pair.submit(token, data);
    let sent = pair.sent();
    let Ok(Bhs::ScsiCommand(command)) = sent[0].header.bhs else { panic!("a command goes first") };
    pair.session.move_task(command.initiator_task_tag, LOST);
    command
}

fn read() -> Data {
    Data::Read(Buffer::zeroed(8192), 0..8192)
}

fn write() -> Data {
    Data::Write(Buffer::copy_of(&[7; 4096]), 0..4096)
}

/// Requests the removal of the lost connection, and answers.
fn remove(pair: &mut Pair, outcome: LogoutOutcome, exp_cmd_sn: Serial32) -> LogoutRequest {
    pair.connection.remove(&pair.session, LOST);
    let sent = pair.flush();
    let Ok(Bhs::LogoutRequest(request)) = sent[0].header.bhs else { panic!("{:?}", sent[0].header.bhs) };
    assert_eq!((request.is_immediate, request.cid), (true, LOST));
    let response = LogoutResponse {
        outcome,
        initiator_task_tag: request.initiator_task_tag,
        stat_sn: pair.next_stat_sn(),
        exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
        wait_seconds: 2,
        retain_seconds: 20,
    };
    pair.send(&response, Vec::new()).unwrap();
    request
}

fn data_in(pair: &Pair, tag: InitiatorTaskTag, data_sn: u32, is_final: bool) -> DataIn {
    DataIn {
        is_final,
        wants_acknowledgement: false,
        status: None,
        lun: 0,
        initiator_task_tag: tag,
        target_transfer_tag: None,
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
        data_sn: Serial32(data_sn),
        buffer_offset: data_sn * 4096,
    }
}

fn take_over(pair: &mut Pair, tag: InitiatorTaskTag, exp_cmd_sn: Serial32) -> Vec<ReceivedPdu> {
    pair.connection.take_over(pair.now, &mut pair.session, tag, exp_cmd_sn);
    pair.flush()
}

fn answer(
    pair: &mut Pair,
    request: &TaskManagementRequest,
    outcome: TaskManagementOutcome,
) -> Result<(), ConnectionError> {
    let response = TaskManagementResponse {
        outcome,
        initiator_task_tag: request.initiator_task_tag,
        stat_sn: pair.next_stat_sn(),
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
    };
    pair.send(&response, Vec::new())
}

fn reassignment(sent: &[ReceivedPdu]) -> TaskManagementRequest {
    let Ok(Bhs::TaskManagementRequest(request)) = sent[0].header.bhs else { panic!("{:?}", sent[0].header.bhs) };
    assert_eq!((sent.len(), request.is_immediate, request.lun), (1, true, LUN));
    assert_eq!(request.function, Ok(TaskManagementFunction::TaskReassign));
    request
}

#[test]
fn a_command_that_never_arrived_is_sent_again_and_one_that_did_is_reassigned() {
    let mut pair = pair(2);
    let first = issue(&mut pair, 1, read());
    let second = issue(&mut pair, 2, write());
    let request = remove(&mut pair, LogoutOutcome::Closed, second.cmd_sn);
    assert_eq!(request.reason, LogoutReason::RemoveForRecovery);
    let removed = Removed { cid: LOST, outcome: LogoutOutcome::Closed, exp_cmd_sn: second.cmd_sn, wait_seconds: 2 };
    assert_eq!(pair.connection.poll_removed(), Some(removed));
    assert_eq!(pair.connection.poll_removed(), None);
    let tags = [first.initiator_task_tag, second.initiator_task_tag];
    assert_eq!(pair.session.tasks_of(LOST), tags, "in the order of their commands");

    let request = reassignment(&take_over(&mut pair, tags[0], second.cmd_sn));
    assert_eq!((request.referenced_task_tag, request.ref_cmd_sn), (Some(tags[0]), first.cmd_sn));
    assert_eq!(request.exp_data_sn, Serial32(0));
    answer(&mut pair, &request, TaskManagementOutcome::FunctionComplete).unwrap();

    let sent = take_over(&mut pair, tags[1], second.cmd_sn);
    let Ok(Bhs::ScsiCommand(again)) = sent[0].header.bhs else { panic!("{:?}", sent[0].header.bhs) };
    assert_eq!(again, ScsiCommand { exp_stat_sn: again.exp_stat_sn, ..second }, "the same number and the same tag");
    assert_eq!(sent[0].data.bytes(), [7; 4096], "with its immediate data");
    assert_eq!((pair.session.load(LOST).commands, pair.session.load(3).commands), (0, 2));
}

#[test]
fn a_read_goes_on_behind_what_has_come() {
    let mut pair = pair(2);
    pair.submit(1, read());
    let sent = pair.sent();
    let Ok(Bhs::ScsiCommand(command)) = sent[0].header.bhs else { panic!("a command goes first") };
    let tag = command.initiator_task_tag;
    let first = data_in(&pair, tag, 0, false);
    pair.send(&first, vec![1; 4096]).unwrap();
    // The second piece is lost in the middle.
    let second = data_in(&pair, tag, 1, true);
    let mut raw = second.to_bytes();
    Lengths { ahs_words: 0, data_segment_bytes: 4096 }.emit(&mut raw);
    pair.receive(&[&raw[..], &[9; 1000]].concat(), 5000).unwrap();
    let fresh = Connection::new(pair.now, &pair.session, LoginConfig { cid: 4, ..config() }, TIMING);
    std::mem::replace(&mut pair.connection, fresh).abandon(&mut pair.session);
    // Another connection takes it over; in reality it would have logged in.
    let mut other = Pair::logged_in(Offer::target());
    std::mem::swap(&mut pair.connection, &mut other.connection);
    pair.session.move_task(tag, LOST);
    let request = reassignment(&take_over(&mut pair, tag, command.cmd_sn.next()));
    assert_eq!(request.exp_data_sn, Serial32(1), "one piece came whole");
    answer(&mut pair, &request, TaskManagementOutcome::FunctionComplete).unwrap();
    pair.send(&second, vec![2; 4096]).unwrap();
    let response = pair.response(tag, 0);
    pair.send(&response, Vec::new()).unwrap();
    let Completed { buffer, outcome, .. } = pair.session.poll_completed().unwrap();
    assert!(outcome.is_good());
    assert_eq!(&buffer[..], [[1; 4096], [2; 4096]].concat());
}

#[test]
fn at_level_1_what_arrived_is_over() {
    let mut pair = pair(1);
    let first = issue(&mut pair, 1, write());
    let second = issue(&mut pair, 2, read());
    let request = remove(&mut pair, LogoutOutcome::Closed, second.cmd_sn);
    assert_eq!(request.reason, LogoutReason::CloseConnection);
    assert!(take_over(&mut pair, first.initiator_task_tag, second.cmd_sn).is_empty());
    let completed = pair.session.poll_completed().unwrap();
    assert!(completed.token == 1 && matches!(completed.outcome, Outcome::Failed(_)));
    assert_eq!(take_over(&mut pair, second.initiator_task_tag, second.cmd_sn).len(), 1, "this one fills its gap");
}

#[test]
fn a_refused_reassignment_ends_what_is_certainly_over_and_nothing_else() {
    use TaskManagementOutcome::{FunctionRejected, TaskDoesNotExist, TaskStillAllegiant};
    for (data, outcome, is_over) in [
        (read(), TaskDoesNotExist, true),
        (write(), TaskDoesNotExist, true),
        (read(), FunctionRejected, true),
        (write(), FunctionRejected, false),
        (write(), TaskStillAllegiant, false),
    ] {
        let mut pair = pair(2);
        let command = issue(&mut pair, 1, data);
        let request = reassignment(&take_over(&mut pair, command.initiator_task_tag, command.cmd_sn.next()));
        assert_eq!(answer(&mut pair, &request, outcome).is_ok(), is_over, "{outcome}");
        assert_eq!(pair.session.poll_completed().is_some(), is_over, "{outcome}");
    }
}

#[test]
fn a_reassignment_that_is_not_answered_ends_the_connection() {
    let mut pair = pair(2);
    let command = issue(&mut pair, 1, write());
    take_over(&mut pair, command.initiator_task_tag, command.cmd_sn.next());
    pair.now = pair.now + Duration::from_secs(3);
    let ended = pair.connection.handle_timeout(pair.now, &mut pair.session);
    assert_eq!(ended, Err(ConnectionError::Unresponsive));
}

/// The abort was lost with its connection.
#[test]
fn a_command_that_was_overdue_when_its_connection_was_lost_is_aborted_on_the_other_one() {
    let mut pair = pair(2);
    pair.submit(1, write());
    let sent = pair.sent();
    let Ok(Bhs::ScsiCommand(command)) = sent[0].header.bhs else { panic!("a command goes first") };
    pair.pass(Duration::from_secs(30)).unwrap();
    assert_eq!(pair.functions_sent().len(), 1);
    let fresh = Connection::new(pair.now, &pair.session, LoginConfig { cid: 4, ..config() }, TIMING);
    std::mem::replace(&mut pair.connection, fresh).abandon(&mut pair.session);
    let mut other = Pair::logged_in(Offer::target());
    std::mem::swap(&mut pair.connection, &mut other.connection);
    pair.session.move_task(command.initiator_task_tag, LOST);
    let request = reassignment(&take_over(&mut pair, command.initiator_task_tag, command.cmd_sn.next()));
    answer(&mut pair, &request, TaskManagementOutcome::FunctionComplete).unwrap();
    pair.pass(Duration::ZERO).unwrap();
    let [abort] = pair.functions_sent()[..] else { panic!("one function") };
    assert_eq!(abort.function, Ok(TaskManagementFunction::AbortTask));
    assert_eq!(abort.referenced_task_tag, Some(command.initiator_task_tag));
}

#[test]
fn data_is_acknowledged_where_the_target_asks_for_it() {
    for level in [0, 1] {
        let mut pair = pair(level);
        pair.submit(1, read());
        let sent = pair.sent();
        let Ok(Bhs::ScsiCommand(command)) = sent[0].header.bhs else { panic!("a command goes first") };
        let target_transfer_tag = TargetTransferTag::new(5);
        let asking = DataIn {
            wants_acknowledgement: true,
            target_transfer_tag,
            lun: LUN,
            ..data_in(&pair, command.initiator_task_tag, 0, true)
        };
        pair.send(&asking, vec![1; 4096]).unwrap();
        let sent = pair.flush();
        if level == 0 {
            assert!(sent.is_empty());
            continue;
        }
        let Ok(Bhs::SnackRequest(request)) = sent[0].header.bhs else { panic!("{:?}", sent[0].header.bhs) };
        let kind = SnackType::DataAck { target_transfer_tag: target_transfer_tag.unwrap(), begin: Serial32(1) };
        assert_eq!((request.kind, request.lun), (kind, LUN));
    }
}

#[test]
fn another_connection_that_the_target_drops_is_named() {
    let mut pair = pair(2);
    let event = AsyncEvent::ConnectionDrop { cid: LOST, wait_seconds: 0, retain_seconds: 20 };
    let message = AsyncMessage {
        lun: 0,
        stat_sn: pair.next_stat_sn(),
        exp_cmd_sn: pair.exp_cmd_sn,
        max_cmd_sn: pair.max_cmd_sn,
        event,
    };
    pair.send(&message, Vec::new()).unwrap();
    assert_eq!((pair.connection.poll_dropped(), pair.connection.poll_dropped()), (Some(LOST), None));
}
