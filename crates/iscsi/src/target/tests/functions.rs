//! Which commands a task management function covers (RFC 7143 11.5.1: those with a lower CmdSN), and how long it waits
//! for other connections.

use base::serial::Serial32;

use super::super::*;
use super::peer::*;
use crate::limits::{ABORT_DATA_TIMEOUT, FENCE_TIMEOUT};
use crate::pdu::*;

const TASK_ABORTED: u8 = 0x40;
/// LUN 0 by the method of a flat space.
const FLAT_ZERO: u64 = 0x4000_0000_0000_0000;

fn function_begun(peer: &mut Peer) -> TaskManagementId {
    match peer.events.pop() {
        Some(Event::TaskManagement(request)) if peer.events.is_empty() => request.id,
        other => panic!("{other:?}, {:?}", peer.events),
    }
}

fn status_of(bhs: &Bhs) -> u8 {
    match bhs {
        Bhs::ScsiResponse(ScsiResponse { response: ServiceResponse::CommandCompleted { status }, .. }) => *status,
        other => panic!("{other:?} is not a status"),
    }
}

/// A write that has got its R2T, and behind it a function that waits for its data.
fn waiting(function: TaskManagementFunction) -> Peer {
    let mut peer = Peer::logged_in(parameters(), &[("ImmediateData", "No"), ("iSCSIProtocolLevel", "2")]);
    let write = peer.command(0x10, cdb_write(512), Direction::Write, 512);
    peer.send(&write, Vec::new());
    assert_eq!(r2ts(&peer.receive_bhs()).len(), 1);
    peer.task_management(0x40, function, None);
    assert!(peer.receive().is_empty() && peer.events.is_empty(), "the data is still to come");
    peer
}

/// Commands with the number of an immediate function and higher ones wait while it is under way, and are carried out
/// behind it, whatever it comes to.
#[test]
fn a_command_behind_a_function_is_not_covered_by_it() {
    use TaskManagementFunction::{AbortTaskSet, ClearTaskSet, LogicalUnitReset, NexusReset, TargetWarmReset};
    for function in [AbortTaskSet, ClearTaskSet, LogicalUnitReset, TargetWarmReset, NexusReset] {
        for outcome in [TaskManagementOutcome::FunctionComplete, TaskManagementOutcome::LunDoesNotExist] {
            let mut peer = waiting(function);
            let behind = peer.command(0x11, cdb_write(512), Direction::Write, 512);
            peer.send(&behind, Vec::new());
            peer.read(0x12, 512);
            peer.sleep(ABORT_DATA_TIMEOUT);
            let id = function_begun(&mut peer);
            assert!(peer.receive().is_empty(), "nothing of them begins");
            peer.read(0x13, 512);
            peer.collect_events();
            assert!(peer.events.is_empty());
            peer.target.handle_task_management(peer.now, id, outcome);
            peer.collect_events();
            let reads: Vec<_> = std::mem::take(&mut peer.events);
            let mut sent = peer.receive_bhs();
            let answer = sent.iter().position(|bhs| matches!(bhs, Bhs::TaskManagementResponse(_))).expect("an answer");
            assert_eq!(outcome_of(&sent.remove(answer)), outcome, "{function}");
            let transfers = r2ts(&sent);
            peer.data_out(0x11, Some(transfers[0].0), 0, 0, true, &pattern(512));
            let write = peer.started();
            peer.complete(write.task, Outcome::default());
            assert_eq!(peer.receive_bhs().iter().map(status_of).collect::<Vec<_>>(), [0], "{function}");
            assert_eq!(reads.len(), 2, "{function}: {reads:?}");
            for read in reads {
                let Event::Command(read) = read else { panic!("{read:?}") };
                peer.complete(read.task, good(&pattern(512)));
                assert!(matches!(peer.receive_bhs()[..], [Bhs::DataIn(_)]), "{function}");
            }
            assert_eq!(peer.target.task_count(), usize::from(outcome != TaskManagementOutcome::FunctionComplete));
        }
    }
}

/// What is for another unit does not wait.
#[test]
fn a_command_for_another_unit_passes_a_function() {
    let mut peer = waiting(TaskManagementFunction::LogicalUnitReset);
    let mut other = peer.command(0x11, CDB_READ, Direction::Read, 512);
    other.lun = 0x0001_0000_0000_0000;
    peer.send(&other, Vec::new());
    let other = peer.started();
    peer.complete(other.task, good(&pattern(512)));
    assert!(matches!(peer.receive_bhs()[..], [Bhs::DataIn(_)]));
}

