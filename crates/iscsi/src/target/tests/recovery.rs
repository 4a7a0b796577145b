//! The data kept at levels 1 and 2, and its limits: peers that acknowledge late, or never.

use std::time::Duration;

use base::serial::Serial32;

use super::super::*;
use super::peer::*;
use crate::framing::{DataSegment, ReceivedPdu, TransmitQueue};
use crate::limits::{
    COMMAND_WINDOW, LOST_CONNECTIONS_MAX, RESPONSE_BYTES_HIGH, RETAINED_ALWAYS_BYTES, RETAINED_ANSWERS,
    RETAINED_ANSWERS_MAX, RETAINED_DATA_BYTES_MAX, RETENTION_MAX, SERIES_PDUS_MADE, SESSION_CONNECTIONS_MAX,
    STALL_CHECK_INTERVAL, UNACKNOWLEDGED_RESPONSES_MAX,
};
use crate::pdu::*;

const LEVEL_1: [(&str, &str); 1] = [("ErrorRecoveryLevel", "1")];

fn snack(peer: &mut Peer, tag: u32) {
    let kind = SnackType::DataOrR2t { initiator_task_tag: itt(tag), begin: Serial32(0), run_length: 0 };
    peer.send(&SnackRequest { kind, lun: 0, exp_stat_sn: Serial32(0) }, Vec::new());
}

/// A ping that acknowledges every response before `exp_stat_sn`.
fn acknowledge(peer: &mut Peer, exp_stat_sn: Serial32) -> NopIn {
    let ping = NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: Some(itt(0x7777)),
        target_transfer_tag: None,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn,
    };
    peer.send(&ping, Vec::new());
    match peer.receive_bhs().pop() {
        Some(Bhs::NopIn(echo)) => echo,
        other => panic!("{other:?} is not a ping"),
    }
}

#[test]
fn kept_data_has_a_bound_and_the_oldest_goes_first() {
    const READ_BYTES: usize = 1 << 20;
    let mut peer = Peer::logged_in(parameters(), &LEVEL_1);
    let data = pattern(READ_BYTES);
    // With what is noted of them this is more than the share.
    let count = RETAINED_DATA_BYTES_MAX / READ_BYTES;
    for tag in 0..count as u32 {
        peer.read(tag, READ_BYTES as u32);
        let command = peer.started();
        peer.complete(command.task, good(&data));
        peer.receive();
    }
    snack(&mut peer, 0);
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::SnackReject, "the oldest lost its data");
    for tag in 1..count as u32 {
        snack(&mut peer, tag);
        let again: usize = peer.receive().iter().map(|pdu| pdu.data.length).sum();
        assert_eq!(again, READ_BYTES, "that of read {tag} is kept");
    }
}

#[test]
fn answers_that_nobody_acknowledges_close_the_window() {
    let mut peer = Peer::logged_in(parameters(), &LEVEL_1);
    let window = |peer: &mut Peer| {
        let echo = acknowledge(peer, Serial32(0));
        echo.max_cmd_sn.0.wrapping_sub(echo.exp_cmd_sn.0).wrapping_add(1)
    };
    let mut answer_count = 0;
    while window(&mut peer) > 0 {
        // MaxCmdSN never goes back, so the last answer is seen one command later.
        let excess = (answer_count as usize).saturating_sub(RETAINED_ANSWERS + 1) as u32;
        assert_eq!(window(&mut peer), COMMAND_WINDOW - excess, "{answer_count} answers");
        peer.read(answer_count, 512);
        let command = peer.started();
        peer.complete(command.task, good(&pattern(512)));
        peer.receive();
        answer_count += 1;
    }
    assert_eq!(answer_count as usize, RETAINED_ANSWERS + COMMAND_WINDOW as usize + 1);
    let echo = acknowledge(&mut peer, Serial32(1));
    let all = echo.stat_sn.next();
    acknowledge(&mut peer, all);
    assert_eq!(window(&mut peer), COMMAND_WINDOW);
}

#[test]
fn who_never_acknowledges_is_cut_off() {
    let mut peer = Peer::logged_in(parameters(), &LEVEL_1);
    for _ in 0..UNACKNOWLEDGED_RESPONSES_MAX {
        acknowledge(&mut peer, Serial32(0));
    }
    let last = NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: Some(itt(0x7777)),
        target_transfer_tag: None,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    peer.send(&last, Vec::new());
    peer.send(&last, Vec::new());
    assert_eq!(peer.close_reason(), CloseReason::Unacknowledged);
}