/// The same unit has two LUN fields (SAM-5 4.7.7).
#[test]
fn a_command_behind_a_function_waits_whichever_way_it_names_the_unit() {
    let mut peer = waiting(TaskManagementFunction::LogicalUnitReset);
    let mut behind = peer.command(0x11, CDB_READ, Direction::Read, 512);
    behind.lun = FLAT_ZERO;
    peer.send(&behind, Vec::new());
    peer.sleep(ABORT_DATA_TIMEOUT);
    let id = function_begun(&mut peer);
    peer.target.handle_task_management(peer.now, id, TaskManagementOutcome::FunctionComplete);
    peer.collect_events();
    assert_eq!(peer.started().task.initiator_task_tag, itt(0x11));
}

/// RFC 7143 11.5.1: a function for a unit does not wait for ever for commands with lower numbers. Those that come when
/// the driver has it, or after its response, are ended with it: their numbers are used, and that is all.
#[test]
fn a_command_that_a_function_covers_and_that_comes_later_is_not_carried_out() {
    use TaskManagementFunction::{AbortTaskSet, ClearTaskSet, LogicalUnitReset};
    for function in [AbortTaskSet, ClearTaskSet, LogicalUnitReset] {
        for outcome in [TaskManagementOutcome::FunctionComplete, TaskManagementOutcome::LunDoesNotExist] {
            let is_carried_out = outcome == TaskManagementOutcome::FunctionComplete;
            let mut peer = Peer::logged_in(parameters(), &[]);
            let meanwhile = peer.command(0x10, cdb_write(512), Direction::Write, 512);
            let mut of_another = peer.command(0x11, CDB_READ, Direction::Read, 512);
            of_another.lun = 0x0001_0000_0000_0000;
            let mut late = peer.command(0x12, cdb_write(512), Direction::Write, 512);
            late.lun = FLAT_ZERO;
            peer.task_management(0x40, function, None);
            assert!(peer.receive().is_empty() && peer.events.is_empty(), "they are waited for");
            peer.sleep(ABORT_DATA_TIMEOUT);
            let id = function_begun(&mut peer);
            peer.send(&meanwhile, pattern(512));
            peer.collect_events();
            assert!(peer.events.is_empty(), "it waits for what the function comes to");
            peer.target.handle_task_management(peer.now, id, outcome);
            assert_eq!(outcome_of(&peer.receive_bhs()[0]), outcome);
            let started = |peer: &mut Peer| {
                peer.collect_events();
                std::mem::take(&mut peer.events)
                    .into_iter()
                    .map(|event| match event {
                        Event::Command(command) => command.task.initiator_task_tag.get(),
                        other => panic!("{other:?}"),
                    })
                    .collect::<Vec<_>>()
            };
            let if_refused = |tag: u32| if is_carried_out { Vec::new() } else { vec![tag] };
            assert_eq!(started(&mut peer), if_refused(0x10), "{function}");
            peer.send(&of_another, Vec::new());
            assert_eq!(started(&mut peer), [0x11], "{function}: another unit");
            peer.send(&late, pattern(512));
            assert_eq!(started(&mut peer), if_refused(0x12), "{function}");
            peer.read(0x13, 512);
            assert_eq!(started(&mut peer), [0x13], "{function}: no number is missing");
        }
    }
}

/// The unit ends all of its tasks in a reset. What the function does not cover, and the driver had before it came, is
/// answered nevertheless.
#[test]
fn a_command_that_a_function_does_not_cover_is_answered_when_the_unit_has_ended_it() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let mut command = peer.command(0x10, CDB_READ, Direction::Read, 512);
    (command.is_immediate, peer.cmd_sn) = (true, command.cmd_sn);
    peer.send(&command, Vec::new());
    let started = peer.started();
    peer.task_management(0x40, TaskManagementFunction::LogicalUnitReset, None);
    let id = function_begun(&mut peer);
    peer.target.session().handle_carrying_out(peer.now, id);
    peer.complete(started.task, Outcome { is_silent: true, ..Outcome::default() });
    assert_eq!(peer.receive_bhs().iter().map(status_of).collect::<Vec<_>>(), [TASK_ABORTED]);
    peer.target.handle_task_management(peer.now, id, TaskManagementOutcome::FunctionComplete);
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
}

/// It has no room for it now, and the function does not wait behind it.
#[test]
fn a_command_that_a_function_does_not_cover_may_be_taken_back_and_begins_again_behind_it() {
    let mut peer = Peer::logged_in(parameters(), &[]);
    let mut command = peer.command(0x10, CDB_READ, Direction::Read, 512);
    (command.is_immediate, peer.cmd_sn) = (true, command.cmd_sn);
    peer.send(&command, Vec::new());
    let started = peer.started();
    peer.task_management(0x40, TaskManagementFunction::LogicalUnitReset, None);
    let id = function_begun(&mut peer);
    assert!(peer.target.session().is_suspended(started.task));
    let task = started.task;
    peer.target.session().take_back(started);
    peer.target.session().handle_carrying_out(peer.now, id);
    peer.collect_events();
    assert_eq!(peer.started().task, task);
    peer.complete(task, good(&pattern(512)));
    assert!(matches!(peer.receive_bhs()[..], [Bhs::DataIn(_)]));
}

/// Goes on with one more connection. Returns the one before.
fn add_connection(peer: &mut Peer) -> LinkId {
    let Target::Session(_, first) = peer.target else { panic!("a session was begun") };
    let connection = super::split::log_in(peer, 100, &[]);
    let Target::Session(session, at) = &mut peer.target else { panic!("it goes on") };
    *at = session.join(peer.now, connection).expect("it waits for a decision");
    assert!(matches!(peer.receive_bhs()[..], [Bhs::LoginResponse(_)]));
    peer.events.clear();
    first
}

/// RFC 7143 11.5.1: task management is not aborted.
#[test]
fn an_abort_of_a_function_is_rejected_and_the_function_goes_on() {
    let mut peer = waiting(TaskManagementFunction::LogicalUnitReset);
    peer.task_management(0x41, TaskManagementFunction::AbortTask, Some((0x40, Serial32(100))));
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionRejected);
    peer.sleep(ABORT_DATA_TIMEOUT);
    let id = function_begun(&mut peer);
    peer.target.handle_task_management(peer.now, id, TaskManagementOutcome::FunctionComplete);
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
}

/// RFC 7143 11.5.1: it comes on the connection of its task while that lives. By another one it could pass the task, or
/// be passed by its answer.
#[test]
fn an_abort_on_another_connection_than_that_of_its_task_is_rejected() {
    let mut peer = Peer::logged_in(parameters(), &[("MaxConnections", "2")]);
    peer.read(0x10, 512);
    let task = peer.started().task;
    let first = add_connection(&mut peer);
    peer.task_management(0x40, TaskManagementFunction::AbortTask, Some((0x10, Serial32(100))));
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionRejected);
    assert!(peer.events.is_empty(), "the driver is told nothing");
    peer.complete(task, good(&pattern(512)));
    assert!(matches!(switch(&mut peer, first, |peer| peer.receive_bhs())[..], [Bhs::DataIn(_)]));
}

/// RFC 7143 4.2.3.3 b: their numbers are used up.
#[test]
fn a_function_for_the_whole_target_does_not_wait_for_commands_that_have_not_come() {
    for function in [TaskManagementFunction::TargetWarmReset, TaskManagementFunction::NexusReset] {
        let mut peer = Peer::logged_in(parameters(), &[("iSCSIProtocolLevel", "2")]);
        let late = peer.command(0x10, CDB_READ, Direction::Read, 512);
        peer.task_management(0x40, function, None);
        let id = function_begun(&mut peer);
        peer.send(&late, Vec::new());
        assert!(peer.events.is_empty(), "{function}: it never is executed");
        peer.target.handle_task_management(peer.now, id, TaskManagementOutcome::FunctionComplete);
        assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete, "{function}");
        peer.read(0x11, 512);
        assert_eq!(peer.started().task.initiator_task_tag, itt(0x11), "{function}");
    }
}