/// Repeats `request`, as fast as the target accepts it, without reading any answer, until it
/// accepts no more. Returns how often, and the most bytes that ever waited to be sent.
fn ask_for_ever<H: Header>(peer: &mut Peer, request: &H, data: &[u8]) -> (usize, usize) {
    let mut queue = TransmitQueue::new(Default::default());
    queue.push(request, &AdditionalHeaders::default(), DataSegment::from(data.to_vec()));
    let bytes = drain(&mut queue);
    let (mut count, mut waiting_max) = (0, 0);
    while peer.target.receive_space().len() >= bytes.len() {
        peer.send_bytes(&bytes);
        let Target::Session(session, at) = &peer.target else { panic!("it is logged in") };
        waiting_max = waiting_max.max(session.transmit_bytes(*at));
        count += 1;
        assert!(count < 1 << 20, "it never stops taking them");
    }
    (count, waiting_max)
}

#[test]
fn who_asks_for_ever_and_takes_nothing_fills_no_memory() {
    // Small, since held back requests are answered in the end, more than a thousand times. Without
    // a limit that would be 80 MB at once.
    const READ_BYTES: usize = 64 << 10;
    let targets = (0..500).map(|number| TargetDescription { name: format!("{TARGET}{number}"), ..description() });
    let description_of_all: Vec<_> = std::iter::once(description()).chain(targets).collect();
    let pool = base::buffer::BufferPool::new(64 << 20);
    let set_up = || {
        let keys = [("ErrorRecoveryLevel", "1"), ("MaxRecvDataSegmentLength", "16777215"), ("InitialR2T", "Yes")];
        let mut peer = Peer::logged_in(TargetParameters::new(description_of_all.clone(), pool.clone()), &keys);
        peer.read(0, READ_BYTES as u32);
        let command = peer.started();
        peer.complete(command.task, good(&pattern(READ_BYTES)));
        peer.receive();
        peer
    };
    let all = (Serial32(0), 0);
    let data = SnackType::DataOrR2t { initiator_task_tag: itt(0), begin: all.0, run_length: all.1 };
    let resegmented = SnackType::ResegmentedData { initiator_task_tag: itt(0), snack_tag: 5 };
    let mut most_answered = 0;
    for kind in [data, resegmented, SnackType::Status { begin: all.0, run_length: all.1 }] {
        let mut peer = set_up();
        let snack = SnackRequest { kind, lun: 0, exp_stat_sn: Serial32(0) };
        let (count, waiting_max) = ask_for_ever(&mut peer, &snack, &[]);
        assert!(waiting_max <= RESPONSE_BYTES_HIGH + 2 * READ_BYTES, "{kind:?}: {waiting_max} bytes wait");
        // Held back requests are answered when there is room: none was lost, and the session goes
        // on.
        let responses = peer.receive_bhs().iter().filter(|bhs| matches!(bhs, Bhs::ScsiResponse(_))).count();
        if kind == resegmented {
            assert_eq!(responses, count);
        }
        most_answered = most_answered.max(count);
        let echo = acknowledge(&mut peer, Serial32(0));
        assert_eq!(echo.initiator_task_tag, Some(itt(0x7777)));
    }
    assert!(most_answered > 1000, "a staging buffer takes far more requests than answers have room");

    // A list of targets is requested in a few bytes, too.
    let mut peer = Peer::new(TargetParameters::new(description_of_all, pool));
    let segment = ("MaxRecvDataSegmentLength", "16777215");
    peer.log_in(&[("InitiatorName", INITIATOR), ("SessionType", "Discovery"), segment]);
    let text = TextRequest {
        is_immediate: true,
        is_final: true,
        is_continued: false,
        lun: 0,
        initiator_task_tag: itt(9),
        target_transfer_tag: None,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    let (count, waiting_max) = ask_for_ever(&mut peer, &text, b"SendTargets=All\0");
    assert!(waiting_max <= RESPONSE_BYTES_HIGH + READ_BYTES, "{waiting_max} bytes wait");
    assert_eq!(peer.receive().len(), count, "and all are answered in the end");
}

/// Echoes that nobody takes are a megabyte, and reads have bounds of their own: whatever waits of them, the next
/// command is looked at.
#[test]
fn answers_wait_to_a_megabyte_and_what_reads_bring_is_not_among_them() {
    const ECHO_BYTES: usize = 64 << 10;
    const READ_BYTES: usize = 1 << 20;
    for level in ["0", "1"] {
        let keys = [("ErrorRecoveryLevel", level), ("MaxRecvDataSegmentLength", "262144")];
        let mut peer = Peer::logged_in(parameters(), &keys);
        for tag in 0..20 {
            peer.read(tag, READ_BYTES as u32);
            let command = peer.started();
            peer.complete(command.task, good(&pattern(READ_BYTES)));
        }
        let before = 20 * READ_BYTES;
        let ping = NopOut {
            is_immediate: true,
            lun: 0,
            initiator_task_tag: Some(itt(0x7777)),
            target_transfer_tag: None,
            cmd_sn: peer.cmd_sn,
            exp_stat_sn: Serial32(0),
        };
        let mut echoes = 0;
        for _ in 0..100 {
            peer.send(&ping, pattern(ECHO_BYTES));
            let Target::Session(session, at) = &peer.target else { panic!("it is logged in") };
            echoes = echoes.max(session.transmit_bytes(*at) - before);
        }
        assert!((1 << 19..(1 << 20) + 3 * ECHO_BYTES).contains(&echoes), "{echoes} bytes of echoes wait");
    }
}

/// Of data that is sent again few PDUs are made before their turn, as of what is sent first.
#[test]
fn of_data_that_a_snack_asks_for_few_pdus_are_made_before_their_turn() {
    const READ_BYTES: usize = 1 << 20;
    let mut peer = Peer::logged_in(parameters(), &[LEVEL_1[0], ("MaxRecvDataSegmentLength", "512")]);
    peer.read(5, READ_BYTES as u32);
    let command = peer.started();
    peer.complete(command.task, good(&pattern(READ_BYTES)));
    let first = peer.receive();
    snack(&mut peer, 5);
    let Target::Session(session, at) = &peer.target else { panic!("it is logged in") };
    let mut slices = vec![std::io::IoSlice::new(&[]); 3 * READ_BYTES / 512];
    let made = session.io_slices(*at, usize::MAX, &mut slices);
    assert!((1..=4 * SERIES_PDUS_MADE).contains(&made), "{made} pieces of PDUs are made");
    let again = peer.receive();
    assert_eq!(again.len(), READ_BYTES / 512);
    for (again, first) in again.iter().zip(&first) {
        assert_eq!((again.header.raw, again.data.bytes()), (first.header.raw, first.data.bytes()));
    }
}

/// A ping that acknowledges nothing, and its echo.
fn echo(peer: &mut Peer, bytes: usize) -> NopIn {
    let ping = NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: Some(itt(0x7777)),
        target_transfer_tag: None,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn: Serial32(0),
    };
    peer.send(&ping, pattern(bytes));
    match peer.receive_bhs().pop() {
        Some(Bhs::NopIn(echo)) => echo,
        other => panic!("{other:?} is not an echo"),
    }
}