/// It would come on a connection that is lost: the task is there still, to be claimed.
#[test]
fn a_function_does_not_wait_for_data_of_a_lost_connection() {
    let keys = [("ErrorRecoveryLevel", "2"), ("MaxConnections", "2"), ("ImmediateData", "No")];
    let mut peer = Peer::logged_in(parameters(), &keys);
    let write = peer.command(0x10, cdb_write(512), Direction::Write, 512);
    peer.send(&write, Vec::new());
    assert_eq!(r2ts(&peer.receive_bhs()).len(), 1);
    let Target::Session(session, lost) = &mut peer.target else { panic!("a session was begun") };
    session.handle_lost(peer.now, *lost);
    add_connection(&mut peer);
    assert_eq!(peer.target.task_count(), 1);
    peer.task_management(0x40, TaskManagementFunction::LogicalUnitReset, None);
    let id = function_begun(&mut peer);
    peer.target.handle_task_management(peer.now, id, TaskManagementOutcome::FunctionComplete);
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
}

/// Two connections, on the first of which a response was sent; on the second one a reset that was carried out.
fn fenced(level: &str) -> (Peer, LinkId, NopIn) {
    fenced_with(("ErrorRecoveryLevel", level))
}

fn fenced_with(key: (&str, &str)) -> (Peer, LinkId, NopIn) {
    let mut peer = Peer::logged_in(parameters(), &[("MaxConnections", "2"), key]);
    peer.read(0x10, 512);
    let started = peer.started();
    peer.complete(started.task, good(&pattern(512)));
    assert!(matches!(peer.receive_bhs().last(), Some(Bhs::DataIn(_) | Bhs::ScsiResponse(_))));
    let first = add_connection(&mut peer);
    peer.task_management(0x40, TaskManagementFunction::LogicalUnitReset, None);
    let id = function_begun(&mut peer);
    peer.target.handle_task_management(peer.now, id, TaskManagementOutcome::FunctionComplete);
    assert!(peer.receive().is_empty(), "the other connection has not acknowledged its response");
    let ping = switch(&mut peer, first, |peer| peer.receive_bhs());
    let [Bhs::NopIn(ping)] = ping[..] else { panic!("{ping:?}") };
    (peer, first, ping)
}

/// Goes to another connection for a moment.
fn switch<T>(peer: &mut Peer, to: LinkId, act: impl FnOnce(&mut Peer) -> T) -> T {
    let Target::Session(_, at) = &mut peer.target else { panic!("a session was begun") };
    let before = std::mem::replace(at, to);
    let result = act(peer);
    let Target::Session(_, at) = &mut peer.target else { panic!("a session was begun") };
    *at = before;
    result
}

fn answer(peer: &mut Peer, ping: &NopIn, exp_stat_sn: Serial32) {
    let answer = NopOut {
        is_immediate: true,
        lun: 0,
        initiator_task_tag: None,
        target_transfer_tag: ping.target_transfer_tag,
        cmd_sn: peer.cmd_sn,
        exp_stat_sn,
    };
    peer.send(&answer, Vec::new());
}

#[test]
fn a_function_is_answered_when_other_connections_have_acknowledged_their_responses() {
    let (mut peer, first, ping) = fenced("0");
    switch(&mut peer, first, |peer| answer(peer, &ping, ping.stat_sn));
    assert_eq!(outcome_of(&peer.receive_bhs()[0]), TaskManagementOutcome::FunctionComplete);
}

/// It answers pings. The function has its answer, or its session its end.
#[test]
fn a_connection_that_never_acknowledges_does_not_hold_a_function_up_for_ever() {
    for level in ["0", "1"] {
        let (mut peer, first, ping) = fenced(level);
        switch(&mut peer, first, |peer| answer(peer, &ping, Serial32(ping.stat_sn.0.wrapping_sub(1))));
        assert!(peer.receive().is_empty());
        assert_eq!(peer.target.poll_timeout().map(|at| at <= peer.now + FENCE_TIMEOUT), Some(true));
        peer.sleep(FENCE_TIMEOUT);
        let is_cut = |event: &Event| {
            matches!(event, Event::Closed(CloseReason::Unacknowledged))
                || matches!(event, Event::LinkClosed(_, CloseReason::Unacknowledged))
        };
        assert!(peer.events.iter().any(is_cut), "level {level}: {:?}", peer.events);
        if level == "1" {
            let sent = peer.receive_bhs();
            assert!(sent.iter().any(|bhs| matches!(bhs, Bhs::TaskManagementResponse(_))), "{sent:?}");
        }
    }
}