/// Asks for responses again, from `begin` on.
fn status_snack(peer: &mut Peer, begin: Serial32, run_length: u32) -> Vec<ReceivedPdu> {
    let kind = SnackType::Status { begin, run_length };
    peer.send(&SnackRequest { kind, lun: 0, exp_stat_sn: Serial32(0) }, Vec::new());
    peer.receive()
}

#[track_caller]
fn assert_kept(peer: &mut Peer, stat_sn: Serial32, bytes: usize) {
    let again = status_snack(peer, stat_sn, 1);
    assert_eq!(again.iter().map(|pdu| pdu.data.length).collect::<Vec<_>>(), [bytes]);
    assert!(matches!(again[0].header.bhs, Ok(Bhs::NopIn(_))));
}

#[track_caller]
fn assert_forgotten(peer: &mut Peer, stat_sn: Serial32) {
    let again = status_snack(peer, stat_sn, 1);
    assert_eq!(reject_reason(again[0].header.bhs.as_ref().unwrap()), RejectReason::SnackReject);
}

/// Goes on with another connection of the session.
fn join(peer: &mut Peer, cid: u16) {
    let connection = super::split::log_in(peer, cid, &[("MaxRecvDataSegmentLength", "262144")]);
    let Target::Session(session, at) = &mut peer.target else { panic!("it goes on") };
    *at = session.join(peer.now, connection).expect("it waits for a decision");
    assert!(matches!(peer.receive_bhs()[..], [Bhs::LoginResponse(_)]));
}