/// What it has not read yet it cannot acknowledge.
#[test]
fn a_connection_that_has_not_answered_its_ping_yet_is_waited_for() {
    let (mut peer, first, ping) = fenced("0");
    peer.sleep(FENCE_TIMEOUT / 2);
    switch(&mut peer, first, |peer| answer(peer, &ping, ping.stat_sn));
    let sent = peer.receive_bhs();
    assert!(sent.iter().any(|bhs| matches!(bhs, Bhs::TaskManagementResponse(_))), "{sent:?}");
}

/// A read of the unit is carried out behind the reset, before that is answered.
fn read_behind(peer: &mut Peer) {
    peer.read(0x12, 512);
    let started = peer.started();
    peer.complete(started.task, good(&pattern(512)));
}

/// RFC 7143 4.2.2.3.3 c and d.
#[test]
fn answers_behind_a_functions_response_wait_until_that_is_acknowledged() {
    let (mut peer, first, ping) = fenced_with(("TaskReporting", "ResponseFence"));
    read_behind(&mut peer);
    assert!(peer.receive().is_empty(), "the response of the function is still to come");
    assert!(peer.target.session().holds_answers() && peer.target.session().held_answer_bytes() >= 512);
    let mut other = peer.command(0x13, CDB_READ, Direction::Read, 512);
    other.lun = 0x0001_0000_0000_0000;
    peer.send(&other, Vec::new());
    let started = peer.started();
    peer.complete(started.task, good(&pattern(512)));
    assert!(matches!(peer.receive_bhs()[..], [Bhs::DataIn(_)]), "another unit has no fence");
    let unwanted = peer.command(0x14, cdb_write(512), Direction::Write, 256);
    peer.send(&unwanted, pattern(512));
    assert!(peer.receive().is_empty(), "a failure is an answer as well");
    switch(&mut peer, first, |peer| answer(peer, &ping, ping.stat_sn));
    let sent = peer.receive_bhs();
    let [Bhs::TaskManagementResponse(response), Bhs::NopIn(own)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(response.outcome, TaskManagementOutcome::FunctionComplete);
    answer(&mut peer, own, response.stat_sn.next());
    let sent = peer.receive_bhs();
    assert!(matches!(sent[..], [Bhs::DataIn(_), Bhs::ScsiResponse(_)]), "{sent:?}");
    assert!(!peer.target.session().holds_answers() && peer.target.session().held_answer_bytes() == 0);
    assert_eq!(peer.target.task_count(), 0);
}

#[test]
fn answers_wait_for_no_fence_where_none_was_agreed_on() {
    let (mut peer, ..) = fenced("0");
    read_behind(&mut peer);
    assert!(matches!(peer.receive_bhs()[..], [Bhs::DataIn(_)]));
}

/// It ends without one, and the second function is answered behind the first.
#[test]
fn an_answer_that_waits_for_a_fence_is_covered_by_the_next_function() {
    let (mut peer, first, ping) = fenced_with(("TaskReporting", "ResponseFence"));
    read_behind(&mut peer);
    peer.task_management(0x41, TaskManagementFunction::LogicalUnitReset, None);
    let id = function_begun(&mut peer);
    peer.target.handle_task_management(peer.now, id, TaskManagementOutcome::FunctionComplete);
    assert!(peer.receive().is_empty() && peer.target.task_count() == 0);
    switch(&mut peer, first, |peer| answer(peer, &ping, ping.stat_sn));
    for tag in [0x40, 0x41] {
        let sent = peer.receive_bhs();
        let [Bhs::TaskManagementResponse(response), Bhs::NopIn(own)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(response.initiator_task_tag, itt(tag));
        answer(&mut peer, own, response.stat_sn.next());
    }
    assert!(peer.receive().is_empty() && !peer.target.session().holds_answers());
}

/// As long as for the acknowledgements before it.
#[test]
fn a_functions_response_that_is_never_acknowledged_ends_its_connection() {
    let (mut peer, first, ping) = fenced_with(("TaskReporting", "ResponseFence"));
    read_behind(&mut peer);
    switch(&mut peer, first, |peer| answer(peer, &ping, ping.stat_sn));
    let sent = peer.receive_bhs();
    let [Bhs::TaskManagementResponse(response), Bhs::NopIn(own)] = &sent[..] else { panic!("{sent:?}") };
    answer(&mut peer, own, response.stat_sn);
    peer.sleep(FENCE_TIMEOUT);
    let is_end = |event: &Event| matches!(event, Event::Closed(CloseReason::Unacknowledged));
    assert!(peer.events.iter().any(is_end), "{:?}", peer.events);
}