const ECHO_BYTES: usize = 256 << 10;
const ECHOING: [(&str, &str); 3] =
    [("ErrorRecoveryLevel", "1"), ("MaxRecvDataSegmentLength", "262144"), ("MaxConnections", "8")];

/// Echoes are kept with what they carry, in one share for all connections of their session.
#[test]
fn echoes_that_nobody_acknowledges_have_the_share_of_their_session() {
    let parameters = parameters();
    let retained = std::sync::Arc::clone(&parameters.retained);
    let mut peer = Peer::logged_in(parameters, &ECHOING);
    let mut echoes = Vec::new();
    for cid in 0..4 {
        if cid > 0 {
            join(&mut peer, 100 + cid);
        }
        // Those of three connections leave room for three, with what is noted of all.
        echoes = (0..20).map(|_| echo(&mut peer, ECHO_BYTES).stat_sn).collect();
        assert!(retained.bytes() <= RETAINED_DATA_BYTES_MAX, "{} bytes", retained.bytes());
    }
    assert!(retained.bytes() > RETAINED_DATA_BYTES_MAX - 2 * ECHO_BYTES, "{} bytes", retained.bytes());
    assert_forgotten(&mut peer, echoes[0]);
    assert_forgotten(&mut peer, echoes[16]);
    assert_kept(&mut peer, echoes[17], ECHO_BYTES);
    assert_kept(&mut peer, echoes[19], ECHO_BYTES);
    drop(peer);
    assert_eq!(retained.bytes(), 0);
}

#[test]
fn echoes_count_in_what_all_sessions_keep_for_recovery() {
    let mut parameters = parameters();
    parameters.retained = std::sync::Arc::new(RetainedData::new(9 * ECHO_BYTES));
    let retained = std::sync::Arc::clone(&parameters.retained);
    let [mut one, mut other] = [0; 2].map(|_| Peer::logged_in(parameters.clone(), &ECHOING));
    let first = echo(&mut one, ECHO_BYTES).stat_sn;
    for _ in 0..7 {
        echo(&mut one, ECHO_BYTES);
    }
    assert_kept(&mut one, first, ECHO_BYTES);
    let second = [0; 3].map(|_| echo(&mut other, ECHO_BYTES).stat_sn);
    let bytes = retained.bytes();
    assert!((9 * ECHO_BYTES..9 * ECHO_BYTES + RETAINED_ALWAYS_BYTES).contains(&bytes), "{bytes} bytes");
    assert_forgotten(&mut other, second[0]);
    assert_kept(&mut other, second[2], ECHO_BYTES);
    let next = echo(&mut one, 0).stat_sn.next();
    acknowledge(&mut one, next);
    assert!(retained.bytes() < 2 * ECHO_BYTES, "{} bytes", retained.bytes());
    let last = [0; 4].map(|_| echo(&mut other, ECHO_BYTES).stat_sn);
    assert_kept(&mut other, last[0], ECHO_BYTES);
}

/// What is asked for again waits to be sent, beside what is kept: at most a megabyte of it.
#[test]
fn a_status_snack_for_more_than_a_megabyte_is_rejected() {
    let mut peer = Peer::logged_in(parameters(), &ECHOING);
    let echoes = [0; 8].map(|_| echo(&mut peer, ECHO_BYTES).stat_sn);
    let again = status_snack(&mut peer, echoes[0], 3);
    assert_eq!(again.iter().map(|pdu| pdu.data.length).collect::<Vec<_>>(), [ECHO_BYTES; 3]);
    let again = status_snack(&mut peer, echoes[0], 8);
    assert_eq!(again.len(), 1);
    assert_eq!(reject_reason(again[0].header.bhs.as_ref().unwrap()), RejectReason::SnackReject);
}

#[test]
fn what_nobody_acknowledges_is_forgotten_after_two_minutes() {
    let parameters = parameters();
    let retained = std::sync::Arc::clone(&parameters.retained);
    let mut peer = Peer::logged_in(parameters, &ECHOING);
    peer.read(0, ECHO_BYTES as u32);
    let command = peer.started();
    peer.complete(command.task, good(&pattern(ECHO_BYTES)));
    peer.receive();
    let sent = echo(&mut peer, ECHO_BYTES).stat_sn;
    let pass = |peer: &mut Peer, seconds: u64| {
        let until = peer.now + Duration::from_secs(seconds);
        while peer.now < until {
            let due = peer.target.poll_timeout().map_or(until, |due| due.min(until));
            let step = due.since(peer.now).clamp(Duration::from_millis(1), Duration::from_secs(9));
            peer.sleep(step);
            // It lives.
            echo(peer, 0);
        }
    };
    pass(&mut peer, RETENTION_MAX.as_secs() - STALL_CHECK_INTERVAL.as_secs() - 1);
    assert!(retained.bytes() > 2 * ECHO_BYTES, "{} bytes", retained.bytes());
    assert_kept(&mut peer, sent, ECHO_BYTES);
    pass(&mut peer, STALL_CHECK_INTERVAL.as_secs() + 1);
    assert!(retained.bytes() < ECHO_BYTES / 4, "{} bytes", retained.bytes());
    assert_forgotten(&mut peer, sent);
    snack(&mut peer, 0);
    assert_eq!(reject_reason(&peer.receive_bhs()[0]), RejectReason::SnackReject);
    // What came since is kept.
    let sent = echo(&mut peer, ECHO_BYTES).stat_sn;
    assert_kept(&mut peer, sent, ECHO_BYTES);
}

fn was_cut_off(peer: &mut Peer) -> bool {
    peer.collect_events();
    peer.events.iter().any(|event| matches!(event, Event::LinkClosed(_, CloseReason::Unacknowledged)))
}

#[test]
fn responses_that_nobody_acknowledges_are_counted_over_all_connections_of_a_session() {
    let mut peer = Peer::logged_in(parameters(), &ECHOING);
    (0..UNACKNOWLEDGED_RESPONSES_MAX / 2).for_each(|_| _ = echo(&mut peer, 0));
    join(&mut peer, 100);
    (0..UNACKNOWLEDGED_RESPONSES_MAX / 2).for_each(|_| _ = echo(&mut peer, 0));
    echo(&mut peer, 0);
    assert!(!was_cut_off(&mut peer));
    snack(&mut peer, 0);
    assert!(was_cut_off(&mut peer));
}

/// Immediate commands take no place in the window, and a lost connection leaves their answers.
#[test]
fn answers_of_immediate_commands_that_nobody_claims_are_so_many() {
    let mut peer = Peer::logged_in(parameters(), &[("ErrorRecoveryLevel", "2"), ("MaxConnections", "8")]);
    let mut answered = 0;
    while !was_cut_off(&mut peer) {
        assert!(answered <= RETAINED_ANSWERS_MAX + 1, "{answered} answers are kept");
        if answered > 0 && answered % 100 == 0 {
            let Target::Session(session, at) = &mut peer.target else { panic!("a session was begun") };
            session.handle_lost(peer.now, *at);
            join(&mut peer, 100 + answered as u16);
        }
        let cmd_sn = peer.cmd_sn;
        let command = peer.command(answered as u32, [0; 16], Direction::None, 0);
        peer.cmd_sn = cmd_sn;
        peer.send(&ScsiCommand { is_immediate: true, ..command }, Vec::new());
        if was_cut_off(&mut peer) {
            break;
        }
        let started = peer.started();
        peer.complete(started.task, good(&[]));
        peer.receive();
        answered += 1;
    }
    assert_eq!(answered, RETAINED_ANSWERS_MAX + 1);
}

/// A peer at level 2 whose connection was lost with a read that has ended, and that has another
/// connection now.
fn peer_with_an_answer_to_claim() -> Peer {
    let mut peer = Peer::logged_in(parameters(), &[("ErrorRecoveryLevel", "2"), ("MaxConnections", "4")]);
    peer.read(0x10, 512);
    let started = peer.started().task;
    let Target::Session(session, lost) = &mut peer.target else { panic!("a session was begun") };
    session.handle_lost(peer.now, *lost);
    peer.complete(started, good(&pattern(512)));
    // By the same CID: an implicit logout of the lost one.
    let connection = super::split::log_in(&peer, 3, &[]);
    let Target::Session(session, at) = &mut peer.target else { panic!("it goes on") };
    *at = session.join(peer.now, connection).expect("it waits for a decision");
    assert!(matches!(peer.receive_bhs()[..], [Bhs::LoginResponse(_)]));
    peer.events.clear();
    peer
}

fn manage(peer: &mut Peer, function: TaskManagementFunction, tag: u32) {
    let request = TaskManagementRequest {
        is_immediate: true,
        function: Ok(function),
        lun: 0,
        initiator_task_tag: itt(tag),
        referenced_task_tag: (function == TaskManagementFunction::TaskReassign).then(|| itt(0x10)),
        cmd_sn: peer.cmd_sn,
        exp_stat_sn: Serial32(0),
        ref_cmd_sn: Serial32(100),
        exp_data_sn: Serial32(0),
    };
    peer.send(&request, Vec::new());
}

fn outcome(bhs: &Bhs) -> TaskManagementOutcome {
    let Bhs::TaskManagementResponse(response) = bhs else { panic!("{bhs:?}") };
    response.outcome
}

#[test]
fn an_answer_is_claimed_from_a_lost_connection_unless_its_task_was_aborted_meanwhile() {
    use TaskManagementFunction::{LogicalUnitReset, TaskReassign};
    let mut peer = peer_with_an_answer_to_claim();
    manage(&mut peer, TaskReassign, 0x20);
    let answer = peer.receive_bhs();
    assert_eq!(outcome(&answer[0]), TaskManagementOutcome::FunctionComplete);
    assert!(answer.len() > 1, "and the read's data and status: {answer:?}");
    let mut peer = peer_with_an_answer_to_claim();
    manage(&mut peer, LogicalUnitReset, 0x20);
    let Some(Event::TaskManagement(reset)) = peer.events.pop() else { panic!("the driver is told") };
    peer.target.handle_task_management(peer.now, reset.id, TaskManagementOutcome::FunctionComplete);
    assert_eq!(outcome(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
    manage(&mut peer, TaskReassign, 0x21);
    let answer = peer.receive_bhs();
    assert_eq!(outcome(&answer[0]), TaskManagementOutcome::TaskDoesNotExist, "{answer:?}");
    assert_eq!(answer.len(), 1);
}

/// A host that loses one connection after another and never claims the tasks on them.
#[test]
fn the_tasks_of_the_oldest_of_many_lost_connections_end() {
    let mut peer = Peer::logged_in(parameters(), &[("ErrorRecoveryLevel", "2"), ("MaxConnections", "4")]);
    let lose_one_with_a_task = |peer: &mut Peer, number: u32| {
        let asked = 4096;
        let write = peer.command(number, cdb_write(asked), Direction::Write, asked);
        peer.send(&ScsiCommand { is_final: true, ..write }, Vec::new());
        let Target::Session(session, lost) = &mut peer.target else { panic!("a session was begun") };
        session.handle_lost(peer.now, *lost);
        let connection = super::split::log_in(peer, 100 + number as u16, &[]);
        let Target::Session(session, at) = &mut peer.target else { panic!("it goes on") };
        *at = session.join(peer.now, connection).expect("it waits for a decision");
        peer.collect_events();
    };
    let cleared = |peer: &Peer| peer.events.iter().filter(|event| matches!(event, Event::CommandsCleared(_))).count();
    (0..LOST_CONNECTIONS_MAX as u32).for_each(|number| lose_one_with_a_task(&mut peer, number));
    assert_eq!((peer.target.task_count(), cleared(&peer)), (LOST_CONNECTIONS_MAX, 0));
    lose_one_with_a_task(&mut peer, LOST_CONNECTIONS_MAX as u32);
    assert_eq!((peer.target.task_count(), cleared(&peer)), (LOST_CONNECTIONS_MAX, 1));
}

#[test]
fn a_session_has_eight_connections_whatever_was_agreed() {
    let mut parameters = parameters();
    parameters.offer.max_connections = 2 * SESSION_CONNECTIONS_MAX;
    let mut peer = Peer::logged_in(parameters, &[("MaxConnections", "16")]);
    assert_eq!(peer.target.session().request().negotiated.max_connections, 16);
    let ask = |peer: &mut Peer, cid: u16| {
        let connection = super::split::log_in(peer, cid, &[]);
        let request = connection.request().cloned().expect("the login comes to its end");
        peer.target.session().check_join(&request).map_err(|(status, _)| status)?;
        peer.target.session().join(peer.now, connection).ok_or(LoginStatus::TARGET_ERROR)
    };
    for cid in 1..SESSION_CONNECTIONS_MAX {
        ask(&mut peer, 100 + cid).expect("there is room");
    }
    assert_eq!(ask(&mut peer, 200).err(), Some(LoginStatus::TOO_MANY_CONNECTIONS));
}

/// Of many sessions that never acknowledge, each keeps less for recovery; what it does not keep it
/// cannot send again.
#[test]
fn what_all_sessions_keep_for_recovery_has_a_bound() {
    const READ_BYTES: usize = 1 << 20;
    let mut parameters = parameters();
    parameters.retained = std::sync::Arc::new(RetainedData::new(2 * READ_BYTES + READ_BYTES / 2));
    let retained = std::sync::Arc::clone(&parameters.retained);
    let mut peers = Vec::new();
    for _ in 0..4 {
        let mut peer = Peer::logged_in(parameters.clone(), &[("ErrorRecoveryLevel", "1")]);
        peer.read(0, READ_BYTES as u32);
        let command = peer.started();
        peer.complete(command.task, good(&pattern(READ_BYTES)));
        peer.receive();
        peers.push(peer);
    }
    let bytes = retained.bytes();
    assert!((2 * READ_BYTES..2 * READ_BYTES + READ_BYTES / 4).contains(&bytes), "{bytes} bytes");
    drop(peers);
    assert_eq!(retained.bytes(), 0);
}

/// Acknowledged data counts no more against the limit, even if the session sends no further
/// request.
#[test]
fn what_was_acknowledged_leaves_room_for_what_others_keep_for_recovery() {
    const READ_BYTES: usize = 1 << 20;
    let mut parameters = parameters();
    parameters.retained = std::sync::Arc::new(RetainedData::new(2 * READ_BYTES + READ_BYTES / 2));
    let retained = std::sync::Arc::clone(&parameters.retained);
    let mut peer = Peer::logged_in(parameters, &LEVEL_1);
    for tag in 0..2 {
        peer.read(tag, READ_BYTES as u32);
        let command = peer.started();
        peer.complete(command.task, good(&pattern(READ_BYTES)));
        peer.receive();
    }
    assert!(retained.bytes() > 2 * READ_BYTES);
    let next = acknowledge(&mut peer, Serial32(1)).stat_sn.next();
    acknowledge(&mut peer, next);
    assert!(retained.bytes() < READ_BYTES / 64, "only the last echo: {} bytes", retained.bytes());
}

/// One answer of the usual size, when others have used up the limit.
#[test]
fn a_session_keeps_a_little_for_recovery_whatever_others_keep() {
    const READ_BYTES: usize = 1 << 20;
    let mut parameters = parameters();
    parameters.retained = std::sync::Arc::new(RetainedData::new(READ_BYTES + READ_BYTES / 8));
    let answered = |bytes: usize| {
        let mut peer = Peer::logged_in(parameters.clone(), &LEVEL_1);
        peer.read(0, bytes as u32);
        let command = peer.started();
        peer.complete(command.task, good(&pattern(bytes)));
        peer.receive();
        peer
    };
    let _others = answered(READ_BYTES);
    let (mut usual, mut large) = (answered(RETAINED_ALWAYS_BYTES / 2), answered(2 * RETAINED_ALWAYS_BYTES));
    snack(&mut usual, 0);
    let again: usize = usual.receive().iter().map(|pdu| pdu.data.length).sum();
    assert_eq!(again, RETAINED_ALWAYS_BYTES / 2);
    snack(&mut large, 0);
    assert_eq!(reject_reason(&large.receive_bhs()[0]), RejectReason::SnackReject);
}
